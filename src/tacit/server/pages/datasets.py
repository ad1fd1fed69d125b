"""Datasets: make one, fill it, see what is in it, find what is sensitive."""

import io
from typing import Any

from fastapi import UploadFile
from markupsafe import Markup
from nicegui import ui
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from tacit.detection import DEFAULT as DEFAULT_DETECTORS
from tacit.detection.detector import DETECTORS
from tacit.errors import UsageError
from tacit.server import Json
from tacit.server.api import datasets as api
from tacit.server.api import runs as api_runs
from tacit.server.pages import layout
from tacit.server.pages.layout import NOT_PRIVATE, button, card, html, show, small
from tacit.server.pages.page_context import Notice, PageContext
from tacit.server.pages.rendering import WORDS, fragment, kind_word, number, timestamp
from tacit.server.run_requests import DETECTORS_FROM_FILES, offered
from tacit.server.showcase import sample_lines


@layout.page("/datasets", "Datasets")
async def all_datasets(ctx: PageContext) -> None:
    """The list, and for admins a form for a new one."""
    found = await ctx.call(api.datasets)
    ctx.caller.require("detect")
    layout.title("Datasets", "Text that people gave. Each dataset has one privacy budget, which "
                 "all models that learn from it share.")  # fmt: skip
    if found:
        show("dataset_list", found, kind="list", tag="ul")
    if ctx.may("datasets:write"):
        if not found:
            _sample(ctx)
        _new_dataset(ctx, first=not found)
        if found:
            _sample(ctx)
    elif not found:
        small("There is none yet. An admin makes the first; then people give it text, you see what "
              "is sensitive in it, and models learn from it within its budget.",
              kind="why")  # fmt: skip


_SAMPLE = "made-up dialogs"


def _sample(ctx: PageContext) -> None:
    """A dataset that harms nobody, to try everything on."""
    with card("Try with made-up data", "A dataset of 300 dialogs of a hundred invented customers, "
              "with names, addresses and order numbers in them. Everything works on it as on "
              "real text."):  # fmt: skip
        notice = Notice()

        async def make() -> None:
            taken = {one["name"] for one in await ctx.call(api.datasets)}
            numbered = (f"{_SAMPLE} {n}" for n in range(2, 1000))
            name = next(n for n in (_SAMPLE, *numbered) if n not in taken)
            asked = api.NewDataset(
                name=name, description="Invented, to try everything with.",
                limits={"users+names": 12.0},
            )  # fmt: skip
            made = await ctx.call(api.add_dataset, asked)
            lines = await run_in_threadpool(sample_lines)
            file = UploadFile(io.BytesIO("\n".join(lines).encode()), filename="made-up.jsonl")
            await ctx.call(api.add_file, made["id"], file)
            ui.navigate.to(f"/datasets/{made['id']}")

        button("Try with made-up data", ctx.on(make, notice))


def _new_dataset(ctx: PageContext, *, first: bool) -> None:
    with card("Make your first dataset" if first else "Make a dataset"):
        notice = Notice()
        with layout.div("fields"):
            name = layout.text_field("Name")
            about = layout.text_field("What it is (optional)")
            about_whom = ui.radio(WORDS["about_whom"], value="users")
            amount = _amount("Privacy budget (epsilon)", 8)
            small("{}", WORDS["epsilon"])

        async def make() -> None:
            fields: Json = {"description": about.value or ""}
            if about_whom.value == "nobody":
                fields["public"] = True
            elif not amount.value:
                raise UsageError("Give a budget, or say that nothing in it is private.")
            else:
                fields["limits"] = {about_whom.value: amount.value}
            fields["name"] = layout.written(name, "Give the dataset a name.")
            made = await ctx.call(api.add_dataset, api.NewDataset(**fields))
            ui.navigate.to(f"/datasets/{made['id']}")

        act = ctx.on(make, notice)
        layout.on_enter(act, name, about, amount)
        with layout.line("1rem"):
            button("Make the dataset", act, kind="main")


def _amount(label: str, value: float | None) -> ui.number:
    return layout.number_field(label, value, min=0.01, max=1e6).props("clearable")


@layout.page("/datasets/{dataset}", "Dataset")
async def one_dataset(ctx: PageContext, dataset: str) -> None:
    """Everything about one."""
    ctx.caller.require("detect")
    found = await ctx.call(api.dataset_, dataset)
    counts = found["not_private"]
    layout.way(dataset, "Text")
    layout.title(found["name"], found["description"], crumbs=[("/datasets", "Datasets")])
    status = await ctx.call(api.budget, dataset)
    if found["frozen"]:
        _frozen(ctx, found)
    if counts["records"]:
        with layout.div("line"):
            to = f"/datasets/{dataset}/sensitive"
            layout.link_button("Next: what is sensitive", to, kind="main")
            if ctx.may("runs:write"):
                layout.link_button("New run", f"/datasets/{dataset}/new-run")
    with layout.div("two", "margin-top: 1.1rem"):
        await _content(ctx, dataset, counts)
        with card("Privacy budget", "What all runs on this dataset have spent together."):
            show("budget_meters", status)
            html('<a href="/datasets/{}/budget">Run by run, over time</a>', dataset, tag="p")
    if ctx.may("records:add"):
        _add_text(ctx, dataset, first=not counts["records"])
    if counts["records"]:
        runs = await ctx.call(api_runs.runs, dataset=dataset)
        with card("Runs"):
            if runs:
                show("runs_table", runs, kind="scroll-x")
            else:
                small("None yet.", kind="why")
    if ctx.may("datasets:write"):
        _settings(ctx, found)
    if ctx.may("records:any") and counts["records"]:
        _texts(ctx, dataset)


@layout.page("/datasets/{dataset}/sensitive", "What is sensitive")
async def sensitive(ctx: PageContext, dataset: str) -> None:
    """What detectors find, and who shares it."""
    ctx.caller.require("detect")
    found = await ctx.call(api.dataset_, dataset)
    layout.way(dataset, "What is sensitive")
    crumbs = [("/datasets", "Datasets"), (f"/datasets/{dataset}", found["name"])]
    layout.title("What is sensitive", "Detectors mark where a text names somebody or something. "
                 "That tells who shares what, and what protection of names goes by; nothing is "
                 "released by it.", crumbs=crumbs)  # fmt: skip
    if not found["not_private"]["records"]:
        small("There is no text yet to look at.", kind="why")
        layout.link_button("Add text", f"/datasets/{dataset}", kind="main")
        return
    known = any(one["state"] == "done" for one in await ctx.call(api.detections, dataset))
    await _detections(ctx, dataset, first=not known)
    await _lists(ctx, dataset)
    if ctx.may("runs:write"):
        with layout.div("line next"):
            kind = "main" if known else ""
            to = f"/datasets/{dataset}/new-run"
            layout.link_button("Next: whom to protect", to, kind=kind)


def _frozen(ctx: PageContext, dataset: Json) -> None:
    """Why nothing may be spent, and for admins the way on."""
    notice = Notice(f"Frozen: no run may be started. {dataset['frozen']}", "bad")

    async def thaw() -> None:
        await ctx.call(api.change_dataset, dataset["id"], api.DatasetChange(frozen=False))
        ui.navigate.reload()

    if ctx.may("datasets:write"):
        opener = button("Thaw …")
        question = ("Have you looked at what was spent on this dataset? What the budget does not "
                    "know of is not counted. It is noted in the audit log.")  # fmt: skip
        layout.confirm(opener, question, ctx.on(thaw, notice))


async def _content(ctx: PageContext, dataset: str, counts: Json) -> None:
    with card("What is in it", tag=NOT_PRIVATE if counts["records"] else ""):
        if not counts["records"]:
            small("Nothing yet. Add text below.", kind="why")
            return
        found = (await ctx.call(api.description, dataset))["not_private"]
        layout.figures([(number(found["records"]), "records (texts)"),
                        (number(found["users"]), "users (who wrote them)"),
                        (number(found["tokens"]), "words")])  # fmt: skip
        spread = found["records_per_user"]["histogram"]
        says = f"How many users wrote how many records: {spread}"
        layout.bars(spread, "records of one user", "users", says)
        for name in ("labels", "splits"):
            if found.get(name):
                words = ", ".join(f"{k} {number(v)}" for k, v in list(found[name].items())[:12])
                small("<b>{}</b>: {}", name.capitalize(), words)


def _add_text(ctx: PageContext, dataset: str, *, first: bool) -> None:
    with card("Add text", WORDS["upload"]):
        flash_notice(ctx, "upload", "records are stored")
        upload_form(ctx, dataset, ask_user=True, first=first)
        with layout.details("Write one record by hand"):
            notice = Notice()
            with layout.div("fields"):
                text = layout.text_area("Text")
                user = layout.text_field("User who wrote it")

            async def add() -> None:
                by = (user.value or "").strip() or None
                asked = api.NewRecord(text=text.value or "", user=by)
                await ctx.call(api.add_record, dataset, asked, response=Response())
                notice.show("Stored.", "good")
                text.value = ""

            act = ctx.on(add, notice)
            layout.on_enter(act, user)
            button("Add the record", act).style("margin-top: .8rem")


def upload_form(
    ctx: PageContext, dataset: str, *, ask_user: bool, first: bool = False,
    ask_consent: bool = False,
) -> None:  # fmt: skip
    """A form that sends a file: plain HTML, so it works with any keyboard and any reader."""
    most = ctx.services.settings.upload_bytes
    show("upload_form", dataset, ctx.form_key, most, ask_user, first, ask_consent)


def flash_notice(ctx: PageContext, what: str, words: str) -> None:
    """Say what came of a form that was just sent."""
    found = ctx.flash.pop(what, {})
    if "refused" in found:
        Notice(found["refused"])
    elif found:
        count = found["ok"].get("records", found["ok"].get("count"))
        Notice(f"{number(count)} {words}.", "good")


# --- what is sensitive ------------------------------------------------------------------------


_USUAL = DEFAULT_DETECTORS.split(",")


def detector_boxes(legend: str) -> dict[str, ui.checkbox]:
    """Which detectors to use."""
    with ui.element("fieldset"):
        html(legend, tag="legend")
        ours = WORDS["detectors"]
        names = offered(DETECTORS, DETECTORS_FROM_FILES)
        says = {name: ours.get(name) or f"{name}: {DETECTORS[name].summary}" for name in names}
        return {name: ui.checkbox(says[name], value=name in _USUAL) for name in names}


async def _detections(ctx: PageContext, dataset: str, *, first: bool) -> None:
    with card("Find what is sensitive"):
        notice = Notice()
        chosen = detector_boxes("Look for")

        async def find() -> None:
            using: tuple[Any, ...] = tuple(name for name, box in chosen.items() if box.value)
            if not using:
                raise UsageError("Choose at least one detector.")
            await ctx.call(api.add_detection, dataset, api.NewDetection(detectors=using))
            await latest.show()

        small("{}", WORDS["no_names"]).style("margin: -.6rem 0 .8rem")
        button("Find", ctx.on(find, notice), kind="main" if first else "")

        async def fill() -> bool:
            found = (await ctx.call(api.detections, dataset))[:1]
            for detection in found:
                if detection["state"] in ("queued", "running"):
                    html("Looking …", tag="p").classes("busy-note")
                    return True
                if detection["state"] == "done":
                    await _found(ctx, detection)
                else:
                    Notice(detection["message"] or "It was stopped.")
            return False

        latest = layout.Refreshable(ctx, fill, notice)
        await latest.show()


async def _found(ctx: PageContext, detection: Json) -> None:
    result, private = detection["result"], fragment("tag", NOT_PRIVATE, "")
    html("Latest, {} {}", timestamp(detection["ended"]), private, tag="h3")
    layout.figures([(number(result["mentions"]), "places marked"),
                    (number(result["entities"]), "different entities"),
                    (number(result["sensitive_records"]), "records that name any")])  # fmt: skip
    try:
        owners = (await ctx.call(api.owners, detection["id"], names=False))["not_private"]
    except Exception:
        small("Text was deleted since; find again to see more.", kind="why")
        return
    with layout.div("two"):
        with ui.element("div"):
            html("What was found", tag="h3")
            kinds = {kind_word(k): v for k, v in result["mentions_by_kind"].items()}
            layout.horizontal_bars(kinds, f"Marked places by kind: {kinds}")
        with ui.element("div"):
            html("How many users share an entity", tag="h3")
            shared = owners["users_per_entity"]["histogram"]
            says = f"How many entities are named by how many users: {shared}"
            layout.bars(shared, "users who name the same entity", "entities", says,
                        colour=layout.ORANGE)  # fmt: skip
            small("{} of {} entities are named by more than one user. Protecting users alone does "
                  "not hide those: protect names, or entities.", number(owners["shared_entities"]),
                  number(owners["entities"]))  # fmt: skip
    with layout.details("The ten that most users share"):
        shown = show("most_shared", owners["most_shared"], kind="scroll-x")
        if ctx.may("records:any"):

            async def name_them() -> None:
                named = (await ctx.call(api.owners, detection["id"]))["not_private"]
                shown.set_content(fragment("most_shared", named["most_shared"]))

            button("Show their names", ctx.on(name_them), small=True)
            small("Noted in the audit log.")
    if ctx.may("records:any"):
        with layout.details("The text, with what was found marked") as box:
            small("Opening it is noted in the audit log.")
            frame = fragment("frame", "Text with marks", f"/detections/{detection['id']}/text")
            button("Show the text", lambda: text.set_content(frame), small=True)
            text = html("")
            box.style("max-width: 100%")


async def _lists(ctx: PageContext, dataset: str) -> None:
    found = await ctx.call(api.lists, dataset)
    with card("Lists of names to protect", "Of all that is found, a run can protect just what a "
              "list names, one name per line."):  # fmt: skip
        flash_notice(ctx, "list", "names are stored")
        notice = Notice()
        for one in found:
            with layout.div("line"):
                html("<b>{}</b> · {} names · {}", one["name"], number(one["count"]),
                     timestamp(one["created"]))  # fmt: skip

                async def delete(which: str = one["id"]) -> None:
                    await ctx.call(api.delete_list, dataset, which)
                    ui.navigate.reload()

                button("Delete", ctx.on(delete, notice), small=True)
        with layout.details("Add a list"):
            with layout.div("fields"):
                name = layout.text_field("Name of the list", value="names")
                names = layout.text_area("Names, one per line")

            async def add() -> None:
                lines = layout.written(names, "Write at least one name.").splitlines()
                lines = [line for line in lines if line.strip()]
                await ctx.call(api.add_list, dataset, api.NewList(name=name.value, names=lines))
                ui.navigate.reload()

            with layout.div("line", "margin: .8rem 0"):
                button("Add the list", ctx.on(add, notice))
            show("list_form", dataset, ctx.form_key)


# --- for admins -------------------------------------------------------------------------------


def _settings(ctx: PageContext, dataset: Json) -> None:
    limits = dataset["budget"]["limits"]
    with card("Settings"), layout.details("Change the description or the budget"):
        notice = Notice()
        small("What is spent stays spent. Raising a budget is a decision about the people whose "
              "text this is; it is noted in the audit log.", kind="why")  # fmt: skip
        with layout.div("fields"):
            about = layout.text_field("What it is", value=dataset["description"])
            amounts = {
                unit: _amount(f"Budget for {words}", (limits or {}).get(unit))
                for unit, words in WORDS["units"].items()
                if unit in ("users", "users+names", "users+entities") or unit in (limits or {})
            }
            unproved = ui.checkbox(
                "Allow runs whose method proves nothing: their models carry a warning, and "
                "what they give away is not in the budget",
                value=dataset["unproved_allowed"],
            )

        async def change() -> None:
            fields: Json = {"description": about.value or ""}
            wanted = {unit: f.value for unit, f in amounts.items() if f.value}
            if limits is not None and wanted and wanted != limits:
                fields["limits"] = wanted
            if unproved.value != dataset["unproved_allowed"]:
                fields["unproved_allowed"] = unproved.value
            await ctx.call(api.change_dataset, dataset["id"], api.DatasetChange(**fields))
            ui.navigate.reload()

        button("Save", ctx.on(change, notice)).style("margin-top: .8rem")


def _texts(ctx: PageContext, dataset: str) -> None:
    with card("Somebody's text", "Read or delete what one user wrote. Reading is noted in the "
              "audit log."):  # fmt: skip
        notice = Notice()
        user = layout.text_field("User").style("max-width: 20rem")
        shown = html("")

        async def read() -> None:
            whose = layout.written(user, "Say whose text.")
            found = await ctx.call(api.records, dataset, user=whose, limit=50)
            rows = fragment("items", [record["text"] for record in found], "textual")
            shown.set_content(Markup('<ul class="list">{}</ul>').format(rows))
            if not found:
                notice.show("There is no text of a user of that name.", "plain")

        async def delete() -> None:
            gone = await ctx.call(api.forget, dataset, user=layout.written(user, "Say whose text."))
            shown.set_content("")
            notice.show(f"{number(gone['deleted'])} deleted. {gone['consequence']}", "good")

        layout.on_enter(ctx.on(read, notice), user)
        with layout.line():
            button("Read", ctx.on(read, notice))
            question = ("Delete all text of this user? It cannot be brought back. Models that "
                        "learned from it stay as they are.")  # fmt: skip
            opener = button("Delete for good …", kind="bad")
            layout.confirm(opener, question, ctx.on(delete, notice))
