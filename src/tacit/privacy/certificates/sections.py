"""A document as sections, and each of its two forms: Markdown, and a page to print."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape


@dataclass(frozen=True)
class Section:
    """A heading with paragraphs, points and one table; `level` 1 is the title of the document."""

    title: str
    paragraphs: Sequence[str] = ()
    points: Sequence[str] = ()
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = field(default_factory=tuple)
    after: Sequence[str] = ()
    level: int = 2
    new_page: bool = False
    """On paper, begin on a page of its own."""


def markdown(sections: Sequence[Section]) -> str:
    """The sections as Markdown."""
    lines: list[str] = []
    for one in sections:
        lines += [f"{'#' * one.level} {one.title}", ""]
        for text in one.paragraphs:
            lines += [text, ""]
        if one.header:
            lines += [_row(one.header), "|" + "---|" * len(one.header), *map(_row, one.rows), ""]
        if one.points:
            lines += [*[f"- {point}" for point in one.points], ""]
        for text in one.after:
            lines += [text, ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem;
  color: #1c1e21; background: #fff; }
h1 { font-size: 1.6rem; margin: 0 0 1rem; }
h1 + p { border-left: 4px solid #3b6ea8; background: #f1f5f9; padding: .6rem .9rem; }
h2 { font-size: 1.1rem; margin: 1.6rem 0 .4rem; }
p { margin: .4rem 0 .8rem; } ul { padding-left: 1.2rem; } li { margin: .2rem 0; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid #d5d9de; }
code { font-size: .82rem; overflow-wrap: anywhere; } li, p { overflow-wrap: anywhere; }
@media (prefers-color-scheme: dark) { body { color: #e6e8ea; background: #16181b; }
  h1 + p { background: #22262b; } th, td { border-color: #3a3f45; } }
@media print { @page { margin: 12mm; }
  body { margin: 0; padding: 0; max-width: none; font-size: 9pt; line-height: 1.3; color: #000;
    background: #fff; }
  h1 { font-size: 15pt; margin-bottom: .5rem; } h2 { font-size: 11pt; margin: .7rem 0 .2rem; }
  h1 + p { background: none; } ul { margin: .2rem 0; } li { margin: .1rem 0; }
  p { margin: .2rem 0 .4rem; } code { font-size: 8pt; } table { font-size: 8.5pt; }
  h2 { break-after: avoid; } li, tr { break-inside: avoid; } h2.new { break-before: page; } }
"""


def html(sections: Sequence[Section], title: str) -> str:
    """The sections as one page without any other file, for the screen and for paper."""
    body: list[str] = []
    for one in sections:
        mark = ' class="new"' if one.new_page else ""
        body.append(f"<h{one.level}{mark}>{_inline(one.title)}</h{one.level}>")
        body += [f"<p>{_inline(text)}</p>" for text in one.paragraphs]
        if one.header:
            body.append('<div class="scroll"><table><thead>' + _cells(one.header, "th"))
            body.append("</thead><tbody>" + "".join(_cells(row, "td") for row in one.rows))
            body.append("</tbody></table></div>")
        if one.points:
            body.append("<ul>" + "".join(f"<li>{_inline(p)}</li>" for p in one.points) + "</ul>")
        body += [f"<p>{_inline(text)}</p>" for text in one.after]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _cells(cells: Sequence[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{_inline(cell)}</{tag}>" for cell in cells) + "</tr>"


def _inline(text: str) -> str:
    """Text with `code` and **strong** marked, everything else as it stands.

    >>> _inline("**a** `b` <c>")
    '<strong>a</strong> <code>b</code> &lt;c&gt;'
    """
    text = escape(text, quote=False)  # first, so that no text can bring a tag of its own
    for mark, tag in (("**", "strong"), ("`", "code")):
        parts = text.split(mark)
        if len(parts) % 2 == 0:  # one mark too many: it is no mark
            continue
        text = "".join(
            f"<{tag}>{part}</{tag}>" if at % 2 else part for at, part in enumerate(parts)
        )
    return text
