"""The pages: the same services and the same access checks as the API, for people with a browser.

session_middleware  who has signed in; which site asks; what a browser may load
sign_in             signing in and out
welcome             the front page, for whoever comes by
page_context        a page's only way to the data: calls of the API as whoever has signed in
rendering, layout   what all pages are made of
files               uploads and downloads, as plain forms and links
datasets, new_run, runs, models, budgets, people, my_text   the pages themselves
"""

import inspect
import logging
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from nicegui import app as pages_app
from nicegui import ui
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Match, Mount
from starlette.types import Scope

from tacit.errors import TacitError
from tacit.server import Json
from tacit.server.api.access import AnyCaller
from tacit.server.errors import Busy, NotAllowed, NotAuthenticated, NotFound, Unavailable
from tacit.server.pages import (  # noqa: F401
    budgets,
    datasets,
    files,
    layout,
    models,
    my_text,
    new_run,
    people,
    runs,
)
from tacit.server.pages.page_context import PageContext, require_id, sentence_of
from tacit.server.pages.rendering import FILES, file_address, file_text, fragment, plain_page
from tacit.server.pages.session_middleware import COOKIE, SECURE_COOKIE, SessionMiddleware
from tacit.server.pages.sign_in import sign_in_routes
from tacit.server.pages.welcome import welcome_routes
from tacit.server.services import Services

_SESSION_CHECK_SECONDS = 20.0
_CODES: tuple[tuple[type[Exception], int], ...] = (
    (NotAllowed, 403), (NotFound, 404), (Busy, 429), (Unavailable, 503),
    (TacitError, 409),
)  # fmt: skip


def mount_pages(app: FastAPI, services: Services, *, secure: bool) -> None:
    """Put the pages beside an API; once in a process, since the component library is one."""
    access = app.state.access
    cookie = SECURE_COOKIE if secure else COOKIE
    flashes: dict[str, Json] = {}

    def context_of(request: Request) -> PageContext:
        secret = str(request.state.session)
        if len(flashes) > 1000:
            flashes.clear()
        flash = flashes.setdefault(secret, {})
        return PageContext(services, access, secret, request.state.caller, flash)

    # Its own log would hold tracebacks, which may quote text.
    logging.getLogger("nicegui").setLevel(logging.CRITICAL + 1)
    pages_app.add_middleware(SessionMiddleware, services=services, access=access, secure=secure)
    pages_app.include_router(sign_in_routes(services, access, secure=secure, cookie=cookie))
    pages_app.include_router(welcome_routes(services, access))
    pages_app.state.context_of = context_of
    pages_app.include_router(files.router)
    _own_files()
    pages_app.add_exception_handler(404, _not_found)
    pages_app.on_exception(sentence_of)
    for page in layout.PAGES:
        _add(page, context_of)

    @pages_app.get("/", include_in_schema=False)
    def start(request: Request) -> Response:
        return RedirectResponse(layout.nav_links(context_of(request))[0][0], 303)

    pages_app.config.vue_config_script += "\nwindow.tacitTheme?.apply();\n"
    # A bar that shows for each request has no name for who does not see it, and says nothing.
    pages_app.config.quasar_config["loadingBar"]["skipHijack"] = True
    pages_app.config.socket_io_js_transports = ["websocket"]
    pages_app.colors(primary="#2456a6")
    ui.run_with(
        app, title="tacit", dark=None, language="en-US", tailwind=False, reconnect_timeout=10.0,
        binding_refresh_interval=None, show_welcome_message=False, favicon=None,
    )  # fmt: skip
    app.router.routes[-1] = _OutsideApi(app.router.routes[-1])


class _OutsideApi(Mount):
    """Everything but the API, whose own refusals stay its own."""

    def __init__(self, made: BaseRoute) -> None:
        assert isinstance(made, Mount)
        super().__init__(made.path, made.app)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Nothing under the API's path."""
        if str(scope.get("path", "")).startswith("/v1"):
            return Match.NONE, {}
        return super().matches(scope)


def _add(page: layout.Page, context_of: Callable[[Request], PageContext]) -> None:
    names = [name for name in inspect.signature(page.build).parameters if name != "ctx"]

    async def build(**given: Any) -> None:
        request: Request = given.pop("request")
        ctx = context_of(request)
        client = ui.context.client
        ui.add_head_html(fragment("head"))
        layout.header(ctx, request.url.path)
        with ui.element("div").props("id=main tabindex=-1").classes("page") as main:
            try:
                await page.build(ctx, **{name: require_id(value) for name, value in given.items()})
            except Exception as error:
                main.clear()
                status = next((c for kind, c in _CODES if isinstance(error, kind)), 500)
                client.status_code = 303 if isinstance(error, NotAuthenticated) else status
                title = "Not possible" if status != 404 else "Page not found"
                layout.title(title, sentence_of(error))
                layout.link_button("Back to the start", "/")

        async def check_session() -> None:
            """Leave the page when the session has ended."""
            await ctx.call(_nothing)

        ui.timer(_SESSION_CHECK_SECONDS, ctx.on(check_session), immediate=False)

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("request", keyword, annotation=Request)]
    parameters += [inspect.Parameter(name, keyword, annotation=str) for name in names]
    build.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    ui.page(page.path, title=f"{page.title} · tacit", response_timeout=60)(build)


def _nothing(ctx: AnyCaller) -> None:
    """Whether the session still holds: that is asked before any call."""


def _own_files() -> None:
    for name, kind in FILES.items():

        def send(name: str = name, kind: str = kind) -> Response:
            forever = {"Cache-Control": "public, max-age=31536000, immutable"}
            return PlainTextResponse(file_text(name), media_type=kind, headers=forever)

        send.__signature__ = inspect.Signature()  # type: ignore[attr-defined]
        pages_app.get(file_address(name), include_in_schema=False)(send)


async def _not_found(request: Request, error: Exception) -> Response:
    return plain_page("Page not found", "There is no such page.", 404)
