"""`tacit detect`: find sensitive text, score the finding, train a tagger."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from tacit.cli.common import (
    OrDefault,
    bar,
    out,
    print_json,
    progress,
    reads_corpus,
    say,
    simple_table,
)
from tacit.cli.options import AsJson, AtOnce, OnRay, Overwrite, PageRecords, Seed
from tacit.corpus import Corpus
from tacit.errors import UsageError
from tacit.files import refuse_overwrite
from tacit.workers import Workers

app = typer.Typer(
    help="Find what is sensitive: mentions, entities, a page to look at.\n\n"
    "`tacit detect CORPUS ...` is short for `tacit detect run CORPUS ...`; `tacit detect run "
    "--help` has its options.\n\n"
    "Example: `tacit detect mail.jsonl -o mentions.jsonl`",
    cls=OrDefault.to("run"),
    no_args_is_help=True,
    suggest_commands=False,  # click suggests them itself
)

With = Annotated[
    str,
    typer.Option(
        "--with",
        help="Detectors, comma-separated, each maybe with an option: "
        "`patterns,lists=terms.txt,tagger=DIR,spacy=en_core_web_sm` (see `tacit detect list`).",
    ),
]


@app.command("list")
def list_() -> None:
    """List the detectors and the kinds of things they find.

    Example: `tacit detect list`
    """
    from tacit.detection import DETECTORS
    from tacit.detection.kinds import KINDS, PII_KINDS

    table = simple_table("detector", "option", "what it does")
    for column in table.columns:
        column.justify = "left"
    for entry in DETECTORS.values():
        table.add_row(entry.name, entry.option, entry.summary)
    out.print(table)
    kinds = simple_table("\nkind", "\nwhat it covers")
    kinds.columns[1].justify = "left"
    for kind, says in {**KINDS, **PII_KINDS}.items():
        kinds.add_row(kind, says)
    out.print(kinds)


_To = Annotated[Path | None, typer.Option("-o", "--out", help="Mentions file to write (.jsonl).")]
_Language = Annotated[
    str | None,
    typer.Option(
        help="Of the detector `names`: en (if not given), de, es, fr, or `auto`, which guesses "
        "record by record."
    ),
]
_Kinds = Annotated[
    str,
    typer.Option(
        help="Only these kinds, comma-separated, or `all`. If not given: PERSON, ORG and PII with "
        "the default detectors, all kinds with others."
    ),
]
_MinimumScore = Annotated[
    float, typer.Option(min=0, max=1, help="Only findings at least this sure.")
]
_Aliases = Annotated[Path | None, typer.Option(help="YAML of names that mean the same entity.")]
_Score = Annotated[bool, typer.Option("--score", help="Compare with the gold labels.")]
_By = Annotated[str, typer.Option(help="Score by `kind` or `family` (PII/EMAIL as PII).")]


_Replace = Annotated[
    Path | None,
    typer.Option(
        help="Write the corpus with invented names in place of what was found, and a certificate "
        "that says what is still told."
    ),
]
_SameWithin = Annotated[
    str,
    typer.Option(
        help="--replace: the same invented name within a `record`, a `user` or the `corpus`."
    ),
]


_Review = Annotated[
    Path | None,
    typer.Option(
        help="Write a page on which a person checks a sample of records; `tacit detect agreement` "
        "reads the answers."
    ),
]
_Sample = Annotated[int, typer.Option(min=1, help="--review: how many records, drawn alike.")]


@app.command("run")
@reads_corpus
def run(
    corpus: Corpus,
    to: _To = None,
    using: With = "patterns,lists,names",
    language: _Language = None,
    kinds: _Kinds = "",
    minimum_score: _MinimumScore = 0.0,
    aliases: _Aliases = None,
    score: _Score = False,
    by: _By = "kind",
    replace: _Replace = None,
    same_within: _SameWithin = "record",
    review: _Review = None,
    sample: _Sample = 100,
    seed: Seed = 0,
    page_records: PageRecords = 500,
    workers: AtOnce = 1,
    ray: OnRay = None,
    as_json: AsJson = False,
    overwrite: Overwrite = False,
) -> None:
    """Find what is sensitive in a corpus.

    Writes the mentions (offsets, no text), and beside them the entity table (names: guard it), a
    summary, and a page to browse. `tacit detect train` trains a tagger, `tacit detect list` lists
    the detectors. With `--replace FILE` also the corpus with invented names instead.

    Examples: `tacit detect mail.jsonl -o mentions.jsonl` ·
    `tacit detect mail.jsonl --replace pseudonyms.jsonl` ·
    `tacit detect mail.jsonl --sample 100 --review review.html` ·
    `tacit detect conll2003 --split test --with tagger=my-tagger --score`
    """
    from tacit.detection import detect, scoring
    from tacit.detection.mentions import Aliases
    from tacit.detection.saving import mention_files, save_detection

    if language is not None:
        using = _in_language(using, language)
    files = mention_files(to, page=page_records > 0) if to else {}
    others = {"corpus": replace, "page to check (holds text: keep inside)": review}
    refuse_overwrite(*files.values(), *filter(None, others.values()), overwrite=overwrite)
    with progress("Detecting", len(corpus)) as advance:
        found = detect(
            corpus, using, kinds=kinds.split(",") if kinds else None, minimum_score=minimum_score,
            aliases=Aliases.read(aliases) if aliases else None, progress=advance,
            workers=Workers(workers, ray),
        )  # fmt: skip
    scores = scoring.score(corpus, found.mentions, by=by) if score else None
    summary = found.summary() | ({"scores": scores.row()} if scores else {})
    if to:
        save_detection(
            to, found, summary, corpus=corpus, page_records=page_records, scores=scores,
            learnt=_learnt(corpus, found) if page_records else None,
        )  # fmt: skip
    replaced = _replaced(replace, corpus, found, same_within, overwrite) if replace else None
    if review:
        _to_review(review, corpus, found, sample, seed)
    if as_json:
        print_json(summary)
        return
    _print_found(summary)
    if replaced:
        out.print(replaced, soft_wrap=True, markup=False)
    if scores:
        out.print()
        out.print(scoring.table(scores))
    for what, file in (files | others).items():
        if file is not None:
            say(f"{what}: {file}")


def _in_language(using: str, language: str) -> str:
    parts = using.split(",")
    if "names" not in parts:
        raise UsageError("--language is for the detector names, which --with does not name.")
    return ",".join(f"names={language}" if part == "names" else part for part in parts)


def _replaced(to: Path, corpus: Corpus, found: Any, within: str, overwrite: bool) -> str:
    """Write the corpus with invented names, as `tacit sanitize --method pseudonym` does."""
    from tacit.sanitization import sanitize_file
    from tacit.sanitization.operators import FromMentions, Replacer, told_by

    work = Replacer("pseudonym", FromMentions(found.mentions), within=within)  # type: ignore[arg-type]
    told = told_by(within)  # type: ignore[arg-type]
    detectors = ", ".join(one.name for one in found.provenance.detectors)
    done = sanitize_file(
        corpus.table.to_batches(), to, work, context={"detectors": detectors, **told},
        overwrite=overwrite,
    )  # fmt: skip
    return (
        f"{done.file}: invented names in place of {done.counted.words:,} mentions. This promises "
        f"nothing: what no detector found stands as it was, and it tells {told['what that tells']} "
        f"({done.folder})."
    )


def _to_review(to: Path, corpus: Corpus, found: Any, sample: int, seed: int) -> None:
    from tacit.detection.review import write_review

    detectors = ",".join(one.name for one in found.provenance.detectors)
    write_review(to, corpus, found.mentions, detectors=detectors, sample=sample, seed=seed)


@app.command()
def agreement(
    answers: Annotated[Path, typer.Argument(help="What the page's button Save wrote.")],
    as_json: AsJson = False,
) -> None:
    """How often a person and the detectors agree, from the answers on a page of `--review`.

    Example: `tacit detect agreement review.json`
    """
    from tacit.detection.review import agreement_in

    found = agreement_in(answers)
    if as_json:
        print_json(found.as_json())
        return
    share, low, high = found.share
    out.print(
        f"A person agreed with {found.detectors} on all of {found.alike:,} of {found.checked:,} "
        f"records, {share:.0%} ({low:.0%} to {high:.0%} at 95 %); {found.sample:,} were drawn.",
        markup=False,
    )
    table = simple_table("kind", "right", "wrong", "missed", "precision", "recall")
    for kind, right, wrong, missed, *shares in found.rows():
        said = ["" if one is None else f"{one:.3f}" for one in shares]
        table.add_row(kind, f"{right:,}", f"{wrong:,}", f"{missed:,}", *said)
    out.print(table)


def _learnt(corpus: Corpus, found: Any) -> dict[tuple[str, int], tuple[str, bool]]:
    """What a run that protects names would learn from instead of each mention.

    By record and place: the invented name, and whether the first step would show the real one.
    """
    from tacit.corpus.splitting import training_part
    from tacit.planning.plan import Plan
    from tacit.training.data.substitution import as_learnt

    if "user" not in corpus.columns or "pair" in corpus.columns:
        return {}
    plan = Plan(protect="users+names", epsilon=1, steps=1, user_rate=1, name_share=0.05)
    part = training_part(corpus)
    return as_learnt(plan, part, found.mentions, found.entities, found.provenance)


def _print_found(summary: dict[str, Any]) -> None:
    out.print(
        f"{summary['mentions']:,} mentions of {summary['entities']:,} entities in "
        f"{summary['sensitive_records']:,} of {summary['records']:,} records "
        f"({summary['records_per_second']:,} records a second)"
    )
    table = simple_table("kind", "mentions", "entities", "")
    table.columns[3].justify = "left"
    most = max(summary["mentions_by_kind"].values(), default=1)
    for kind, count in summary["mentions_by_kind"].items():
        entities = summary["entities_by_kind"].get(kind, 0)
        table.add_row(kind, f"{count:,}", f"{entities:,}", bar(count / most, 30))
    out.print(table)


@app.command()
@reads_corpus
def train(
    corpus: Corpus,
    to: Annotated[Path, typer.Option("-o", "--out", help="Folder for the tagger.")],
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Most iterations of the optimizer (60).")
    ] = None,
    held_out: Annotated[
        float, typer.Option(help="Share of users kept apart to score the tagger.")
    ] = 0.0,
    seed: Seed = 0,
    as_json: AsJson = False,
    overwrite: Overwrite = False,
) -> None:
    """Train a tagger of your own on a corpus with NER tags or marked spans.

    Example: `tacit detect train conll2003 --data DIR -o my-tagger`
    """
    from tacit.detection.tagger import tagger

    most = iterations or tagger.ITERATIONS
    with progress("Training", most) as advance:
        summary = tagger.train(
            corpus, to, iterations=most, held_out=held_out, seed=seed, overwrite=overwrite,
            progress=lambda *_: advance(1),
        )  # fmt: skip
    if as_json:
        print_json(asdict(summary))
        return
    marks = sum(summary.mentions.values())
    out.print(
        f"Learned {marks:,} mentions in {summary.records:,} records in {summary.seconds:.0f} s; "
        f"use it with --with tagger={escape(str(to))}"
    )
    say(f"{to} holds names from the training text in the clear: guard it like the text.")
    if summary.held_out_score:
        table = simple_table("held out", "precision", "recall", "F1", "mentions")
        for kind, s in summary.held_out_score.items():
            shares = (f"{share:.3f}" for share in (s.precision, s.recall, s.f1))
            table.add_row(kind, *shares, f"{s.mentions:,}")
        out.print(table)
