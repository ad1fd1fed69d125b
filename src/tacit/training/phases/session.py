"""A run from its settings to its folder: model, certificate, ledger, metrics.

`Session` carries a run, wherever its sums are computed: in this process, in several that torchrun
started, or with the clients of a federation.
"""

import json
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from safetensors import SafetensorError
from torch import Tensor, nn

from tacit.errors import DataError, PrivacyRefused, TacitError, UsageError
from tacit.files import beside, whole_file, write_text
from tacit.planning.plan import Plan, calibrated, plan_yaml, read_plan
from tacit.privacy.certificates.certificate import (
    Certificate,
    certify,
    commitment,
    own_salt,
    publish,
)
from tacit.privacy.certificates.manifest import KEPT, make_manifest
from tacit.privacy.ledger import Ledger, read_ledger
from tacit.saved_json import spelled
from tacit.training.data.account import write_account
from tacit.training.data.fingerprint import code_digest, training_data_digest
from tacit.training.data.protected_entities import list_digest
from tacit.training.data.public_inputs import shown_names
from tacit.training.data.scope import scope_of
from tacit.training.data.training_data import (
    TrainingData,
    found_and_kept,
    records_learnt_from,
)
from tacit.training.evaluation.model_card import model_card
from tacit.training.evaluation.scoring import scores
from tacit.training.methods.method import Method, MethodInputs, SequentialMethod
from tacit.training.methods.noisy_sums import LossMeter, NoisySums
from tacit.training.models import weights
from tacit.training.models.optimizers import make_optimizer
from tacit.training.phases.budget_line import BudgetLine
from tacit.training.phases.checkpoints import kept_folder, kept_steps, load_weights, read_place
from tacit.training.phases.continuing import (
    Continued,
    continued,
    require_same_corpus,
    require_same_protection,
)
from tacit.training.phases.divergence import Watch
from tacit.training.phases.local_inputs import (
    alike,
    inputs_of,
    require_independent_units,
    require_small_delta_of,
    shared_method,
)
from tacit.training.phases.loop import Loop, OnProgress, Progress, Timed
from tacit.training.phases.promising import allowed, found_before, plugins_in, promise_of
from tacit.training.phases.public_start import NAME as PUBLIC_START
from tacit.training.phases.public_start import start_on_public_text
from tacit.training.phases.ranks import Ranks, ranks_of_environment
from tacit.training.phases.redacted_start import NAME as REDACTED_START
from tacit.training.phases.redacted_start import start_on_redacted_text
from tacit.training.phases.run_context import RunContext, open_run
from tacit.training.phases.selecting import AVERAGE, LAST, START, UNASKED, choose
from tacit.training.settings import Run, read_run, run_yaml

MADE_HERE = "made by a run whose ledger.jsonl belongs to these weights"


OnModel = Callable[[nn.Module], None]


@dataclass(frozen=True)
class Trained:
    """What a run left in its folder; `stopped` says why it ended before its last step.

    `told` are sentences made of releases alone, which cost nothing.
    """

    folder: Path
    certificate: Certificate
    metrics: dict[str, Any]
    stopped: str | None
    told: tuple[str, ...] = ()


# --- begin, or go on ----------------------------------------------------------------------------


def train(
    run: Run,
    folder: Path,
    *,
    on_progress: OnProgress | None = None,
    on_model: OnModel | None = None,
) -> Trained:
    """Train from the start into a new folder; `on_model` is shown the model before."""
    folder = Path(folder)
    # A draft of its first file is what a process that was killed at once leaves behind.
    if folder.exists() and any(not p.name.startswith(".run.yml.") for p in folder.iterdir()):
        raise UsageError(f"{folder} is not empty; give a new folder, or --resume {folder}.")
    earlier = continued(run)
    plan = _calibrated(run, earlier)
    ctx = open_run(run)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        write_text(folder / "run.yml", run_yaml(run))
        _begin(run, plan, folder)
        if on_model is not None:
            on_model(ctx.model)
        return _carry_out(ctx, folder, plan, earlier, on_progress)
    except TacitError:
        _clear_unless_begun(folder)
        raise


def resume(folder: Path, *, on_progress: OnProgress | None = None) -> Trained:
    """Go on with a run; refused if its plan, corpus, settings or our code changed."""
    folder = Path(folder)
    if not (folder / "run.yml").exists():
        raise DataError(f"{folder} holds no run; give the folder that `tacit train -o` made.")
    run = read_run(folder / "run.yml")
    earlier = continued(run)
    if not (folder / "ledger.jsonl").exists() and read_place(folder) is None:
        # It was stopped before anything was released.
        plan = _calibrated(run, earlier)
        _begin(run, plan, folder)
    else:
        plan = saved_plan(run, folder)
        if plan is not None and plan.entity_list != _without_names(plan, run).entity_list:
            raise PrivacyRefused(
                f"{run.entity_list} is not the list that {folder} was begun with; give that list "
                "back, or a new folder."
            )
    return _carry_out(open_run(run), folder, plan, earlier, on_progress)


def saved_plan(run: Run, folder: Path) -> Plan | None:
    """The plan that a run was begun with, where its method keeps one."""
    return read_plan(folder / "plan.yml") if run.spec.planned else None


def _calibrated(run: Run, earlier: Continued | None) -> Plan | None:
    """The plan with noise that meets its targets, together with what was released before."""
    plan = run.made_plan()
    if plan is None:
        return None
    return _without_names(calibrated(plan, also=earlier.releases if earlier else None), run)


def _without_names(plan: Plan, run: Run) -> Plan:
    """The plan with a commitment to its list of entities instead of the list's place."""
    if run.entity_list is None:
        return plan
    committed = commitment(list_digest(Path(run.entity_list)), own_salt())
    return plan.model_copy(update={"entity_list": committed})


def _begin(run: Run, plan: Plan | None, folder: Path) -> None:
    """Write what a run keeps beside its settings: planted canaries, the plan."""
    source = beside(Path(run.corpus), "canaries")
    if source.is_file():  # the one beside the corpus may be replaced
        with whole_file(folder / "canaries.json") as draft:
            shutil.copyfile(source, draft)
    if plan is not None:
        write_text(folder / "plan.yml", plan_yaml(plan))


def _clear_unless_begun(folder: Path) -> None:
    """Take away a folder of ours in which nothing was released and nothing learnt."""
    ledger, place = folder / "ledger.jsonl", read_place(folder)
    if place is None and not (ledger.exists() and read_ledger(ledger).entries):
        shutil.rmtree(folder)


# --- where sums are computed here ---------------------------------------------------------------


def _carry_out(
    ctx: RunContext,
    folder: Path,
    plan: Plan | None,
    earlier: Continued | None,
    on_progress: OnProgress | None,
) -> Trained:
    """A run whose records lie here: in this process, or led by it."""
    ranks = ranks_of_environment()
    if ranks is not None:
        shared_method(ctx.run)
    salt = own_salt()
    session = Session(
        ctx, folder, plan, earlier, data=commitment(ctx.corpus.digest(), salt),
        on_progress=on_progress,
    )  # fmt: skip
    inputs, session.notes = inputs_of(ctx, plan, on_progress)
    session.training_data = inputs.training_data
    session.about["training data"] = commitment(
        training_data_digest(inputs.training_data, ctx.model), salt
    )
    if ctx.attribute is not None:
        session.about["attribute"] = commitment(ctx.attribute.digest(), salt)
    if ranks is not None:
        ranks.require_alike(alike(ctx, inputs))
    require_independent_units(inputs)
    require_small_delta_of(plan, inputs.training_data)

    def step(ledger: Ledger) -> Method | SequentialMethod:
        made = ctx.run.spec.step(replace(inputs, ledger=ledger))
        if ranks is not None:
            assert isinstance(made, NoisySums)
            made.spread(lambda totals: ranks.lead(totals, ctx.model, made.depends_on))
        return made

    return session.run(step, last=ranks.end if ranks is not None else None)


def follow(run: Run, ranks: Ranks, folder: Path | None = None) -> None:
    """Help rank 0 with a run until its last step; `folder` is where one that goes on lies."""
    method = shared_method(run)
    ctx = open_run(run)
    plan = run.made_plan() if folder is None else saved_plan(run, folder)
    inputs, _ = inputs_of(ctx, plan)
    ranks.require_alike(alike(ctx, inputs))
    require_independent_units(inputs)
    meter = LossMeter(ctx.model, inputs.losses)
    room, totals = method.following(inputs, meter)
    ranks.follow(totals, ctx.model, pieces=method.draw_arrays, room=room)


# --- the session --------------------------------------------------------------------------------


@dataclass
class Session:
    """A run under way: ledger, starts, loop, checkpoints, finish.

    `data` is the commitment to what is learnt from; `about` goes into the ledger's first line
    beside what every run says there, `notes` into the metrics, `facts` into the certificate's
    context, `code` names further rooms whose code decides the result.
    """

    ctx: RunContext
    folder: Path
    plan: Plan | None
    earlier: Continued | None
    data: str
    training_data: TrainingData | None = None
    on_progress: OnProgress | None = None
    about: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    code: tuple[str, ...] = ()
    account: Callable[[Path], None] | None = None
    """Writes whose text was read, where that is not the training part of the corpus."""
    told: list[str] = field(default_factory=list)
    """Sentences that are made of releases alone."""
    diverged: str = ""
    """Why training was stopped, where it diverged; made of releases alone, too."""

    def run(
        self,
        step: Callable[[Ledger], Method | SequentialMethod],
        *,
        last: Callable[[], None] | None = None,
    ) -> Trained:
        """Carry the run out, or go on with it; `last` is done after the last step."""
        ctx, run, folder = self.ctx, self.ctx.run, self.folder
        before = weights.snapshot(ctx.model)
        kept = kept_steps(run.masked_steps + run.total_steps, run.keep_checkpoints)
        took: dict[str, Timed] = {}
        allows = allowed(self.plan) if self.plan else None
        with Ledger(folder / "ledger.jsonl", self._first_line(), allows=allows) as ledger:
            if self.earlier is not None:
                ledger.carry(self.earlier.books)
            start_on_public_text(ctx, folder, ledger, self.on_progress)
            if run.spec.masked_phase and self.plan is not None:
                took["redacted"] = start_on_redacted_text(
                    ctx, self.plan, folder, ledger, self.on_progress, self._keep, kept
                )
            start = self._start()
            loop = self._loop(step(ledger), ledger, start, kept)
            loop.resume()
            stopped = loop.run(self._told(ledger))
            if last is not None:
                last()
            self._choose(loop, ledger, start)
            loop.finish(start)
            run.spec.finish(self.inputs(), ctx.tokenizer)
            took["train"] = loop.timed
        left_out = sum(one.not_finite for one in took.values())
        if left_out and not ctx.elsewhere:
            self.notes["left_out_not_finite"] = left_out
        if self.account is not None:
            self.account(folder)
        else:
            # by the texts as they were written, as other runs name them
            write_account(folder, records_learnt_from(run, ctx.corpus), own_salt())
        return self._finish(before, stopped, took)

    def _loop(
        self,
        step: Method | SequentialMethod,
        ledger: Ledger,
        start: dict[str, Tensor],
        kept: frozenset[int],
    ) -> Loop:
        """The loop of the method's own phase."""
        ctx, run = self.ctx, self.ctx.run
        return Loop(
            ctx.model, step, make_optimizer(ctx.model, run.optimizer), run.optimizer,
            run.total_steps, ctx.randomness, folder=self.folder, ledger=ledger,
            checkpoint_every=run.checkpoint_every, keep=self._keep, kept=kept,
            before=run.masked_steps, watch=Watch(start),
        )  # fmt: skip

    def _start(self) -> dict[str, Tensor]:
        """The weights before the private phase, also where a run goes on."""
        for name in (PUBLIC_START, REDACTED_START):
            if (self.folder / name).exists():
                load_weights(self.ctx.model, self.folder / name)
        return {n: t.detach().clone() for n, t in weights.trainable(self.ctx.model).items()}

    def _choose(self, loop: Loop, ledger: Ledger, start: Mapping[str, Tensor]) -> None:
        """Decide which weights are kept, once: by a charged comparison, or since it diverged."""
        best = self.plan is not None and self.plan.select == "best"
        if not loop.chosen and loop.diverged:
            loop.chosen = START
        elif not loop.chosen and best:
            model, task = self.ctx.model, self.ctx.task
            last = {n: t.detach().clone() for n, t in weights.trainable(model).items()}
            others = {LAST: last} | ({AVERAGE: loop.average} if loop.averaged else {})
            loop.chosen = choose(self.inputs(ledger), task, start, others)
        if loop.diverged:
            self.diverged = loop.diverged
        if not loop.chosen:
            self._tell(loop.watch)
            return
        loop.save()  # before anything is made of it: nobody asks twice
        kept = _KEPT[loop.chosen]
        if loop.diverged:
            self.facts["stopped"] = f"after {loop.done} of {loop.steps} steps, which diverged"
            self.facts["kept"] = f"{kept}, since training diverged"
        elif loop.chosen == UNASKED:
            self.facts["kept"] = (
                f"{kept}: the budget had no room for a comparison, as after a crash in one"
            )
        else:
            self.facts["kept"] = f"{kept}, by a comparison with noise, which the ledger holds"
            if loop.chosen == START:
                self.facts["kept"] += ": training made them no better"
        self.told.append(f"Kept: {self.facts['kept']}.")
        if loop.chosen not in (LAST, AVERAGE):  # else something was learnt, as the answer shows
            self._tell(loop.watch)

    def _tell(self, watch: Watch | None) -> None:
        """What releases say by themselves."""
        said = watch.told if watch is not None else None
        if said is not None:
            self.told.append(said)
            self.facts["releases"] = "cannot be told from noise alone"

    def inputs(self, ledger: Ledger | None = None) -> MethodInputs:
        """What the method works on."""
        ctx = self.ctx
        assert self.training_data is not None
        return MethodInputs(
            ctx.run,
            ctx.model,
            ctx.run.spec.losses(ctx.task),
            self.training_data,
            ctx.randomness,
            self.plan,
            ledger,
            ctx.attribute,
        )

    def _first_line(self) -> dict[str, Any]:
        """What is to be released, about whom, from what, by which code.

        Refuses to continue a run that protected others, or otherwise.
        """
        ctx = self.ctx
        scope = scope_of(ctx, self.plan, own_salt())
        require_same_protection(self.earlier, scope, self.plan)
        if ctx.protected is not None and ctx.protected.by_id:
            require_same_corpus(self.earlier, self.data)
        about: dict[str, Any] = {
            "plan": self.plan.digest() if self.plan else None,
            "config": ctx.run.digest(),
            "data": self.data,
            "randomness": ctx.randomness.name,
            "code": code_digest(*self.code),
            "scope": scope.model_dump(mode="json"),
            "public": [one.model_dump(mode="json") for one in ctx.public],
        }
        if ctx.leaks:
            about["leaks"] = ctx.leaks
        if foreign := [one.model_dump(mode="json") for one in plugins_in(ctx.run)]:
            about["plugins"] = foreign
        if self.earlier is not None:
            about["earlier"] = self.earlier.inherited().model_dump(mode="json")
        return about | self.about

    def _told(self, ledger: Ledger) -> OnProgress | None:
        """Progress with the budget spent so far, priced from the ledger."""
        told, line, uniform = self.on_progress, self._budget_line(), self._uniform_loss()
        if told is None:
            return None
        began: list[float] = []

        def tell(at: Progress) -> None:
            spent = line.line(ledger.releases) if line else ""
            epsilon = line.epsilon(ledger.releases) if line and self.plan else None
            first = began[0] if began else None
            told(replace(at, spent=spent, epsilon=epsilon, uniform=uniform, began=first))
            if at.step == 1:
                began.append(at.stats.loss)

        return tell

    def _uniform_loss(self) -> float | None:
        """The loss of who guesses uniformly among tokens or labels; None for a number."""
        if self.ctx.run.task == "regression":
            return None
        return math.log(len(getattr(self.ctx.task, "labels", self.ctx.tokenizer)))

    def _budget_line(self) -> BudgetLine | None:
        """What the live line says about epsilon; nothing where nothing is promised."""
        if self.plan is not None:
            return BudgetLine.of(self.plan)
        inputs = self.inputs()
        spec, event = inputs.run.spec, inputs.run.spec.event(inputs)
        claim = spec.claim(inputs, {event: 1}) if event is not None else None
        if event is None or claim is None:
            return None

        def claimed(steps: int) -> float:
            price = spec.claim(inputs, {event: steps})
            assert price is not None
            return float(price.epsilon["users+entities"])

        return BudgetLine(
            event, "users+entities", claim.delta, inputs.run.total_steps, claim=claimed
        )

    def _keep(self, step: int) -> None:
        self._save(kept_folder(self.folder, step))

    def _save(self, place: Path) -> tuple[str, ...]:
        """Write the model; the names of its files."""
        try:
            return weights.save_model(self.ctx.model, self.ctx.tokenizer, place, mark=MADE_HERE)
        except (SafetensorError, OSError):
            raise DataError(
                f"The model could not be written to {place}; is the disk full? The checkpoint and "
                f"the ledger of the run are whole: make room, then --resume {self.folder}."
            ) from None

    def _finish(
        self, before: Mapping[str, str], stopped: str | None, took: Mapping[str, Timed]
    ) -> Trained:
        """Write the model, its scores and its certificate, from what the ledger holds."""
        run, plan, folder = self.ctx.run, self.plan, self.folder
        metrics = self._metrics(before, took)
        saved = self._save(folder)
        write_text(
            folder / "metrics.json",
            json.dumps(spelled(metrics), indent=2, allow_nan=False) + "\n",
        )
        books = read_ledger(folder / "ledger.jsonl")
        claim = run.spec.claim(self.inputs(), books.releases())
        promise = promise_of(plan, claim)
        certificate = certify(books, promise, published=claim, context=self._context())
        write_text(folder / "README.md", model_card(run, certificate))
        write_text(folder / "settings.yml", yaml.safe_dump(run.shareable(), sort_keys=False))
        files = make_manifest(folder)
        self._require_own(files, saved)
        own = {"files": files, "findings": found_before(folder, len(books.entries))}
        certificate = publish(certificate.model_copy(update=own), folder)
        return Trained(folder, certificate, metrics, stopped, tuple(self.told))

    def _metrics(self, before: Mapping[str, str], took: Mapping[str, Timed]) -> dict[str, Any]:
        """Exact figures over private text."""
        ctx, training_data = self.ctx, self.training_data
        assert training_data is not None
        moved = weights.moved(before, ctx.model)
        metrics: dict[str, Any] = {"note": "exact figures over private text: keep them inside"}
        if "valid" in ctx.corpus.splits():
            metrics["valid"] = scores(ctx, "valid", beside=self.folder)
        metrics["training"] = {"records": len(training_data.rows), **self.notes}
        metrics |= found_and_kept(training_data, ctx.part, ctx.mentions)
        if self.told:
            metrics["told"] = self.told
        if self.diverged:
            metrics["diverged"] = self.diverged
        metrics["time"] = {phase: timed.summary() for phase, timed in took.items() if timed.steps}
        metrics["parameters"] = {"moved": len(moved.moved), "unmoved": len(moved.still)}
        learns = {name for name, p in ctx.model.named_parameters() if p.requires_grad}
        if stuck := [name for name in moved.still if name in learns]:
            metrics["parameters"]["trainable and unmoved"] = stuck
        return metrics

    def _context(self) -> dict[str, Any]:
        run, training_data = self.ctx.run, self.training_data
        facts: dict[str, Any] = {
            "method": run.method,
            "model": f"{run.model.kind} for {run.task}",
        }
        if training_data is not None and training_data.owners is not None:
            capped = training_data.bounded is not None
            caps = "the caps of the plan were enforced on it" if capped else "nothing was capped"
            facts["owner graph"] = f"held fixed; {caps}"
        facts |= run.spec.facts(run)
        if run.pretrain:
            public = shown_names(run.pretrain.corpus)
            facts["public start"] = f"{run.pretrain.steps} steps on {public}"
        return facts | self.facts

    def _require_own(self, files: Mapping[str, str], saved: tuple[str, ...]) -> None:
        """Refuse to certify a file that this run did not write, such as one put there meanwhile."""
        run = self.ctx.run
        top = {*saved, "README.md", "settings.yml", "plan.yml"}
        if run.pretrain is not None:
            top.add(PUBLIC_START)
        kept = kept_steps(run.masked_steps + run.total_steps, run.keep_checkpoints)
        places = {f"{KEPT}/{kept_folder(Path(), step).name}" for step in kept}
        for name in files:
            folder, _, own = name.rpartition("/")
            if own not in (top if not folder else saved if folder in places else ()):
                raise DataError(f"{name} was not written by this run; take it away, then --resume.")


_KEPT = {
    START: "the weights that training began with",
    UNASKED: "the weights that training began with",
    LAST: "the last weights",
    AVERAGE: "the averaged weights",
}
