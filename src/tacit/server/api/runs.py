"""Training runs: start, watch, stop, resume, attack, audit, report."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from fastapi.responses import StreamingResponse as Stream
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from tacit.errors import TacitError
from tacit.privacy.events import Unit
from tacit.saved_json import spelled
from tacit.server import Json, child_processes
from tacit.server.api.access import (
    REFUSALS,
    After,
    IdPath,
    Key,
    Limit,
    RequestContext,
    requires,
)
from tacit.server.api.datasets import PAGE_POLICY, Split
from tacit.server.errors import Busy, without_paths
from tacit.server.jobs import ENDED, Kind
from tacit.server.run_requests import Id, RequestModel, RunRequest

router = APIRouter(tags=["runs"], responses=REFUSALS)
Runner = Annotated[RequestContext, requires("runs:write")]
Watcher = Annotated[RequestContext, requires("runs:read")]
Attacker = Annotated[RequestContext, requires("attack")]
_HEARTBEAT_SECONDS = 15.0
_MAX_WATCHERS = 100

AttackName = Literal["exposure", "membership", "secrets", "tab", "extraction", "linkage"]


class NewAttack(RequestModel):
    """Which attacks; all that have what they need if none is named."""

    using: Annotated[tuple[AttackName, ...], Field(max_length=6)] = ()


class NewAudit(RequestModel):
    """For whom, and with how many canaries."""

    unit: Unit | None = None
    canaries: Annotated[int, Field(ge=64, le=100_000)] | None = None


class NewEvaluation(RequestModel):
    """On which split of the run's records."""

    split: Split = "test"


@router.post("/datasets/{dataset}/runs", status_code=202, summary="Start a training run")
def add_run(dataset: IdPath, asked: RunRequest, ctx: Runner, key: Key = None) -> Json:
    """Everything that it may release is reserved first; over the budget, nothing is started."""
    ctx.caller.require_dataset(dataset)
    ctx.require_named(asked)
    try:
        made = ctx.services.jobs.train(dataset, asked, ctx.caller, key)
    except TacitError as error:
        ctx.note("start run", dataset, f"refused: {type(error).__name__}")
        raise
    ctx.note("start run", made["id"], asked.method)
    return made


@router.get("/runs", summary="The runs, the latest first")
def runs(
    ctx: Watcher,
    dataset: Annotated[Id | None, Query()] = None,
    after: After = "",
    limit: Limit = 200,
) -> list[Json]:
    """Of one dataset, or of all that the token is for."""
    dataset = ctx.caller.dataset or dataset
    return ctx.services.jobs.all("train", dataset, after=after, limit=limit)


@router.get("/runs/{run}", summary="A run and how far it is")
def run_(run: IdPath, ctx: Watcher) -> Json:
    """What stands under `not_private` was counted on the text itself."""
    return ctx.job(run, "train")


@router.get(
    "/runs/{run}/events",
    summary="A run's progress as it happens",
    response_class=Stream,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def events(
    request: Request,
    run: IdPath,
    ctx: Watcher,
    last: Annotated[str | None, Header(alias="Last-Event-ID", pattern=r"^[0-9]{1,9}$")] = None,
) -> Stream:
    """Server-sent events: `progress` after every step, `state` at every change, then `end`.

    After a lost connection, `Last-Event-ID` goes on where it broke off.
    """
    await run_in_threadpool(ctx.job, run, "train")
    state = request.app.state
    if state.watchers >= _MAX_WATCHERS:
        raise Busy("Too many connections watch runs already; ask for the run itself instead.")

    async def counted() -> AsyncIterator[str]:
        state.watchers += 1
        try:
            async for event in _events(run, ctx, int(last) + 1 if last is not None else 0):
                yield event
        finally:
            state.watchers -= 1

    headers = {"X-Accel-Buffering": "no"}
    return Stream(counted(), media_type="text/event-stream", headers=headers)


async def _events(run: str, ctx: RequestContext, after: int) -> AsyncIterator[str]:
    services = ctx.services
    folder, poll = services.settings.job_folder(run), services.settings.poll_seconds
    state, quiet = "", 0.0
    while True:
        # The state first: once it says done, the lines of progress are all there.
        job = await run_in_threadpool(services.jobs.get, run)
        for line in await run_in_threadpool(child_processes.progress_lines, folder, after):
            after, quiet = int(line["number"]) + 1, 0.0
            yield f"id: {line['number']}\n" + _event("progress", line)
        if job["state"] != state:
            state, quiet = job["state"], 0.0
            shown = ("state", "message", "released", "attempts")
            yield _event("state", {name: job[name] for name in shown})
        if state in ENDED:
            yield _event("end", {"state": state, "result": job["result"]})
            return
        await asyncio.sleep(poll)
        quiet += poll
        if quiet > _HEARTBEAT_SECONDS:
            quiet = 0.0
            yield ": still here\n\n"


def _event(kind: str, fields: Json) -> str:
    return f"event: {kind}\ndata: {json.dumps(spelled(fields), allow_nan=False)}\n\n"


@router.get("/runs/{run}/progress", summary="A run's progress so far")
def progress(
    run: IdPath,
    ctx: Watcher,
    after: Annotated[int, Query(ge=0, le=10**9)] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
) -> list[Json]:
    """The lines from number `after` on, for those who ask now and then instead of listening."""
    ctx.job(run, "train")
    return child_processes.progress_lines(ctx.services.settings.job_folder(run), after, limit)


@router.post("/runs/{run}/cancel", summary="Stop a run")
def cancel(run: IdPath, ctx: Runner) -> Json:
    """What its ledger holds stays charged; the rest of its reservation is free again."""
    ctx.job(run, "train")
    found = ctx.services.jobs.cancel(run)
    ctx.note("cancel run", run)
    return found


@router.post("/runs/{run}/resume", status_code=202, summary="Go on with a run that stopped")
def resume(run: IdPath, ctx: Runner) -> Json:
    """If the budget still has room for what is left of it."""
    ctx.job(run, "train")
    found = ctx.services.jobs.resume(run)
    ctx.note("resume run", run)
    return found


@router.get("/runs/{run}/log", summary="The end of a run's log", response_class=PlainTextResponse)
def log(run: IdPath, ctx: Watcher) -> PlainTextResponse:
    """Without any text of a record."""
    ctx.job(run, "train")
    text = child_processes.log_text(ctx.services.settings.job_folder(run))
    return PlainTextResponse(without_paths(text))


@router.get("/runs/{run}/metrics", summary="Exact scores on private text")
def metrics(run: IdPath, ctx: Watcher) -> Json:
    """With a verdict: is it better than its public start, and than guessing? Keep it inside."""
    ctx.finished_run(run)
    models = ctx.services.models
    return {"not_private": {"verdict": models.verdict(run), **models.scores(run, "metrics")}}


@router.get("/outcomes", summary="How good finished runs are, and what attacks found")
def outcomes(ctx: Watcher, dataset: Annotated[Id | None, Query()] = None) -> list[Json]:
    """To compare runs by; exact, so keep it inside."""
    return ctx.services.models.outcomes(ctx.caller.dataset or dataset)


def _queue(run: str, ctx: RequestContext, kind: Kind, options: Json, key: str | None) -> Json:
    dataset = ctx.finished_run(run)["dataset"]
    made = ctx.services.jobs.order(dataset, ctx.caller, kind, options, target=run, key=key)
    ctx.note(kind, run)
    return made


@router.post("/runs/{run}/attacks", status_code=202, summary="Try to learn what a model saw")
def add_attack(run: IdPath, asked: NewAttack, ctx: Attacker, key: Key = None) -> Json:
    """Queued; what it finds stands in the report."""
    return _queue(run, ctx, "attack", {"using": ",".join(asked.using)}, key)


@router.post("/runs/{run}/audits", status_code=202, summary="Look for a lower bound on epsilon")
def add_audit(run: IdPath, asked: NewAudit, ctx: Attacker, key: Key = None) -> Json:
    """A contradiction makes the certificate's standing `broken`."""
    return _queue(run, ctx, "audit", asked.model_dump(), key)


@router.post("/runs/{run}/evaluations", status_code=202, summary="Score a model on a split")
def add_evaluation(run: IdPath, asked: NewEvaluation, ctx: Attacker, key: Key = None) -> Json:
    """Beside the baselines; exact, so not private."""
    return _queue(run, ctx, "evaluate", asked.model_dump(), key)


@router.get("/runs/{run}/jobs", summary="The attacks, audits and evaluations of a run")
def jobs_of(run: IdPath, ctx: Attacker, after: After = "", limit: Limit = 200) -> list[Json]:
    """With what they printed; not private."""
    ctx.job(run, "train")
    found = ctx.services.jobs.all(target=run, after=after, limit=limit)
    return [job for job in found if job["kind"] != "train"]


@router.get("/jobs/{job}", summary="An attack, an audit or an evaluation")
def job_(job: IdPath, ctx: Attacker) -> Json:
    """Its state, and what it found."""
    return ctx.job(job)


@router.get(
    "/runs/{run}/report",
    summary="Utility, promise and measured leakage on one page",
    response_class=HTMLResponse,
)
def report(
    run: IdPath,
    ctx: Watcher,
    format: Annotated[Literal["html", "md", "json"], Query()] = "html",
    shareable: Annotated[bool, Query(description="Leave out what is not private.")] = False,
) -> Response:
    """For those inside, unless it is shareable."""
    ctx.finished_run(run)
    found = ctx.services.models.report(run, shareable=shareable)[format]
    if format == "json":
        return JSONResponse(json.loads(found))
    if format == "md":
        return PlainTextResponse(found)
    return HTMLResponse(found, headers={"Content-Security-Policy": PAGE_POLICY})
