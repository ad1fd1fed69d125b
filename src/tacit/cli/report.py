"""`tacit report`: utility, promise and measured leakage on one page."""

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.common import say
from tacit.cli.options import Overwrite
from tacit.errors import UsageError
from tacit.files import refuse_overwrite


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    to: Annotated[Path, typer.Option("-o", "--out", help="The page: NAME.html.")],
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "Privacy report",
    shareable: Annotated[
        bool, typer.Option("--shareable", help="Leave out every figure that is not private.")
    ] = False,
    text: Annotated[
        list[Path] | None,
        typer.Option(help="A file that `tacit synthesize` wrote: its certificate and ten texts."),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write one page that shows utility, promise and measured leakage side by side.

    Takes what `tacit train`, `tacit attack` and `tacit audit` left in the folders; Markdown and
    JSON are written beside the page. Every number is labelled public, protected or not private.

    Example: `tacit report plain users users+entities -o report.html`
    """
    from tacit.reports.facts import read_all
    from tacit.reports.report import write_report

    if to.suffix != ".html":
        raise UsageError(f"{to}: end the name in .html; Markdown and JSON go beside it.")
    targets = [to, to.with_suffix(".md"), to.with_suffix(".json")]
    refuse_overwrite(*targets, overwrite=overwrite)
    facts = read_all(runs)
    written = write_report(to, facts, title=title, shareable=shareable, texts=text or [])
    say("report: " + ", ".join(str(path) for path in written))
