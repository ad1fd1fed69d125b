"""The front page: for whoever comes by, without signing in; `--no-welcome` leaves it away.

A stranger's text is looked at by detectors and forgotten; models are only shown, by what was
written down when they were trained. Both are plain HTML with one script, so no stranger has a
channel to the server.
"""

import asyncio
import threading
from json import JSONDecodeError
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, RedirectResponse, Response

from tacit.errors import DataError, TacitError
from tacit.server.api.middleware import AccessGate
from tacit.server.errors import Busy
from tacit.server.identity import RateLimiter
from tacit.server.pages.rendering import WORDS, fragment, kind_word, pieces, whole_page
from tacit.server.records import storable
from tacit.server.services import Services
from tacit.server.showcase import BEGINNINGS, read_showcase

_POLICY = {"connect-src": "'self'"}
_MOST = 2000
"""Characters of a stranger's text that are looked at."""
_AT_ONCE, _LOOKS, _LOOKS_PER_SECOND = 2, 12, 2.0
"""Looks at once, for all strangers together; and by address, so many and then so fast."""


def welcome_routes(services: Services, access: AccessGate) -> APIRouter:
    """The page, and what its field asks while somebody types."""
    router = APIRouter(include_in_schema=False)
    rate, room = RateLimiter(_LOOKS_PER_SECOND, _LOOKS), threading.BoundedSemaphore(_AT_ONCE)

    @router.get("/welcome")
    async def welcome(request: Request) -> Response:
        if not services.settings.welcome:
            return RedirectResponse("/sign-in", 303)
        try:
            access.limit_anonymous(request.scope)
        except TacitError as busy:
            return whole_page("Busy", fragment("plain", "Busy", str(busy)), 429)
        shown = await run_in_threadpool(read_showcase, services.settings)
        samples = WORDS["samples"]
        marks = await run_in_threadpool(look, services, room, next(iter(samples.values())))
        body = fragment("welcome", shown, samples, marks, BEGINNINGS, _MOST)
        return whole_page("Welcome", body, more=_POLICY)

    @router.post("/welcome/look")
    async def look_at(request: Request) -> Response:
        client = request.client.host if request.client else "unknown"
        try:
            if not services.settings.welcome:
                raise DataError("This server has no front page.")
            if not rate.allows(client):
                raise Busy("Too many texts at once; wait a second.")
            found = await asyncio.wait_for(
                run_in_threadpool(look, services, room, await _text_of(request)), timeout=20
            )
        except (TacitError, TimeoutError) as error:
            sentence = str(error) if isinstance(error, TacitError) else "It takes too long."
            status = 429 if isinstance(error, Busy | TimeoutError) else 409
            return JSONResponse({"message": sentence}, status)
        return JSONResponse(found, headers={"Cache-Control": "no-store"})

    return router


async def _text_of(request: Request) -> str:
    """What somebody typed; by hand, since a library's refusal would repeat it."""
    try:
        asked = await request.json()
    except (JSONDecodeError, UnicodeDecodeError, RecursionError):
        asked = None
    text = asked.get("text") if isinstance(asked, dict) else None
    if not isinstance(text, str) or len(text) > _MOST or not storable(text):
        raise DataError(f"Send a text of at most {_MOST:,} characters.")
    return text


def look(services: Services, room: threading.BoundedSemaphore, text: str) -> list[Any]:
    """A text in parts, each with the kind of what was found in it; nothing of it is kept."""
    if not text.strip():
        return []
    if not room.acquire(timeout=2):
        raise Busy("Others have their texts looked at; wait a second.")
    try:
        marks = services.marks(text)
    finally:
        room.release()
    return [[part, kind_word(kind) if kind else ""] for part, kind in pieces(text, marks)]
