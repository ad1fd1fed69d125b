"""Signing in and out: two plain forms, which work without any script."""

import hmac
import secrets
from functools import partial
from typing import Annotated
from urllib.parse import unquote

from fastapi import APIRouter, Form, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from tacit.errors import TacitError
from tacit.server.api.middleware import AccessGate
from tacit.server.errors import Busy, NotAuthenticated, Unavailable, code_of
from tacit.server.identity import SESSION_HOURS, Caller, RateLimiter, form_key
from tacit.server.pages.rendering import fragment, whole_page
from tacit.server.pages.session_middleware import with_session
from tacit.server.services import Services

Short = Annotated[str, Form(max_length=100)]
Long = Annotated[str, Form(max_length=200)]
_FORM_COOKIE = "tacit_form"
_TRIES, _TRIES_PER_SECOND = 10, 0.2
"""Of a password, by address and by name: ten at once, then one in five seconds."""


def sign_in_routes(
    services: Services, access: AccessGate, *, secure: bool, cookie: str
) -> APIRouter:
    """The way in and the way out."""
    router = APIRouter(include_in_schema=False)
    tries = RateLimiter(_TRIES_PER_SECOND, _TRIES)

    show_form = partial(_show_form, secure, services.settings.welcome)

    @router.get("/sign-in")
    async def ask(request: Request, next: Annotated[str, Query(max_length=300)] = "/") -> Response:
        try:
            access.limit_anonymous(request.scope)
        except Busy as busy:
            return show_form(request, "/", str(busy), 429)
        return show_form(request, local_path(next))

    @router.post("/sign-in")
    async def sign_in(
        request: Request, key: Short = "", next: Annotated[str, Form(max_length=300)] = "/",
        token: Long = "", code: Short = "", name: Short = "", password: Long = "",
    ) -> Response:  # fmt: skip
        after = local_path(next)
        try:
            access.limit_anonymous(request.scope)
            if not _same(request.cookies.get(_FORM_COOKIE, ""), key):
                raise NotAuthenticated("The form was too old, or from another site; try again.")
            if name or password:
                _limit_tries(tries, request, name)
            caller = await run_in_threadpool(_caller, services, token, code, name, password)
        except TacitError as error:
            status = code_of(error) if isinstance(error, Busy | Unavailable) else 401
            return show_form(request, after, str(error), status)
        secret = await run_in_threadpool(services.sessions.open, caller)
        await run_in_threadpool(services.note, caller, "sign in", caller.account)
        answer = RedirectResponse(after, 303)
        answer.delete_cookie(_FORM_COOKIE, path="/sign-in")
        return with_session(answer, secret, secure=secure, seconds=SESSION_HOURS * 3600)

    @router.post("/sign-out")
    async def sign_out(request: Request, key: Annotated[str, Form()] = "") -> Response:
        secret = request.cookies.get(cookie)
        if secret is None or not _same(form_key(secret), key):
            return RedirectResponse("/", 303)
        await run_in_threadpool(services.sessions.end, secret)
        caller: Caller = request.state.caller
        await run_in_threadpool(services.note, caller, "sign out", caller.account)
        return with_session(RedirectResponse("/sign-in", 303), None, secure=secure, seconds=0)

    return router


def _show_form(
    secure: bool, welcome: bool, request: Request, after: str, refusal: str = "", status: int = 200
) -> Response:
    key = request.cookies.get(_FORM_COOKIE) or secrets.token_urlsafe(24)
    code = request.query_params.get("code", "") if request.method == "GET" else ""
    answer = whole_page("Sign in", fragment("sign_in", key, after, code, refusal, welcome), status)
    answer.set_cookie(_FORM_COOKIE, key, path="/sign-in", secure=secure, httponly=True,
                      samesite="strict")  # fmt: skip
    return answer


def _limit_tries(tries: RateLimiter, request: Request, name: str) -> None:
    """Refuse to guess at passwords, from one place or for one name."""
    where = request.client.host if request.client else "unknown"
    if not (tries.allows(f"at {where}") and tries.allows(f"as {name}")):
        raise Busy("Too many sign-in attempts; wait a minute.")


def _caller(services: Services, token: str, code: str, name: str, password: str) -> Caller:
    if code:
        return services.sessions.by_code(code)
    if name or password:
        try:
            return services.identity.check_password(name, password)
        except NotAuthenticated:
            # Only a name that is an account's: somebody may have typed a password into that field.
            known = any(a["name"] == name for a in services.identity.accounts())
            services.log.note(name if known else "somebody", "sign in", outcome="refused")
            raise
    return services.identity.caller(token.strip())


def local_path(address: str) -> str:
    """A path on this server, whatever somebody put into the link.

    >>> [local_path(a) for a in ("/runs/1", "//evil.example", "https://evil.example", "/%5Ce")]
    ['/runs/1', '/', '/', '/']
    """
    plain = unquote(address)
    safe = plain.startswith("/") and not plain.startswith(("//", "/sign-")) and "\\" not in plain
    return plain if safe and plain.isprintable() else "/"


def _same(one: str, other: str) -> bool:
    return bool(one) and hmac.compare_digest(one.encode(), other.encode())
