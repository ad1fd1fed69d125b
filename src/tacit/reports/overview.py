"""One page that tells a corpus's way from text to promise: what was found, who shares it, the plan.

The page is self-contained: no outside host, no script.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from tacit.errors import require_package
from tacit.files import whole_file


@dataclass(frozen=True)
class Section:
    """A part of the page: figures (numbers with names), prose in Markdown, a table, a drawing."""

    title: str
    prose: str = ""
    figures: Sequence[tuple[str, str]] = ()
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    drawing: str = ""
    links: Mapping[str, str] | None = None


def write_overview(path: Path, title: str, lead: str, sections: Sequence[Section]) -> None:
    """Write the page; text is escaped, `drawing` is an SVG element of our own making."""
    source = (files("tacit.reports") / "overview.html.jinja").read_text(encoding="utf-8")
    page = Environment(autoescape=True, undefined=StrictUndefined).from_string(source)
    html = page.render(title=title, lead=lead, sections=[_ready(s) for s in sections])
    with whole_file(Path(path)) as draft:
        draft.write_text(html, encoding="utf-8")


def _ready(section: Section) -> dict[str, Any]:
    # html=False: Markdown may not smuggle in tags.
    markdown = require_package("markdown_it", "A page").MarkdownIt("commonmark", {"html": False})
    prose = markdown.render(section.prose)
    return {**section.__dict__, "prose": prose, "links": dict(section.links or {})}
