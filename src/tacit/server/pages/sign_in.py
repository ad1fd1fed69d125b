"""Signing in and out: two plain forms, which work without any script."""

import hmac
import secrets
from typing import Annotated
from urllib.parse import unquote

from fastapi import APIRouter, Form, Query, Request
from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from tacit.errors import TacitError
from tacit.server.api.middleware import AccessGate
from tacit.server.errors import Busy, NotKnown
from tacit.server.identity import Caller, Rates
from tacit.server.pages.bare_pages import whole_page
from tacit.server.pages.session_middleware import session_of, with_session
from tacit.server.services import Services
from tacit.server.sessions import HOURS, form_key

_FORM_COOKIE = "tacit_form"
_TRIES, _TRIES_PER_SECOND = 10, 0.2
"""Of a password, by address and by name: ten at once, then one in five seconds."""


def sign_in_routes(
    services: Services, access: AccessGate, *, secure: bool, cookie: str
) -> APIRouter:
    """The way in and the way out."""
    router = APIRouter(include_in_schema=False)
    tries = Rates(_TRIES_PER_SECOND, _TRIES)

    def shown(request: Request, after: str, said: str = "", status: int = 200) -> Response:
        key = request.cookies.get(_FORM_COOKIE) or secrets.token_urlsafe(24)
        code = request.query_params.get("code", "") if request.method == "GET" else ""
        answer = whole_page("Sign in", _forms(key, after, code, said), status)
        answer.set_cookie(_FORM_COOKIE, key, path="/sign-in", secure=secure, httponly=True,
                          samesite="strict")  # fmt: skip
        return answer

    @router.get("/sign-in")
    async def ask(request: Request, next: Annotated[str, Query(max_length=300)] = "/") -> Response:
        try:
            access.require_patience(request.scope)
        except Busy as busy:
            return shown(request, "/", str(busy), 429)
        return shown(request, inside(next))

    @router.post("/sign-in")
    async def sign_in(
        request: Request,
        key: Annotated[str, Form(max_length=100)] = "",
        next: Annotated[str, Form(max_length=300)] = "/",
        token: Annotated[str, Form(max_length=200)] = "",
        code: Annotated[str, Form(max_length=100)] = "",
        name: Annotated[str, Form(max_length=100)] = "",
        password: Annotated[str, Form(max_length=200)] = "",
    ) -> Response:
        after = inside(next)
        try:
            access.require_patience(request.scope)
            if not _same(request.cookies.get(_FORM_COOKIE, ""), key):
                raise NotKnown("The form was too old, or from another site; try again.")
            if name or password:
                where = request.client.host if request.client else "unknown"
                if not (tries.allows(f"at {where}") and tries.allows(f"as {name}")):
                    raise Busy("Too many tries; wait a minute.")
            caller = await run_in_threadpool(_caller, services, token, code, name, password)
        except TacitError as error:
            status = 429 if isinstance(error, Busy) else 401
            return shown(request, after, str(error), status)
        secret = await run_in_threadpool(services.sessions.open, caller)
        await run_in_threadpool(services.note, caller, "sign in", caller.account)
        answer = RedirectResponse(after, 303)
        answer.delete_cookie(_FORM_COOKIE, path="/sign-in")
        return with_session(answer, secret, secure=secure, seconds=HOURS * 3600)

    @router.post("/sign-out")
    async def sign_out(request: Request, key: Annotated[str, Form()] = "") -> Response:
        secret = session_of(request.headers, cookie)
        if secret is None or not _same(form_key(secret), key):
            return RedirectResponse("/", 303)
        await run_in_threadpool(services.sessions.end, secret)
        caller: Caller = request.state.caller
        await run_in_threadpool(services.note, caller, "sign out", caller.account)
        return with_session(RedirectResponse("/sign-in", 303), None, secure=secure, seconds=0)

    return router


def _caller(services: Services, token: str, code: str, name: str, password: str) -> Caller:
    if code:
        return services.sessions.by_code(code)
    if name or password:
        try:
            return services.identity.check_password(name, password)
        except NotKnown:
            # Only a name that is an account's: somebody may have typed a password into that field.
            known = any(a["name"] == name for a in services.identity.accounts())
            services.log.note(name if known else "somebody", "sign in", "", "refused")
            raise
    return services.identity.caller(token.strip())


def inside(address: str) -> str:
    """A path on this server, whatever somebody put into the link.

    >>> inside("/runs/1"), inside("//evil.example"), inside("https://evil.example"), inside("/%5Ce")
    ('/runs/1', '/', '/', '/')
    """
    plain = unquote(address)
    safe = plain.startswith("/") and not plain.startswith(("//", "/sign-")) and "\\" not in plain
    return plain if safe and plain.isprintable() else "/"


def _same(one: str, other: str) -> bool:
    return bool(one) and hmac.compare_digest(one.encode(), other.encode())


def _forms(key: str, after: str, code: str, said: str) -> Markup:
    hidden = Markup(
        '<input type="hidden" name="key" value="{}"><input type="hidden" name="next" value="{}">'
    ).format(key, after)
    alert = Markup('<p class="saying bad" role="alert">{}</p>').format(said) if said else Markup()
    if code:
        # A button, since a program that follows links before people do would use it up.
        ways = Markup(
            '<form class="card" method="post" action="/sign-in">{}<input type="hidden" name="code" '
            'value="{}"><h2>This link signs you in once</h2><button class="act main" autofocus>'
            "Continue</button></form>"
        ).format(hidden, code)
    else:
        ways = Markup(
            '<form class="card" method="post" action="/sign-in">{}<h2>With a token</h2>'
            '<label class="plain-field"><span>Token</span><input name="token" type="password" '
            'autocomplete="off" spellcheck="false" required autofocus></label>'
            '<button class="act main">Sign in with the token</button></form>'
            '<form class="card" method="post" action="/sign-in">{}<h2>With a name and a password'
            '</h2><label class="plain-field"><span>Name</span><input name="name" '
            'autocomplete="username" required></label><label class="plain-field"><span>Password'
            '</span><input name="password" type="password" autocomplete="current-password" '
            'required></label><button class="act">Sign in with the password</button></form>'
        ).format(hidden, hidden)
    return Markup(
        '<main class="door"><h1>tacit</h1><p class="lead">Language models that learn from '
        "people's text and keep its secrets.</p>{}{}"
        '<p class="foot"><span>No token? Ask an admin of this server; the first one was printed '
        'when it first started.</span><button type="button" class="quiet" data-theme-switch>Dark'
        "</button></p></main>"
    ).format(alert, ways)
