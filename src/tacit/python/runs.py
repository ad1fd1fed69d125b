"""`tacit.train` and what comes back: a run to score, use, attack, audit, report and verify."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console

from tacit.attacks.attack import Scores
from tacit.attacks.folders import attack_folder
from tacit.attacks.target import Target, open_target
from tacit.audits.audit import Way, audit_run
from tacit.audits.epsilon_bounds import Audit
from tacit.corpus import Corpus
from tacit.corpus.reading import opened, require_path
from tacit.corpus.writing import write
from tacit.detection import Detection
from tacit.errors import DataError, TacitError, UsageError
from tacit.files import refuse_overwrite
from tacit.live import Live
from tacit.notebook import framed
from tacit.planning import pipeline, recipes
from tacit.planning.plan import Plan
from tacit.privacy.certificates.certificate import Certificate, read_certificate
from tacit.python.asking import (
    asked_fields,
    graph_digest,
    model_fields,
    names_run,
    require_graph,
)
from tacit.python.planning import Planned
from tacit.reports.facts import read_all
from tacit.reports.report import write_report
from tacit.tracking import Loggers, Tracking
from tacit.training.evaluation import scoring
from tacit.training.evaluation.generation import Sampling
from tacit.training.evaluation.verdicts import verdict_of
from tacit.training.models.weights import trained_in_words
from tacit.training.phases import exporting, session
from tacit.training.phases.loop import OnProgress, Progress
from tacit.training.settings import Run
from tacit.verification.runs import Check, verify

if TYPE_CHECKING:
    from torch import nn

_PRIVATE = ".private"
"""What a run's folder is called with where text that came as an object is kept."""

Texts = TypeVar("Texts", str, list[str])
"""One text, or several."""


@dataclass(frozen=True)
class Page:
    """A page that was written; a notebook shows it."""

    path: Path

    def __fspath__(self) -> str:
        return str(self.path)

    def _repr_html_(self) -> str:
        return framed(self.path.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class TrainedRun:
    """A folder that training left: the model, its certificate, ledger and scores."""

    folder: Path

    @property
    def certificate(self) -> Certificate:
        """What is promised, computed from the ledger."""
        return read_certificate(self.folder / "certificate.json")

    @property
    def metrics(self) -> dict[str, Any]:
        """Exact figures over private text: keep them inside."""
        text = (self.folder / "metrics.json").read_text(encoding="utf-8")
        return dict(json.loads(text))

    @property
    def verdict(self) -> str:
        """Whether the model is any good, in words; exact, so keep it inside."""
        return verdict_of(self.metrics).figures

    def evaluate(
        self, test: Corpus | str | Path | None = None, *, split: str = "test"
    ) -> dict[str, Any]:
        """Scores on a corpus, or on a split of the run's own, beside what has to be beaten."""
        given = Path(test) if isinstance(test, str) else test
        found = scoring.evaluate(self.folder, split, test=given)
        scoring.keep_scores(self.folder, split, found)
        return found

    def predict(self, text: str, *, choices: int = 5) -> dict[str, Any]:
        """A class, a number, tags, masked words, or the next tokens, with probabilities."""
        return scoring.predict(self.folder, text, choices=choices, words=1)

    def generate(
        self,
        text: Texts,
        *,
        max_new_tokens: int = 40,
        temperature: float = 0.8,
        top_p: float = 1.0,
        stop: Sequence[str] = (),
        seed: int | None = None,
    ) -> Texts:
        """The text, or each of several, and what the model adds to it.

        Temperature 0 takes the likeliest token. A text ends before the first `stop` word.
        """
        words = (stop,) if isinstance(stop, str) else tuple(stop)
        how = Sampling(temperature, top_p, seed, stop=words)
        texts = [text] if isinstance(text, str) else text
        found = scoring.generate(self.folder, texts, words=max_new_tokens, sampling=how)
        return found[0] if isinstance(text, str) else found

    def attack(
        self,
        using: str | None = None,
        *,
        others: Corpus | str | Path | None = None,
        canaries: str | Path | None = None,
        seed: int = 0,
    ) -> dict[str, Scores]:
        """Try to learn from the model what it was trained on; by attack.

        `others` is text that was not trained on, where the run's corpus has no such split.
        """
        unseen = None if others is None else opened(others)
        target = partial(_target, self.folder, unseen, Path(canaries) if canaries else None)
        found = attack_folder(self.folder, target, using, seed=seed)
        return found[max(found)]

    def audit(self, using: Sequence[Way] = (), **how: Any) -> list[Audit]:
        """Lower bounds on epsilon, and whether the run does what it promises."""
        return audit_run(self.folder, using=using, **how)

    def report(
        self, path: str | Path, *, title: str = "Privacy report", shareable: bool = False,
        overwrite: bool = False,
    ) -> Page:  # fmt: skip
        """One page with utility, promise and measured leakage side by side."""
        return compare([self], path, title=title, shareable=shareable, overwrite=overwrite)

    def export(self, path: str | Path) -> Path:
        """The model as a file that ends in .gguf; else a folder with its adapters alone."""
        to = Path(path)
        if to.suffix != ".gguf":
            return exporting.export_adapter(self.folder, to)
        refuse_overwrite(to)
        return exporting.export_gguf(self.folder, to)

    def verify(self) -> list[Check]:
        """Recompute the certificate from the ledger and the files from their digests."""
        return verify(self.folder)

    def _repr_html_(self) -> str:
        """What a notebook shows: the certificate."""
        return self.certificate._repr_html_()


def _target(folder: Path, others: Corpus | None, canaries: Path | None) -> Target:
    found = open_target(folder, canaries=canaries)
    return found if others is None else replace(found, others=others)


# --- training -----------------------------------------------------------------------------------


def train(
    source: Corpus | Run | str | Path,
    plan: Planned | Plan | Mapping[str, Any] | str | Path | None = None,
    *,
    folder: str | Path,
    mentions: Detection | str | Path | None = None,
    model: str | Mapping[str, Any] | None = None,
    adapter: str | None = None,
    progress: bool | OnProgress = False,
    track: Loggers = None,
    track_private: Loggers = None,
    **settings: Any,
) -> TrainedRun:
    """Train into a new folder, by the engine of `tacit train`.

    `source` is a corpus, the settings of a run, or the path of either (`preset:NAME`, too). `plan`
    is what `tacit.plan` gave, a file that `tacit plan` wrote, or a plan's fields. `settings` are
    settings of a run: `method="plain"`, `steps=20`, `optimizer={"learning_rate": 0.1}`. A corpus or
    mentions given as objects are written beside the folder, to FOLDER.private, so that an
    interrupted run can go on: `tacit.resume(folder)`.

    `track` is told after each step what anybody may see: epsilon, noise, learning rate. It is a
    logger such as a run of Weights & Biases or trackio, a writer of TensorBoard, a function, or
    FILE.jsonl; or several. `track_private` hears exact figures over private text, too.
    """
    folder, told = Path(folder), (progress, Tracking(track, track_private))
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty; give a new folder, or use tacit.resume.")
    if isinstance(source, Run):
        if plan is not None or mentions is not None or model is not None or settings:
            raise UsageError("A tacit.Run says everything itself; give only the folder beside it.")
        return _trained(source, folder, told)
    if isinstance(plan, Mapping):
        settings["plan"], plan = dict(plan), None
    if model is not None or adapter is not None:
        settings["model"] = model_fields(model, adapter)
    if not isinstance(source, Corpus):
        require_path(source)
    private = folder.with_name(folder.name + _PRIVATE)
    file, marks = _kept_beside(private, source, mentions)
    if marks is not None:
        settings["mentions"] = str(marks)
    try:
        return _trained(_run_of(file, plan, settings), folder, told)
    except TacitError:
        ours = isinstance(source, Corpus) or isinstance(mentions, Detection)
        if ours and not folder.exists():  # refused: nothing of it is left
            shutil.rmtree(private, ignore_errors=True)
        raise


_Told = tuple[bool | OnProgress, Tracking]
"""Who is told of steps: who watches, and loggers."""


def _trained(run: Run, folder: Path, told: _Told) -> TrainedRun:
    with _watching(told) as on_progress:
        shown = _say_trained if told[0] is True else None
        session.train(run, folder, on_progress=on_progress, on_model=shown)
    return TrainedRun(folder)


def resume(
    folder: str | Path, *, progress: bool | OnProgress = False, track: Loggers = None,
    track_private: Loggers = None,
) -> TrainedRun:  # fmt: skip
    """Go on with a run that was interrupted; refused if its data, plan or our code changed."""
    with _watching((progress, Tracking(track, track_private))) as on_progress:
        session.resume(Path(folder), on_progress=on_progress)
    return TrainedRun(Path(folder))


def open_run(folder: str | Path) -> TrainedRun:
    """A run that was trained before, here or on the command line."""
    folder = Path(folder)
    if not (folder / "certificate.json").exists():
        raise DataError(
            f"{folder} holds no finished run; give the folder that training made, or go on with "
            "tacit.resume."
        )
    return TrainedRun(folder)


def compare(
    runs: Sequence[TrainedRun | str | Path], path: str | Path, *, title: str = "Runs compared",
    shareable: bool = False, overwrite: bool = False,
) -> Page:  # fmt: skip
    """Write one page that shows several runs side by side; Markdown and JSON go beside it."""
    to = Path(path)
    if not runs:
        raise UsageError("There is nothing to compare; give one run or more.")
    if to.suffix != ".html":
        raise UsageError(f"{to}: end the name in .html; Markdown and JSON go beside it.")
    refuse_overwrite(to, to.with_suffix(".md"), to.with_suffix(".json"), overwrite=overwrite)
    folders = [one.folder if isinstance(one, TrainedRun) else Path(one) for one in runs]
    write_report(to, read_all(folders), title=title, shareable=shareable)
    return Page(to)


def _run_of(
    file: Path, plan: Planned | Plan | str | Path | None, changes: Mapping[str, Any]
) -> Run:
    """The settings of a run, with the plan as it is; what contradicts it is refused."""
    promised: str | None = None
    if plan is None:
        if not changes.get("method") and not changes.get("plan") and not names_run(file):
            raise UsageError(
                "Nothing says what to promise; give plan=tacit.plan(protect=..., epsilon=...), or "
                'method="plain" for a model without a promise.'
            )
        fields = asked_fields(file, changes)
        if changes.get("method") and not names_run(file):
            fields.pop("recipe", None)  # a recipe plans, and this run has none
        return Run(**recipes.resolve(fields).fields)
    if isinstance(plan, Planned):
        fields = _planned_fields(plan, {"corpus": str(file), **changes})
        if "mentions" in changes:
            fields.pop("detect", None)
        made, promised = plan.plan, graph_digest(plan.plan, plan.dry.owners)
    else:
        fields = asked_fields(file, changes)
        made, promised = (
            (plan, None) if isinstance(plan, Plan) else pipeline.read_plan_file(Path(plan))
        )
    pipeline.require_same_plan(
        {k: v for k, v in changes.items() if k != "model"}, made, Path("plan")
    )
    fields["plan"] = pipeline.plan_fields_of(made)
    run = Run(**recipes.resolve(_without_recipe(fields)).fields)
    if promised is not None:
        require_graph(run, made, promised=promised)
    return run


def _planned_fields(plan: Planned, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that were planned with; for another model, its own rates under the same plan."""
    task = str(plan.fields.get("task", "next-word"))
    asked = recipes.named_model(changes.get("model") or {}, task)
    if asked.items() <= plan.fields["model"].items():
        return recipes.joined(plan.fields, {**changes, "model": asked})
    same = {name: plan.fields[name] for name in ("task", "labels") if name in plan.fields}
    own = {"recipe": "auto", "plan": pipeline.plan_fields_of(plan.plan), **same, **changes}
    return dict(recipes.resolve(_without_recipe(own)).fields)


def _without_recipe(fields: dict[str, Any]) -> dict[str, Any]:
    """The settings; a model that no recipe knows needs none if its learning rate is given."""
    task, model = str(fields.get("task", "next-word")), fields.get("model")
    if model is None or "learning_rate" not in (fields.get("optimizer") or {}):
        return fields
    if recipes.family_of(task, recipes.named_model(model, task)) is not None:
        return fields
    return {name: value for name, value in fields.items() if name != "recipe"}


def _kept_beside(
    private: Path, source: Corpus | str | Path, mentions: Detection | str | Path | None
) -> tuple[Path, Path | None]:
    """Files of what came as objects: an interrupted run goes on from these."""
    objects = isinstance(source, Corpus) or isinstance(mentions, Detection)
    if objects and private.exists():
        raise UsageError(
            f"{private} is left of another run of that name; take it away, or give another folder."
        )
    if objects:
        private.mkdir(parents=True, mode=0o700)
    file = private / "corpus.parquet" if isinstance(source, Corpus) else Path(source)
    if isinstance(source, Corpus):
        write(source, file)
    if isinstance(mentions, Detection):
        return file, mentions.save(private / "mentions.jsonl")
    return file, Path(mentions) if mentions is not None else None


@contextmanager
def _watching(told: _Told) -> Iterator[OnProgress]:
    """A bar on standard error or in the notebook, somebody's own function, or nothing; loggers."""
    progress, tracking = told
    if progress is not True:
        yield tracking if progress is False else _both(progress, tracking)
        return
    with Live(_console()) as shown:
        yield _both(shown, tracking)


def _console() -> Console:
    """The notebook, where this is one; else standard error."""
    console = Console()
    return console if console.is_jupyter else Console(stderr=True)


def _say_trained(model: "nn.Module") -> None:
    """Which parameters learn, before training begins."""
    _console().print(trained_in_words(model), markup=False, soft_wrap=True)


def _both(shown: OnProgress, tracking: Tracking) -> OnProgress:
    def tell(at: Progress) -> None:
        tracking(at)
        shown(at)

    return tell
