"""`tacit compare`: the same corpus, model and seeds by several methods, on one page."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli.common import err, progress, say
from tacit.cli.options import Overwrite, Reference, Seed
from tacit.errors import DataError, UsageError
from tacit.files import refuse_overwrite
from tacit.live import Live
from tacit.presets import located

if TYPE_CHECKING:
    from tacit.cli.attack import Given
    from tacit.training.settings import Run


_Config = Annotated[
    Path, typer.Argument(metavar="CONFIG.yml", help="What all methods share; their base.")
]
_Methods = Annotated[
    str, typer.Option(help="Methods, each a file CONFIG-METHOD.yml beside CONFIG.yml.")
]
_To = Annotated[Path, typer.Option("-o", "--out", help="Folder for the runs and the report.")]
_Using = Annotated[
    str | None, typer.Option(help="Attacks; all that have what they need if not given.")
]
_Changes = Annotated[
    list[str] | None,
    typer.Option("--set", help="Replace a setting of every method: --set corpus=FILE"),
]
_Sweep = Annotated[
    list[str] | None,
    typer.Option(
        help="Train a method once for each value of a setting: "
        "--sweep adversarial:adversarial.privacy_weight=0.3,1,3"
    ),
]
_AttackKept = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Of the models kept on the way attack so many: the one nearest to the perplexity that "
        "all methods reach, others evenly spread. All if not given.",
    ),
]
_Workers = Annotated[
    int, typer.Option(min=1, help="Methods at a time; each has its share of the cores.")
]


def compare(
    config: _Config,
    methods: _Methods,
    to: _To,
    using: _Using = None,
    changes: _Changes = None,
    sweep: _Sweep = None,
    attack_kept: _AttackKept = None,
    reference: Reference = None,
    workers: _Workers = 1,
    title: Annotated[str, typer.Option(help="Heading of the report.")] = "Methods compared",
    seed: Seed = 0,
    overwrite: Overwrite = False,
) -> None:
    """Train by several methods on the same corpus, attack each, and write one report.

    What is finished is not trained again, and what was begun goes on, so the command can be
    repeated after a stop. `--overwrite` replaces the report, never a run. With `--set
    keep_checkpoints=60 --attack-kept 3`, models on the way are compared at like perplexity: of
    each method the nearest is found among sixty, and three are attacked.

    Example: `tacit compare preset:customersim-lstm --methods plain,users -o compared`

    Example: `tacit compare preset:customersim-lstm --methods plain,triplet --sweep
    triplet:triplet.privacy_weight=0.03,0.1,0.3 -o swept`
    """
    from tacit.attacks.running import few_of_each
    from tacit.cli.attack import Given
    from tacit.planning.plan import parse_overrides
    from tacit.reports.facts import read_all
    from tacit.reports.report import write_report

    trials = swept(method_files(config, methods), sweep or [])
    page = to / "report.html"
    refuse_overwrite(page, page.with_suffix(".md"), page.with_suffix(".json"), overwrite=overwrite)
    training = _Training(to, parse_overrides(changes or []))
    for trial in trials:
        _require_attackable(trial.name, training.settings(trial), using, attack_kept)
    _require_spelled({trial.name: training.settings(trial) for trial in trials}, to, using)
    with _processes(workers) as pool:
        _each(training, trials, pool)
        steps = None
        if attack_kept is not None:
            with progress("Choosing models", None):
                steps = few_of_each({trial.name: to / trial.name for trial in trials}, attack_kept)
        given = Given(using=using, reference=reference, seed=seed)
        _each(_Attacking(to, given, steps), trials, pool)
    write_report(page, read_all([to / trial.name for trial in trials]), title=title)
    say(f"report: {page}")


@dataclass(frozen=True)
class Trial:
    """One model: the folder it gets, the file that describes it, and what is set beside that."""

    name: str
    file: Path
    changes: dict[str, Any] = field(default_factory=dict)


def swept(files: dict[str, Path], sweeps: list[str]) -> list[Trial]:
    """A trial for each method, or for each value where a method's setting is swept."""
    from tacit.planning.plan import parse_overrides

    values: dict[str, tuple[str, list[Any]]] = {}
    for sweep in sweeps:
        method, sign, pair = sweep.partition(":")
        if not sign or method not in files:
            raise UsageError(
                f"{sweep!r} sweeps no method of this comparison; write METHOD:SETTING=V1,V2 with "
                f"one of {', '.join(files)}."
            )
        if method in values:
            raise UsageError(f"{method} is swept twice; sweep one setting of a method at a time.")
        ((setting, given),) = parse_overrides([pair]).items()
        several = given.split(",") if isinstance(given, str) else [given]
        values[method] = setting, [parse_overrides([f"v={v}"])["v"] for v in several]
    trials = []
    for method, file in files.items():
        setting, several = values.get(method, ("", [None]))
        for value in several:
            ending = f"-{setting.rpartition('.')[2]}-{value}" if setting else ""
            trials.append(Trial(method + ending, file, {setting: value} if setting else {}))
    if len({trial.name for trial in trials}) < len(trials):
        raise UsageError("A sweep has the same value twice; give each once.")
    return trials


@dataclass(frozen=True)
class _Training:
    """What is done for a method first."""

    to: Path
    changes: dict[str, Any]

    def __call__(self, trial: Trial) -> None:
        trained(self.to / trial.name, self.settings(trial))

    def settings(self, trial: Trial) -> "Run":
        """What is to be trained."""
        from tacit.training.settings import read_run

        return read_run(trial.file, self.changes | trial.changes)


def _require_attackable(name: str, run: "Run", using: str | None, attack_kept: int | None) -> None:
    """Refuse, before hours of training, attacks that could not be carried out after them."""
    if run.task != "next-word" and (using or attack_kept):
        raise UsageError(
            f"{name} has task={run.task}; attacks are on models of next words. Leave --using and "
            "--attack-kept out, and the models are scored and compared without them."
        )
    if attack_kept and not run.keep_checkpoints:
        raise UsageError(
            f"{name} keeps no model on the way, so there is none to choose; give "
            "--set keep_checkpoints=60 with --attack-kept."
        )


def _require_spelled(runs: "dict[str, Run]", to: Path, using: str | None) -> None:
    """Refuse, before training, canaries that the tokenizers would write as unknown."""
    from tacit.attacks.attack import ATTACKS, chosen
    from tacit.attacks.canaries import read_planted
    from tacit.attacks.spelling import spelled_plan
    from tacit.attacks.target import canary_plan
    from tacit.corpora import open_corpus
    from tacit.corpus.splitting import training_part
    from tacit.training.phases.run_context import tokenizer_of

    attacks = ATTACKS.values() if using is None else chosen(using)
    if not any("canaries" in (*attack.needs, *attack.uses) for attack in attacks):
        return
    seen: set[str] = set()
    for name, run in runs.items():
        if run.tokenizer.kind == "bpe" and run.model.kind != "folder":
            continue  # byte pairs spell everything
        same = f"{run.corpus} {run.tokenizer!r} {run.model.folder}"
        plan = canary_plan(to / name, Path(run.corpus))
        if plan is None or run.task != "next-word" or same in seen:
            continue
        seen.add(same)
        tokenizer = tokenizer_of(run, training_part(open_corpus(run.corpus, run.data)))
        spelled_plan(tokenizer, read_planted(plan), name)


@dataclass(frozen=True)
class _Attacking:
    """What is done for a method when all are trained: attack, score by group."""

    to: Path
    given: "Given"
    steps: dict[str, list[int]] | None

    def __call__(self, trial: Trial) -> None:
        from tacit.attacks.folders import attack_folder
        from tacit.training.phases.checkpoints import kept_models
        from tacit.training.settings import read_run

        name, folder = trial.name, self.to / trial.name
        if read_run(folder / "run.yml").task != "next-word":
            say(f"{name}: scoring; attacks are on models of next words")
        else:
            say(f"{name}: attacking")
            steps = self.steps[name] if self.steps else None
            attack_folder(
                folder, self.given.opener(folder), self.given.using, seed=self.given.seed,
                watch=progress, kept=bool(kept_models(folder)), steps=steps,
            )  # fmt: skip
        _score(folder)
        say(f"{name}: done")


@contextmanager
def _processes(workers: int) -> Iterator[ProcessPoolExecutor | None]:
    """Processes for training and then for attacking: each takes seconds to start. None for one."""
    if workers == 1:
        yield None
        return
    with ProcessPoolExecutor(
        workers, get_context("spawn"), initializer=_share_cores, initargs=(workers,)
    ) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _each(
    work: Callable[[Trial], None], trials: list[Trial], pool: ProcessPoolExecutor | None
) -> None:
    """One method after the other, or several, each in a process; the first that fails ends all."""
    if pool is None:
        for trial in trials:
            work(trial)
        return
    for one in as_completed([pool.submit(work, trial) for trial in trials]):
        one.result()


def _share_cores(workers: int) -> None:
    """In a process beside others: fewer threads, and lines instead of bars."""
    import torch

    torch.set_num_threads(max(1, torch.get_num_threads() // workers))
    os.environ["TTY_COMPATIBLE"] = "0"


def method_files(config: Path, methods: str) -> dict[str, Path]:
    """The run file of each method: the same name with the method after a dash."""
    config = located(config)
    wanted = [name.strip() for name in methods.split(",") if name.strip()]
    if not wanted:
        raise UsageError(f"methods={methods!r} names no method; give for example plain,users.")
    found = {
        name: config.with_name(f"{config.stem}-{name}{config.suffix}")
        for name in dict.fromkeys(wanted)
    }
    for name, file in found.items():
        if not file.exists():
            stems = [path.stem for path in config.parent.glob(f"{config.stem}-*{config.suffix}")]
            there = ", ".join(sorted(stem.removeprefix(f"{config.stem}-") for stem in stems))
            known = f"there are: {there}" if there else "there is none"
            raise DataError(
                f"{file} does not exist, and method {name} is described in it; {known}."
            )
    return found


def _score(folder: Path) -> None:
    """Scores on text that was not trained on, beside the baselines, and by group of users."""
    from tacit.attacks.canaries import read_planted
    from tacit.attacks.target import canary_plan, held_out
    from tacit.training.evaluation import scoring
    from tacit.training.phases.run_context import load_run
    from tacit.training.tasks.tasks import NextWord

    opened = load_run(folder)
    split = held_out(opened.corpus)
    if split is None:
        return
    scoring.keep_scores(folder, split, scoring.scores(opened, split, beside=folder))
    if "user" in opened.corpus.columns and isinstance(opened.task, NextWord):
        scoring.groups_of(opened, split, "records").write(folder / "groups.json")
        plan = canary_plan(folder, Path(opened.run.corpus))
        planted = read_planted(plan).records() if plan is not None else ()
        ends = scoring.ends_of_users(opened, split, planted=frozenset(planted))
        if ends is not None:
            ends.write(folder / "ends.json")


def trained(folder: Path, settings: "Run") -> None:
    """Train, go on, or leave alone what is finished with these very settings."""
    from tacit.training.phases import session
    from tacit.training.settings import read_run

    begun, name = folder / "run.yml", folder.name
    if begun.exists() and read_run(begun).digest() != settings.digest():
        raise UsageError(f"{folder} was trained with other settings; give another folder.")
    if (folder / "certificate.json").exists():
        say(f"{name}: finished before, not trained again")
        return
    say(f"{name}: training")
    with Live(err, name) as on_progress:
        if begun.exists():
            session.resume(folder, on_progress=on_progress)
        else:
            session.train(settings, folder, on_progress=on_progress)
