"""What workers on other machines ask for: a job, its files, and where to send what came of it."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Annotated

from fastapi import APIRouter, Header, UploadFile
from fastapi.responses import StreamingResponse
from pydantic import Field

from tacit.errors import DataError
from tacit.server import Json
from tacit.server.api.access import REFUSALS, IdPath, RequestContext, requires
from tacit.server.run_requests import RequestModel
from tacit.server.settings import MIB

router = APIRouter(tags=["claims"], responses=REFUSALS)
Worker = Annotated[RequestContext, requires("work")]
Claim = Annotated[str, Header(alias="X-Tacit-Claim", pattern=r"^[0-9a-f]{32}$")]


class WorkerName(RequestModel):
    """Who asks, for whoever looks at the runs."""

    worker: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f]+$")]


@router.post("/claims", summary="Claim a job")
def claim(asked: WorkerName, ctx: Worker) -> Json:
    """The one that has waited longest; its files are private text."""
    found = ctx.services.remote.claim(asked.worker, ctx.caller)
    if found is not None:
        ctx.note("claim job", found["job"], asked.worker)
    return {"job": None} if found is None else found


@router.get(
    "/claims/{job}/files",
    summary="What a job needs",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/zip": {}}}},
)
def files(job: IdPath, claim: Claim, ctx: Worker) -> StreamingResponse:
    """As a zip of its folder."""
    ctx.job(job)
    with ExitStack() as stack:
        place = ctx.services.settings.folder
        packed = stack.enter_context(tempfile.TemporaryFile(dir=place))
        ctx.services.remote.pack(job, claim, packed)
        packed.seek(0)
        kept = stack.pop_all()

    def parts() -> Iterator[bytes]:
        with kept:
            while part := packed.read(MIB):
                yield part

    return StreamingResponse(parts(), media_type="application/zip")


@router.post("/claims/{job}/beat", summary="Say that you are at it")
def beat(job: IdPath, claim: Claim, ctx: Worker, files: list[UploadFile] | None = None) -> Json:
    """With the files that changed, under their names; the answer says whether to stop."""
    ctx.job(job)
    named = {file.filename or "": file.file for file in files or ()}
    if len(named) < len(files or ()):
        raise DataError("Two files have the same name; send each file once.")
    return ctx.services.remote.beat(job, claim, named)


@router.post("/claims/{job}/end", summary="Say that the process has ended")
def end(job: IdPath, claim: Claim, ctx: Worker) -> dict[str, bool]:
    """After the last beat: how it ended is judged by what it wrote."""
    ctx.job(job)
    ctx.services.remote.end(job, claim)
    return {"ended": True}
