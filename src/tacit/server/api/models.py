"""Models: use them, take them along, check their certificates."""

import asyncio
import json
from concurrent.futures import Future
from typing import Annotated

from fastapi import APIRouter, UploadFile
from fastapi.responses import FileResponse, HTMLResponse, PlainTextResponse
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from tacit.errors import DataError
from tacit.server import Json
from tacit.server.api.access import (
    REFUSALS,
    After,
    AnyCaller,
    IdPath,
    Limit,
    RequestContext,
    requires,
)
from tacit.server.errors import Busy
from tacit.server.run_requests import RequestModel
from tacit.server.sharing import public_key, verify_uploaded

router = APIRouter(tags=["models"], responses=REFUSALS)
Consumer = Annotated[RequestContext, requires("models:use")]
Admin = Annotated[RequestContext, requires("datasets:write")]


class Question(RequestModel):
    """A text to go on from, to classify or to tag."""

    text: Annotated[str, Field(min_length=1, max_length=20_000)]
    words: Annotated[int, Field(ge=1, le=200, description="Tokens to add.")] = 10
    choices: Annotated[int, Field(ge=1, le=50, description="Next tokens to show.")] = 5


@router.get("/models", summary="The models you may use")
def models(ctx: Consumer, after: After = "", limit: Limit = 1000) -> list[Json]:
    """The latest first, with what is promised about each, and a warning where nothing is proved."""
    return ctx.services.models.all(ctx.caller.dataset, after=after, limit=limit)


@router.get("/models/{model}", summary="One model")
def model_(model: IdPath, ctx: Consumer) -> Json:
    """With what is promised about it."""
    ctx.job(model, "train")
    return ctx.services.models.get(model)


@router.delete("/models/{model}", summary="Delete a model for good")
def delete(model: IdPath, ctx: Admin) -> Json:
    """Weights, snapshot, scores and what attacks found; ledger, certificate and charges stay.

    Copies that somebody downloaded are theirs.
    """
    ctx.job(model, "train")
    ctx.services.models.delete(model)
    ctx.note("delete model", model)
    return {"deleted": True}


@router.post("/models/{model}/predict", summary="Next words, a class, or tags")
async def predict(model: IdPath, asked: Question, ctx: Consumer) -> Json:
    """Carries a warning where nothing is proved about the model. The text is not kept.

    Questions are answered one after the other, apart from everything else; one that has waited too
    long is refused.
    """
    if any("\ud800" <= c <= "\udfff" for c in asked.text):
        raise DataError("The text has an unpaired surrogate; send valid Unicode.")
    about, waiting = await run_in_threadpool(_ask, model, asked, ctx)
    try:
        found = await asyncio.wait_for(
            asyncio.wrap_future(waiting), ctx.services.settings.prediction_deadline
        )
    except TimeoutError:
        raise Busy("The model did not answer in time; ask again later.") from None
    return {**about, **found}


def _ask(model: str, asked: Question, ctx: RequestContext) -> "tuple[Json, Future[Json]]":
    ctx.job(model, "train")
    return ctx.services.models.ask(
        model, ctx.caller, asked.text, words=asked.words, choices=asked.choices
    )


@router.get(
    "/models/{model}/download",
    summary="The model as a zip of its Hugging Face folder, with certificate and ledger",
    response_class=FileResponse,
    responses={200: {"content": {"application/zip": {}}}},
)
def download(model: IdPath, ctx: Consumer) -> FileResponse:
    """Only what may be shared: no scores on private text, no settings of this machine."""
    ctx.job(model, "train")
    warning = ctx.services.models.get(model)["warning"]
    ctx.note("download model", model)
    headers = {"X-Tacit-Warning": warning} if warning else None
    path = ctx.services.models.archive(model)
    return FileResponse(path, 200, headers, "application/zip", filename=f"{model}.zip")


@router.get("/models/{model}/certificate", summary="The certificate of a model")
def certificate(model: IdPath, ctx: Consumer) -> Json:
    """As it lies in the model's folder."""
    ctx.job(model, "train")
    path = ctx.services.models.folder(model) / "certificate.json"
    return dict(json.loads(path.read_text(encoding="utf-8")))


@router.get(
    "/models/{model}/certificate.html",
    summary="The certificate as a page to read, print and sign",
    response_class=HTMLResponse,
)
def certificate_page(model: IdPath, ctx: Consumer) -> HTMLResponse:
    """In plain words first, then the promise exactly."""
    ctx.job(model, "train")
    path = ctx.services.models.folder(model) / "certificate.html"
    return HTMLResponse(path.read_text(encoding="utf-8"))


@router.get(
    "/signing-key",
    summary="The public key of this server, which signs its models",
    response_class=PlainTextResponse,
)
def signing_key(ctx: AnyCaller) -> PlainTextResponse:
    """For `tacit verify MODEL --signed-by FILE`."""
    return PlainTextResponse(public_key(ctx.services.settings.folder))


@router.get("/models/{model}/verify", summary="Recompute a model's certificate from its ledger")
def verify(model: IdPath, ctx: Consumer) -> Json:
    """Every check, and whether it fits."""
    ctx.job(model, "train")
    return ctx.services.models.verify(model)


@router.post("/certificates/verify", summary="Check a certificate that you upload")
def verify_upload(files: list[UploadFile], ctx: AnyCaller) -> Json:
    """Give certificate.json and ledger.jsonl, or a zip of a model's folder."""
    if not 1 <= len(files) <= 20:
        raise DataError("Give one to twenty files.")
    named = {file.filename or "": file.file for file in files}
    if len(named) < len(files):
        raise DataError("Two files have the same name; give each file once.")
    return verify_uploaded(named, ctx.services.settings.folder)
