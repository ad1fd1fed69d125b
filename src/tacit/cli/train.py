"""`tacit train`, `tacit evaluate`, `tacit predict`, `tacit refit`, `tacit methods`."""

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markdown import Markdown

from tacit.cli import recipes as few
from tacit.cli.common import err, out, print_json, progress, simple_table
from tacit.cli.options import (
    SENSITIVE_WORDS,
    AsJson,
    Resume,
    RunFolder,
    Sanitizing,
    To,
    sanitizes,
)
from tacit.errors import UsageError
from tacit.live import Live
from tacit.saved_json import spelled
from tacit.tracking import Tracking

if TYPE_CHECKING:
    from torch import nn

    from tacit.privacy.certificates.certificate import Certificate
    from tacit.training.evaluation.groups import Groups
    from tacit.training.evaluation.verdicts import Verdict
    from tacit.training.phases.session import Trained
    from tacit.training.settings import Run


def methods() -> None:
    """List the training methods with what each promises.

    Example: `tacit methods`
    """
    from tacit.training.methods import METHODS

    table = simple_table("method", "standing", "protects", "what it does")
    for column in table.columns:
        column.justify = "left"
    for spec in METHODS.values():
        table.add_row(spec.name, spec.standing, ", ".join(spec.protects) or "-", spec.summary)
    out.print(table)


_File = Annotated[
    Path | None,
    typer.Argument(
        metavar="RUN.yml",
        help="Settings of the run: a file, or preset:NAME. Or a corpus, and the options below.",
    ),
]
_Changes = Annotated[
    list[str] | None,
    typer.Option("--set", help="Replace a setting: --set steps=6 --set plan.epsilon=2"),
]
_Plan = Annotated[
    Path | None, typer.Option(help="Plan that `tacit plan -o` wrote; it is used as it is.")
]
_Owners = Annotated[
    Path | None,
    typer.Option(help="Owner graph of `tacit owners -o`; refused if it is not this run's."),
]
_ProgressFile = Annotated[
    Path | None, typer.Option("--progress", help="Add a JSON line to this file after each step.")
]


_Track = Annotated[
    Path | None,
    typer.Option(
        help="Add what anybody may see (epsilon, noise, learning rate) to this .jsonl after each "
        "step."
    ),
]


@few.asks_in_few_words
def train(
    file: _File = None,
    to: To = None,
    changes: _Changes = None,
    *,
    asked: dict[str, Any],
    plan: _Plan = None,
    owners: _Owners = None,
    resume: Resume = None,
    progress_file: _ProgressFile = None,
    track: _Track = None,
    as_json: AsJson = False,
) -> None:
    """Train a language model, with or without a promise.

    Stops before the step that would exceed the budget. After a crash, `--resume` goes on: the step
    in flight is charged again and drawn with fresh noise.

    Started by `torchrun`, several processes share the sums of a step; noise is added once.

    With `--plan` the promise is that of the file, its noise included, and what the run says
    otherwise is refused; so is another owner graph than the one that was planned with.

    With a corpus instead of settings, a recipe chooses them before anything is read, and says what
    it chose; `tacit plan` with the same options says what to expect of it.

    Examples: `tacit train run.yml -o RUN` · `tacit train mail.parquet --task classification
    --labels work,home --protect users --users 500 --epsilon 4 -o RUN` ·
    `tacit train preset:own-data-lstm --set corpus=mail.parquet -o RUN` ·
    `tacit train --resume RUN` ·
    `tacit train run.yml --plan plan.yml --owners owners.json -o RUN` ·
    `torchrun --nproc-per-node 2 -m tacit train run.yml -o RUN`
    """
    from tacit.planning.plan import parse_overrides
    from tacit.training.phases import session
    from tacit.training.phases.ranks import ranks_of_environment
    from tacit.training.settings import read_run

    ranks = ranks_of_environment()
    if resume is not None:
        if file or to or changes or asked or plan or owners:
            raise UsageError("--resume takes its settings from the folder; give nothing else.")
        if ranks is not None and not ranks.leads:
            return session.follow(read_run(resume / "run.yml"), ranks, resume)
        begin: Callable[..., Trained] = partial(session.resume, resume)
    elif file is None or to is None:
        raise UsageError("Give a run file and -o FOLDER, or --resume FOLDER.")
    else:
        settings = _planned_run(file, asked | parse_overrides(changes or []), plan, owners)
        if ranks is not None and not ranks.leads:
            return session.follow(settings, ranks)
        begin = partial(session.train, settings, to, on_model=_print_trained)
    public = Tracking(track)
    with Live(err) as on_progress, _noting(progress_file) as note:

        def watch(at: Any) -> None:
            public(at)
            note(at)
            on_progress(at)

        done = begin(on_progress=watch)
    _print_done(done, as_json)


def _print_done(done: "Trained", as_json: bool) -> None:
    from tacit.training.evaluation.verdicts import verdict_of

    if done.stopped and not done.metrics.get("diverged"):  # else the last line says it
        err.print(done.stopped)
    if as_json:
        said = verdict_of(done.metrics).as_json()
        print_json({"folder": str(done.folder), "metrics": done.metrics, "verdict": said})
        return
    _print_metrics(done.metrics)
    print_promise(done.certificate)
    err.print(f"run: {done.folder} (check it with: tacit verify {done.folder})")
    for sentence in done.told:
        err.print(sentence, soft_wrap=True)
    _print_verdict(verdict_of(done.metrics), done.folder)


def _planned_run(
    file: Path, changes: dict[str, Any], plan_path: Path | None, owners: Path | None
) -> "Run":
    """The run of a file with the plan of another, on the owner graph that was planned with."""
    from tacit.planning import pipeline, recipes
    from tacit.python.asking import asked_fields, require_graph
    from tacit.training.settings import Run

    fields, promised = asked_fields(file, changes), None
    if plan_path is not None:
        plan, promised = pipeline.read_plan_file(plan_path)
        pipeline.require_same_plan(fields, plan, plan_path)
        fields["plan"] = pipeline.plan_fields_of(plan)
    chosen = recipes.resolve(fields)
    run = Run(**chosen.fields)
    few.print_choices(chosen)
    if owners is None and promised is None:
        return run
    with progress("Comparing the owner graph", None):
        require_graph(run, run.made_plan(), promised=promised, file=owners)
    return run


@contextmanager
def _noting(file: Path | None) -> Iterator[Callable[[Any], None]]:
    """Lines for whoever watches from another process; what is `not_private` must stay inside."""
    if file is None:
        yield lambda at: None
        return
    from tacit.training.evaluation.verdicts import so_far

    with file.open("a", encoding="utf-8") as lines:

        def note(at: Any) -> None:
            seen = {"loss": at.stats.loss, "drawn": at.stats.units, "clipped": at.stats.clipped}
            if not math.isfinite(at.stats.loss):
                seen["loss"] = None
            seen["beside"] = so_far(at.stats.loss, at.began, at.uniform)
            fields = {"at": time.time(), "phase": at.phase, "step": at.step, "steps": at.steps}
            fields |= {"spent": at.spent, "uniform_loss": at.uniform, "not_private": seen}
            lines.write(json.dumps(spelled(fields), allow_nan=False) + "\n")
            lines.flush()

        yield note


def print_promise(certificate: "Certificate") -> None:
    """What the certificate says, in its own words."""
    from tacit.privacy.certificates.explanation import in_short

    lines = [*in_short(certificate), "Not covered:"]
    lines += [f"- {point}" for point in certificate.not_covered]
    out.print()
    out.print(Markdown("\n\n".join(lines)))


def _print_trained(model: "nn.Module") -> None:
    """Where noise will land: which parameters learn."""
    from tacit.training.models.weights import trained_in_words

    err.print(trained_in_words(model), markup=False, soft_wrap=True)


def _print_metrics(metrics: dict[str, Any]) -> None:
    out.print("[bold]Not private: exact figures over private text, which must stay inside[/bold]")
    for split, values in metrics.items():
        if not isinstance(values, dict):
            continue
        table = simple_table(split, "")
        for name, value in values.items():
            shown = f"{value:.4g}" if isinstance(value, float) else str(value)
            table.add_row(name.replace("_", " "), shown)
        out.print(table)


def _print_verdict(found: "Verdict", folder: Path) -> None:
    """The last line: is it any good? Exact, like the figures above it."""
    said = f"not private: {found.figures}"
    if found.grade == "none":
        how = "Score it on its test split, or on other text with --test FILE"
        said = f"{found.words} {how}: tacit evaluate {folder}"
    out.print(said, style="bold red" if found.grade == "bad" else "bold", soft_wrap=True)


def _shown(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


_Test = Annotated[
    Path | None, typer.Option(help="A file of records to test on instead of a split.")
]
_By = Annotated[
    str | None,
    typer.Option(
        help="Perplexity by group instead: `records` (users by how much they wrote), `label`, "
        "or FILE.csv with columns user and group."
    ),
]


def evaluate(
    run: RunFolder,
    split: Annotated[str, typer.Option(help="Which split.")] = "test",
    test: _Test = None,
    by: _By = None,
    as_json: AsJson = False,
) -> None:
    """Score a model on a split, beside what it has to beat, and say whether it does.

    Beside it stand its public start, counted words and trigrams, the most frequent label or the
    mean, and a uniform guess. Scores are kept in the run's folder, too, for `tacit report`: in
    `metrics.json`, or with `--by`, which gives the perplexity of each group, in `groups.json`.

    Examples: `tacit evaluate RUN --split test --json` · `tacit evaluate RUN --by records` ·
    `tacit evaluate RUN --test new-mail.jsonl`
    """
    from tacit.training.evaluation import scoring
    from tacit.training.evaluation.verdicts import verdict

    if test is not None and split != "test":
        raise UsageError("--test names a file and --split a part of the corpus; give one of them.")
    if by is not None:
        with progress("Evaluating", None):
            found = scoring.evaluate_groups(run, split, by, test=test)
        found.write(run / "groups.json")
        _print_groups(found, as_json)
        return
    with progress("Evaluating", None) as advance:
        values = scoring.evaluate(run, split, test=test, progress=advance)
    scoring.keep_scores(run, split, values)
    if as_json:
        print_json(values | {"verdict": verdict(values).as_json()})
    else:
        _print_metrics({split: values})
        _print_verdict(verdict(values), run)


def _print_groups(found: "Groups", as_json: bool) -> None:
    if as_json:
        print_json({"by": found.by, "gap": found.gap, "groups": [asdict(g) for g in found.groups]})
        return
    table = simple_table("group", "users", "records", "perplexity", "95 % interval")
    for group in found.groups:
        spread = "-" if group.low is None else f"{group.low:.4g} to {group.high:.4g}"
        table.add_row(
            group.name, f"{group.users:,}", f"{group.records:,}", f"{group.perplexity:.4g}", spread
        )
    out.print(table)
    out.print(f"largest over smallest perplexity: {found.gap:.3f} (not private)")


_Text = Annotated[str, typer.Argument(help="Text to go on from, to fill, to classify or to tag.")]
_Words = Annotated[int, typer.Option("--words", "--max-new-tokens", help="How many tokens to add.")]
_Temperature = Annotated[
    float, typer.Option(help="Draw the text that is added; 0 takes the likeliest token.")
]
_TopP = Annotated[
    float, typer.Option(help="Draw from as few tokens as have this share of the probability.")
]
_Stop = Annotated[
    list[str] | None, typer.Option(help="End before this word; may be given several times.")
]
_DrawSeed = Annotated[
    int | None, typer.Option("--seed", help="Of what is drawn; another each time if not given.")
]


@sanitizes(SENSITIVE_WORDS)
def predict(
    run: RunFolder,
    text: _Text,
    words: _Words = 10,
    choices: Annotated[int, typer.Option(help="How many next tokens to show.")] = 5,
    temperature: _Temperature = 0.0,
    top_p: _TopP = 1.0,
    stop: _Stop = None,
    seed: _DrawSeed = None,
    *,
    sanitizing: Sanitizing,
    as_json: AsJson = False,
) -> None:
    """What comes next, with probabilities; or what is masked, a class, a number, or tags.

    With `--sanitize` the text is changed on this side first; the model sees only what is shown as
    `sanitized`.

    Examples: `tacit predict RUN "my order number is"` ·
    `tacit predict RUN "Dear" --max-new-tokens 40 --temperature 0.8 --top-p 0.95 --seed 1` ·
    `tacit predict RUN "a fine film" --sanitize santext --epsilon-per-distance 3`
    """
    from tacit.training.evaluation import scoring
    from tacit.training.evaluation.generation import Sampling

    seen = {}
    if sanitizing.method is not None:
        text = sanitizing.query(text)
        seen = {"sanitized": text}
    how = Sampling(temperature, top_p, seed, stop=tuple(stop or ()))
    found = seen | scoring.predict(run, text, words=words, choices=choices, sampling=how)
    if as_json:
        print_json(found)
    else:
        _print_predicted(found)


def _print_predicted(found: dict[str, Any]) -> None:
    for name, value in found.items():
        if isinstance(value, list):
            table = simple_table(name, "")
            for item in value:
                table.add_row(repr(item[0]), _shown(item[1]))
            out.print(table)
        else:
            out.print(f"{name}: {value}", markup=False)


def refit(
    run: Annotated[Path, typer.Argument(help="Folder of a run with method=statistics.")],
    to: Annotated[Path, typer.Option("-o", "--out", help="Folder for the model.")],
    head: Annotated[str, typer.Option(help="`ridge`, `lda` or `prototypes`.")] = "lda",
    ridge: Annotated[
        float, typer.Option(min=0, help="Regularisation, as a multiple of what the noise asks for.")
    ] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Fit another head from what a run has released: no text is read, and nothing is spent.

    The new folder has the run's ledger, and its certificate says the same price.

    Example: `tacit refit RUN --head prototypes -o RUN2`
    """
    from typing import get_args

    from tacit.training.methods.statistics import Head
    from tacit.training.phases.refitting import refit as fit_again

    if head not in get_args(Head):
        raise UsageError(f"head={head} is not known; give {', '.join(get_args(Head))}.")
    certificate, shares = fit_again(run, to, head, ridge=ridge)  # type: ignore[arg-type]
    if as_json:
        print_json({"folder": str(to), "epsilon": certificate.epsilon, "classes": shares})
        return
    if shares:
        table = simple_table("class", "share, as released")
        for name, share in shares.items():
            table.add_row(name, f"{share:.1%}")
        out.print(table)
    print_promise(certificate)
    err.print(f"run: {to} (check it with: tacit verify {to})")
