"""The services over HTTP; `make_app` puts the parts together."""

import asyncio
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from tacit.errors import TacitError
from tacit.server import Json
from tacit.server.api import accounts, claims, datasets, models, runs
from tacit.server.api.middleware import AccessGate, ApiMiddleware, Metrics
from tacit.server.api.reference import reference_page
from tacit.server.errors import code_of, without_paths
from tacit.server.services import Services

_PROBE_SECONDS = 5.0
_LATER = {"Retry-After": "1"}


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
    for part in (accounts, datasets, runs, models, claims):
        app.include_router(part.router, prefix="/v1")

    _add_probes(app, services)

    @app.get("/metrics", tags=["server"], summary="Counts for Prometheus",
             response_class=PlainTextResponse)  # fmt: skip
    def metrics() -> PlainTextResponse:
        return PlainTextResponse(app.state.metrics.text())

    @app.get("/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        return reference_page(app.openapi())

    return app


def _add_probes(app: FastAPI, services: Services) -> None:
    unwell: dict[int | str, Json] = {503: {"description": "Not all of it is well."}}

    @app.get("/healthz", tags=["server"], summary="Whether disk, database and writer work",
             responses=unwell)  # fmt: skip
    async def healthz() -> JSONResponse:
        return await _probed(services.health.checks)

    @app.get("/readyz", tags=["server"], summary="Whether to send requests here now",
             responses=unwell)  # fmt: skip
    async def readyz() -> JSONResponse:
        return await _probed(services.health.readiness)


async def _probed(look: Callable[[], Json]) -> JSONResponse:
    """What a look finds; one that takes too long is an answer, too."""
    try:
        found = await asyncio.wait_for(run_in_threadpool(look), _PROBE_SECONDS)
    except TimeoutError:
        found = {"ok": False, "late": True}
    return JSONResponse(found, 200 if found["ok"] else 503, None if found["ok"] else _LATER)


def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, TacitError)
    code = code_of(error)
    headers = {401: {"WWW-Authenticate": "Bearer"}, 429: _LATER, 503: _LATER}.get(code)
    return _refusal(code, type(error).__name__, without_paths(str(error)), headers)


def _refusal(code: int, kind: str, message: str, headers: Any = None) -> JSONResponse:
    return JSONResponse({"error": kind, "message": message}, code, headers)


def _not_understood(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    # What was sent is not repeated: it may be somebody's text.
    problems = [{"where": ".".join(map(str, e["loc"])), "what": e["msg"]} for e in error.errors()]
    first = "; ".join(f"{p['where']}: {p['what']}" for p in problems[:3])
    answer = {"error": "UsageError", "message": f"The request is not accepted: {first}."}
    return JSONResponse(answer | {"problems": problems[:20]}, status_code=422)


def _not_served(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return _refusal(error.status_code, "HTTPException", str(error.detail), error.headers)
