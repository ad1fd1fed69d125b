"""Datasets and what is in them: records, lists of entities, detections, the budget, dry runs."""

import asyncio
import json
import re
import tempfile
from pathlib import Path as FilePath
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Form, Header, Query, Response, UploadFile
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from tacit.corpus import Corpus
from tacit.corpus.reading import Layout
from tacit.errors import DataError, UsageError
from tacit.server.api.access import REFUSALS, IdPath, Serving, need
from tacit.server.identity import Caller
from tacit.server.jobs import detection_order
from tacit.server.records import SPLITS, UPLOAD_ENDINGS, Draft, drafts_of
from tacit.server.run_requests import DetectorName, Name, RunRequest
from tacit.server.services import Services

router = APIRouter(tags=["datasets"], responses=REFUSALS)
Writer = Annotated[Caller, Depends(need("datasets:write"))]
Reader = Annotated[Caller, Depends(need("datasets:read"))]
Insider = Annotated[Caller, Depends(need("detect"))]
Spender = Annotated[Caller, Depends(need("budget:read"))]
Planner = Annotated[Caller, Depends(need("plan"))]
Lister = Annotated[Caller, Depends(need("entity-lists"))]
Adder = Annotated[Caller, Depends(need("records:add"))]
Owner = Annotated[Caller, Depends(need("records:own"))]
Admin = Annotated[Caller, Depends(need("records:any"))]

Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[A-Za-z0-9_.:-]{1,128}$",
        description="The same key stores the same records once, however often it is sent.",
    ),
]
UserName = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f]+$")]
UserQuery = Annotated[str | None, Query(max_length=200, pattern=r"^[^\x00-\x1f]+$")]
PAGE_POLICY = (
    "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; img-src data:"
)
"""Pages with text run in a box of their own: nothing in or out."""


class _Asked(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


Limits = Annotated[
    dict[str, Annotated[float, Field(gt=0, le=1e6)]],
    Field(min_length=1, max_length=5, description="Epsilon by unit: {users: 8}."),
]


class NewDataset(_Asked):
    """A dataset and its budget; null for none, which only public text should have."""

    name: Name
    description: Annotated[str, Field(max_length=2000, pattern=r"^[^\x00]*$")] = ""
    limits: Limits | None = {"users": 8.0}
    delta: Annotated[float, Field(gt=0, le=0.01)] = 1e-5
    public: Annotated[bool, Field(description="Nothing in it is private.")] = False


class DatasetChange(_Asked):
    """What may change about a dataset."""

    description: Annotated[str, Field(max_length=2000, pattern=r"^[^\x00]*$")] | None = None
    limits: Limits | None = None
    delta: Annotated[float, Field(gt=0, le=0.01)] | None = None
    unproved_allowed: Annotated[
        bool | None, Field(description="Allow runs whose method proves nothing.")
    ] = None


class SpanGiven(_Asked):
    """A mark in the text."""

    start: Annotated[int, Field(ge=0, le=10**7)]
    end: Annotated[int, Field(ge=1, le=10**7)]
    kind: Annotated[str, Field(min_length=1, max_length=60, pattern=r"^[\w/-]+$")]


Tokens = Annotated[tuple[Annotated[str, Field(max_length=1000)], ...], Field(max_length=20_000)]


class NewRecord(_Asked):
    """One text."""

    text: Annotated[str, Field(min_length=1)]
    user: Annotated[
        UserName | None, Field(description="Whose it is; a contributor's is their own.")
    ] = None
    label: Annotated[str, Field(max_length=200)] | None = None
    split: Annotated[str, Field(pattern=f"^({'|'.join(SPLITS)})$")] | None = None
    pair: Annotated[str, Field(max_length=100_000)] | None = None
    tokens: Tokens | None = None
    tags: Tokens | None = None
    pos: Tokens | None = None
    spans: Annotated[tuple[SpanGiven, ...], Field(max_length=5000)] | None = None


class NewList(_Asked):
    """Names of entities, one each."""

    name: Name
    names: Annotated[list[Annotated[str, Field(max_length=1000)]], Field(min_length=1)]


class NewDetection(_Asked):
    """Which detectors, and which kinds of things."""

    detectors: Annotated[tuple[DetectorName, ...], Field(min_length=1, max_length=3)] = (
        "patterns",
        "lists",
    )
    kinds: Annotated[
        tuple[Annotated[str, Field(pattern=r"^[A-Z][A-Z_]*(/[A-Z_]+)?$", max_length=60)], ...],
        Field(max_length=50),
    ] = ()


def _in(dataset: str, caller: Caller, services: Services) -> str:
    caller.require_dataset(dataset)
    return services.datasets.need(dataset)


# --- datasets ---------------------------------------------------------------------------------


@router.post("/datasets", status_code=201, summary="Make a dataset")
def add_dataset(asked: NewDataset, caller: Writer, services: Serving) -> dict[str, Any]:
    """With the budget that all runs on it share."""
    if asked.public and asked.limits is not None and "limits" in asked.model_fields_set:
        raise UsageError("A public dataset has no budget: leave limits out, or public.")
    made = services.datasets.add(
        asked.name,
        caller,
        description=asked.description,
        limits=None if asked.public else asked.limits,
        delta=asked.delta,
        public=asked.public,
    )
    budget = json.dumps(made["budget"], allow_nan=False)
    services.note(caller, "make dataset", made["id"], budget)
    return made


@router.get("/datasets", summary="The datasets you may know of")
def datasets(caller: Reader, services: Serving) -> list[dict[str, Any]]:
    """Names and budgets; how much is in them is for those inside."""
    return services.datasets.all(caller.dataset)


@router.get("/datasets/{dataset}", summary="One dataset")
def dataset_(dataset: IdPath, caller: Reader, services: Serving) -> dict[str, Any]:
    """With exact counts for analysts and admins."""
    found = services.datasets.get(_in(dataset, caller, services))
    if caller.may("detect"):
        found["not_private"] = services.records.counts(dataset)
    return found


@router.patch("/datasets/{dataset}", summary="Change a dataset's budget or description")
def change_dataset(
    dataset: IdPath, asked: DatasetChange, caller: Writer, services: Serving
) -> dict[str, Any]:
    """What is spent stays spent, whatever the budget."""
    found = services.datasets.change(
        _in(dataset, caller, services), **asked.model_dump(exclude_none=True)
    )
    services.note(caller, "change dataset", dataset, asked.model_dump_json(exclude_none=True))
    return found


@router.get("/datasets/{dataset}/description", summary="Counts over a dataset")
def description(dataset: IdPath, caller: Insider, services: Serving) -> dict[str, Any]:
    """Users, records, tokens, labels: exact, so keep them inside."""
    return {"not_private": services.describe(_in(dataset, caller, services))}


@router.get("/datasets/{dataset}/budget", summary="What is spent, by run, and what is left")
def budget(dataset: IdPath, caller: Spender, services: Serving) -> dict[str, Any]:
    """Computed from the ledgers of all runs together."""
    return services.budgets.status(_in(dataset, caller, services))


@router.get("/datasets/{dataset}/budget/history", summary="What was spent, change by change")
def budget_history(dataset: IdPath, caller: Spender, services: Serving) -> list[dict[str, Any]]:
    """The price of everything charged, after each reservation and each end of a run."""
    return services.budgets.over_time(_in(dataset, caller, services))


@router.post("/datasets/{dataset}/plans", summary="Dry run: what would a run promise and cost?")
def plan(dataset: IdPath, asked: RunRequest, caller: Planner, services: Serving) -> dict[str, Any]:
    """Epsilon, noise, what caps keep and drop, time; nothing is started or spent."""
    _may_continue(asked, caller, services)
    return services.plans.dry_run(_in(dataset, caller, services), asked)


@router.post("/datasets/{dataset}/plans/path", summary="Dry run: epsilon over the steps")
def plan_path(
    dataset: IdPath, asked: RunRequest, caller: Planner, services: Serving
) -> list[list[float]]:
    """Pairs of a number of steps and the epsilon by then, for what the plan protects."""
    _may_continue(asked, caller, services)
    return services.plans.path(_in(dataset, caller, services), asked)


def _may_continue(asked: RunRequest, caller: Caller, services: Services) -> None:
    if asked.continue_from is not None:
        caller.require_dataset(services.jobs.get(asked.continue_from, "train")["dataset"])


# --- records ------------------------------------------------------------------------------------


@router.post("/datasets/{dataset}/records", status_code=201, summary="Add one record")
async def add_record(
    dataset: IdPath,
    asked: NewRecord,
    caller: Adder,
    services: Serving,
    response: Response,
    key: Key = None,
) -> dict[str, Any]:
    """Answered when it is on disk."""
    caller.require_dataset(dataset)
    if not services.datasets.is_known(dataset):
        await run_in_threadpool(services.datasets.need, dataset)
    extra = asked.model_dump(
        mode="json", include={"pair", "tokens", "tags", "pos", "spans"}, exclude_none=True
    )
    if extra:
        _check_extra(asked, extra)
    draft = Draft(asked.text, asked.user, asked.label, asked.split, extra or None)
    done = await asyncio.wrap_future(services.records.append(dataset, caller, [draft], key))
    if done.repeated:
        response.status_code = 200
    return {"record": done.records[0], "repeated": bool(done.repeated)}


def _check_extra(asked: NewRecord, extra: dict[str, Any]) -> None:
    """Refuse marks that do not fit their text, as reading them from a file would."""
    text = json.dumps(extra, ensure_ascii=False, allow_nan=False)
    if "\\u0000" in text or any("\ud800" <= c <= "\udfff" for c in text):
        raise DataError("The record has a character that no text has (NUL, or half of one).")
    Corpus.from_records([{"id": "1", "text": asked.text.replace("\0", " "), **extra}],
                        name="the request")  # fmt: skip


@router.post("/datasets/{dataset}/records/file", status_code=201, summary="Add a file of records")
async def add_file(
    dataset: IdPath,
    file: UploadFile,
    caller: Adder,
    services: Serving,
    key: Key = None,
    user: Annotated[UserName | None, Form(description="Whose all of it is.")] = None,
    text_column: Annotated[str | None, Form(max_length=200)] = None,
    user_column: Annotated[str | None, Form(max_length=200)] = None,
    label_column: Annotated[str | None, Form(max_length=200)] = None,
) -> dict[str, Any]:
    """JSON lines, CSV, TSV or text, not compressed; all of it is stored, or nothing."""
    caller.require_dataset(dataset)
    await run_in_threadpool(services.datasets.need, dataset)
    columns = {"text": text_column, "user": user_column, "label": label_column}
    layout = Layout({ours: theirs for ours, theirs in columns.items() if theirs})
    drafts = await run_in_threadpool(_drafts, services, file, layout, user)
    done = await asyncio.wrap_future(services.records.append(dataset, caller, drafts, key))
    await run_in_threadpool(
        services.note, caller, "upload records", dataset, f"{len(done.records)} records"
    )
    return {"records": len(done.records), "repeated": done.repeated}


def _drafts(services: Services, file: UploadFile, layout: Layout, user: str | None) -> list[Draft]:
    ending = FilePath(file.filename or "").suffix.lower()
    if ending not in UPLOAD_ENDINGS:
        raise UsageError(
            f"The ending of the file is not accepted; accepted: {', '.join(UPLOAD_ENDINGS)}."
        )
    with tempfile.TemporaryDirectory(dir=services.settings.folder) as place:
        path = FilePath(place) / f"upload{ending}"
        with path.open("wb") as out:
            while part := file.file.read(1 << 20):
                out.write(part)
        drafts = drafts_of(services.read_upload(path, layout))
    if user is None:
        return drafts
    return [Draft(d.text, user, d.label, d.split, d.extra) for d in drafts]


@router.get("/datasets/{dataset}/records", summary="Your records; for admins, anybody's")
def records(
    dataset: IdPath,
    caller: Owner,
    services: Serving,
    user: UserQuery = None,
    after: Annotated[str, Query(pattern=r"^[a-z0-9]{0,40}$")] = "",
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> list[dict[str, Any]]:
    """A page of them, with the text; nobody else's is shown to a contributor."""
    _in(dataset, caller, services)
    everybody = caller.may("records:any")
    if everybody:
        services.note(caller, "read records", dataset, f"user {user}" if user else "of everybody")
    return services.records.page(
        dataset, owner=None if everybody else caller, user=user, after=after, limit=limit
    )


@router.delete("/datasets/{dataset}/records", summary="Delete your records, or a user's, for good")
def forget(
    dataset: IdPath, caller: Owner, services: Serving, user: UserQuery = None
) -> dict[str, Any]:
    """The right to be forgotten; the answer says what that means for runs and models.

    A contributor deletes what is theirs; an admin says whose.
    """
    _in(dataset, caller, services)
    if caller.may("records:any") and user is None:
        raise UsageError("Say whose records to delete: user=NAME.")
    if not caller.may("records:any") and user not in (None, caller.name):
        caller.need("records:any")
    return services.forget(dataset, caller, user=user)


@router.delete("/datasets/{dataset}/records/{record}", summary="Delete one record for good")
def forget_one(dataset: IdPath, record: IdPath, caller: Owner, services: Serving) -> dict[str, Any]:
    """Yours, or for an admin anybody's."""
    _in(dataset, caller, services)
    return services.forget(dataset, caller, record=record)


# --- lists of entities --------------------------------------------------------------------------


@router.post("/datasets/{dataset}/entity-lists", status_code=201, summary="Give names to protect")
def add_list(dataset: IdPath, asked: NewList, caller: Lister, services: Serving) -> dict[str, Any]:
    """A run can then protect these entities only."""
    for name in asked.names:
        if "\0" in name or any("\ud800" <= c <= "\udfff" for c in name):
            raise DataError("A name has a character that no text has (NUL, or half of one).")
    made = services.datasets.add_list(
        _in(dataset, caller, services), asked.name, asked.names, caller
    )
    services.note(caller, "give entity list", made["id"], f"{made['count']} names")
    return made


@router.post(
    "/datasets/{dataset}/entity-lists/file", status_code=201, summary="Give a file of names"
)
def add_list_file(
    dataset: IdPath,
    file: UploadFile,
    caller: Lister,
    services: Serving,
    name: Annotated[Name, Form()] = "list",
) -> dict[str, Any]:
    """Plain text, one name a line."""
    if not re.fullmatch(r".*\.(txt|lst)", (file.filename or "").lower()):
        raise UsageError("A list of names is a plain text file: end its name in .txt.")
    try:
        lines = file.file.read().decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise DataError("The list is not UTF-8.") from None
    asked = NewList(name=name, names=[line[:1001].replace("\0", "") for line in lines] or [""])
    return add_list(dataset, asked, caller, services)


@router.get("/datasets/{dataset}/entity-lists", summary="The lists, without the names")
def lists(dataset: IdPath, caller: Lister, services: Serving) -> list[dict[str, Any]]:
    """How many names each has."""
    return services.datasets.lists(_in(dataset, caller, services))


@router.get("/datasets/{dataset}/entity-lists/{entity_list}", summary="A list of yours")
def list_(
    dataset: IdPath, entity_list: IdPath, caller: Lister, services: Serving
) -> dict[str, Any]:
    """With its names, for whoever gave it and for admins."""
    return services.datasets.names(_in(dataset, caller, services), entity_list, caller)


@router.delete("/datasets/{dataset}/entity-lists/{entity_list}", summary="Delete a list")
def delete_list(
    dataset: IdPath, entity_list: IdPath, caller: Lister, services: Serving
) -> dict[str, bool]:
    """Runs that are queued with it will fail."""
    services.datasets.delete_list(_in(dataset, caller, services), entity_list)
    services.note(caller, "delete entity list", entity_list)
    return {"deleted": True}


# --- detections ---------------------------------------------------------------------------------


@router.post("/datasets/{dataset}/detections", status_code=202, summary="Find what is sensitive")
def add_detection(
    dataset: IdPath, asked: NewDetection, caller: Insider, services: Serving
) -> dict[str, Any]:
    """Queued like a run; it releases nothing."""
    order = detection_order(asked.detectors, asked.kinds)
    made = services.jobs.order(_in(dataset, caller, services), order, caller)
    services.note(caller, "detect", made["id"])
    return made


@router.get("/datasets/{dataset}/detections", summary="The detections on a dataset")
def detections(dataset: IdPath, caller: Insider, services: Serving) -> list[dict[str, Any]]:
    """The latest first."""
    return services.jobs.all("detect", _in(dataset, caller, services))


@router.get("/detections/{detection}", summary="A detection and what it counted")
def detection_(detection: IdPath, caller: Insider, services: Serving) -> dict[str, Any]:
    """Counts by kind; no names and no text."""
    found = services.jobs.get(detection, "detect")
    caller.require_dataset(found["dataset"])
    return found


@router.get("/detections/{detection}/owners", summary="Who shares what")
def owners(
    detection: IdPath,
    caller: Insider,
    services: Serving,
    names: Annotated[bool, Query(description="With names, for admins.")] = True,
) -> dict[str, Any]:
    """How many users share how many entities; their names are for admins."""
    caller.require_dataset(services.jobs.get(detection, "detect")["dataset"])
    named = names and caller.may("records:any")
    if named:
        services.note(caller, "read names", detection)
    return {"not_private": services.owners(detection, with_names=named)}


@router.get(
    "/detections/{detection}/page",
    summary="The text with what was found in it, as a page",
    response_class=HTMLResponse,
)
def detection_page(detection: IdPath, caller: Admin, services: Serving) -> HTMLResponse:
    """Holds text, so it is for admins."""
    caller.require_dataset(services.jobs.get(detection, "detect")["dataset"])
    services.note(caller, "read text", detection)
    page = services.detection_page(detection)
    return HTMLResponse(page, headers={"Content-Security-Policy": PAGE_POLICY})
