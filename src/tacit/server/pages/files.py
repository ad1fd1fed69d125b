"""Uploads as plain forms, downloads as plain links: each is a call of the API."""

import hmac
import json
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Form, Request, UploadFile
from starlette.responses import RedirectResponse, Response

from tacit.errors import TacitError
from tacit.server.api import datasets as api_datasets
from tacit.server.api import models as api_models
from tacit.server.api import runs as api_runs
from tacit.server.api.access import Known
from tacit.server.errors import NotAllowed, NotKnown, NotThere
from tacit.server.pages.bare_pages import plain_page
from tacit.server.pages.visits import Visit, require_id, sentence_of

__all__ = ["Known", "file_routes", "sheet_policy"]

sheet_policy = api_datasets.PAGE_POLICY + "; frame-ancestors 'self'"
"""Reports and marked text run in a box of their own inside a page of ours."""
_IN_A_FRAME = {"Content-Security-Policy": sheet_policy, "X-Frame-Options": "SAMEORIGIN",
               "Cache-Control": "no-store"}  # fmt: skip


def file_routes(visit_of: Callable[[Request], Visit]) -> APIRouter:
    """All of them."""
    router = APIRouter(include_in_schema=False)

    def sent(request: Request, key: str) -> Visit:
        visit = visit_of(request)
        if not hmac.compare_digest(visit.form_key.encode(), key.encode()):
            raise NotAllowed("The form was too old, or from another site; open the page again.")
        return visit

    async def answered(
        request: Request, key: str, back: str, what: str, call: Any, *given: Any, **named: Any
    ) -> Response:
        """Do what a form asks for; what came of it is said on the page that it goes back to."""
        try:
            visit = sent(request, key)
        except NotAllowed as refused:
            return plain_page("Not possible", str(refused), 403)
        try:
            visit.told[what] = {"ok": await visit.call(call, *given, **named)}
        except NotKnown:
            return RedirectResponse("/sign-in", 303)
        except Exception as error:
            visit.told[what] = {"refused": sentence_of(error)}
        return RedirectResponse(back, 303)

    @router.post("/datasets/{dataset}/records/file")
    async def add_file(
        request: Request,
        dataset: str,
        file: UploadFile,
        key: Annotated[str, Form()] = "",
        user: Annotated[str, Form(max_length=200)] = "",
        text_column: Annotated[str, Form(max_length=200)] = "",
        user_column: Annotated[str, Form(max_length=200)] = "",
        label_column: Annotated[str, Form(max_length=200)] = "",
    ) -> Response:
        mine = not request.state.caller.may("records:any")
        back = "/my-text" if mine else f"/datasets/{dataset}"
        return await answered(
            request, key, back, "upload", api_datasets.add_file, dataset, file,
            user=user.strip() or None, text_column=text_column.strip() or None,
            user_column=user_column.strip() or None, label_column=label_column.strip() or None,
        )  # fmt: skip

    @router.post("/datasets/{dataset}/entity-lists/file")
    async def add_list(
        request: Request,
        dataset: str,
        file: UploadFile,
        key: Annotated[str, Form()] = "",
        name: Annotated[str, Form(max_length=99)] = "list",
    ) -> Response:
        back = f"/datasets/{dataset}"
        return await answered(
            request, key, back, "list", api_datasets.add_list_file, dataset, file, name=name
        )

    @router.post("/certificates/verify")
    async def verify(
        request: Request, files: list[UploadFile], key: Annotated[str, Form()] = ""
    ) -> Response:
        return await answered(request, key, "/check", "verify", api_models.verify_upload, files)

    @router.get("/models/{model}/download")
    async def download(request: Request, model: str) -> Response:
        return await given(request, api_models.download, model)

    @router.get("/models/{model}/certificate.json")
    async def certificate(request: Request, model: str) -> Response:
        found = await given(request, api_models.certificate, model)
        if isinstance(found, Response):
            return found
        head = {"Content-Disposition": 'attachment; filename="certificate.json"'}
        text = json.dumps(found, indent=2, allow_nan=False)
        return Response(text, media_type="application/json", headers=head)

    @router.get("/models/{model}/certificate.html")
    async def certificate_page(request: Request, model: str) -> Response:
        found: Response = await given(request, api_models.certificate_page, model)
        found.headers.update(_IN_A_FRAME)
        return found

    @router.get("/runs/{run}/report")
    async def report(request: Request, run: str, shareable: bool = False) -> Response:
        found = await given(request, api_runs.report, run, format="html", shareable=shareable)
        found.headers.update(_IN_A_FRAME)
        return found

    @router.get("/detections/{detection}/text")
    async def marked(request: Request, detection: str) -> Response:
        found = await given(request, api_datasets.detection_page, detection)
        found.headers.update(_IN_A_FRAME)
        return found

    async def given(request: Request, call: Any, name: str, **named: Any) -> Any:
        """A file, or a page that says why not."""
        try:
            return await visit_of(request).call(call, require_id(name), **named)
        except NotKnown:
            return RedirectResponse("/sign-in", 303)
        except TacitError as error:
            status = {NotAllowed: 403, NotThere: 404}.get(type(error), 409)
            return plain_page("Not possible", str(error), status)

    return router
