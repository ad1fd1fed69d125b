"""The services over HTTP; `make_app` puts the parts together."""

from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from jinja2 import Environment
from sqlalchemy.exc import OperationalError, TimeoutError
from starlette.exceptions import HTTPException

from tacit.errors import PrivacyRefused, TacitError
from tacit.server import Json
from tacit.server.api import accounts, datasets, models, runs
from tacit.server.api.middleware import AccessGate, ApiMiddleware, Metrics
from tacit.server.errors import (
    Busy,
    Conflict,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    TooLarge,
    Unavailable,
)
from tacit.server.services import Services

_CODES: tuple[tuple[type[TacitError], int], ...] = (
    (NotAuthenticated, 401),
    (NotAllowed, 403),
    (NotFound, 404),
    (Conflict, 409),
    (PrivacyRefused, 409),
    (TooLarge, 413),
    (Busy, 429),
    (Unavailable, 503),
    (TacitError, 422),
)


def make_app(services: Services) -> FastAPI:
    """The whole API; whoever opened the services closes them."""
    settings = services.settings
    app = FastAPI(
        title="tacit",
        description="Contribute text, choose the protection, train, use the model.",
        version="1",
        docs_url=None,
        redoc_url=None,
    )
    app.state.services = services
    app.state.metrics = Metrics(services)
    app.state.watchers = 0
    app.state.access = access = AccessGate(services.identity, settings)
    app.add_middleware(ApiMiddleware, settings=settings, metrics=app.state.metrics, access=access)
    app.add_exception_handler(TacitError, _refused)
    app.add_exception_handler(RequestValidationError, _not_understood)
    app.add_exception_handler(HTTPException, _not_served)
    for trouble in (OperationalError, TimeoutError):
        app.add_exception_handler(trouble, _database_away)
    for part in (accounts, datasets, runs, models):
        app.include_router(part.router, prefix="/v1")

    @app.get("/healthz", tags=["server"], summary="Whether the server and its database answer")
    def healthz() -> dict[str, bool]:
        return {"ok": services.healthy()}

    @app.get("/metrics", tags=["server"], summary="Counts for Prometheus",
             response_class=PlainTextResponse)  # fmt: skip
    def metrics() -> PlainTextResponse:
        return PlainTextResponse(app.state.metrics.text())

    @app.get("/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        return HTMLResponse(_docs_page(app.openapi()))

    return app


def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, TacitError)
    code = next(code for kind, code in _CODES if isinstance(error, kind))
    later = {"Retry-After": "1"}
    headers = {401: {"WWW-Authenticate": "Bearer"}, 429: later, 503: later}.get(code)
    return _refusal(code, type(error).__name__, str(error), headers)


def _refusal(code: int, kind: str, message: str, headers: Any = None) -> JSONResponse:
    return JSONResponse({"error": kind, "message": message}, code, headers)


def _not_understood(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    # What was sent is not repeated: it may be somebody's text.
    problems = [{"where": ".".join(map(str, e["loc"])), "what": e["msg"]} for e in error.errors()]
    first = "; ".join(f"{p['where']}: {p['what']}" for p in problems[:3])
    answer = {"error": "UsageError", "message": f"The request is not accepted: {first}."}
    return JSONResponse(answer | {"problems": problems[:20]}, status_code=422)


def _database_away(_: Request, __: Exception) -> JSONResponse:
    message = "The database does not answer; try again in a moment."
    return _refusal(503, "Busy", message, {"Retry-After": "1"})


def _not_served(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return _refusal(error.status_code, "HTTPException", str(error.detail), error.headers)


def _docs_page(described: Json) -> str:
    """The description of the API as a page that asks no other host for anything."""
    text = (files("tacit.server.api") / "docs.html.jinja").read_text(encoding="utf-8")
    return Environment(autoescape=True).from_string(text).render(described)
