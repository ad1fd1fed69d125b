"""Datasets: make one, fill it, see what is in it, find what is sensitive."""

from typing import Any

from markupsafe import Markup
from nicegui import ui
from starlette.responses import Response

from tacit.detection.kinds import PII_KINDS
from tacit.errors import UsageError
from tacit.privacy.rounding import down
from tacit.server.api import datasets as api
from tacit.server.api import runs as api_runs
from tacit.server.pages import layout
from tacit.server.pages.layout import NOT_PRIVATE, UNIT_WORDS, Box, button, card, html, number
from tacit.server.pages.visits import Visit

DETECTORS = {
    "patterns": "Patterns: phone numbers, e-mail addresses, order numbers, dates and the like",
    "lists": "Lists: known places, nationalities, illnesses, companies",
    "gold": "Marks that came with the text",
}
NO_NAMES = (
    "Patterns and lists find no names of people. To protect those, upload records with marks of "
    "their own (spans), and look for the marks that came with the text."
)
ABOUT = {
    "users": "Users: whoever wrote a text. Runs may protect users alone, or more.",
    "users+entities": "Users and entities together: also whoever and whatever a text names, such "
    "as people, addresses, order numbers. Every run must then protect both.",
    "nobody": "Nobody: nothing in it is private. No budget, and other runs may start from it.",
}
KIND_WORDS = {
    "PERSON": "people", "NORP": "nations and groups", "FAC": "buildings", "ORG": "companies",
    "GPE": "countries and cities", "LOC": "other places", "PRODUCT": "products", "EVENT": "events",
    "WORK_OF_ART": "titles of works", "LAW": "laws", "LANGUAGE": "languages", "DATE": "dates",
    "TIME": "times of day", "PERCENT": "percentages", "MONEY": "amounts of money",
    "QUANTITY": "measurements", "ORDINAL": "first, second, third", "CARDINAL": "other numbers",
    "PII": "all that identifies a person", "MISC": "other names",
}  # fmt: skip
UPLOAD_WORDS = (
    'A file of records, each with the user who wrote it: JSON lines or CSV with the columns "text" '
    'and "user", or plain text with one record a line.'
)
EPSILON = (
    "Epsilon measures how much anybody's text can show in a model: 0 is nothing at all, up to "
    "about 1 is strong, up to about 8 is common in practice, far above that says little."
)


@layout.page("/datasets", "Datasets")
async def all_datasets(visit: Visit) -> None:
    """The list, and for admins a form for a new one."""
    found = await visit.call(api.datasets)
    if not visit.may("detect"):
        visit.caller.need("detect")
    layout.title("Datasets", "Text that people gave. Each dataset has one privacy budget, which "
                 "all models that learn from it share.")  # fmt: skip
    rows = Markup("").join(
        Markup(
            '<li><a class="name" href="/datasets/{}">{}</a> {}<div class="small">{}</div>'
            "<div>{}</div></li>"
        ).format(
            one["id"], one["name"],
            Markup('<span class="tag">public text</span>') if one["public"] else "",
            budget_words(one["budget"]["limits"]), one["description"],
        )
        for one in reversed(found)
    )  # fmt: skip
    if found:
        html("{}", rows, tag="ul").classes("list")
    if visit.may("datasets:write"):
        _new_dataset(visit, first=not found)
    elif not found:
        html("There is none yet; an admin makes the first.", tag="p").classes("why")


def budget_words(limits: dict[str, float] | None) -> str:
    """A budget in words."""
    if limits is None:
        return "no budget"
    parts = [
        f"{number(value, 6)} for {UNIT_WORDS.get(unit, unit)}" for unit, value in limits.items()
    ]
    return f"Privacy budget (epsilon): {', '.join(parts)}"


def _new_dataset(visit: Visit, *, first: bool) -> None:
    with card("Make your first dataset" if first else "Make a dataset"):
        said = Box()
        with ui.element("div").classes("fields"):
            name = layout.text_field("Name")
            about = layout.text_field("What it is (optional)")
            about_whom = ui.radio(ABOUT, value="users")
            amount = _amount("Privacy budget (epsilon)", 8)
            html("{}", EPSILON, tag="p").classes("small")

        async def make() -> None:
            fields: dict[str, Any] = {"name": (name.value or "").strip(),
                                      "description": about.value or ""}  # fmt: skip
            if about_whom.value == "nobody":
                fields["public"] = True
            elif not amount.value:
                raise UsageError("Give a budget, or say that nothing in it is private.")
            else:
                fields["limits"] = {about_whom.value: amount.value}
            if not fields["name"]:
                raise UsageError("Give the dataset a name.")
            made = await visit.call(api.add_dataset, api.NewDataset(**fields))
            ui.navigate.to(f"/datasets/{made['id']}")

        act = visit.on(make, said)
        for one in (name, about, amount):
            one.on("keydown.enter", act)
        with ui.element("div").classes("line").style("margin-top: 1rem"):
            button("Make the dataset", act, kind="main")


def _amount(label: str, value: float | None) -> ui.number:
    return ui.number(label, value=value, min=0.01, max=1e6, format="%g").props(
        "outlined dense clearable hide-bottom-space"
    )


@layout.page("/datasets/{dataset}", "Dataset")
async def one_dataset(visit: Visit, dataset: str) -> None:
    """Everything about one."""
    visit.caller.need("detect")
    found = await visit.call(api.dataset_, dataset)
    counts = found["not_private"]
    layout.title(found["name"], found["description"], crumbs=[("/datasets", "Datasets")])
    status = await visit.call(api.budget, dataset)
    with ui.element("div").classes("line"):
        if counts["records"] and visit.may("runs:write"):
            layout.way("New run", f"/datasets/{dataset}/new-run", kind="main")
        layout.way("Budget", f"/datasets/{dataset}/budget")
    with ui.element("div").classes("two").style("margin-top: 1.1rem"):
        await _content(visit, dataset, counts)
        with card("Privacy budget", "What all runs on this dataset have spent together."):
            html("{}", budget_meters(status))
            html('<a href="/datasets/{}/budget">Run by run, over time</a>', dataset, tag="p")
    if visit.may("records:add"):
        _add_text(visit, dataset, first=not counts["records"])
    if counts["records"]:
        await _detections(visit, dataset)
        await _lists(visit, dataset)
        await _runs(visit, dataset)
    if visit.may("datasets:write"):
        _settings(visit, found)
    if visit.may("records:any") and counts["records"]:
        _texts(visit, dataset)


def budget_meters(status: dict[str, Any], also: dict[str, Any] | None = None) -> Markup:
    """A bar for each unit; `also` is what a run would add."""
    if not status["limits"]:
        return Markup("<p>No budget: this text is public.</p>")
    parts = Markup()
    for unit, limit in status["limits"].items():
        spent = status["spent"][unit]
        known = spent if isinstance(spent, float | int) else limit
        more = (also or {}).get(unit, 0.0)
        parts += Markup("<div><b>{}</b> of epsilon {} spent for {}{}</div>").format(
            layout.epsilon(spent), number(limit, 6), UNIT_WORDS.get(unit, unit),
            f"; {down(status['remaining'][unit])} left",
        ) + layout.meter(known, limit, more if isinstance(more, float | int) else 0.0)  # fmt: skip
    if status["unbounded_runs"]:
        parts += Markup(
            '<p class="saying warn">Beside this, {} run(s) without any bound were allowed.</p>'
        ).format(len(status["unbounded_runs"]))
    return parts


async def _content(visit: Visit, dataset: str, counts: dict[str, Any]) -> None:
    with card("What is in it", tag=NOT_PRIVATE if counts["records"] else ""):
        if not counts["records"]:
            html("Nothing yet. Add text below.", tag="p").classes("why")
            return
        found = (await visit.call(api.description, dataset))["not_private"]
        layout.figures([(number(found["records"]), "records (texts)"),
                       (number(found["users"]), "users (who wrote them)"),
                       (number(found["tokens"]), "words")])  # fmt: skip
        spread = found["records_per_user"]["histogram"]
        layout.bars(spread, "records of one user", "users",
                   f"How many users wrote how many records: {spread}")  # fmt: skip
        for name in ("labels", "splits"):
            if found.get(name):
                words = ", ".join(f"{k} {number(v)}" for k, v in list(found[name].items())[:12])
                html("<b>{}</b>: {}", name.capitalize(), words, tag="p").classes("small")


def _add_text(visit: Visit, dataset: str, *, first: bool) -> None:
    with card("Add text", UPLOAD_WORDS):
        told(visit, "upload", "records are stored")
        upload_form(visit, dataset, ask_user=True, first=first)
        with layout.more("Write one record by hand"):
            said = Box()
            with ui.element("div").classes("fields"):
                text = ui.textarea("Text").props("outlined autogrow")
                user = layout.text_field("User who wrote it")

            async def add() -> None:
                asked = api.NewRecord(
                    text=text.value or "", user=(user.value or "").strip() or None
                )
                await visit.call(api.add_record, dataset, asked, response=Response())
                said.say("Stored.", "good")
                text.value = ""

            act = visit.on(add, said)
            user.on("keydown.enter", act)
            button("Add the record", act).style("margin-top: .8rem")


def upload_form(visit: Visit, dataset: str, *, ask_user: bool, first: bool = False) -> None:
    """A form that sends a file: plain HTML, so it works with any keyboard and any reader."""
    most = visit.services.settings.upload_bytes
    columns = Markup(
        "<details><summary>The columns have other names</summary>"
        '<div class="pair"><label class="plain-field"><span>Column of the text</span>'
        '<input name="text_column" placeholder="text"></label>'
        '<label class="plain-field"><span>Column of the user</span>'
        '<input name="user_column" placeholder="user"></label>'
        '<label class="plain-field"><span>Column of a label</span>'
        '<input name="label_column" placeholder="label"></label>'
        '<label class="plain-field"><span>Or: all of it is by this user</span>'
        '<input name="user"></label></div></details>'
    )
    html(
        '<form method="post" action="/datasets/{}/records/file" enctype="multipart/form-data">'
        '<input type="hidden" name="key" value="{}"><label class="file"><span class="small">'
        ".jsonl, .csv, .tsv or .txt, at most {} MiB</span><br>"
        '<input type="file" name="file" required aria-label="File of records" data-most="{}" '
        'accept=".jsonl,.csv,.tsv,.txt"></label>{}<div class="line" style="margin-top:.7rem">'
        '<button class="act {}">Upload</button></div></form>',
        dataset, visit.form_key, most >> 20, most - (1 << 16),
        columns if ask_user else "", "main" if first else "",
    )  # fmt: skip


def told(visit: Visit, what: str, words: str) -> Any:
    """Say what came of a form that was just sent."""
    found = visit.told.pop(what, None)
    if found is None:
        return None
    if "refused" in found:
        Box(found["refused"])
        return None
    count = found["ok"].get("records", found["ok"].get("count"))
    if count is not None:
        Box(f"{number(count)} {words}.", "good")
    return found["ok"]


# --- what is sensitive ------------------------------------------------------------------------


async def _detections(visit: Visit, dataset: str) -> None:
    with card("Find what is sensitive", "Detectors mark where a text names somebody or something. "
              "That tells who shares what; nothing is released by it."):  # fmt: skip
        said = Box()
        with ui.element("fieldset"):
            html("Look for", tag="legend")
            chosen = {
                name: ui.checkbox(words, value=name != "gold") for name, words in DETECTORS.items()
            }

        async def find() -> None:
            using: tuple[Any, ...] = tuple(name for name, box in chosen.items() if box.value)
            if not using:
                raise UsageError("Choose at least one way to look.")
            await visit.call(api.add_detection, dataset, api.NewDetection(detectors=using))
            await shown.show()

        html("{}", NO_NAMES, tag="p").classes("small").style("margin: -.6rem 0 .8rem")
        button("Find", visit.on(find, said))

        async def fill() -> bool:
            found = await visit.call(api.detections, dataset)
            if not found:
                return False
            latest = found[0]
            if latest["state"] in ("queued", "running"):
                html("Looking …", tag="p").classes("busy-note")
                return True
            if latest["state"] != "done":
                Box(latest["message"] or "It was stopped.")
            else:
                await _found(visit, latest)
            return False

        shown = layout.Part(visit, fill, said)
        await shown.show()


async def _found(visit: Visit, detection: dict[str, Any]) -> None:
    result = detection["result"]
    html("Latest, {} {}", layout.moment(detection["ended"]),
         Markup('<span class="tag">{}</span>').format(NOT_PRIVATE), tag="h3")  # fmt: skip
    layout.figures([(number(result["mentions"]), "places marked"),
                   (number(result["entities"]), "different entities"),
                   (number(result["sensitive_records"]), "records that name any")])  # fmt: skip
    try:
        owners = (await visit.call(api.owners, detection["id"], names=False))["not_private"]
    except Exception:
        html("Text was deleted since; find again to see more.", tag="p").classes("why")
        return
    with ui.element("div").classes("two"):
        with ui.element("div"):
            html("What was found", tag="h3")
            kinds = {f"{kind_word(k)}": v for k, v in result["mentions_by_kind"].items()}
            layout.sideways(kinds, f"Marked places by kind: {kinds}")
        with ui.element("div"):
            html("How many users share an entity", tag="h3")
            shared = owners["users_per_entity"]["histogram"]
            layout.bars(shared, "users who name the same entity", "entities",
                       f"How many entities are named by how many users: {shared}",
                       colour=layout.ORANGE)  # fmt: skip
            html("{} of {} entities are named by more than one user. Protecting users alone does "
                 "not hide those: protect entities, or both.", number(owners["shared_entities"]),
                 number(owners["entities"]), tag="p").classes("small")  # fmt: skip
    with layout.more("The ten that most users share"):
        shown = html("{}", _most_shared(owners)).classes("scroll-x")
        if visit.may("records:any"):

            async def name_them() -> None:
                named = (await visit.call(api.owners, detection["id"]))["not_private"]
                shown.set_content(_most_shared(named))

            button("Show their names", visit.on(name_them), small=True)
            html("Noted in the audit log.", tag="p").classes("small")
    if visit.may("records:any"):
        with layout.more("The text, with what was found marked") as box:
            html("Opening it is noted in the audit log.", tag="p").classes("small")

            def open_text() -> None:
                text.set_content(
                    Markup(
                        '<iframe class="sheet" sandbox="allow-scripts" title="Text with marks" '
                        'src="/detections/{}/text"></iframe>'
                    ).format(detection["id"])
                )

            button("Show the text", open_text, small=True)
            text = html("")
            box.style("max-width: 100%")


def _most_shared(owners: dict[str, Any]) -> Markup:
    rows = [
        (kind_word(e["kind"]), e.get("name") or e["entity"], e["users"], e["records"])
        for e in owners["most_shared"][:10]
    ]
    return layout.table_markup(["Kind", "Entity", "Users", "Records"], rows, numbers=(2, 3))


def kind_word(kind: str) -> str:
    """A kind in words.

    >>> kind_word("PII/PHONE")
    'telephone numbers'
    """
    return KIND_WORDS.get(kind) or PII_KINDS.get(kind) or kind.lower()


async def _lists(visit: Visit, dataset: str) -> None:
    found = await visit.call(api.lists, dataset)
    with card("Lists of names to protect", "Of all that is found, a run can protect just what a "
              "list names, one name a line."):  # fmt: skip
        told(visit, "list", "names are stored")
        said = Box()
        for one in found:
            with ui.element("div").classes("line"):
                html("<b>{}</b> · {} names · {}", one["name"], number(one["count"]),
                     layout.moment(one["created"]))  # fmt: skip

                async def delete(which: str = one["id"]) -> None:
                    await visit.call(api.delete_list, dataset, which)
                    ui.navigate.reload()

                button("Delete", visit.on(delete, said), small=True)
        with layout.more("Add a list"):
            with ui.element("div").classes("fields"):
                name = layout.text_field("Name of the list", value="names")
                names = ui.textarea("Names, one a line").props("outlined autogrow")

            async def add() -> None:
                lines = [line for line in (names.value or "").splitlines() if line.strip()]
                if not lines:
                    raise UsageError("Write at least one name.")
                await visit.call(api.add_list, dataset, api.NewList(name=name.value, names=lines))
                ui.navigate.reload()

            with ui.element("div").classes("line").style("margin: .8rem 0"):
                button("Add the list", visit.on(add, said))
            html(
                '<form method="post" action="/datasets/{}/entity-lists/file" '
                'enctype="multipart/form-data"><input type="hidden" name="key" value="{}">'
                '<input type="hidden" name="name" value="list from a file">'
                '<input type="file" name="file" required accept=".txt" aria-label="File of names"> '
                '<button class="act">Upload a file of names</button></form>',
                dataset, visit.form_key,
            )  # fmt: skip


async def _runs(visit: Visit, dataset: str) -> None:
    found = await visit.call(api_runs.runs, dataset=dataset)
    with card("Runs"):
        if not found:
            html("None yet.", tag="p").classes("why")
        else:
            html("{}", runs_table(found)).classes("scroll-x")


def runs_table(runs: list[dict[str, Any]]) -> Markup:
    """Runs, the latest first."""
    rows = []
    for run in runs:
        result = run["result"] or {}
        epsilon = (result.get("epsilon") or {}).get(result.get("protect"))
        rows.append(
            (
                layout.link(run["name"], f"/runs/{run['id']}"),
                run["request"].get("method", "private"),
                layout.tag(run["state"]),
                f"{layout.epsilon(epsilon)} for "
                f"{UNIT_WORDS.get(result['protect'], result['protect'])}"
                if epsilon is not None
                else "–",
                layout.tag(result["standing"]) if result.get("standing") else "–",
                layout.moment(run["created"]),
            )
        )
    return layout.table_markup(
        ["Run", "Method", "State", "Epsilon", "Its promise is", "Started"], rows
    )


# --- for admins -------------------------------------------------------------------------------


def _settings(visit: Visit, dataset: dict[str, Any]) -> None:
    limits = dataset["budget"]["limits"]
    with card("Settings"):
        said = Box()
        with layout.more("Change the description or the budget"):
            html("What is spent stays spent. Raising a budget is a decision about the people whose "
                 "text this is; it is noted in the audit log.", tag="p").classes("why")  # fmt: skip
            with ui.element("div").classes("fields"):
                about = layout.text_field("What it is", value=dataset["description"])
                amounts = {
                    unit: _amount(f"Budget for {words}", (limits or {}).get(unit))
                    for unit, words in UNIT_WORDS.items()
                    if unit in ("users", "users+entities") or unit in (limits or {})
                }
                unproved = ui.checkbox(
                    "Allow runs whose method proves nothing: their models carry a warning, and "
                    "what they give away is not in the budget",
                    value=dataset["unproved_allowed"],
                )

            async def change() -> None:
                fields: dict[str, Any] = {"description": about.value or ""}
                wanted = {unit: f.value for unit, f in amounts.items() if f.value}
                if limits is not None and wanted and wanted != limits:
                    fields["limits"] = wanted
                if unproved.value != dataset["unproved_allowed"]:
                    fields["unproved_allowed"] = unproved.value
                await visit.call(api.change_dataset, dataset["id"], api.DatasetChange(**fields))
                ui.navigate.reload()

            button("Save", visit.on(change, said)).style("margin-top: .8rem")


def _texts(visit: Visit, dataset: str) -> None:
    with card("Somebody's text", "Read or delete what one user wrote. Reading is noted in the "
              "audit log."):  # fmt: skip
        said = Box()
        user = layout.text_field("User").style("max-width: 20rem")
        shown = html("")

        async def read() -> None:
            if not (user.value or "").strip():
                raise UsageError("Say whose text.")
            found = await visit.call(api.records, dataset, user=user.value.strip(), limit=50)
            rows = Markup("").join(
                Markup('<li class="textual">{}</li>').format(r["text"]) for r in found
            )
            shown.set_content(Markup('<ul class="list">{}</ul>').format(rows))
            if not found:
                said.say("There is no text of a user of that name.", "plain")

        async def delete() -> None:
            if not (user.value or "").strip():
                raise UsageError("Say whose text.")
            gone = await visit.call(api.forget, dataset, user=user.value.strip())
            shown.set_content("")
            said.say(f"{number(gone['deleted'])} deleted. {gone['consequence']}", "good")

        user.on("keydown.enter", visit.on(read, said))
        with ui.element("div").classes("line").style("margin-top: .8rem"):
            button("Read", visit.on(read, said))
            sure(
                button("Delete for good …", kind="bad"),
                "Delete all text of this user? It cannot be brought back. Models that learned from "
                "it stay as they are.",
                visit.on(delete, said),
            )


def sure(messenger: ui.button, question: str, act: Any) -> None:
    """Ask once more before something that cannot be undone."""
    with ui.dialog() as dialog, ui.element("div").style("padding: 1.3rem; max-width: 30rem"):
        html("{}", question, tag="p")
        with ui.element("div").classes("line").style("margin-top: 1rem"):
            button("Yes, delete", kind="bad").on("click", dialog.close).on("click", act)
            button("No", dialog.close)
    messenger.on("click", dialog.open)
