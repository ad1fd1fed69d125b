"""The pages: the same services and the same access checks as the API, for people with a browser.

gate       who has signed in; which site asks; what a browser may load
sign_in       signing in and out
visits     a page's only way to the data: calls of the API as whoever has signed in
layout      what all pages are made of
plain      pages without the component library
files      uploads and downloads, as plain forms and links
datasets   describe, upload, detect
new_run    choose, with the live plan
runs       watch, stop, go on
models     try, verify, download, report
budgets    what was spent over time
people     accounts, tokens, the audit log
my_text    a contributor's own
"""

import contextlib
import inspect
import logging
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from fastapi import FastAPI, Request
from nicegui import app as pages_app
from nicegui import ui
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Match, Mount
from starlette.types import Scope

from tacit.errors import TacitError
from tacit.server.errors import Busy, NotAllowed, NotKnown, NotThere
from tacit.server.pages import (
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
from tacit.server.pages.bare_pages import FILES, file_address, file_text, head, plain_page
from tacit.server.pages.session_middleware import COOKIE, SECURE_COOKIE, SessionMiddleware
from tacit.server.pages.sign_in import sign_in_routes
from tacit.server.pages.visits import Visit, require_id, sentence_of
from tacit.server.services import Services

_PARTS = (datasets, new_run, runs, models, budgets, people, my_text)
_LOOK_SECONDS = 20.0
_CODES: tuple[tuple[type[Exception], int], ...] = (
    (NotAllowed, 403), (NotThere, 404), (Busy, 429), (TacitError, 409),
)  # fmt: skip


def mount_pages(app: FastAPI, services: Services, *, secure: bool) -> None:
    """Put the pages beside an API; once in a process, since the component library is one."""
    access = app.state.access
    cookie = SECURE_COOKIE if secure else COOKIE
    told: dict[str, dict[str, Any]] = {}

    def visit_of(request: Request) -> Visit:
        secret = str(request.state.session)
        _warm_up()
        if len(told) > 1000:
            told.clear()
        return Visit(services, access, secret, request.state.caller, told.setdefault(secret, {}))

    # Its own log would hold tracebacks, which may quote text.
    logging.getLogger("nicegui").setLevel(logging.CRITICAL + 1)
    pages_app.add_middleware(SessionMiddleware, services=services, access=access, secure=secure)
    pages_app.include_router(sign_in_routes(services, access, secure=secure, cookie=cookie))
    pages_app.include_router(files.file_routes(visit_of))
    _own_files()
    pages_app.add_exception_handler(404, _not_there)
    pages_app.on_exception(lambda error: sentence_of(error))
    for found in layout.PAGES:
        _add(found, visit_of)

    @pages_app.get("/", include_in_schema=False)
    def start(request: Request) -> Response:
        return RedirectResponse(layout.ways(visit_of(request))[0][0], 303)

    pages_app.config.vue_config_script += "\nwindow.tacitTheme?.apply();\n"
    pages_app.config.socket_io_js_transports = ["websocket"]
    pages_app.colors(primary="#2456a6")
    ui.run_with(
        app, title="tacit", dark=None, language="en-US", tailwind=False, reconnect_timeout=10.0,
        binding_refresh_interval=None, show_welcome_message=False, favicon=None,
    )  # fmt: skip
    app.router.routes[-1] = _BesideTheApi(app.router.routes[-1])


@cache
def _warm_up() -> None:
    """Load what predictions need when the first visitor comes, not when they wait for words."""

    def load() -> None:
        with contextlib.suppress(ImportError):
            import tacit.training.evaluation.predicting
            import tacit.training.models.shared  # noqa: F401

    threading.Thread(target=load, name="warm-up", daemon=True).start()


class _BesideTheApi(Mount):
    """Everything but the API, whose own refusals stay its own."""

    def __init__(self, made: BaseRoute) -> None:
        assert isinstance(made, Mount)
        super().__init__(made.path, made.app)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Nothing under the API's path."""
        if str(scope.get("path", "")).startswith("/v1"):
            return Match.NONE, {}
        return super().matches(scope)


def _add(found: layout.PageFound, visit_of: Callable[[Request], Visit]) -> None:
    names = [name for name in inspect.signature(found.build).parameters if name != "visit"]

    async def shown(**given: Any) -> None:
        request: Request = given.pop("request")
        visit = visit_of(request)
        client = ui.context.client
        ui.add_head_html(head())
        layout.top(visit, request.url.path)
        with ui.element("div").props("id=main tabindex=-1").classes("page") as main:
            try:
                await found.build(
                    visit, **{name: require_id(value) for name, value in given.items()}
                )
            except Exception as error:
                main.clear()
                status = next((c for kind, c in _CODES if isinstance(error, kind)), 500)
                client.status_code = 303 if isinstance(error, NotKnown) else status
                layout.title("Not possible" if status != 404 else "Not here", sentence_of(error))
                layout.way("Back to the start", "/")

        async def look() -> None:
            """Leave the page when the session has ended."""
            await visit.call(_nothing)

        ui.timer(_LOOK_SECONDS, visit.on(look), immediate=False)

    parameters = [inspect.Parameter("request", inspect.Parameter.KEYWORD_ONLY, annotation=Request)]
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=str) for name in names
    ]
    shown.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    ui.page(found.path, title=f"{found.title} · tacit", response_timeout=60)(shown)


def _nothing(caller: "files.Known") -> None:
    """Whether the session still holds: that is asked before any call."""


def _own_files() -> None:
    for name, kind in FILES.items():

        def send(name: str = name, kind: str = kind) -> Response:
            forever = {"Cache-Control": "public, max-age=31536000, immutable"}
            return PlainTextResponse(file_text(name), media_type=kind, headers=forever)

        send.__signature__ = inspect.Signature()  # type: ignore[attr-defined]
        pages_app.get(file_address(name), include_in_schema=False)(send)


async def _not_there(request: Request, error: Exception) -> Response:
    return plain_page("Not here", "There is no such page.", 404)


__all__ = ["mount_pages"]
