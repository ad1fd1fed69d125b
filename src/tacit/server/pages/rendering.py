"""Markup: the fragments of pages, numbers as people write them, and pages without a script."""

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment
from markupsafe import Markup
from starlette.responses import HTMLResponse

from tacit.detection.kinds import PII_KINDS
from tacit.privacy.rounding import down, up
from tacit.server import Json

_POLICY = {
    "default-src": "'none'", "script-src": "'self'", "style-src": "'self'",
    "img-src": "'self' data:", "form-action": "'self'", "base-uri": "'none'",
    "frame-ancestors": "'none'",
}  # fmt: skip
REFERRER = {"Referrer-Policy": "same-origin"}
"""With no referrer at all a browser would not say either which site sends a form."""
WORDS: Json = json.loads((files("tacit.server.pages") / "words.json").read_text(encoding="utf-8"))
"""What the pages say of units, kinds, states, roles and choices."""
FILES = {
    "style.css": "text/css", "theme.js": "text/javascript", "welcome.js": "text/javascript",
    "mark.svg": "image/svg+xml",
}  # fmt: skip


def number(value: Any, digits: int = 3) -> str:
    """A number as people write it.

    >>> number(12345), number(2.73168), number("infinity"), number(None)
    ('12,345', '2.73', 'no bound', '–')
    """
    if value is None:
        return "–"
    if isinstance(value, str):
        return "no bound" if value == "infinity" else value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}g}"


def epsilon(value: float | str | None) -> str:
    """An epsilon as it is written everywhere, rounded up.

    >>> epsilon(7.98712), epsilon("infinity"), epsilon(None)
    ('7.988', 'no bound', '–')
    """
    return number(value if value is None else up(value))


def timestamp(iso: str | None) -> str:
    """A time as people write it, in UTC.

    >>> timestamp("2026-03-01T10:24:15.575371+00:00")
    '1 Mar 2026, 10:24 UTC'
    """
    if not iso:
        return "–"
    at = datetime.fromisoformat(iso)
    return f"{at.day} {at:%b %Y, %H:%M} UTC"


def duration(seconds: float) -> str:
    """A length of time as people say it.

    >>> duration(0.4), duration(75), duration(7300)
    ('about a second', 'about 1 minute', 'about 2 hours')
    """
    for size, name in ((3600, "hour"), (60, "minute"), (1, "second")):
        if seconds >= size:
            count = round(seconds / size)
            return f"about {count} {name}{'s' if count != 1 else ''}"
    return "about a second"


def kind_word(kind: str) -> str:
    """A kind of entity in words.

    >>> kind_word("PII/PHONE")
    'telephone numbers'
    """
    return WORDS["kinds"].get(kind) or PII_KINDS.get(kind) or kind.lower()


def pieces(text: str, marks: list[Json]) -> list[tuple[str, str]]:
    """A text in parts, each with the kind of its mark; no kind where there is none.

    >>> pieces("I am Ann.", [{"start": 5, "end": 8, "kind": "PERSON"}])
    [('I am ', ''), ('Ann', 'PERSON'), ('.', '')]
    """
    parts, at = [], 0
    for mark in sorted(marks, key=lambda mark: (mark["start"], -mark["end"])):
        if mark["start"] < at:
            continue
        parts += [(text[at : mark["start"]], ""), (text[mark["start"] : mark["end"]], mark["kind"])]
        at = mark["end"]
    return [part for part in [*parts, (text[at:], "")] if part[0]]


def unit_words(unit: str) -> str:
    """Whom a promise is about, in words."""
    return WORDS["units"].get(unit, unit)


@cache
def file_text(name: str) -> str:
    """One of the few files that pages bring along."""
    return (files("tacit.server.pages") / name).read_text(encoding="utf-8")


@cache
def file_address(name: str) -> str:
    """Where a browser finds a file; another address whenever it changes."""
    digest = hashlib.sha256(file_text(name).encode()).hexdigest()[:12]
    return f"/page-files/{digest}/{name}"


@cache
def _fragments() -> Any:
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(
        number=number, epsilon=epsilon, timestamp=timestamp, unit=unit_words, down=down,
        kind_word=kind_word, duration=duration, hue=lambda label: hash(label) % 360,
    )  # fmt: skip
    environment.globals.update(
        file_address=file_address,
        way=lambda: WORDS["way"].items(),
        tag_kind=lambda word: WORDS["tag_kinds"].get(word, ""),
    )
    return environment.from_string(file_text("fragments.jinja")).module


def fragment(name: str, *values: Any) -> Markup:
    """A macro of fragments.jinja, with values of anybody, which are escaped."""
    return Markup(getattr(_fragments(), name)(*values).strip())


def whole_page(
    title: str, body: Markup, status: int = 200, *, more: Mapping[str, str] | None = None
) -> HTMLResponse:
    """A page of its own, without the component library; `more` goes into its policy."""
    policy = "; ".join(f"{name} {value}" for name, value in (_POLICY | dict(more or {})).items())
    headers = {"Content-Security-Policy": policy, "Cache-Control": "no-store", **REFERRER}
    return HTMLResponse(fragment("page", title, body), status, headers)


def plain_page(title: str, sentence: str, status: int) -> HTMLResponse:
    """One sentence, and the way back."""
    return whole_page(title, fragment("plain", title, sentence), status)
