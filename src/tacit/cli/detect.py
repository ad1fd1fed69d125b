"""`tacit detect`: find sensitive text, score the finding, train a tagger."""

import json
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
    whole_files,
)
from tacit.cli.options import AsJson, AtOnce, OnRay, Overwrite, PageRecords, Seed
from tacit.corpus import Corpus
from tacit.errors import UsageError
from tacit.files import refuse_overwrite
from tacit.saved_json import spelled
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


@app.command("run")
@reads_corpus
def run(
    corpus: Corpus,
    to: _To = None,
    using: With = "patterns,lists,names",
    kinds: _Kinds = "",
    minimum_score: _MinimumScore = 0.0,
    aliases: _Aliases = None,
    score: _Score = False,
    by: _By = "kind",
    page_records: PageRecords = 500,
    workers: AtOnce = 1,
    ray: OnRay = None,
    as_json: AsJson = False,
    overwrite: Overwrite = False,
) -> None:
    """Find what is sensitive in a corpus.

    Writes the mentions (offsets, no text), and beside them the entity table (names: guard it), a
    summary, and a page to browse. `tacit detect train` trains a tagger, `tacit detect list` lists
    the detectors.

    Examples: `tacit detect mail.jsonl -o mentions.jsonl` ·
    `tacit detect conll2003 --split test --with tagger=my-tagger --score`
    """
    from tacit.detection import detect, scoring
    from tacit.detection.mentions import Aliases

    files = _files(to, page_records > 0) if to else {}
    refuse_overwrite(*files.values(), overwrite=overwrite)
    with progress("Detecting", len(corpus)) as advance:
        found = detect(
            corpus, using, kinds=kinds.split(",") if kinds else None, minimum_score=minimum_score,
            aliases=Aliases.read(aliases) if aliases else None, progress=advance,
            workers=Workers(workers, ray),
        )  # fmt: skip
    scores = scoring.score(corpus, found.mentions, by=by) if score else None
    summary = found.summary() | ({"scores": scores.row()} if scores else {})
    if files:
        _write(files, corpus, found, scores, summary, page_records)
    if as_json:
        print_json(summary)
        return
    _print_found(summary)
    if scores:
        out.print()
        out.print(scoring.table(scores))
    for what, file in files.items():
        say(f"{what}: {file}")


def _files(mentions: Path, page: bool) -> dict[str, Path]:
    stem = mentions.with_suffix("") if mentions.suffix else mentions
    files = {
        "mentions": mentions,
        "entity table (holds names: guard it)": stem.with_name(stem.name + ".entities.jsonl"),
        "summary": stem.with_name(stem.name + ".summary.json"),
    }
    if page:
        files["page (holds text: keep inside)"] = stem.with_name(stem.name + ".html")
    if len(set(files.values())) < len(files):
        raise UsageError(
            f"{mentions}: the page beside the mentions would have that name too; end it in .jsonl."
        )
    return files


def _write(
    files: dict[str, Path],
    corpus: Corpus,
    found: Any,
    scores: Any,
    summary: dict[str, Any],
    page_records: int,
) -> None:
    from tacit.detection.mentions import write_lines
    from tacit.detection.mentions_page import write_page
    from tacit.privacy.certificates.manifest import file_digest

    with whole_files(*files.values()) as (mentions, entities, about, *page):
        write_lines(mentions, found.mentions)
        write_lines(entities, found.entities)
        # With it a run can tell whether the mentions are still what the detectors found.
        summary |= {"mentions_sha256": file_digest(mentions)}
        about.write_text(
            json.dumps(spelled(summary), indent=2, allow_nan=False) + "\n", encoding="utf-8"
        )
        if page:
            title = f"What was found in {corpus.name}"
            write_page(
                page[0], corpus, found.mentions, title=title, limit=page_records, scores=scores
            )


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
