"""Datasets and what is in them: records, lists of entities, detections, the budget, dry runs."""

import asyncio
import json
import shutil
import tempfile
from pathlib import Path as FilePath
from typing import Annotated, Literal

from fastapi import APIRouter, Form, Query, Response, UploadFile
from fastapi.responses import HTMLResponse
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from tacit.corpus import Corpus
from tacit.corpus.reading import Layout, read
from tacit.errors import DataError, UsageError
from tacit.privacy.events import UNITS
from tacit.server import Json
from tacit.server.api.access import (
    REFUSALS,
    After,
    IdPath,
    Key,
    Limit,
    RequestContext,
    requires,
)
from tacit.server.errors import NotAllowed
from tacit.server.records import (
    NOT_STORABLE,
    SPLITS,
    UPLOAD_ENDINGS,
    Appended,
    Draft,
    drafts_in,
    drafts_of,
    storable,
)
from tacit.server.run_requests import DetectorName, Name, RequestModel, RunRequest
from tacit.server.settings import MIB
from tacit.server.unpacking import Upload, limits_of, unpack

router = APIRouter(tags=["datasets"], responses=REFUSALS)
Writer = Annotated[RequestContext, requires("datasets:write")]
Reader = Annotated[RequestContext, requires("datasets:read")]
Analyst = Annotated[RequestContext, requires("detect")]
BudgetReader = Annotated[RequestContext, requires("budget:read")]
Planner = Annotated[RequestContext, requires("plan")]
ListEditor = Annotated[RequestContext, requires("entity-lists")]
Contributor = Annotated[RequestContext, requires("records:add")]
Owner = Annotated[RequestContext, requires("records:own")]
TextReader = Annotated[RequestContext, requires("records:any")]

Split = Annotated[str, Field(pattern=f"^({'|'.join(SPLITS)})$")]
UserName = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f]+$")]
UserQuery = Annotated[str | None, Query(max_length=200, pattern=r"^[^\x00-\x1f]+$")]
_AT_ONCE, _AT_ONCE_RECORDS = 4 * MIB, 512
"""What is read and written in one go; larger files are read by a process of their own."""
_UNPACKED = (".parquet", ".jsonl.gz", ".csv.gz", ".tsv.gz")
PAGE_POLICY = (
    "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; img-src data:"
)
"""Pages with text run in a sandbox: nothing in or out."""


Limits = Annotated[
    dict[str, Annotated[float, Field(gt=0, le=1e6)]],
    Field(min_length=1, max_length=len(UNITS), description="Epsilon by unit: {users: 8}."),
]


class NewDataset(RequestModel):
    """A dataset and its budget; null for none, which only public text should have."""

    name: Name
    description: Annotated[str, Field(max_length=2000, pattern=r"^[^\x00]*$")] = ""
    limits: Limits | None = Field({"users": 8.0})
    delta: Annotated[float, Field(gt=0, le=0.01)] = 1e-5
    public: Annotated[bool, Field(description="Nothing in it is private.")] = False


class DatasetChange(RequestModel):
    """What may change about a dataset."""

    description: Annotated[str, Field(max_length=2000, pattern=r"^[^\x00]*$")] | None = None
    limits: Limits | None = None
    delta: Annotated[float, Field(gt=0, le=0.01)] | None = None
    unproved_allowed: bool | None = None
    """Allow runs whose method proves nothing."""
    frozen: Literal[False] | None = None
    """Thaw a dataset: you have looked at what was spent on it."""


class SpanGiven(RequestModel):
    """A mark in the text."""

    start: Annotated[int, Field(ge=0, le=10**7)]
    end: Annotated[int, Field(ge=1, le=10**7)]
    kind: Annotated[str, Field(min_length=1, max_length=60, pattern=r"^[\w/-]+$")]


Tokens = Annotated[tuple[Annotated[str, Field(max_length=1000)], ...], Field(max_length=20_000)]


class NewRecord(RequestModel):
    """One text."""

    text: Annotated[str, Field(min_length=1)]
    user: UserName | None = None
    """Whose it is; a contributor's is their own."""
    label: Annotated[str, Field(max_length=200)] | None = None
    split: Split | None = None
    pair: Annotated[str, Field(max_length=100_000)] | None = None
    tokens: Tokens | None = None
    tags: Tokens | None = None
    pos: Tokens | None = None
    spans: Annotated[tuple[SpanGiven, ...], Field(max_length=5000)] | None = None
    consent: bool = False
    """You know that nothing protects this text, where the dataset says so (`protected`)."""


class Preview(RequestModel):
    """A text that is not sent yet."""

    text: Annotated[str, Field(min_length=1, max_length=20_000)]


class NewList(RequestModel):
    """Names of entities, one each."""

    name: Name
    names: Annotated[list[Annotated[str, Field(max_length=1000)]], Field(min_length=1)]


KindName = Annotated[str, Field(pattern=r"^[A-Z][A-Z_]*(/[A-Z_]+)?$", max_length=60)]


class NewDetection(RequestModel):
    """Which detectors, and which kinds of things."""

    detectors: Annotated[tuple[DetectorName, ...], Field(min_length=1, max_length=9)] = (
        "patterns", "lists", "names",
    )  # fmt: skip
    kinds: Annotated[tuple[KindName, ...], Field(max_length=50)] = ()


# --- datasets ---------------------------------------------------------------------------------


@router.post("/datasets", status_code=201, summary="Make a dataset")
def add_dataset(asked: NewDataset, ctx: Writer) -> Json:
    """With the budget that all runs on it share."""
    if ctx.caller.dataset is not None:
        raise NotAllowed("Your token is for one dataset, so it makes no other.")
    if asked.public and asked.limits is not None and "limits" in asked.model_fields_set:
        raise UsageError("A public dataset has no budget: leave limits out, or public.")
    fields = asked.model_dump() | ({"limits": None} if asked.public else {})
    made = ctx.services.datasets.add(caller=ctx.caller, **fields)
    ctx.note("make dataset", made["id"], json.dumps(made["budget"], allow_nan=False))
    return made


@router.get("/datasets", summary="The datasets you may know of")
def datasets(ctx: Reader, after: After = "", limit: Limit = 1000) -> list[Json]:
    """Names and budgets; how much is in them is for those inside."""
    return ctx.services.datasets.all(ctx.caller.dataset, after=after, limit=limit)


@router.get("/datasets/{dataset}", summary="One dataset")
def dataset_(dataset: IdPath, ctx: Reader) -> Json:
    """With exact counts for analysts and admins."""
    found = ctx.services.datasets.get(ctx.dataset(dataset))
    if ctx.may("detect"):
        found["not_private"] = ctx.services.records.counts(dataset)
    return found


@router.patch("/datasets/{dataset}", summary="Change a dataset's budget or description")
def change_dataset(dataset: IdPath, asked: DatasetChange, ctx: Writer) -> Json:
    """What is spent stays spent, whatever the budget."""
    changes = asked.model_dump(exclude_none=True)
    thaw = changes.pop("frozen", None) is not None
    found = ctx.services.datasets.change(ctx.dataset(dataset), **changes)
    if thaw:
        found = ctx.services.thaw(dataset)
    ctx.note("change dataset", dataset, asked.model_dump_json(exclude_none=True))
    return found


@router.get("/datasets/{dataset}/description", summary="Counts over a dataset")
def description(dataset: IdPath, ctx: Analyst) -> Json:
    """Users, records, tokens, labels: exact, so keep them inside."""
    return {"not_private": ctx.services.describe(ctx.dataset(dataset))}


@router.get("/datasets/{dataset}/budget", summary="What is spent, by run, and what is left")
def budget(dataset: IdPath, ctx: BudgetReader) -> Json:
    """Computed from the ledgers of all runs together."""
    return ctx.services.budgets.status(ctx.dataset(dataset))


@router.get("/datasets/{dataset}/budget/history", summary="What was spent, change by change")
def budget_history(dataset: IdPath, ctx: BudgetReader) -> list[Json]:
    """The price of everything charged, after each reservation and each end of a run."""
    return ctx.services.budgets.over_time(ctx.dataset(dataset))


@router.post("/datasets/{dataset}/plans", summary="Dry run: what would a run promise and cost?")
def plan(dataset: IdPath, asked: RunRequest, ctx: Planner) -> Json:
    """Epsilon, noise, what caps keep and drop, time; nothing is started or spent."""
    ctx.require_named(asked)
    return ctx.services.plans.dry_run(ctx.dataset(dataset), asked)


@router.post("/datasets/{dataset}/plans/path", summary="Dry run: epsilon over the steps")
def plan_path(dataset: IdPath, asked: RunRequest, ctx: Planner) -> list[list[float]]:
    """Pairs of a number of steps and the epsilon by then, for what the plan protects."""
    ctx.require_named(asked)
    return ctx.services.plans.path(ctx.dataset(dataset), asked)


# --- records ------------------------------------------------------------------------------------


@router.post("/datasets/{dataset}/records", status_code=201, summary="Add one record")
async def add_record(
    dataset: IdPath, asked: NewRecord, ctx: Contributor, response: Response, key: Key = None
) -> Json:
    """Answered when it is on disk."""
    services = ctx.services
    ctx.caller.require_dataset(dataset)
    if not services.datasets.is_known(dataset):
        await run_in_threadpool(services.datasets.require, dataset)
    if services.datasets.require_consent(dataset, ctx.caller, consent=asked.consent):
        await run_in_threadpool(ctx.note, "give unprotected text", dataset)
    names = {"pair", "tokens", "tags", "pos", "spans"}
    extra = asked.model_dump(mode="json", include=names, exclude_none=True)
    if extra:
        # Annotations that do not fit their text are refused, as reading them from a file would.
        text = json.dumps(extra, ensure_ascii=False, allow_nan=False)
        if "\\u0000" in text or not storable(text):
            raise DataError(f"The record {NOT_STORABLE}.")
        row = {"id": "1", "text": asked.text.replace("\0", " "), **extra}
        Corpus.from_records([row], name="the request")
    draft = Draft(asked.text, asked.user, asked.label, asked.split, extra or None)
    done = await asyncio.wrap_future(services.records.append(dataset, ctx.caller, [draft], key))
    if done.repeated:
        response.status_code = 200
    return {"record": done.records[0], "repeated": bool(done.repeated)}


Column = Annotated[str | None, Form(max_length=200)]


@router.post("/datasets/{dataset}/records/file", status_code=201, summary="Add a file of records")
async def add_file(
    dataset: IdPath,
    file: UploadFile,
    ctx: Contributor,
    key: Key = None,
    user: Annotated[UserName | None, Form(description="Whose all of it is.")] = None,
    text_column: Column = None,
    user_column: Column = None,
    label_column: Column = None,
    consent: Annotated[bool, Form(description="As for one record.")] = False,
) -> Json:
    """JSON lines, CSV or TSV, also compressed (.gz), Parquet or text; all is stored, or nothing."""
    await run_in_threadpool(ctx.dataset, dataset)
    if ctx.services.datasets.require_consent(dataset, ctx.caller, consent=consent):
        await run_in_threadpool(ctx.note, "give unprotected text", dataset)
    columns = {"text": text_column, "user": user_column, "label": label_column}
    layout = Layout({ours: theirs for ours, theirs in columns.items() if theirs})
    done = await run_in_threadpool(_store, ctx, dataset, file, layout, user, key)
    await run_in_threadpool(ctx.note, "upload records", dataset, f"{done.count} records")
    return {"records": done.count, "repeated": done.repeated}


def _store(
    ctx: RequestContext, dataset: str, file: UploadFile, layout: Layout, user: str | None,
    key: str | None,
) -> Appended:  # fmt: skip
    """Read a file, and store what is in it."""
    name = (file.filename or "").lower()
    ending = next((e for e in sorted(UPLOAD_ENDINGS, key=len) if name.endswith(e)), None)
    if ending is None:
        raise UsageError(
            f"Files of this type are not accepted; accepted: {', '.join(UPLOAD_ENDINGS)}."
        )
    records = ctx.services.records
    with tempfile.TemporaryDirectory(dir=ctx.services.settings.folder) as place:
        path = FilePath(place) / f"upload{ending}"
        with path.open("wb") as out:
            shutil.copyfileobj(file.file, out)
        if path.stat().st_size <= _AT_ONCE and ending not in _UNPACKED:
            drafts = _drafts(path, layout, user)
            if len(drafts) <= _AT_ONCE_RECORDS:
                return records.append(dataset, ctx.caller, drafts, key).result()
            return records.upload(dataset, ctx.caller, lambda: drafts, key)
        lines = FilePath(place) / "records.jsonl"
        limits = limits_of(ctx.services.settings)
        unpack(Upload(str(path), str(lines), dict(layout.columns), **limits))
        return records.upload(dataset, ctx.caller, lambda: drafts_in(lines, user), key)


def _drafts(path: FilePath, layout: Layout, user: str | None) -> list[Draft]:
    try:
        return list(drafts_of(read(path, layout), user))
    except DataError as error:
        # Where the file lies on this machine is nobody's business.
        raise DataError(str(error).replace(str(path), path.name)) from None


@router.post("/datasets/{dataset}/records/preview", summary="See what would be marked in a text")
def preview(dataset: IdPath, asked: Preview, ctx: Contributor) -> Json:
    """Before it is sent: what detectors find in it, and what protects text here. It is not kept."""
    if not storable(asked.text):
        raise DataError(f"The text {NOT_STORABLE}.")
    ctx.services.predictions.require_rate(ctx.caller)
    return ctx.services.preview(ctx.dataset(dataset), asked.text)


@router.get("/datasets/{dataset}/records", summary="Your records; for admins, anybody's")
def records(
    dataset: IdPath,
    ctx: Owner,
    user: UserQuery = None,
    after: After = "",
    limit: Limit = 50,
) -> list[Json]:
    """A page of them, with the text; nobody else's is shown to a contributor."""
    ctx.dataset(dataset)
    owner = None if ctx.may("records:any") else ctx.caller
    if owner is None:
        ctx.note("read records", dataset, f"user {user}" if user else "of everybody")
    return ctx.services.records.page(dataset, owner=owner, user=user, after=after, limit=limit)


@router.delete("/datasets/{dataset}/records", summary="Delete your records, or a user's, for good")
def forget(dataset: IdPath, ctx: Owner, user: UserQuery = None) -> Json:
    """The right to be forgotten; the answer says what that means for runs and models.

    A contributor deletes what is theirs; an admin says whose.
    """
    ctx.dataset(dataset)
    if ctx.may("records:any") and user is None:
        raise UsageError("Say whose records to delete: user=NAME.")
    if user not in (None, ctx.caller.name):
        ctx.caller.require("records:any")
    return ctx.services.forget(dataset, ctx.caller, user=user)


@router.delete("/datasets/{dataset}/records/{record}", summary="Delete one record for good")
def forget_one(dataset: IdPath, record: IdPath, ctx: Owner) -> Json:
    """Yours, or for an admin anybody's."""
    return ctx.services.forget(ctx.dataset(dataset), ctx.caller, record=record)


# --- lists of entities --------------------------------------------------------------------------


@router.post("/datasets/{dataset}/entity-lists", status_code=201, summary="Give names to protect")
def add_list(dataset: IdPath, asked: NewList, ctx: ListEditor) -> Json:
    """A run can then protect these entities only."""
    if not all(map(storable, asked.names)):
        raise DataError(f"A name {NOT_STORABLE}.")
    lists = ctx.services.datasets
    made = lists.add_list(ctx.dataset(dataset), asked.name, asked.names, ctx.caller)
    ctx.note("give entity list", made["id"], f"{made['count']} names")
    return made


@router.post(
    "/datasets/{dataset}/entity-lists/file", status_code=201, summary="Give a file of names"
)
def add_list_file(
    dataset: IdPath, file: UploadFile, ctx: ListEditor, name: Annotated[Name, Form()] = "list"
) -> Json:
    """Plain text, one name per line."""
    if not (file.filename or "").lower().endswith((".txt", ".lst")):
        raise UsageError("A list of names is a plain text file: end its name in .txt.")
    try:
        lines = file.file.read().decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise DataError("The list is not UTF-8.") from None
    asked = NewList(name=name, names=[line[:1001].replace("\0", "") for line in lines] or [""])
    return add_list(dataset, asked, ctx)


@router.get("/datasets/{dataset}/entity-lists", summary="The lists, without the names")
def lists(dataset: IdPath, ctx: ListEditor, after: After = "", limit: Limit = 1000) -> list[Json]:
    """How many names each has."""
    return ctx.services.datasets.lists(ctx.dataset(dataset), after=after, limit=limit)


@router.get("/datasets/{dataset}/entity-lists/{entity_list}", summary="A list of yours")
def list_(dataset: IdPath, entity_list: IdPath, ctx: ListEditor) -> Json:
    """With its names, for whoever gave it and for admins."""
    return ctx.services.datasets.names(ctx.dataset(dataset), entity_list, ctx.caller)


@router.delete("/datasets/{dataset}/entity-lists/{entity_list}", summary="Delete a list")
def delete_list(dataset: IdPath, entity_list: IdPath, ctx: ListEditor) -> dict[str, bool]:
    """Runs that are queued with it will fail."""
    ctx.services.delete_list(ctx.dataset(dataset), entity_list)
    ctx.note("delete entity list", entity_list)
    return {"deleted": True}


# --- detections ---------------------------------------------------------------------------------


@router.post("/datasets/{dataset}/detections", status_code=202, summary="Find what is sensitive")
def add_detection(dataset: IdPath, asked: NewDetection, ctx: Analyst, key: Key = None) -> Json:
    """Queued like a run; it releases nothing."""
    options = {"with": ",".join(asked.detectors), "kinds": ",".join(asked.kinds)}
    made = ctx.services.jobs.order(ctx.dataset(dataset), ctx.caller, "detect", options, key=key)
    ctx.note("detect", made["id"])
    return made


@router.get("/datasets/{dataset}/detections", summary="The detections on a dataset")
def detections(dataset: IdPath, ctx: Analyst, after: After = "", limit: Limit = 200) -> list[Json]:
    """The latest first."""
    jobs = ctx.services.jobs
    return jobs.all("detect", ctx.dataset(dataset), after=after, limit=limit)


@router.get("/detections/{detection}", summary="A detection and what it counted")
def detection_(detection: IdPath, ctx: Analyst) -> Json:
    """Counts by kind; no names and no text."""
    return ctx.job(detection, "detect")


@router.get("/detections/{detection}/owners", summary="Who shares what")
def owners(
    detection: IdPath,
    ctx: Analyst,
    names: Annotated[bool, Query(description="With names, for admins.")] = True,
) -> Json:
    """How many users share how many entities; their names are for admins."""
    ctx.job(detection, "detect")
    named = names and ctx.may("records:any")
    if named:
        ctx.note("read names", detection)
    return {"not_private": ctx.services.owners(detection, with_names=named)}


@router.get(
    "/detections/{detection}/page",
    summary="The text with what was found in it, as a page",
    response_class=HTMLResponse,
)
def detection_page(detection: IdPath, ctx: TextReader) -> HTMLResponse:
    """Holds text, so it is for admins."""
    ctx.job(detection, "detect")
    ctx.note("read text", detection)
    page = ctx.services.detection_page(detection)
    return HTMLResponse(page, headers={"Content-Security-Policy": PAGE_POLICY})
