"""Between the API's middleware and the pages: sessions, cross-site checks, content policy.

Every page, every form and the pages' own channel (a WebSocket) pass here. What a page is built from
and what its buttons do is asked of the API's own calls afterwards, with the caller found here.
"""

import secrets
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from nicegui import Client
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tacit.errors import TacitError
from tacit.server.api.middleware import AccessGate
from tacit.server.errors import NotAuthenticated, code_of
from tacit.server.pages.rendering import REFERRER, plain_page
from tacit.server.services import Services

COOKIE, SECURE_COOKIE = "tacit_session", "__Host-tacit_session"
_PUBLIC = ("/sign-in", "/page-files/", "/favicon.ico", "/welcome")
_ASSETS = "/_nicegui/"
_CHANNEL = "/_nicegui_ws/"


def policy(nonce: str) -> str:
    """What a page may load: nothing of any other host, and no script but those it came with.

    The component library compiles its templates in the browser and sets styles on elements, which
    needs 'unsafe-eval' for scripts and 'unsafe-inline' for styles; inline scripts need the nonce.
    """
    return (
        f"default-src 'none'; script-src 'self' 'nonce-{nonce}' 'unsafe-eval'; "
        "style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; "
        "object-src 'none'; frame-ancestors 'none'"
    )


class SessionMiddleware:
    """Lets in whoever has signed in, and nobody's page acts for another site."""

    def __init__(self, app: ASGIApp, services: Services, access: AccessGate, secure: bool) -> None:
        self.app, self.services, self.access = app, services, access
        self.cookie = SECURE_COOKIE if secure else COOKIE

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it."""
        path, headers = str(scope["path"]), Headers(scope=scope)
        # Nobody but a proxy may say where the pages lie, and we have none that does.
        scope["headers"] = [h for h in scope["headers"] if h[0] != b"x-forwarded-prefix"]
        is_asset = path.startswith(_ASSETS) and not path.startswith(f"{_ASSETS}client/")
        writes = scope["type"] == "websocket" or scope.get("method") not in ("GET", "HEAD")
        if writes and not same_site(headers):
            refusal: Response | None = plain_page(
                "Not possible", "This came from another site.", 403
            )
        elif (is_asset and not writes) or path.startswith(_PUBLIC):
            refusal = None
        else:
            refusal = await self._authenticate(
                scope, HTTPConnection(scope).cookies.get(self.cookie)
            )
        if refusal is None:
            await self._with_policy(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            await refusal(scope, receive, send)

    async def _authenticate(self, scope: Scope, secret: str | None) -> Response | None:
        """Find who has signed in; what to answer where nobody has."""
        try:
            try:
                if secret is None:
                    raise NotAuthenticated("Sign in first.")
                caller = await run_in_threadpool(self.services.sessions.caller, secret)
            except NotAuthenticated:
                self.access.limit_anonymous(scope)
                raise
            self.access.limit(caller)
        except NotAuthenticated:
            if scope.get("method") == "GET":
                asked = quote(str(scope["path"]), safe="/")
                if asked == "/" and self.services.settings.welcome:
                    return RedirectResponse("/welcome", 303)
                return RedirectResponse(f"/sign-in?next={asked}", 303)
            return plain_page("Not possible", "You are signed out; sign in again.", 401)
        except TacitError as error:
            return plain_page("Not possible", str(error), code_of(error))
        if str(scope["path"]).startswith(_CHANNEL) and not _own_page(scope, secret):
            return plain_page("Not possible", "This is not your page.", 403)
        scope.setdefault("state", {}).update(session=secret, caller=caller)
        return None

    async def _with_policy(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Mark a page's own scripts, and say that no others may run."""
        nonce = secrets.token_urlsafe(16)
        start: Message | None = None
        body = b""

        async def marked(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start":
                if MutableHeaders(raw=message["headers"]).get("x-nicegui-content") == "page":
                    start = message
                    return
            elif message["type"] == "http.response.body" and start is not None:
                body += message.get("body", b"")
                if message.get("more_body"):
                    return
                # Whatever people wrote is escaped by now, so these are the page's own.
                body = body.replace(b"<script", f'<script nonce="{nonce}"'.encode())
                headers = MutableHeaders(raw=start["headers"])
                headers["content-security-policy"] = policy(nonce)
                headers["content-length"] = str(len(body))
                headers.update(REFERRER)
                await send(start)
                message = {"type": "http.response.body", "body": body}
            await send(message)

        await self.app(scope, receive, marked)


def _own_page(scope: Scope, secret: str | None) -> bool:
    """Whether the page that a channel wants to join was built for this very session."""
    asked = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("client_id", [""])[0]
    page = Client.instances.get(asked)
    # A page of before a restart is nobody's; the library then loads it anew.
    return page is None or getattr(page.request.state, "session", None) == secret


def same_site(headers: Headers) -> bool:
    """Whether a browser says that a page of this very address sent the request."""
    origin = headers.get("origin")
    if origin is not None:
        return urlsplit(origin).netloc == headers.get("host")
    # Old browsers leave it out of forms; whoever is no browser has no cookie to abuse.
    return headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")


def with_session(answer: Response, secret: str | None, *, secure: bool, seconds: int) -> Any:
    """Give a browser its session, or take it away."""
    name = SECURE_COOKIE if secure else COOKIE
    same: Any = {"path": "/", "secure": secure, "httponly": True, "samesite": "lax"}
    if secret is None:
        answer.delete_cookie(name, **same)
    else:
        answer.set_cookie(name, secret, max_age=seconds, **same)
    return answer
