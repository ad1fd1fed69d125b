"""What objects show of themselves in a notebook: small tables, every value escaped."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any


def facts_html(title: str, facts: Mapping[str, Any], note: str = "") -> str:
    """A table of names and values below a title.

    >>> facts_html("Corpus", {"records": 1200, "name": "<b>"})
    '<div><b>Corpus</b><table><tr><td>records</td><td>1,200</td></tr><tr><td>name</td><td>&lt;b&gt;</td></tr></table></div>'
    """
    return rows_html(title, (), facts.items(), note)


def framed(page: str, height: int = 640) -> str:
    """A whole page inside of a notebook, whose style it leaves alone.

    >>> framed("<p>one</p>", 100)
    '<iframe srcdoc="&lt;p&gt;one&lt;/p&gt;" style="width:100%;height:100px;border:0"></iframe>'
    """
    return (
        f'<iframe srcdoc="{escape(page)}" style="width:100%;height:{height}px;border:0"></iframe>'
    )


def rows_html(
    title: str, headings: Sequence[str], rows: Iterable[Sequence[Any]], note: str = ""
) -> str:
    """A table with headings below a title."""
    head = "".join(f"<th>{escape(one)}</th>" for one in headings)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(_shown(value))}</td>' for value in row)}</tr>" for row in rows
    )
    below = f"<small>{escape(note)}</small>" if note else ""
    top = f"<tr>{head}</tr>" if head else ""
    return f"<div><b>{escape(title)}</b><table>{top}{body}</table>{below}</div>"


def _shown(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
