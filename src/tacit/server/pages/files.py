"""Uploads as plain forms, downloads as plain links: each is a call of the API."""

import hmac
import json
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Form, Request, UploadFile
from starlette.responses import RedirectResponse, Response

from tacit.errors import TacitError
from tacit.server.api import datasets as api_datasets
from tacit.server.api import models as api_models
from tacit.server.api import runs as api_runs
from tacit.server.errors import NotAllowed, NotAuthenticated, NotFound
from tacit.server.pages.page_context import PageContext, require_id, sentence_of
from tacit.server.pages.rendering import plain_page

_IN_A_FRAME = {
    "Content-Security-Policy": api_datasets.PAGE_POLICY + "; frame-ancestors 'self'",
    "X-Frame-Options": "SAMEORIGIN",
    "Cache-Control": "no-store",
}
"""Reports and marked text run in a sandbox inside a page of ours."""
FormKey = Annotated[str, Form()]
Column = Annotated[str, Form(max_length=200)]


router = APIRouter(include_in_schema=False)


async def page_context(request: Request) -> PageContext:
    """The page that a form or a link is on."""
    found: PageContext = request.app.state.context_of(request)
    return found


Ctx = Annotated[PageContext, Depends(page_context)]


async def _submit(
    ctx: PageContext, key: str, back: str, what: str, call: Any, *given: Any,
    script: bool = False, **named: Any,
) -> Response:  # fmt: skip
    """Do what a form asks for; the page that it goes back to says what came of it.

    A `script` that shows how much was sent goes there by itself: else it would see that page first.
    """
    if not hmac.compare_digest(ctx.form_key.encode(), key.encode()):
        sentence = "The form was too old, or from another site; open the page again."
        return plain_page("Not possible", sentence, 403)
    try:
        ctx.flash[what] = {"ok": await ctx.call(call, *given, **named)}
    except NotAuthenticated:
        return RedirectResponse("/sign-in", 303)
    except Exception as error:
        ctx.flash[what] = {"refused": sentence_of(error)}
    return Response(status_code=204) if script else RedirectResponse(back, 303)


async def _fetch(ctx: PageContext, call: Any, name: str, **named: Any) -> Any:
    """A file, or a page that says why not."""
    try:
        return await ctx.call(call, require_id(name), **named)
    except NotAuthenticated:
        return RedirectResponse("/sign-in", 303)
    except TacitError as error:
        status = {NotAllowed: 403, NotFound: 404}.get(type(error), 409)
        return plain_page("Not possible", str(error), status)


async def _framed(ctx: PageContext, call: Any, name: str, **named: Any) -> Response:
    found: Response = await _fetch(ctx, call, name, **named)
    found.headers.update(_IN_A_FRAME)
    return found


@router.post("/datasets/{dataset}/records/file")
async def _add_file(
    request: Request,
    ctx: Ctx,
    dataset: str,
    file: UploadFile,
    key: FormKey = "",
    user: Column = "",
    text_column: Column = "",
    user_column: Column = "",
    label_column: Column = "",
    consent: Annotated[bool, Form()] = False,
) -> Response:
    back = f"/datasets/{dataset}" if ctx.may("records:any") else "/my-text"
    columns = {"user": user, "text_column": text_column, "user_column": user_column,
               "label_column": label_column}  # fmt: skip
    named = {name: value.strip() or None for name, value in columns.items()}
    return await _submit(
        ctx, key, back, "upload", api_datasets.add_file, dataset, file,
        script="x-tacit-script" in request.headers, consent=consent, **named,
    )  # fmt: skip


@router.post("/datasets/{dataset}/entity-lists/file")
async def _add_list(
    ctx: Ctx, dataset: str, file: UploadFile, key: FormKey = "", name: Column = "list"
) -> Response:
    back, call = f"/datasets/{dataset}", api_datasets.add_list_file
    return await _submit(ctx, key, back, "list", call, dataset, file, name=name)


@router.post("/certificates/verify")
async def _verify(ctx: Ctx, files: list[UploadFile], key: FormKey = "") -> Response:
    return await _submit(ctx, key, "/check", "verify", api_models.verify_upload, files)


@router.get("/models/{model}/download")
async def _download(ctx: Ctx, model: str) -> Response:
    return await _fetch(ctx, api_models.download, model)


@router.get("/models/{model}/certificate.json")
async def _certificate(ctx: Ctx, model: str) -> Response:
    found = await _fetch(ctx, api_models.certificate, model)
    if isinstance(found, Response):
        return found
    head = {"Content-Disposition": 'attachment; filename="certificate.json"'}
    text = json.dumps(found, indent=2, allow_nan=False)
    return Response(text, media_type="application/json", headers=head)


@router.get("/models/{model}/certificate.html")
async def _certificate_page(ctx: Ctx, model: str) -> Response:
    return await _framed(ctx, api_models.certificate_page, model)


@router.get("/runs/{run}/report")
async def _report(ctx: Ctx, run: str, shareable: bool = False) -> Response:
    return await _framed(ctx, api_runs.report, run, format="html", shareable=shareable)


@router.get("/detections/{detection}/text")
async def _marked_text(ctx: Ctx, detection: str) -> Response:
    return await _framed(ctx, api_datasets.detection_page, detection)
