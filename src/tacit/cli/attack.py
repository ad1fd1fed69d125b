"""`tacit canaries`, `tacit attack`: try to learn from a model what it was trained on."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.cli.common import (
    new_corpus_file,
    out,
    print_json,
    progress,
    reads_corpus,
    say,
    simple_table,
    whole_numbers,
)
from tacit.cli.options import (
    SENSITIVE_SHARE,
    AsJson,
    AtOnce,
    OnRay,
    Overwrite,
    Reference,
    Sanitizing,
    Seed,
    sanitizes,
)
from tacit.corpus import Corpus
from tacit.errors import UsageError
from tacit.workers import Workers

if TYPE_CHECKING:
    from tacit.attacks.attack import Scores, Series
    from tacit.attacks.canaries import Planted, Template
    from tacit.attacks.target import Target

MASKED_TEXTS = 100
"""Masks are guessed in so many texts of a corpus, the first ones."""

canaries = typer.Typer(
    help="Secrets made by template, planted in a corpus before training.\n\n"
    "Example: `tacit canaries plant dialogs.jsonl -o planted.jsonl`",
    no_args_is_help=True,
    suggest_commands=False,  # click suggests them itself
)


@canaries.callback()
def _canaries() -> None:
    pass


_Template = Annotated[str, typer.Option(help="digits, spaced-digits, words, name or phone.")]
_Repetitions = Annotated[
    str, typer.Option(help="How often canaries are repeated, with commas between.")
]
_Placing = Annotated[
    str,
    typer.Option(
        help="Who writes them: `own-user` (a new user each), `one-user`, `users` (another for each "
        "repetition), `entity` (the same, and the secret marked as sensitive)."
    ),
]
_Coins = Annotated[
    bool, typer.Option("--coins", help="Each is in or out by a fair coin: for `tacit audit`.")
]
_Words = Annotated[
    Path | None,
    typer.Option(help="With template words: a file of words, one a line, instead of ours."),
]
_SpelledBy = Annotated[
    str | None,
    typer.Option(
        "--for", metavar="RUN.yml",
        help="A run file, or a folder with a tokenizer: secrets are made of what it spells.",
    ),
]  # fmt: skip


@canaries.command("plant")
@reads_corpus
def plant(
    corpus: Corpus,
    to: Annotated[Path, typer.Option("-o", "--out", help="File for the planted corpus.")],
    template: _Template = "digits",
    repetitions: _Repetitions = "1,5,20",
    each: Annotated[int, typer.Option(min=1, help="Canaries for each repetition.")] = 10,
    held_out: Annotated[int, typer.Option(min=0, help="Controls that are never planted.")] = 20,
    placing: _Placing = "own-user",
    coins: _Coins = False,
    words: _Words = None,
    spelled_by: _SpelledBy = None,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Plant secrets in a corpus; the plan of them is kept beside it.

    The plan, `NAME.canaries.json`, holds the secrets, those that were never planted too: guard it
    like the corpus. A tokenizer of whole words writes words that it does not know as one unknown
    word, and secrets of such words cannot be told apart; `--for` makes secrets that it spells.

    Examples: `tacit canaries plant dialogs.jsonl --template digits --repetitions 1,10 -o p.jsonl` ·
    `tacit canaries plant dialogs.jsonl --template words --for run.yml -o p.jsonl`
    """
    import numpy as np

    from tacit.attacks.canaries import beside, placing_named, template_named
    from tacit.attacks.canaries import plant as put
    from tacit.corpus.writing import write
    from tacit.files import refuse_overwrite

    form = template_named(template, words)
    new_corpus_file(to, overwrite=overwrite, among=("jsonl",))
    refuse_overwrite(beside(to), overwrite=overwrite)
    if spelled_by is not None:
        form = _spelled_form(form, spelled_by, corpus, seed, own=words is not None)
    planted, plan = put(
        corpus, form, repetitions=whole_numbers(repetitions, "--repetitions"), each=each,
        held_out=held_out, placing=placing_named(placing), coins=coins,
        rng=np.random.default_rng(seed),
    )  # fmt: skip
    # First the plan: canaries of which nobody knows would be worse than a plan without them.
    plan.write(beside(to))
    write(planted, to)
    _print_planted(to, form, plan, as_json)
    if spelled_by is None and not as_json:
        say("Whether a run's tokenizer spells them was not looked at; --for RUN.yml does.")


def _spelled_form(
    form: "Template", spelled_by: str, corpus: Corpus, seed: int, *, own: bool
) -> "Template":
    """The template with secrets that the tokenizer of a run, or of a folder, spells."""
    import numpy as np

    from tacit.attacks.spelling import form_for, tokenizer_for

    tokenizer, rng = tokenizer_for(spelled_by, corpus), np.random.default_rng(seed)
    form, changed = form_for(tokenizer, form, spelled_by, rng, own=own)
    if changed:
        say(changed)
    return form


def _print_planted(to: Path, form: "Template", plan: "Planted", as_json: bool) -> None:
    from tacit.attacks.canaries import beside

    inside = plan.inside()
    facts = {
        "template": form.name,
        "secrets of this form": form.size,
        "planted": len(inside),
        "records added": sum(len(c.records) for c in inside),
        "held out": len(plan.outside()),
    }
    if as_json:
        print_json({"corpus": str(to), "plan": str(beside(to)), **facts})
        return
    table = simple_table("canaries", "")
    for name, value in facts.items():
        table.add_row(name, f"{value:,}" if isinstance(value, int) else str(value))
    out.print(table)
    say(f"corpus: {to}\nplan (holds the secrets): {beside(to)}")


@dataclass(frozen=True)
class Given:
    """What a person gave beside a model."""

    using: str | None = None
    corpus: str | None = None
    mentions: Path | None = None
    canaries: Path | None = None
    reference: Path | None = None
    context: int = 128
    seed: int = 0
    sanitizing: Sanitizing = field(default_factory=Sanitizing)

    def opener(self, folder: Path) -> "Callable[[], Target]":
        """Opens a folder's model as a target, in whichever process."""
        return partial(_opened, folder, self)


_Models = Annotated[
    list[Path], typer.Argument(metavar="MODEL...", help="Folders of runs, or of any causal models.")
]
_Using = Annotated[
    str | None,
    typer.Option(help="Attacks with commas between; all that have what they need if not given."),
]
_OverCheckpoints = Annotated[
    bool,
    typer.Option("--over-checkpoints", help="Attack the models that a run kept on the way, too."),
]
_TrainedOn = Annotated[
    str | None,
    typer.Option("--corpus", help="For a model that is not a run: what it was trained on."),
]
_Mentions = Annotated[
    Path | None, typer.Option(help="What is sensitive, if the run does not know.")
]
_Canaries = Annotated[
    Path | None, typer.Option(help="Plan of canaries, if not beside the run's corpus.")
]
_Context = Annotated[
    int, typer.Option(min=2, help="For a model that is not a run: longest record, in tokens.")
]
_Scores = Annotated[
    Path | None, typer.Option("-o", "--out", help="File for the scores; MODEL/attacks.json.")
]


@sanitizes(SENSITIVE_SHARE)
def attack(
    models: _Models,
    using: _Using = None,
    over_checkpoints: _OverCheckpoints = False,
    corpus: _TrainedOn = None,
    mentions: _Mentions = None,
    canaries: _Canaries = None,
    reference: Reference = None,
    context: _Context = 128,
    *,
    sanitizing: Sanitizing,
    to: _Scores = None,
    seed: Seed = 0,
    workers: AtOnce = 1,
    ray: OnRay = None,
    as_json: AsJson = False,
) -> None:
    """Try to learn from a model what it was trained on.

    Attacks: exposure, membership, secrets, tab, extraction, linkage; masks, on sanitized text; and
    those of installed packages. With `--over-checkpoints`, or several folders, leakage can be
    compared at like perplexity: it stands beside every figure. The scores are exact figures over
    private text: keep them inside.

    Examples: `tacit attack RUN --using exposure,membership` ·
    `tacit attack gpt2-folder --corpus mail.jsonl --using membership` ·
    `tacit attack RUN --over-checkpoints`
    """
    from tacit.attacks.attack import write_scores
    from tacit.attacks.folders import attack_folder

    if to is not None and (len(models) > 1 or over_checkpoints):
        raise UsageError("-o names one file; with several models, each folder gets its own.")
    given = Given(using, corpus, mentions, canaries, reference, context, seed, sanitizing)
    everything: dict[str, Series] = {}
    for folder in models:
        found = attack_folder(
            folder, given.opener(folder), given.using, seed=given.seed,
            workers=Workers(workers, ray), watch=progress, kept=over_checkpoints, keep=to is None,
        )  # fmt: skip
        everything[str(folder)] = found
        if to is not None:
            write_scores(to, found[max(found)].values())
    _print_attacked(everything, over_checkpoints, as_json)
    if not as_json:
        for folder in models:
            say(f"scores (not private): {to or folder / 'attacks.json'}")


def _print_attacked(everything: "dict[str, Series]", over_checkpoints: bool, as_json: bool) -> None:
    from tacit.attacks.attack import series_fields

    if as_json:
        fields = {name: series_fields(series) for name, series in everything.items()}
        print_json(fields if over_checkpoints else {n: f[0]["scores"] for n, f in fields.items()})
        return
    for name, series in everything.items():
        if len(everything) > 1:
            out.print(f"[bold]{name}[/bold]")
        if over_checkpoints:
            _show_series(series)
        _show(list(series[max(series)].values()))


def _opened(folder: Path, given: Given) -> "Target":
    from tacit.attacks.attack import chosen
    from tacit.attacks.target import Masked, open_masked, open_target
    from tacit.corpus.reading import read
    from tacit.sanitization import as_it_stands

    how = given.sanitizing
    for one in chosen(given.using) if given.using is not None and how.method is None else []:
        if "masked" in one.needs:
            raise UsageError(
                f"The attack {one.name} needs text and how it is sanitized: --corpus FILE "
                "--sanitize METHOD --epsilon-per-distance X."
            )
    corpus = read(Path(given.corpus)) if given.corpus is not None else None
    with progress("Opening", None):
        if how.method is None:
            return open_target(
                folder, corpus=corpus, mentions=given.mentions, canaries=given.canaries,
                reference=given.reference, context=given.context,
            )  # fmt: skip
        if corpus is None:
            raise UsageError("--sanitize needs text to sanitize; give --corpus.")
        work = how.sanitizer(str(folder), given.seed)
        texts = tuple(corpus.column("text").slice(0, MASKED_TEXTS).to_pylist())
        masked = Masked(texts, work, as_it_stands(work.embedding))
        return open_masked(folder, masked, context=given.context)


def _show_series(series: "Series") -> None:
    from tacit.reports.facts import fixed, headlines_of, model_of

    models = [model_of(step, scores) for step, scores in series.items()]
    known = headlines_of(one.leakage for one in models)
    table = simple_table("step", "perplexity", *(one.label for one in known.values()))
    for one in models:
        values = (one.perplexity, *map(one.value, known))
        table.add_row(f"{one.step:,}", *map(fixed, values))
    out.print(table)


def _show(found: "list[Scores]") -> None:
    from tacit.reports.facts import fixed, spread
    from tacit.reports.report import cell

    table = simple_table("attack", "figure", "value", "95 % interval", "perplexity")
    table.columns[1].justify = "left"
    for scores in found:
        for figure, value in scores.figures.items():
            low, high = scores.intervals.get(figure, (None, None))
            between = "" if low is None else spread(low, high, ".3g")
            words = figure.replace("_", " ")
            table.add_row(scores.attack, words, fixed(value), between, fixed(scores.perplexity))
    out.print(table)
    for scores in found:
        columns = scores.presentation.columns
        if columns and scores.rows:
            rows = simple_table(*(column.label for column in columns))
            for row in scores.rows:
                rows.add_row(*(cell(row, column) for column in columns))
            out.print(rows)
        if scores.verdict is not None:
            out.print(f"{scores.attack}: {scores.verdict}", markup=False)
        for note in scores.notes:
            say(f"{scores.attack}: {note}")
