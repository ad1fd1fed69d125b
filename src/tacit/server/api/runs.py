"""Training runs: start, watch, stop, resume, attack, audit, report."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from tacit.errors import TacitError
from tacit.saved_json import spelled
from tacit.server import child_processes
from tacit.server.api.access import REFUSALS, IdPath, Serving, need
from tacit.server.api.datasets import PAGE_POLICY
from tacit.server.errors import Busy, Conflict
from tacit.server.identity import Caller
from tacit.server.jobs import ENDED, attack_order, audit_order, evaluation_order
from tacit.server.records import SPLITS
from tacit.server.run_requests import Id, RunRequest
from tacit.server.services import Services

router = APIRouter(tags=["runs"], responses=REFUSALS)
Runner = Annotated[Caller, Depends(need("runs:write"))]
Watcher = Annotated[Caller, Depends(need("runs:read"))]
Attacker = Annotated[Caller, Depends(need("attack"))]
_BEAT_SECONDS = 15.0
_MOST_WATCHERS = 100

AttackName = Literal["exposure", "membership", "secrets", "tab", "extraction", "linkage"]
UnitName = Literal["records", "users", "entities", "users+entities", "tokens"]


class _Asked(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class NewAttack(_Asked):
    """Which attacks; all that have what they need if none is named."""

    using: Annotated[tuple[AttackName, ...], Field(max_length=6)] = ()


class NewAudit(_Asked):
    """For whom, and with how many canaries."""

    unit: UnitName | None = None
    canaries: Annotated[int, Field(ge=64, le=100_000)] | None = None


class NewEvaluation(_Asked):
    """On which split of the run's records."""

    split: Annotated[str, Field(pattern=f"^({'|'.join(SPLITS)})$")] = "test"


def _run(run: str, caller: Caller, services: Services) -> dict[str, Any]:
    found = services.jobs.get(run, "train")
    caller.require_dataset(found["dataset"])
    return found


def _finished(run: str, caller: Caller, services: Services) -> dict[str, Any]:
    found = _run(run, caller, services)
    if found["state"] != "done":
        raise Conflict(f"The run is {found['state']}; wait until it is done.")
    return found


@router.post("/datasets/{dataset}/runs", status_code=202, summary="Start a training run")
def add_run(
    dataset: IdPath, asked: RunRequest, caller: Runner, services: Serving
) -> dict[str, Any]:
    """Everything that it may release is reserved first; over the budget, nothing is started."""
    caller.require_dataset(dataset)
    if asked.continue_from is not None:
        _run(asked.continue_from, caller, services)
    try:
        made = services.jobs.train(dataset, asked, caller)
    except TacitError as error:
        services.note(caller, "start run", dataset, f"refused: {type(error).__name__}")
        raise
    services.note(caller, "start run", made["id"], asked.method)
    return made


@router.get("/runs", summary="The runs, the latest first")
def runs(
    caller: Watcher, services: Serving, dataset: Annotated[Id | None, Query()] = None
) -> list[dict[str, Any]]:
    """Of one dataset, or of all that the token is for."""
    return services.jobs.all("train", caller.dataset or dataset)


@router.get("/runs/{run}", summary="A run and how far it is")
def run_(run: IdPath, caller: Watcher, services: Serving) -> dict[str, Any]:
    """What stands under `not_private` was counted on the text itself."""
    return _run(run, caller, services)


@router.get(
    "/runs/{run}/events",
    summary="A run's progress as it happens",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def events(
    request: Request,
    run: IdPath,
    caller: Watcher,
    services: Serving,
    last: Annotated[str | None, Header(alias="Last-Event-ID", pattern=r"^[0-9]{1,9}$")] = None,
) -> StreamingResponse:
    """Server-sent events: `progress` after every step, `state` at every change, then `end`.

    After a lost connection, `Last-Event-ID` goes on where it broke off.
    """
    await run_in_threadpool(_run, run, caller, services)
    if request.app.state.watchers >= _MOST_WATCHERS:
        raise Busy("Too many watch runs already; ask for the run itself now and then instead.")
    after = int(last) + 1 if last is not None else 0
    return StreamingResponse(
        _counted(request.app, _events(run, services, after)),
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no"},
    )


async def _counted(app: Any, events: AsyncIterator[str]) -> AsyncIterator[str]:
    app.state.watchers += 1
    try:
        async for event in events:
            yield event
    finally:
        app.state.watchers -= 1


async def _events(run: str, services: Services, after: int) -> AsyncIterator[str]:
    folder = services.settings.job_folder(run)
    state, quiet = "", 0.0
    while True:
        # The state first: once it says done, the lines of progress are all there.
        job = await run_in_threadpool(services.jobs.get, run)
        for line in await run_in_threadpool(child_processes.progress_lines, folder, after):
            after = int(line["number"]) + 1
            yield _event("progress", line, str(line["number"]))
            quiet = 0.0
        if job["state"] != state:
            state, quiet = job["state"], 0.0
            said = {name: job[name] for name in ("state", "message", "released", "attempts")}
            yield _event("state", said)
        if state in ENDED:
            yield _event("end", {"state": state, "result": job["result"]})
            return
        await asyncio.sleep(services.settings.poll_seconds)
        quiet += services.settings.poll_seconds
        if quiet > _BEAT_SECONDS:
            quiet = 0.0
            yield ": still here\n\n"


def _event(kind: str, fields: dict[str, Any], number: str | None = None) -> str:
    head = f"id: {number}\n" if number is not None else ""
    return f"{head}event: {kind}\ndata: {json.dumps(spelled(fields), allow_nan=False)}\n\n"


@router.get("/runs/{run}/progress", summary="A run's progress so far")
def progress(
    run: IdPath,
    caller: Watcher,
    services: Serving,
    after: Annotated[int, Query(ge=0, le=10**9)] = 0,
) -> list[dict[str, Any]]:
    """The lines from number `after` on, for those who ask now and then instead of listening."""
    _run(run, caller, services)
    return child_processes.progress_lines(services.settings.job_folder(run), after)


@router.post("/runs/{run}/cancel", summary="Stop a run")
def cancel(run: IdPath, caller: Runner, services: Serving) -> dict[str, Any]:
    """What its ledger holds stays charged; the rest of its reservation is free again."""
    _run(run, caller, services)
    found = services.jobs.cancel(run)
    services.note(caller, "cancel run", run)
    return found


@router.post("/runs/{run}/resume", status_code=202, summary="Go on with a run that stopped")
def resume(run: IdPath, caller: Runner, services: Serving) -> dict[str, Any]:
    """If the budget still has room for what is left of it."""
    _run(run, caller, services)
    found = services.jobs.resume(run)
    services.note(caller, "resume run", run)
    return found


@router.get("/runs/{run}/log", summary="The end of a run's log", response_class=PlainTextResponse)
def log(run: IdPath, caller: Watcher, services: Serving) -> PlainTextResponse:
    """Without any text of a record."""
    _run(run, caller, services)
    return PlainTextResponse(child_processes.log_text(services.settings.job_folder(run)))


@router.get("/runs/{run}/metrics", summary="Exact scores on private text")
def metrics(run: IdPath, caller: Watcher, services: Serving) -> dict[str, Any]:
    """Not private: keep them inside."""
    _finished(run, caller, services)
    return {"not_private": services.models.scores(run, "metrics")}


@router.post("/runs/{run}/attacks", status_code=202, summary="Try to learn what a model saw")
def add_attack(
    run: IdPath, asked: NewAttack, caller: Attacker, services: Serving
) -> dict[str, Any]:
    """Queued; what it finds stands in the report."""
    found = _finished(run, caller, services)
    made = services.jobs.order(found["dataset"], attack_order(run, asked.using), caller)
    services.note(caller, "attack", run)
    return made


@router.post("/runs/{run}/audits", status_code=202, summary="Look for a lower bound on epsilon")
def add_audit(run: IdPath, asked: NewAudit, caller: Attacker, services: Serving) -> dict[str, Any]:
    """A contradiction makes the certificate's standing `broken`."""
    found = _finished(run, caller, services)
    order = audit_order(run, asked.unit, asked.canaries)
    made = services.jobs.order(found["dataset"], order, caller)
    services.note(caller, "audit", run)
    return made


@router.post("/runs/{run}/evaluations", status_code=202, summary="Score a model on a split")
def add_evaluation(
    run: IdPath, asked: NewEvaluation, caller: Attacker, services: Serving
) -> dict[str, Any]:
    """Beside the baselines; exact, so not private."""
    found = _finished(run, caller, services)
    made = services.jobs.order(found["dataset"], evaluation_order(run, asked.split), caller)
    services.note(caller, "evaluate", run)
    return made


@router.get("/runs/{run}/jobs", summary="The attacks, audits and evaluations of a run")
def jobs_of(run: IdPath, caller: Attacker, services: Serving) -> list[dict[str, Any]]:
    """With what they printed; not private."""
    _run(run, caller, services)
    return [job for job in services.jobs.all(target=run) if job["kind"] != "train"]


@router.get("/jobs/{job}", summary="An attack, an audit or an evaluation")
def job_(job: IdPath, caller: Attacker, services: Serving) -> dict[str, Any]:
    """Its state, and what it found."""
    found = services.jobs.get(job)
    caller.require_dataset(found["dataset"])
    return found


@router.get(
    "/runs/{run}/report",
    summary="Utility, promise and measured leakage on one page",
    response_class=HTMLResponse,
)
def report(
    run: IdPath,
    caller: Watcher,
    services: Serving,
    format: Annotated[Literal["html", "md", "json"], Query()] = "html",
    shareable: Annotated[bool, Query(description="Leave out what is not private.")] = False,
) -> Response:
    """For those inside, unless it is shareable."""
    _finished(run, caller, services)
    found = services.models.report(run, shareable=shareable)[format]
    if format == "json":
        return JSONResponse(json.loads(found))
    if format == "md":
        return PlainTextResponse(found)
    return HTMLResponse(found, headers={"Content-Security-Policy": PAGE_POLICY})
