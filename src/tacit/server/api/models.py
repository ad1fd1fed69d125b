"""Models: use them, take them along, check their certificates."""

import json
from typing import Annotated, Any

from fastapi import APIRouter, Depends, UploadFile
from fastapi.responses import FileResponse, HTMLResponse, PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field

from tacit.errors import DataError
from tacit.server.api.access import REFUSALS, IdPath, Known, Serving, need
from tacit.server.identity import Caller
from tacit.server.services import Services
from tacit.server.sharing import public_key, verify_uploaded

router = APIRouter(tags=["models"], responses=REFUSALS)
User = Annotated[Caller, Depends(need("models:use"))]
Admin = Annotated[Caller, Depends(need("datasets:write"))]


class Question(BaseModel):
    """A text to go on from, to classify or to tag."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: Annotated[str, Field(min_length=1, max_length=20_000)]
    words: Annotated[int, Field(ge=1, le=200, description="Tokens to add.")] = 10
    choices: Annotated[int, Field(ge=1, le=50, description="Next tokens to show.")] = 5


def _need(model: str, caller: Caller, services: Services) -> None:
    caller.require_dataset(services.jobs.get(model, "train")["dataset"])


@router.get("/models", summary="The models you may use")
def models(caller: User, services: Serving) -> list[dict[str, Any]]:
    """With what is promised about each, and a warning where nothing is proved."""
    return services.models.all(caller.dataset)


@router.get("/models/{model}", summary="One model")
def model_(model: IdPath, caller: User, services: Serving) -> dict[str, Any]:
    """With what is promised about it."""
    _need(model, caller, services)
    return services.models.get(model)


@router.delete("/models/{model}", summary="Delete a model for good")
def delete(model: IdPath, caller: Admin, services: Serving) -> dict[str, Any]:
    """Weights, snapshot, scores and what attacks found; ledger, certificate and charges stay.

    Copies that somebody downloaded are theirs.
    """
    _need(model, caller, services)
    services.models.delete(model)
    services.note(caller, "delete model", model)
    return {"deleted": True}


@router.post("/models/{model}/predict", summary="Next words, a class, or tags")
def predict(model: IdPath, asked: Question, caller: User, services: Serving) -> dict[str, Any]:
    """Carries a warning where nothing is proved about the model. The text is not kept."""
    _need(model, caller, services)
    if any("\ud800" <= c <= "\udfff" for c in asked.text):
        raise DataError("The text has half of a character.")
    return services.models.predict(model, asked.text, words=asked.words, choices=asked.choices)


@router.get(
    "/models/{model}/download",
    summary="The model as a zip of its Hugging Face folder, with certificate and ledger",
    response_class=FileResponse,
    responses={200: {"content": {"application/zip": {}}}},
)
def download(model: IdPath, caller: User, services: Serving) -> FileResponse:
    """Only what may be shared: no scores on private text, no settings of this machine."""
    _need(model, caller, services)
    warning = services.models.get(model)["warning"]
    services.note(caller, "download model", model)
    headers = {"X-Tacit-Warning": warning} if warning else None
    return FileResponse(
        services.models.archive(model),
        media_type="application/zip",
        filename=f"{model}.zip",
        headers=headers,
    )


@router.get("/models/{model}/certificate", summary="The certificate of a model")
def certificate(model: IdPath, caller: User, services: Serving) -> dict[str, Any]:
    """As it lies in the model's folder."""
    _need(model, caller, services)
    fields: dict[str, Any] = json.loads(
        (services.models.folder(model) / "certificate.json").read_text(encoding="utf-8")
    )
    return fields


@router.get(
    "/models/{model}/certificate.html",
    summary="The certificate as a page to read, print and sign",
    response_class=HTMLResponse,
)
def certificate_page(model: IdPath, caller: User, services: Serving) -> HTMLResponse:
    """In plain words first, then the promise exactly."""
    _need(model, caller, services)
    return HTMLResponse(services.models.certificate_page(model))


@router.get(
    "/signing-key",
    summary="The public key of this server, which signs its models",
    response_class=PlainTextResponse,
)
def signing_key(caller: Known, services: Serving) -> PlainTextResponse:
    """For `tacit verify MODEL --signed-by FILE`."""
    return PlainTextResponse(public_key(services.settings.folder))


@router.get("/models/{model}/verify", summary="Recompute a model's certificate from its ledger")
def verify(model: IdPath, caller: User, services: Serving) -> dict[str, Any]:
    """Every check, and whether it fits."""
    _need(model, caller, services)
    return services.models.verify(model)


@router.post("/certificates/verify", summary="Check a certificate that you upload")
def verify_upload(files: list[UploadFile], caller: Known, services: Serving) -> dict[str, Any]:
    """Give certificate.json and ledger.jsonl, or a zip of a model's folder."""
    if not 1 <= len(files) <= 20:
        raise DataError("Give one to twenty files.")
    named = {file.filename or "": file.file for file in files}
    if len(named) < len(files):
        raise DataError("Two files have one name.")
    return verify_uploaded(named, services.settings.folder)
