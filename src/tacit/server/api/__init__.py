"""The services over HTTP; `make_app` puts the parts together."""

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from sqlalchemy.exc import OperationalError, TimeoutError
from starlette.exceptions import HTTPException

from tacit.errors import PrivacyRefused, TacitError
from tacit.server.api import accounts, datasets, models, runs
from tacit.server.api.metrics import Metrics
from tacit.server.api.middleware import AccessGate, Guard
from tacit.server.api.page import page_of
from tacit.server.errors import Busy, Conflict, NotAllowed, NotKnown, NotThere, TooLarge
from tacit.server.services import Services

_CODES: tuple[tuple[type[TacitError], int], ...] = (
    (NotKnown, 401),
    (NotAllowed, 403),
    (NotThere, 404),
    (Conflict, 409),
    (PrivacyRefused, 409),
    (TooLarge, 413),
    (Busy, 429),
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
    app.add_middleware(Guard, settings=settings, metrics=app.state.metrics, access=access)
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

    @app.get(
        "/metrics",
        tags=["server"],
        summary="Counts for Prometheus",
        response_class=PlainTextResponse,
    )
    def metrics() -> PlainTextResponse:
        return PlainTextResponse(app.state.metrics.text())

    @app.get("/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        return HTMLResponse(page_of(app.openapi()))

    return app


def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, TacitError)
    code = next(code for kind, code in _CODES if isinstance(error, kind))
    headers = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}}.get(code)
    return JSONResponse(
        {"error": type(error).__name__, "message": str(error)}, status_code=code, headers=headers
    )


def _not_understood(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    # What was sent is not repeated: it may be somebody's text.
    problems = [
        {"where": ".".join(str(part) for part in e["loc"]), "what": e["msg"]}
        for e in error.errors()[:20]
    ]
    said = "; ".join(f"{p['where']}: {p['what']}" for p in problems[:3])
    return JSONResponse(
        {"error": "UsageError", "message": f"The request is not accepted: {said}.",
         "problems": problems},
        status_code=422,
    )  # fmt: skip


def _database_away(_: Request, __: Exception) -> JSONResponse:
    return JSONResponse(
        {"error": "Busy", "message": "The database does not answer; try again in a moment."},
        status_code=503,
        headers={"Retry-After": "1"},
    )


def _not_served(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return JSONResponse(
        {"error": "HTTPException", "message": str(error.detail)},
        status_code=error.status_code,
        headers=error.headers,
    )


__all__ = ["make_app"]
