"""Pages without the component library: the door, and what is said when something cannot be."""

import hashlib
from functools import cache
from importlib.resources import files

from markupsafe import Markup
from starlette.responses import HTMLResponse

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
REFERRER = {"Referrer-Policy": "same-origin"}
"""With no referrer at all a browser would not say either which site sends a form."""
FILES = {"style.css": "text/css", "theme.js": "text/javascript", "mark.svg": "image/svg+xml"}


@cache
def file_text(name: str) -> str:
    """One of the few files that pages bring along."""
    return (files("tacit.server.pages") / name).read_text(encoding="utf-8")


@cache
def file_address(name: str) -> str:
    """Where a browser finds a file; another address whenever it changes."""
    digest = hashlib.sha256(file_text(name).encode()).hexdigest()[:12]
    return f"/page-files/{digest}/{name}"


def head() -> Markup:
    """What every page's head has."""
    return Markup(
        '<link rel="stylesheet" href="{}"><script src="{}"></script><link rel="icon" href="{}">'
    ).format(file_address("style.css"), file_address("theme.js"), file_address("mark.svg"))


def whole_page(title: str, body: Markup, status: int = 200) -> HTMLResponse:
    """A page of its own."""
    text = Markup(
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        'content="width=device-width, initial-scale=1"><title>{} · tacit</title>{}</head>'
        "<body>{}</body></html>"
    ).format(title, head(), body)
    headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-store", **REFERRER}
    return HTMLResponse(text, status, headers)


def plain_page(title: str, sentence: str, status: int) -> HTMLResponse:
    """One sentence, and the way back."""
    body = Markup(
        '<main class="door"><h1>{}</h1><p class="lead">{}</p><p><a href="/">Back to the start</a>'
        "</p></main>"
    )
    return whole_page(title, body.format(title, sentence), status)
