"""What several commands share: naming a corpus, progress, JSON, tables."""

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from typer.core import TyperGroup

from tacit.cli.options import CORPUS, gathers
from tacit.corpus import Corpus
from tacit.corpus.reading import Layout, format_of
from tacit.errors import UsageError
from tacit.files import refuse_overwrite
from tacit.saved_json import spelled

out = Console(soft_wrap=False, highlight=False, emoji=False)
err = Console(stderr=True, highlight=False, emoji=False)


def named_corpus(
    source: str, data: Path | None = None, split: str | None = None, **layout: Any
) -> Corpus:
    """The corpus that a command's options name; the rest of them say how it is laid out."""
    from tacit import corpora

    with progress("Reading", None) as advance:
        corpus = corpora.open_corpus(source, data, layout_of(**layout), advance)
    if corpora.is_known(source):
        split = split or "train"
    return corpus if split in (None, "all") else corpus.only(split)


def layout_of(
    *,
    format: str | None = None,
    column: list[str] | None = None,
    header: str | None = None,
    encoding: str = "utf-8",
    quotes: bool = True,
    **columns: str | None,
) -> Layout:
    """How a command's options say that a source is laid out."""
    named = {ours: theirs for ours, theirs in columns.items() if theirs}
    for pair in column or []:
        ours, _, theirs = pair.partition("=")
        if not theirs:
            raise UsageError(f"--column {pair}: write it as OURS=THEIRS.")
        named[ours] = theirs
    names = tuple(header.split(",")) if header else None
    return Layout(columns=named, format=format, encoding=encoding, header=names, quoted=quotes)


reads_corpus = gathers("corpus", CORPUS, named_corpus)
"""Give a command that takes `corpus: Corpus` all the options that say which corpus."""
names_corpus = gathers("corpus", CORPUS, dict)
"""The same for a command that takes the options, and opens the corpus in its own way."""


def columns_of(corpus: Corpus, names: str, option: str) -> tuple[str, ...]:
    """The columns that `id,label` names, each of which the corpus must have."""
    wanted = tuple(filter(None, names.split(",")))
    for name in wanted:
        if name not in corpus.columns:
            raise UsageError(
                f"{option} {name}: there is no such column; accepted: {', '.join(corpus.columns)}."
            )
    return wanted


def new_corpus_file(
    path: Path, *, overwrite: bool, among: Sequence[str] = ("jsonl", "csv", "tsv")
) -> None:
    """Stop before any work if a corpus cannot be written under that name."""
    try:
        known = format_of(path) in (*among, "parquet")
    except UsageError:
        known = False
    if not known:
        endings = ", ".join(f".{name}, .{name}.gz" for name in among)
        raise UsageError(f"{path}: end the name in {endings} or .parquet, which tells the format.")
    refuse_overwrite(path, overwrite=overwrite)


class OrDefault(TyperGroup):
    """A group that runs its default command when the first word names none of its commands."""

    default = ""

    @classmethod
    def to(cls, default: str) -> type["OrDefault"]:
        """A group with that default."""
        return type("OrDefault", (cls,), {"default": default})

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default command's name where it is left out."""
        known = args and (args[0] in self.commands or args[0] in ctx.help_option_names)
        if not known and (args or not self.no_args_is_help):
            args = [self.default, *args]
        return super().parse_args(ctx, args)


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on standard error that goes when the work is done."""
    description = TextColumn("{task.description}")
    columns = (description, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # Where nobody watches, a bar would leave blank lines in a log.
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)


def say(sentence: str, style: str | None = None) -> None:
    """Tell the person at the terminal something, on standard error.

    A file's name may look like markup, and a long one must stay on one line to be copied.
    """
    err.print(sentence, markup=False, soft_wrap=True, style=style)


def print_json(value: Any) -> None:
    """Machine-readable output: one JSON document and nothing else."""
    ascii_only = (sys.stdout.encoding or "utf-8").lower().replace("-", "") != "utf8"
    text = json.dumps(spelled(value), indent=2, ensure_ascii=ascii_only, allow_nan=False)
    sys.stdout.write(text + "\n")


def simple_table(*headings: str) -> Table:
    """A table without frame whose later columns are numbers; what is long goes on below."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place == 0 else "right", overflow="fold")
    return table


def whole_numbers(text: str, option: str) -> list[int]:
    """The numbers of `1,2,4`.

    >>> whole_numbers("1,2,4", "--caps")
    [1, 2, 4]
    """
    try:
        return [int(part) for part in text.split(",") if part]
    except ValueError:
        raise UsageError(f"{option} {text}: give whole numbers with commas between.") from None


def bar(share: float, width: int = 40) -> str:
    """A bar of block characters, for histograms in the terminal; of `#` where it has no blocks.

    >>> bar(0.5, 4)
    '██'
    """
    if not out.encoding.startswith("utf"):
        return "#" * (round(share * width) or math.ceil(share))
    eighths = round(share * width * 8)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (" ▏▎▍▌▋▊▉"[rest] if rest else "") if eighths else ("▏" if share else "")


def print_bars(counts: dict[str, int]) -> None:
    """A histogram: names, counts and bars."""
    table = simple_table("", "", "")
    table.columns[2].justify = "left"
    most = max(counts.values(), default=0) or 1
    for name, count in counts.items():
        table.add_row(escape(name), f"{count:,}", bar(count / most))
    out.print(table)
