"""A run from its settings to its folder: model, certificate, ledger, metrics."""

import json
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from safetensors import SafetensorError

from tacit.errors import DataError, PrivacyRefused, TacitError, UsageError
from tacit.files import beside, whole_file
from tacit.planning.plan import Plan, calibrated, plan_yaml, read_plan
from tacit.privacy.arguments import require_small_delta
from tacit.privacy.certificates.certificate import (
    Certificate,
    Finding,
    commitment,
    issue,
    own_salt,
    publish,
    read_certificate,
)
from tacit.privacy.certificates.manifest import KEPT, make_manifest
from tacit.privacy.events import Unit
from tacit.privacy.ledger import Books, Ledger, read_ledger
from tacit.replication.published import PublishedPrice, selective_claim
from tacit.saved_json import spelled
from tacit.training.data.account import write_account
from tacit.training.data.fingerprint import code_digest, training_data_digest
from tacit.training.data.protected_entities import list_digest
from tacit.training.data.public_inputs import shown_name
from tacit.training.data.scope import scope_of
from tacit.training.data.training_data import (
    TrainingData,
    found_and_kept,
    prepare,
)
from tacit.training.dp.gradients import ClippedSums
from tacit.training.evaluation.model_card import model_card
from tacit.training.evaluation.scoring import scores
from tacit.training.methods import (
    AdversarialTraining,
    Method,
    Plain,
    SelectiveTraining,
    SequentialMethod,
    TripletTraining,
    make_dp_fedavg,
    make_dp_sgd,
    make_uedp,
)
from tacit.training.methods.uedp import claim_of, event_of
from tacit.training.methods.unit_checks import require_independent_units
from tacit.training.models import weights
from tacit.training.models.last_states import LastStates
from tacit.training.models.optimizers import make_optimizer
from tacit.training.phases.budget_line import BudgetLine
from tacit.training.phases.checkpoints import kept_folder, kept_steps, read_place
from tacit.training.phases.continuing import (
    Continued,
    continued,
    require_same_corpus,
    require_same_protection,
)
from tacit.training.phases.loop import Loop, OnProgress, Progress, Timed
from tacit.training.phases.public_start import NAME as PUBLIC_START
from tacit.training.phases.public_start import start_on_public_text
from tacit.training.phases.ranks import ranks_of_environment
from tacit.training.phases.redacted_start import start_on_redacted_text
from tacit.training.phases.run_context import RunContext, encode, open_run
from tacit.training.phases.worker_ranks import alike, require_shared, share
from tacit.training.settings import (
    PLANNED,
    LocalSettings,
    Run,
    TripletSettings,
    UedpSettings,
    read_run,
    run_yaml,
)
from tacit.training.tasks.measuring import check_fit

MADE_HERE = "made by a run whose ledger.jsonl belongs to these weights"


@dataclass(frozen=True)
class Trained:
    """What a run left in its folder; `stopped` says why it ended before its last step."""

    folder: Path
    certificate: Certificate
    metrics: dict[str, Any]
    stopped: str | None


def train(run: Run, folder: Path, *, on_progress: OnProgress | None = None) -> Trained:
    """Train from the start into a new folder."""
    folder = Path(folder)
    # A draft of its first file is what a process that was killed at once leaves behind.
    if folder.exists() and any(not p.name.startswith(".run.yml.") for p in folder.iterdir()):
        raise UsageError(f"{folder} is not empty; give a new folder, or --resume {folder}.")
    earlier = continued(run)
    plan = _calibrated(run, earlier)
    ctx = open_run(run)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _write(folder / "run.yml", run_yaml(run))
        return _carry_out(ctx, folder, _begun(run, plan, folder), earlier, on_progress)
    except TacitError:
        _clear_unless_begun(folder)
        raise


def _calibrated(run: Run, earlier: Continued | None) -> Plan | None:
    """The plan with noise that meets its targets, together with what was released before."""
    plan = run.made_plan()
    if plan is None:
        return None
    also = earlier.releases if earlier is not None else None
    return _without_names(calibrated(plan, also=also), run)


def _begun(run: Run, plan: Plan | None, folder: Path) -> Plan | None:
    """Write what a run keeps beside its settings; the plan."""
    _copy_canaries(Path(run.corpus), folder)
    if plan is not None:
        _write(folder / "plan.yml", plan_yaml(plan))
    return plan


def _copy_canaries(corpus: Path, folder: Path) -> None:
    """Keep the plan of planted canaries with the run: the one beside the corpus may be replaced."""
    source = beside(corpus, "canaries")
    if source.is_file():
        with whole_file(folder / "canaries.json") as draft:
            shutil.copyfile(source, draft)


def _clear_unless_begun(folder: Path) -> None:
    """Take away a folder of ours in which nothing was released and nothing learnt."""
    ledger, place = folder / "ledger.jsonl", read_place(folder)
    if place is None and not (ledger.exists() and read_ledger(ledger).entries):
        shutil.rmtree(folder)


def resume(folder: Path, *, on_progress: OnProgress | None = None) -> Trained:
    """Go on with a run; refused if its plan, corpus, settings or our code changed."""
    folder = Path(folder)
    if not (folder / "run.yml").exists():
        raise DataError(f"{folder} holds no run; give the folder that `tacit train -o` made.")
    run = read_run(folder / "run.yml")
    earlier = continued(run)
    if not (folder / "ledger.jsonl").exists() and read_place(folder) is None:
        # It was stopped before anything was released.
        plan = _begun(run, _calibrated(run, earlier), folder)
        return _carry_out(open_run(run), folder, plan, earlier, on_progress)
    plan = read_plan(folder / "plan.yml") if run.method in PLANNED else None
    if plan is not None and plan.entity_list != _without_names(plan, run).entity_list:
        raise PrivacyRefused(
            f"{run.entity_list} is not the list that {folder} was begun with; give that list "
            "back, or a new folder."
        )
    return _carry_out(open_run(run), folder, plan, earlier, on_progress)


def _without_names(plan: Plan, run: Run) -> Plan:
    """The plan with a commitment to its list of entities instead of the list's place."""
    if run.entity_list is None:
        return plan
    return plan.model_copy(update={"entity_list": _committed_list(run)})


def _committed_list(run: Run) -> str:
    return commitment(list_digest(Path(str(run.entity_list))), own_salt())


def _carry_out(
    ctx: RunContext,
    folder: Path,
    plan: Plan | None,
    earlier: Continued | None,
    on_progress: OnProgress | None,
) -> Trained:
    run, model = ctx.run, ctx.model
    ranks = ranks_of_environment()
    if ranks is not None:
        require_shared(run)
    salt = own_salt()
    data = commitment(ctx.corpus.digest(), salt)
    about = about_run(ctx, plan, earlier, data, salt)
    if ctx.attribute is not None:
        about["attribute"] = commitment(ctx.attribute.digest(), salt)
    examples = encode(ctx, ctx.part)
    check_fit(model, examples)
    training_data = prepare(examples, ctx.part, ctx.mentions, plan, ctx.protected)
    about["material"] = commitment(training_data_digest(examples, training_data, model), salt)
    if ranks is not None:
        ranks.require_alike(alike(ctx, training_data, plan))
    _need_learnable(ctx, training_data, plan)
    _need_small_delta(plan, training_data)
    before = weights.snapshot(model)
    allows = plan.budget.allows if plan else None
    with Ledger(folder / "ledger.jsonl", about, allows=allows) as ledger:
        if earlier is not None:
            ledger.carry(earlier.books)
        start_on_public_text(ctx, folder, ledger, on_progress)

        def keep(step: int) -> None:
            _save(ctx, kept_folder(folder, step), folder)

        kept = kept_steps(run.masked_steps + run.total_steps, run.keep_checkpoints)
        took = {}
        if run.masked_steps and plan is not None:
            took["redacted"] = start_on_redacted_text(
                ctx, plan, folder, ledger, on_progress, keep, kept
            )
        method = method_of(ctx, training_data, ledger, plan)
        if ranks is not None:
            share(method, ctx, ranks)
        spent = _spent(ctx, training_data, plan)
        loop = Loop(
            model,
            method,
            make_optimizer(model, run.optimizer),
            run.optimizer,
            run.total_steps,
            ctx.randomness,
            folder=folder,
            ledger=ledger,
            checkpoint_every=run.checkpoint_every,
            keep=keep,
            kept=kept,
            before=run.masked_steps,
        )
        loop.resume()

        def told(at: Progress) -> None:
            if on_progress:
                on_progress(replace(at, spent=spent.line(ledger.releases) if spent else ""))

        stopped = loop.run(told)
        if ranks is not None:
            ranks.end()
        loop.finish()
        took["train"] = loop.timed
    notes = dict(examples.notes)
    if left_out := sum(one.not_finite for one in took.values()):
        notes["left_out_not_finite"] = left_out
    write_account(folder, ctx.part, salt)
    return finish(ctx, folder, plan, training_data, before, stopped, took, data=data, notes=notes)


def about_run(
    ctx: RunContext,
    plan: Plan | None,
    earlier: Continued | None,
    data: str,
    salt: bytes,
    *code: str,
) -> dict[str, Any]:
    """The ledger's first line: what is to be released, about whom, from what, by which code.

    Refuses to continue a run that protected others, or otherwise.
    """
    scope = scope_of(ctx, plan, salt)
    require_same_protection(earlier, scope, plan)
    if ctx.protected is not None and ctx.protected.by_id:
        require_same_corpus(earlier, data)
    about: dict[str, Any] = {
        "plan": plan.digest() if plan else None,
        "config": ctx.run.digest(),
        "data": data,
        "randomness": ctx.randomness.name,
        "code": code_digest(*code),
        "scope": scope.model_dump(mode="json"),
        "public": [one.model_dump(mode="json") for one in ctx.public],
    }
    if ctx.leaks:
        about["leaks"] = ctx.leaks
    if earlier is not None:
        about["earlier"] = earlier.inherited().model_dump(mode="json")
    return about


def _need_small_delta(plan: Plan | None, training_data: TrainingData) -> None:
    """Judge delta by the number of units that the denominator uses, where nobody declared one."""
    if plan is None or plan.users is not None or plan.records is not None:
        return
    if plan.user_rate is not None:
        require_small_delta(plan.delta, training_data.users, "users")
    else:
        require_small_delta(plan.delta, len(training_data.rows), "records")


def _need_learnable(ctx: RunContext, training_data: TrainingData, plan: Plan | None) -> None:
    """Refuse, before anything is trained or charged, what this method could not train."""
    model, few = ctx.model, training_data.rows[:2]
    if (plan is not None or ctx.run.method == "uedp") and ctx.run.method != "fedavg":
        ClippedSums(model)
    weights.check_trainable(
        model,
        (lambda: ctx.task.losses(model, training_data.examples.batch(few))) if len(few) else None,
    )
    require_independent_units(ctx.run, model, ctx.task.losses, training_data, plan)


def _spent(ctx: RunContext, training_data: TrainingData, plan: Plan | None) -> BudgetLine | None:
    """What the live line says about epsilon; nothing where nothing is promised."""
    if plan is not None:
        return BudgetLine.of(plan)
    if ctx.run.method != "uedp":
        return None
    settings = ctx.run.uedp or UedpSettings()
    return BudgetLine(
        event_of(training_data, settings),
        "users+entities",
        settings.delta,
        ctx.run.total_steps,
        claim=lambda steps: claim_of(training_data, settings, steps).epsilon["users+entities"],
    )


def method_of(
    ctx: RunContext, training_data: TrainingData, ledger: Ledger, plan: Plan | None
) -> Method | SequentialMethod:
    """What a run does in a step."""
    run, losses = ctx.run, ctx.task.losses
    made_of = (ctx.model, losses, training_data, ctx.randomness, ledger)
    if run.method == "uedp":
        settings = run.uedp or UedpSettings()
        return make_uedp(*made_of, settings, token_budget=run.token_budget)
    if plan is None:
        what = f"training without protection (method {run.method})"
        if ctx.attribute is None:
            return Plain(*made_of, batch=run.batch, what=what)
        states = LastStates(ctx.model, next_words=run.task == "next-word")
        told = (*made_of, ctx.attribute, states)
        if run.adversarial is not None:
            return AdversarialTraining(*told, run.adversarial, batch=run.batch, what=what)
        return TripletTraining(*told, run.triplet or TripletSettings(), batch=run.batch, what=what)
    if run.method == "selective":
        return SelectiveTraining(
            ctx.model,
            training_data,
            ctx.randomness,
            ledger,
            plan,
            token_budget=run.token_budget,
            **(run.selective.model_dump() if run.selective else {}),
        )
    if run.method == "fedavg":
        return make_dp_fedavg(*made_of, plan, run.fedavg or LocalSettings())
    return make_dp_sgd(*made_of, plan, token_budget=run.token_budget)


def finish(
    ctx: RunContext,
    folder: Path,
    plan: Plan | None,
    training_data: TrainingData,
    before: Mapping[str, str],
    stopped: str | None,
    took: Mapping[str, Timed],
    *,
    data: str,
    notes: Mapping[str, Any],
    facts: Mapping[str, Any] | None = None,
) -> Trained:
    """Write the model, its scores and its certificate, from what the ledger holds.

    `data` is the commitment to what was learnt from; `notes` go into the metrics, and `facts` into
    the certificate's context.
    """
    moved = weights.moved(before, ctx.model)
    saved = _save(ctx, folder, folder)
    metrics: dict[str, Any] = {"note": "exact figures over private text: keep them inside"}
    if "valid" in ctx.corpus.splits():
        metrics["valid"] = scores(ctx, "valid")
    metrics["training"] = {"records": len(training_data.rows), **notes}
    metrics |= found_and_kept(training_data, ctx.part, ctx.mentions)
    metrics["time"] = _times(took)
    metrics["parameters"] = {"moved": len(moved.moved), "unmoved": len(moved.still)}
    learns = {name for name, p in ctx.model.named_parameters() if p.requires_grad}
    if stuck := [name for name in moved.still if name in learns]:
        metrics["parameters"]["trainable and unmoved"] = stuck
    _write(folder / "metrics.json", json.dumps(spelled(metrics), indent=2, allow_nan=False) + "\n")
    books = read_ledger(folder / "ledger.jsonl")
    claim = _claim(ctx, training_data, books, plan)
    both: tuple[Unit, ...] = ("users", "entities", "users+entities")
    units: tuple[Unit, ...] = plan.units if plan else both if claim else ("users",)
    certificate = issue(
        books,
        protect=plan.protect if plan else units[-1],
        units=units,
        delta=plan.delta if plan else claim.delta if claim else 1e-5,
        plan=plan.model_dump(mode="json") if plan else {},
        plan_digest=plan.digest() if plan else "",
        config_digest=ctx.run.digest(),
        data=data,
        randomness=ctx.randomness.name,
        by_degree=plan.by_degree if plan else None,
        published=claim,
        context=_context(ctx, training_data) | dict(facts or {}),
    )
    _write(folder / "README.md", model_card(ctx.run, certificate))
    _write(folder / "settings.yml", yaml.safe_dump(ctx.run.shareable(), sort_keys=False))
    files = make_manifest(folder)
    _need_own(files, ctx, saved)
    own = {"files": files, "findings": _found_before(folder, len(books.entries))}
    certificate = publish(certificate.model_copy(update=own), folder)
    return Trained(folder, certificate, metrics, stopped)


def _need_own(files: Mapping[str, str], ctx: RunContext, saved: Collection[str]) -> None:
    """Refuse to certify a file that this run did not write, such as one put there meanwhile."""
    run = ctx.run
    top = {*saved, "README.md", "settings.yml", "plan.yml"}
    if run.pretrain is not None:
        top.add(PUBLIC_START)
    kept = kept_steps(run.masked_steps + run.total_steps, run.keep_checkpoints)
    places = {f"{KEPT}/{kept_folder(Path(), step).name}" for step in kept}
    for name in files:
        folder, _, own = name.rpartition("/")
        if own not in (top if not folder else saved if folder in places else ()):
            raise DataError(f"{name} was not written by this run; take it away, then --resume.")


def _found_before(folder: Path, entries: int) -> tuple[Finding, ...]:
    """What audits and attacks found already, where a finished run is opened again."""
    path = folder / "certificate.json"
    if not path.exists():
        return ()
    before = read_certificate(path)
    return before.findings if before.ledger_entries == entries else ()


def _times(took: Mapping[str, Timed]) -> dict[str, Any]:
    """Processor time of the steps, phase by phase, and how many records passed the model."""
    made: dict[str, Any] = {}
    for phase, one in took.items():
        if one.steps:
            made[phase] = {"steps": one.steps, "cpu_seconds": round(one.seconds, 3)}
            if one.records:
                made[phase]["records"] = one.records
    return made


def _save(ctx: RunContext, place: Path, folder: Path) -> tuple[str, ...]:
    """Write the model; the names of its files."""
    try:
        return weights.save_model(ctx.model, ctx.tokenizer, place, mark=MADE_HERE)
    except (SafetensorError, OSError):
        raise DataError(
            f"The model could not be written to {place}; is the disk full? The checkpoint and "
            f"the ledger of the run are whole: make room, then --resume {folder}."
        ) from None


def _claim(
    ctx: RunContext, training_data: TrainingData, books: Books, plan: Plan | None
) -> PublishedPrice | None:
    """What a paper claims for what was carried out, where the method is a paper's."""
    if ctx.run.method == "selective" and plan is not None:
        return selective_claim(books.releases(), plan.delta)
    if ctx.run.method != "uedp":
        return None
    settings = ctx.run.uedp or UedpSettings()
    return claim_of(
        training_data, settings, books.releases().get(event_of(training_data, settings), 0)
    )


def _context(ctx: RunContext, training_data: TrainingData) -> dict[str, Any]:
    run = ctx.run
    facts: dict[str, Any] = {
        "method": run.method,
        "model": f"{run.model.kind} for {run.task}",
    }
    if training_data.owners is not None:
        caps = (
            "the caps of the plan were enforced on it"
            if training_data.bounded
            else "nothing was capped"
        )
        facts["owner graph"] = f"held fixed; {caps}"
    if run.method == "redact-then-private":
        facts["phases"] = (
            "redacted: without noise on text whose sensitive tokens are masked, which says nothing "
            "about them and protects nothing else; train: on the whole text, records clipped, "
            "summed and noised, which protects the sensitive tokens"
        )
    if run.selective is not None and run.selective.state_clip is not None:
        facts["norm of states"] = run.selective.state_clip
    if run.uedp is not None:
        facts["settings of the paper"] = run.uedp.model_dump(mode="json", exclude={"entity_list"})
    if run.regularizer is not None:
        facts["regularizer"] = (
            "makes an attribute harder to tell from the last hidden state, and promises nothing: "
            "what leaks is measured by `tacit attack`, which puts its figures here"
        )
        facts["settings of the regularizer"] = run.regularizer.model_dump(mode="json")
    if run.pretrain:
        facts["public start"] = f"{run.pretrain.steps} steps on {shown_name(run.pretrain.corpus)}"
    return facts


def _write(path: Path, text: str) -> None:
    try:
        with whole_file(path) as draft:
            draft.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise DataError(
            f"{path} could not be written ({problem.strerror}); is the disk full? Make room, then "
            "begin or --resume."
        ) from None
