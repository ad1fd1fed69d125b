"""`tacit corpus`: read, describe, convert and generate corpora."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from tacit.cli.common import (
    columns_of,
    new_corpus_file,
    out,
    print_bars,
    print_json,
    progress,
    reads_corpus,
    say,
    simple_table,
)
from tacit.cli.options import AsJson, CorpusOut, Overwrite, Seed
from tacit.corpus import Corpus
from tacit.errors import UsageError

app = typer.Typer(
    help="Read, describe, convert and generate corpora.\n\n"
    "Example: `tacit corpus describe mail.csv --user sender --text body`",
    no_args_is_help=True,
    suggest_commands=False,  # click suggests them itself
)


@app.command("list")
def list_() -> None:
    """List the known corpora and what counts as a user in each.

    Example: `tacit corpus list`
    """
    from tacit import corpora

    table = simple_table("name", "what it is")
    table.columns[1].justify = "left"
    for name in corpora.CORPORA:
        table.add_row(name, corpora.CORPORA[name].summary)
    out.print(table)


@app.command()
@reads_corpus
def describe(
    corpus: Corpus,
    as_json: AsJson = False,
    near_duplicates: Annotated[
        bool, typer.Option(help="Look for near-duplicates across users.")
    ] = True,
) -> None:
    """Count users, records per user, tokens, labels and near-duplicates across users.

    Example: `tacit corpus describe conll2003 --data DIR --json`
    """
    from tacit.corpus import description

    with progress("Comparing", len(corpus) if near_duplicates else 0) as advance:
        summary = description.describe(corpus, near_duplicates=near_duplicates, progress=advance)
    if as_json:
        print_json(summary)
    else:
        _print_summary(summary)


def _print_summary(summary: dict[str, Any]) -> None:
    out.print(f"[bold]{escape(summary['name'])}[/bold]")
    table = simple_table("", "")
    users = summary["users"]
    table.add_row("users", "none given" if users is None else f"{users:,}")
    table.add_row("records", f"{summary['records']:,}")
    if users is not None and summary["records_without_user"]:
        table.add_row("records without user", f"{summary['records_without_user']:,}")
    table.add_row("tokens", f"{summary['tokens']:,}")
    table.add_row("tokens per record", _spread(summary["tokens_per_record"]))
    if users:
        table.add_row("records per user", _spread(summary["records_per_user"]))
    copies = summary.get("near_duplicates")
    if copies:
        found = f"{copies['records']:,} records ({copies['share']:.1%})"
        if users is None:
            table.add_row("near-duplicates", found)
        else:
            table.add_row("near-duplicates across users", f"{found} of {copies['users']:,} users")
    out.print(table)
    if users:
        out.print("\n[bold]records per user[/bold] (users)")
        print_bars(summary["records_per_user"]["histogram"])
    for title in ("labels", "splits", "tagged_spans", "gold_spans"):
        if title in summary:
            out.print(f"\n[bold]{title.replace('_', ' ')}[/bold]")
            print_bars(dict(list(summary[title].items())[:20]))
            if len(summary[title]) > 20:
                out.print(f"and {len(summary[title]) - 20} more")
    say("\nThese are exact counts over private text: keep them inside.", style="dim")


def _spread(values: dict[str, Any]) -> str:
    return f"{values['min']} to {values['max']}, median {values['median']:g}"


_AsInPapers = Annotated[
    bool,
    typer.Option(
        "--as-in-papers",
        help="Lower-case, no punctuation, rare words to <unk>. Counts its vocabulary from the "
        "text itself, which no guarantee covers; what that leaks is printed.",
    ),
]
_MinCount = Annotated[
    int | None, typer.Option(help="With --as-in-papers: keep words seen so often (3).")
]
_VocabularySize = Annotated[
    int | None, typer.Option(help="With --as-in-papers: keep so many most frequent words.")
]


@app.command()
@reads_corpus
def convert(
    corpus: Corpus,
    to: CorpusOut,
    drop: Annotated[str, typer.Option(help="Columns to leave out, comma-separated.")] = "",
    as_in_papers: _AsInPapers = False,
    min_count: _MinCount = None,
    vocabulary_size: _VocabularySize = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a corpus in another format, with our column names.

    Columns that are neither called as ours are nor named by a flag are left out.

    Example: `tacit corpus convert mail.csv --user sender --text body -o mail.parquet`
    """
    from tacit.corpora.preprocessing import preprocess
    from tacit.corpus.writing import write

    new_corpus_file(to, overwrite=overwrite)
    left_out = columns_of(corpus, drop, "--drop")
    if as_in_papers:
        corpus, leak = preprocess(corpus, min_count=min_count, vocabulary_size=vocabulary_size)
        say(f"Leak: {leak}", style="bold")
    elif min_count is not None or vocabulary_size is not None:
        raise UsageError("--min-count and --vocabulary-size go with --as-in-papers.")
    with progress("Writing", len(corpus)) as advance:
        write(corpus, to, drop=left_out, progress=advance)
    say(f"{len(corpus):,} records written to {to}")


@app.command()
@reads_corpus
def split(
    corpus: Corpus,
    to: CorpusOut,
    by: Annotated[
        str, typer.Option(help="`user` keeps each user's records together; or `record`.")
    ] = "user",
    test: Annotated[float, typer.Option(min=0, max=1, help="Share of test.")] = 0.1,
    valid: Annotated[float, typer.Option(min=0, max=1, help="Share of validation.")] = 0.0,
    seed: Seed = 0,
    overwrite: Overwrite = False,
) -> None:
    """Set records aside to test on: write the corpus with a column `split`.

    Who goes where is decided by a hash of the seed and their own name, so nobody moves when
    somebody else joins or leaves. Only `train` is trained on; `valid` is scored after training,
    `test` by `tacit evaluate`.

    Example: `tacit corpus split mail.parquet --by user --test 0.1 --seed 1 -o split.parquet`
    """
    from tacit.corpus.splitting import splits_by
    from tacit.corpus.writing import write

    splits = splits_by(corpus, by, test=test, valid=valid, seed=seed)
    new_corpus_file(to, overwrite=overwrite)
    made = corpus.with_splits(splits)
    with progress("Writing", len(made)) as advance:
        write(made, to, progress=advance)
    counts = ", ".join(f"{len(made.only(one)):,} {one}" for one in sorted(made.splits()))
    say(f"{counts} records written to {to}")


@app.command()
def generate(
    what: Annotated[str, typer.Argument(help="Only `customersim`: customer-service dialogs.")],
    to: Annotated[Path, typer.Option("-o", "--out", help="File to write: .jsonl, .parquet.")],
    dialogs: Annotated[int, typer.Option(help="How many dialogs.")] = 1000,
    users: Annotated[
        int | None, typer.Option(help="How many customers; a third, if not given.")
    ] = None,
    seed: Seed = 0,
    overwrite: Overwrite = False,
) -> None:
    """Generate customer-service dialogs whose sensitive spans are known.

    Customers return, households share addresses and phones, shops and agents recur: protecting
    users, entities and both all differ.

    Example: `tacit corpus generate customersim --dialogs 300 --seed 5 -o c.jsonl`
    """
    from tacit.corpora import customersim
    from tacit.corpus.writing import write

    if what != "customersim":
        raise UsageError(f"{what!r} cannot be generated; accepted: customersim.")
    # A table of plain values has no place for the spans.
    new_corpus_file(to, overwrite=overwrite, among=["jsonl"])
    corpus = customersim.generate(dialogs, seed, users)
    with progress("Writing", len(corpus)) as advance:
        write(corpus, to, progress=advance)
    say(f"{len(corpus):,} dialogs of {len(corpus.users()):,} customers written to {to}")
