"""A run from its settings to its folder: model, certificate, ledger, metrics."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn
from transformers import PreTrainedTokenizerBase

from tacit.corpus import Corpus
from tacit.detecting.mentions import Mention
from tacit.errors import DataError, PrivacyRefused, UsageError
from tacit.files import whole_file
from tacit.plan import Plan, calibrated, plan_yaml, read_plan
from tacit.privacy.certificate import (
    Certificate,
    commitment,
    file_digest,
    issue,
    own_salt,
    write_certificate,
)
from tacit.privacy.events import Public, Unit
from tacit.privacy.ledger import Books, Ledger, read_ledger
from tacit.privacy.published import PublishedPrice
from tacit.reading import read
from tacit.training import baselines, networks, tokens, weights
from tacit.training.deidentifying import deidentified
from tacit.training.fingerprint import code_digest
from tacit.training.focusing import Focus, focus_on, list_digest
from tacit.training.loop import Loop, Progress, make_optimizer
from tacit.training.material import Material, mentions_of, open_corpus, prepare, training_part
from tacit.training.methods import Method, Plain, fedavg, private, uedp
from tacit.training.methods.uedp import claim_of, event_of
from tacit.training.predicting import answer
from tacit.training.randomness import Chance
from tacit.training.settings import PLANNED, LocalSettings, Run, UedpSettings, read_run, run_yaml
from tacit.training.spent import Spent
from tacit.training.tagging import Tagging
from tacit.training.tasks import (
    Classification,
    Examples,
    NextWord,
    Regression,
    Task,
    check_fit,
)

Tell = Callable[[Progress], None]


@dataclass(frozen=True)
class Trained:
    """What a run left in its folder; `stopped` says why it ended before its last step."""

    folder: Path
    certificate: Certificate
    metrics: dict[str, Any]
    stopped: str | None


@dataclass(frozen=True)
class _Opened:
    """A run with everything it needs in memory."""

    run: Run
    corpus: Corpus
    part: Corpus
    mentions: list[Mention]
    tokenizer: PreTrainedTokenizerBase
    task: Task
    model: nn.Module
    chance: Chance
    leaks: list[str]
    focus: Focus | None = None


def train(run: Run, folder: Path, *, tell: Tell | None = None) -> Trained:
    """Train from the start into a new folder."""
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty; give a new folder, or --resume {folder}.")
    plan = run.made_plan()
    if plan is not None:
        plan = _without_names(calibrated(plan), run)
    opened = _open(run)
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "run.yml", run_yaml(run))
    if plan is not None:
        _write(folder / "plan.yml", plan_yaml(plan))
    return _carry_out(opened, folder, plan, tell)


def resume(folder: Path, *, tell: Tell | None = None) -> Trained:
    """Go on with a run; refused if its plan, corpus, settings or our code changed."""
    folder = Path(folder)
    if not (folder / "run.yml").exists():
        raise DataError(f"{folder} holds no run; give the folder that `tacit train -o` made.")
    run = read_run(folder / "run.yml")
    plan = read_plan(folder / "plan.yml") if run.method in PLANNED else None
    if plan is not None and plan.entity_list != _without_names(plan, run).entity_list:
        raise PrivacyRefused(
            f"{run.entity_list} is not the list that {folder} was begun with; give that list "
            "back, or a new folder."
        )
    return _carry_out(_open(run), folder, plan, tell)


def _without_names(plan: Plan, run: Run) -> Plan:
    """The plan with a commitment to its list of entities instead of the list's place."""
    if run.entity_list is None:
        return plan
    return plan.model_copy(update={"entity_list": _committed_list(run)})


def _committed_list(run: Run) -> str:
    return commitment(list_digest(Path(str(run.entity_list))), own_salt())


def _focus(run: Run, mentions: list[Mention]) -> Focus | None:
    """What counts as an entity; None where nothing does."""
    plan = run.made_plan()
    if run.mentions is None or not (run.method == "uedp" or (plan and "entities" in plan.protect)):
        return None
    source = Path(run.mentions)
    kinds = plan.kinds if plan else (run.uedp or UedpSettings()).kinds
    listed = Path(run.entity_list) if run.entity_list is not None else None
    return focus_on(kinds, listed, mentions, source.with_name(source.stem + ".entities.jsonl"))


def _open(run: Run) -> _Opened:
    corpus = open_corpus(run)
    part = training_part(corpus)
    mentions = mentions_of(run, corpus)
    if run.method == "deidentify":
        part = deidentified(part, mentions)
    chance = Chance(run.seed)
    tokenizer, leaks = _tokenizer(run, part)
    task = _task(run, part)
    model = _model(run, task, tokenizer, chance)
    focus = _focus(run, mentions)
    return _Opened(run, corpus, part, mentions, tokenizer, task, model, chance, leaks, focus)


def _tokenizer(run: Run, part: Corpus) -> tuple[PreTrainedTokenizerBase, list[str]]:
    """The tokenizer, and what choosing it leaks: nothing, unless it is counted from the corpus."""
    given = run.tokenizer
    if given.kind == "folder" or (run.model.kind == "folder" and given.folder is None):
        return tokens.load_tokenizer(given.folder or str(run.model.folder)), []
    if given.kind == "words":
        tokenizer, leak = tokens.word_vocabulary(
            part, size=None if given.min_count else given.size, min_count=given.min_count
        )
        return tokenizer, [str(leak)]
    texts = None
    if given.public_text:
        texts = read(Path(given.public_text)).column("text").to_pylist()
    return tokens.byte_level_bpe(texts, given.size), []


def _task(run: Run, part: Corpus) -> Task:
    match run.task:
        case "classification":
            return Classification.of(part)
        case "regression":
            return Regression()
        case "tagging":
            return Tagging.of(part)
    # Cutting a record into several would let one record weigh as many: it is truncated.
    return NextWord(long="truncate")


def _model(run: Run, task: Task, tokenizer: PreTrainedTokenizerBase, chance: Chance) -> nn.Module:
    labels = getattr(task, "labels", None)
    seed = chance.torch_seed("init", 0)
    if run.model.kind == "folder":
        model: nn.Module = networks.load_model(
            str(run.model.folder),
            run.task,
            labels=labels,
            pad_token_id=tokenizer.pad_token_id,
            seed=seed,
        )
    else:
        config = {"kind": run.model.kind} | run.model.config
        if run.model.kind in ("gpt2", "bert", "llama"):
            config = {"context": run.context} | config
        model = networks.scratch_model(
            config, run.task, tokenizer=tokenizer, labels=labels, seed=seed
        )
    if run.model.lora_rank:
        targets = run.model.lora_targets or None
        model = weights.with_lora(model, run.model.lora_rank, targets, seed=seed)  # type: ignore[arg-type]
    return model


def _carry_out(opened: _Opened, folder: Path, plan: Plan | None, tell: Tell | None) -> Trained:
    run, model = opened.run, opened.model
    salt = own_salt()
    about = {
        "plan": plan.digest() if plan else None,
        "config": run.digest(),
        "data": commitment(opened.corpus.digest(), salt),
        "randomness": opened.chance.name,
        "code": code_digest(),
    }
    examples = _encode(opened, opened.part)
    check_fit(model, examples)
    stuff = prepare(examples, opened.part, opened.mentions, plan, opened.focus)
    before = weights.snapshot(model)
    allows = plan.budget.allows if plan else None
    with Ledger(folder / "ledger.jsonl", about, allows=allows) as ledger:
        _public_start(opened, folder, ledger, tell)
        method = _method(opened, stuff, ledger, plan)
        spent = _spent(opened, stuff, plan)
        loop = Loop(
            model,
            method,
            make_optimizer(model, run.optimizer),
            run.optimizer,
            run.total_steps,
            opened.chance,
            folder=folder,
            ledger=ledger,
            checkpoint_every=run.checkpoint_every,
        )
        loop.resume()

        def told(at: Progress) -> None:
            if tell:
                tell(replace(at, spent=spent.line(ledger.releases) if spent else ""))

        stopped = loop.run(told)
        loop.finish()
    return _finish(opened, folder, plan, stuff, before, salt, stopped)


def _spent(opened: _Opened, stuff: Material, plan: Plan | None) -> Spent | None:
    """What the live line says about epsilon; nothing where nothing is promised."""
    if plan is not None:
        return Spent.of(plan)
    if opened.run.method != "uedp":
        return None
    settings = opened.run.uedp or UedpSettings()
    return Spent(
        event_of(stuff, settings),
        "users+entities",
        settings.delta,
        opened.run.total_steps,
        claim=lambda steps: claim_of(stuff, settings, steps).epsilon["users+entities"],
    )


def _encode(opened: _Opened, corpus: Corpus, *, training: bool = True) -> Examples:
    spans: dict[str, list[tuple[int, int]]] = {}
    if opened.run.method != "deidentify":
        for m in opened.mentions:
            spans.setdefault(m.record, []).append((m.start, m.end))
    return opened.task.encode(
        corpus,
        opened.tokenizer,
        context=opened.run.context,
        sensitive=spans or None,
        training=training,
    )


def _method(opened: _Opened, stuff: Material, ledger: Ledger, plan: Plan | None) -> Method:
    run, losses = opened.run, opened.task.losses
    made_of = (opened.model, losses, stuff, opened.chance, ledger)
    if run.method == "uedp":
        settings = run.uedp or UedpSettings()
        return uedp(*made_of, settings, token_budget=run.token_budget)
    if plan is None:
        what = f"training without protection (method {run.method})"
        return Plain(*made_of, batch=run.batch, what=what)
    if run.method == "fedavg":
        return fedavg(*made_of, plan, run.fedavg or LocalSettings())
    return private(*made_of, plan, token_budget=run.token_budget)


def _public_start(opened: _Opened, folder: Path, ledger: Ledger, tell: Tell | None) -> None:
    """Train on public text first, unless that is already behind us."""
    start = opened.run.pretrain
    if start is None:
        return
    event = Public(what=f"training on the public corpus {Path(start.corpus).name}")
    if event not in ledger.releases:
        ledger.charge(event, phase="pretrain")
    public = training_part(read(Path(start.corpus)))
    examples = opened.task.encode(public, opened.tokenizer, context=opened.run.context)
    stuff = prepare(examples, public, [], None)
    # Its draws must not be those of the private phase, also where the seed is fixed.
    seed = opened.chance.seed
    chance = Chance(None if seed is None else seed + 2**32)
    method = Plain(
        opened.model, opened.task.losses, stuff, chance, None, batch=start.batch, what="public"
    )
    loop = Loop(
        opened.model,
        method,
        make_optimizer(opened.model, start.optimizer),
        start.optimizer,
        start.steps,
        chance,
        phase="pretrain",
        folder=folder,
        ledger=ledger,
        checkpoint_every=50,
    )
    if not loop.behind():
        loop.resume()
        loop.run(tell)
        loop.finish()


def _finish(
    opened: _Opened,
    folder: Path,
    plan: Plan | None,
    stuff: Material,
    before: Mapping[str, str],
    salt: bytes,
    stopped: str | None,
) -> Trained:
    moved = weights.moved(before, opened.model)
    weights.save_model(opened.model, opened.tokenizer, folder)
    metrics: dict[str, Any] = {"note": "exact figures over private text: keep them inside"}
    if "valid" in opened.corpus.splits():
        metrics["valid"] = _scores(opened, "valid")
    metrics["parameters"] = {"moved": len(moved.moved), "unmoved": len(moved.still)}
    _write(folder / "metrics.json", json.dumps(metrics, indent=2) + "\n")
    books = read_ledger(folder / "ledger.jsonl")
    claim = _claim(opened, stuff, books)
    both: tuple[Unit, ...] = ("users", "entities", "users+entities")
    units: tuple[Unit, ...] = plan.units if plan else both if claim else ("users",)
    certificate = issue(
        books,
        protect=plan.protect if plan else units[-1],
        units=units,
        delta=plan.delta if plan else claim.delta if claim else 1e-5,
        plan=plan.model_dump(mode="json") if plan else {},
        plan_digest=plan.digest() if plan else "",
        config_digest=opened.run.digest(),
        data=commitment(opened.corpus.digest(), salt),
        randomness=opened.chance.name,
        by_degree=plan.by_degree if plan else None,
        published=claim,
        context=_context(opened, stuff),
        weights={
            name: file_digest(folder / name)
            for name in ("model.safetensors", "config.json")
            if (folder / name).exists()
        },
    )
    write_certificate(certificate, folder)
    return Trained(folder, certificate, metrics, stopped)


def _claim(opened: _Opened, stuff: Material, books: Books) -> PublishedPrice | None:
    """What a paper claims for what was carried out, where the method is a paper's."""
    if opened.run.method != "uedp":
        return None
    settings = opened.run.uedp or UedpSettings()
    return claim_of(stuff, settings, books.releases().get(event_of(stuff, settings), 0))


def _context(opened: _Opened, stuff: Material) -> dict[str, Any]:
    run = opened.run
    facts: dict[str, Any] = {
        "method": run.method,
        "model": f"{run.model.kind} for {run.task}",
        "tokenizer": "counted from the private corpus: an uncovered leak"
        if opened.leaks
        else "public",
    }
    if opened.leaks:
        facts["leak"] = opened.leaks
    if stuff.owners is not None:
        caps = "the caps of the plan were enforced on it" if stuff.bounded else "nothing was capped"
        facts["owner graph"] = f"held fixed; {caps}"
        facts["detector"] = "mentions as given to the run; what it missed is not protected"
    if run.uedp is not None:
        facts["settings of the paper"] = run.uedp.model_dump(mode="json", exclude={"entity_list"})
    if run.entity_list is not None:
        facts["entity list"] = _committed_list(run)
    if run.pretrain:
        facts["public start"] = f"{run.pretrain.steps} steps on {Path(run.pretrain.corpus).name}"
    return facts


# --- using what was trained -------------------------------------------------------------------


def _loaded(folder: Path) -> _Opened:
    """A finished run with its weights in place."""
    if not (folder / "config.json").exists():
        raise DataError(f"{folder} holds no trained model; train it, or --resume it, first.")
    run = read_run(folder / "run.yml")
    corpus = open_corpus(run)
    part = training_part(corpus)
    task = _task(run, part)
    tokenizer = tokens.load_tokenizer(folder)
    model = networks.load_model(
        folder,
        run.task,
        labels=getattr(task, "labels", None),
        pad_token_id=tokenizer.pad_token_id,
    )
    mentions = mentions_of(run, corpus)
    return _Opened(run, corpus, part, mentions, tokenizer, task, model, Chance(run.seed), [])


def evaluate(
    folder: Path, split: str, *, progress: Callable[[int], None] | None = None
) -> dict[str, Any]:
    """Scores on a split of the run's corpus, beside the baselines."""
    return _scores(_loaded(Path(folder)), split, compare=True, progress=progress)


def _scores(
    opened: _Opened,
    split: str,
    *,
    compare: bool = False,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    part = opened.corpus.only(split)
    if opened.run.method == "deidentify":
        part = deidentified(part, opened.mentions)
    examples = _encode(opened, part, training=False)
    scores: dict[str, Any] = dict(opened.task.score(opened.model, examples, progress=progress))
    if compare and opened.run.task == "next-word":
        train = _encode(opened, opened.part)
        found = baselines.baseline_perplexities(
            train, examples, len(opened.tokenizer), rng=np.random.default_rng(0)
        )
        scores |= {f"{name}_perplexity": value for name, value in found.items()}
    return scores


def predict(folder: Path, text: str, *, words: int = 10, choices: int = 5) -> dict[str, Any]:
    """Next tokens with probabilities and a completion; or a class; or tags."""
    opened = _loaded(Path(folder))
    return answer(opened.model, opened.tokenizer, opened.task, text, words=words, choices=choices)


def _write(path: Path, text: str) -> None:
    with whole_file(path) as draft:
        draft.write_text(text, encoding="utf-8")
