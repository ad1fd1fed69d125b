"""What every request passes: who sends it, how large it is, headers on its answer.

A stranger is refused before anything of the request is read, and a failure inside says one word.
"""

import asyncio
import json
import sys
import time
import traceback
from html import escape

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tacit.errors import TacitError
from tacit.server.errors import Busy, NotAuthenticated, code_of, without_paths
from tacit.server.identity import Caller, Identity, RateLimiter
from tacit.server.services import Services
from tacit.server.settings import ServerSettings

_STOPPING = "The server is being stopped; try again in a moment."
INTERNAL_ERROR = "The server failed; its operator finds the place in its log."
UPLOADS = ("/records/file", "/certificates/verify", "/entity-lists/file")
_WORK = "/v1/claims/"
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
_OVER_TLS = ((b"strict-transport-security", b"max-age=31536000"),)
_OF_THE_API = (
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
)


class Metrics:
    """Counts for Prometheus; none of them is about text or about a person."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "tacit_requests", "Requests by route and answer.", ["method", "route", "status"],
            registry=self._registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "tacit_request_seconds", "Time to an answer.", registry=self._registry
        )
        self._jobs = Gauge("tacit_jobs", "Jobs by state.", ["state"], registry=self._registry)

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """One request."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.observe(seconds)

    def text(self) -> str:
        """As Prometheus reads it."""
        counts = self._services.jobs.counts()
        for state in ("queued", "running", "done", "failed", "cancelled", "deleted"):
            self._jobs.labels(state).set(counts.get(state, 0))
        return generate_latest(self._registry).decode()


class AccessGate:
    """Authentication by token and rate limiting: a bucket for each token, one for each stranger."""

    def __init__(self, identity: Identity, settings: ServerSettings) -> None:
        self._identity = identity
        self._tokens = RateLimiter(settings.requests_per_second, settings.burst)
        self._anonymous = RateLimiter(settings.requests_per_second / 10, settings.burst // 10 or 1)

    async def caller(self, scope: Scope) -> Caller:
        """Who has the token of a request."""
        kind, _, token = (_header(scope, b"authorization") or "").partition(" ")
        token = token.strip() if kind.lower() == "bearer" else ""
        try:
            if not token:
                raise NotAuthenticated("Give a token: Authorization: Bearer TOKEN.")
            caller = self._identity.cached(token)
            if caller is None:
                caller = await run_in_threadpool(self._identity.caller, token)
        except NotAuthenticated:
            self.limit_anonymous(scope)
            raise
        self.limit(caller)
        return caller

    def limit_anonymous(self, scope: Scope) -> None:
        """Refuse an address that asks too often without a valid token."""
        client = scope.get("client")
        if not self._anonymous.allows(str(client[0]) if client else "unknown"):
            raise Busy("Too many requests without a valid token; wait a second.") from None

    def limit(self, caller: Caller) -> None:
        """Take one request from the caller's bucket; refused if it is empty."""
        if not self._tokens.allows(caller.token or caller.account):
            raise Busy("Too many requests; wait a second.")


class ApiMiddleware:
    """Between the network and everything else: authentication, limits, headers, metrics."""

    def __init__(
        self, app: ASGIApp, settings: ServerSettings, metrics: Metrics, access: AccessGate
    ) -> None:
        self.app, self.settings, self.metrics, self.access = app, settings, metrics, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, within its limits."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path, settings = str(scope["path"]), self.settings
        limit = settings.upload_bytes if path.endswith(UPLOADS) else settings.body_bytes
        limit = settings.work_bytes if path.startswith(_WORK) else limit
        started, status, received = time.perf_counter(), 0, 0

        def check_size(size: int) -> None:
            if size > limit:
                raise HTTPException(413, f"The request is too large; at most {limit:,} bytes.")

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            check_size(received)
            return message

        async def with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = int(message["status"])
                message["headers"] = _with_headers(message.get("headers", []), scope)
            await send(message)

        async def refuse(code: int, kind: str, sentence: str) -> None:
            if not status:
                await _answer(with_headers, scope, code, kind, sentence)

        try:
            if path.startswith("/v1"):
                scope.setdefault("state", {})["caller"] = await self.access.caller(scope)
            announced = _header(scope, b"content-length") or ""
            check_size(int(announced) if announced.isdecimal() else 0)
            await self.app(scope, counted, with_headers)
        except TacitError as error:
            await refuse(code_of(error), type(error).__name__, without_paths(str(error)))
        except HTTPException as error:
            await refuse(error.status_code, "TooLarge", str(error.detail))
        except asyncio.CancelledError:  # else a log would show where each of them was
            await refuse(503, "Unavailable", _STOPPING)
        except Exception as error:
            log_internal(error)
            await refuse(500, "InternalError", INTERNAL_ERROR)
        finally:
            name = getattr(scope.get("route"), "path", "unknown")
            self.metrics.count(str(scope["method"]), name, status, time.perf_counter() - started)


def _header(scope: Scope, name: bytes) -> str | None:
    found = (value for given, value in scope["headers"] if given == name)
    value = next(found, None)
    return value.decode("latin-1") if value is not None else None


def _with_headers(given: list[tuple[bytes, bytes]], scope: Scope) -> list[tuple[bytes, bytes]]:
    there = {name.lower() for name, _ in given}
    wanted = (*_HEADERS, *(_OF_THE_API if str(scope["path"]).startswith("/v1") else ()))
    if scope.get("scheme") == "https":
        wanted += _OVER_TLS
    return [*given, *((name, value) for name, value in wanted if name not in there)]


async def _answer(send: Send, scope: Scope, status: int, kind: str, sentence: str) -> None:
    body = json.dumps({"error": kind, "message": sentence}, allow_nan=False).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    if not str(scope["path"]).startswith("/v1") and "text/html" in (
        _header(scope, b"accept") or ""
    ):
        body = f"<!doctype html><title>tacit</title><p>{escape(sentence)}".encode()
        headers[0] = (b"content-type", b"text/html; charset=utf-8")
    if status in (401, 429, 503):
        name = (b"www-authenticate", b"Bearer") if status == 401 else (b"retry-after", b"1")
        headers.append(name)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def log_internal(error: BaseException) -> None:
    """Say where in this package an error arose; its message may quote text, so it is not told."""
    place = "somewhere"
    for frame, line in traceback.walk_tb(error.__traceback__):
        module = frame.f_globals.get("__name__", "?")
        if module.startswith("tacit"):
            place = f"at {module}, line {line}"
    print(f"Internal error ({type(error).__name__} {place})", file=sys.stderr)  # noqa: T201
