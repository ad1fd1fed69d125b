"""What every request passes: who sends it, how large it is, headers on its answer.

A stranger is refused before anything of the request is read, and a failure inside says one word.
"""

import json
import sys
import time
from html import escape
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tacit.errors import TacitError
from tacit.server.api.metrics import Metrics
from tacit.server.errors import Busy, NotKnown
from tacit.server.identity import Caller, Identity, Rates
from tacit.server.settings import ServerSettings

UPLOADS = ("/records/file", "/certificates/verify", "/entity-lists/file")
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
_OF_THE_API = (
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
)


class AccessGate:
    """Who may come in: those with a token, not too often; strangers are told so, not too often."""

    def __init__(self, identity: Identity, settings: ServerSettings) -> None:
        self._identity = identity
        self._known = Rates(settings.requests_per_second, settings.burst)
        self._strangers = Rates(settings.requests_per_second / 10, max(1, settings.burst // 10))

    async def caller(self, scope: Scope) -> Caller:
        """Who has the token of a request."""
        try:
            caller = await self._who(_token(scope))
        except NotKnown:
            self.require_patience(scope)
            raise
        if not self.allows(caller):
            raise Busy("This token has asked too often; wait a second.")
        return caller

    def require_patience(self, scope: Scope) -> None:
        """Refuse a stranger who asks too often."""
        client = scope.get("client")
        if not self._strangers.allows(str(client[0]) if client else "unknown"):
            raise Busy("Too many requests without a valid token; wait a second.") from None

    def allows(self, caller: Caller) -> bool:
        """Take one request from the bucket of somebody who is known."""
        return self._known.allows(caller.token or caller.account)

    async def _who(self, token: str | None) -> Caller:
        if token is None:
            raise NotKnown("Give a token: Authorization: Bearer TOKEN.")
        caller = self._identity.remembered(token)
        if caller is None:
            caller = await run_in_threadpool(self._identity.caller, token)
        return caller


def _token(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"authorization":
            kind, _, token = value.decode("latin-1").partition(" ")
            return token.strip() if kind.lower() == "bearer" and token.strip() else None
    return None


class Guard:
    """Between the network and everything else."""

    def __init__(
        self, app: ASGIApp, settings: ServerSettings, metrics: Metrics, access: AccessGate
    ) -> None:
        self.app, self.settings, self.metrics, self.access = app, settings, metrics, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, within its limits."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = str(scope["path"])
        limit = self.settings.body_bytes
        if path.endswith(UPLOADS):
            limit = self.settings.upload_bytes
        started, status, received = time.perf_counter(), 0, 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise _too_large(limit)
            return message

        async def headed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = int(message["status"])
                message["headers"] = _with_headers(message.get("headers", []), path)
            await send(message)

        try:
            if path.startswith("/v1"):
                scope.setdefault("state", {})["caller"] = await self.access.caller(scope)
            if _announced(scope) > limit:
                raise _too_large(limit)
            await self.app(scope, counted, headed)
        except TacitError as error:
            if not status:
                kind = type(error).__name__
                await _answer(headed, scope, 401 if kind == "NotKnown" else 429, kind, str(error))
        except HTTPException as error:
            if not status:
                await _answer(headed, scope, error.status_code, "TooLarge", str(error.detail))
        except Exception as error:
            # Its message may quote text, so only its kind and place are told, and only inside.
            print(f"Internal error ({type(error).__name__} {place_of(error)})", file=sys.stderr)  # noqa: T201
            if not status:
                sentence = "Something is wrong inside the server."
                await _answer(headed, scope, 500, "InternalError", sentence)
        finally:
            route = scope.get("route")
            name = getattr(route, "path", "unknown")
            self.metrics.count(str(scope["method"]), name, status, time.perf_counter() - started)


def _announced(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else 0
    return 0


def _wants_a_page(scope: Scope) -> bool:
    return any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])


def _too_large(limit: int) -> HTTPException:
    return HTTPException(413, f"The request is too large; at most {limit:,} bytes.")


def _with_headers(given: list[tuple[bytes, bytes]], path: str) -> list[tuple[bytes, bytes]]:
    there = {name.lower() for name, _ in given}
    wanted = (*_HEADERS, *(_OF_THE_API if path.startswith("/v1") else ()))
    return [*given, *((name, value) for name, value in wanted if name not in there)]


async def _answer(send: Send, scope: Scope, status: int, kind: str, sentence: str) -> None:
    body = json.dumps({"error": kind, "message": sentence}, allow_nan=False).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    if not str(scope["path"]).startswith("/v1") and _wants_a_page(scope):
        body = f"<!doctype html><title>tacit</title><p>{escape(sentence)}".encode()
        headers[0] = (b"content-type", b"text/html; charset=utf-8")
    if status in (401, 429):
        name = (b"www-authenticate", b"Bearer") if status == 401 else (b"retry-after", b"1")
        headers.append(name)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def place_of(error: BaseException) -> str:
    """Where in this package an error arose; its message is not repeated."""
    trace: Any = error.__traceback__
    place = "somewhere"
    while trace is not None:
        module = trace.tb_frame.f_globals.get("__name__", "?")
        if module.startswith("tacit"):
            place = f"at {module}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return place
