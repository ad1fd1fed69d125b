"""A contributor's page: add text, see it, delete it. Nobody else's is ever here."""

from typing import Any

from nicegui import ui
from starlette.responses import Response

from tacit.errors import UsageError
from tacit.server.api import datasets as api
from tacit.server.pages import layout
from tacit.server.pages.datasets import budget_words, sure, told, upload_form
from tacit.server.pages.layout import Box, button, card, html, number
from tacit.server.pages.visits import Visit

DELETED = (
    "Deleting takes your text out of the dataset, out of the copies that earlier runs kept, and "
    "out of what detectors found in it. No future run sees it. Models that already learned from it "
    "stay as they are: how much they can show is bounded by their certificate, where they have one."
)


@layout.page("/my-text", "My text")
async def my_text(visit: Visit) -> None:
    """All datasets that one may give text to, each with one's own text."""
    visit.caller.need("records:own")
    found = [d for d in await visit.call(api.datasets)]
    layout.title(
        "My text", "What you gave, and nobody else's. You can add to it, and take it back."
    )
    if not found:
        html("There is no dataset yet; an admin makes one.", tag="p").classes("why")
    told(visit, "upload", "records are stored")
    for dataset in found:
        await _one(visit, dataset)


async def _one(visit: Visit, dataset: dict[str, Any]) -> None:
    which = dataset["id"]
    with card(dataset["name"], dataset["description"]):
        html("{}", budget_words(dataset["budget"]["limits"]) + ": how much models that learn from "
             "it may show of anybody, all together.", tag="p").classes("small")  # fmt: skip
        said = Box()
        text = ui.textarea("Your text").props("outlined autogrow").style("max-width: 46rem")

        async def add() -> None:
            if not (text.value or "").strip():
                raise UsageError("Write something first.")
            asked = api.NewRecord(text=text.value)
            await visit.call(api.add_record, which, asked, response=Response())
            text.value = ""
            said.say("Stored.", "good")
            await shown.show()

        with ui.element("div").classes("line").style("margin: .7rem 0"):
            button("Add the text", visit.on(add, said), kind="main")
        with layout.more("Add a file"):
            upload_form(visit, which, ask_user=False)
        html("What you gave", tag="h3")

        async def fill(after: str = "") -> None:
            mine = await visit.call(api.records, which, limit=50, after=after)
            if not mine:
                html("Nothing yet." if not after else "Nothing more.", tag="p").classes("why")
                return
            html("{}", DELETED, tag="p").classes("small")
            for record in mine:
                _record(visit, which, record, said, shown)
            if len(mine) == 50 or after:

                async def further() -> None:
                    await shown.show(mine[-1]["id"] if len(mine) == 50 else "")

                button("More" if len(mine) == 50 else "Back to the first", visit.on(further, said),
                       small=True)  # fmt: skip

            async def delete_all() -> None:
                gone = await visit.call(api.forget, which)
                said.say(f"{number(gone['deleted'])} deleted. {gone['consequence']}", "good")
                await shown.show()

            with ui.element("div").classes("line").style("margin-top: .8rem"):
                sure(
                    button("Delete all of mine …", kind="bad"),
                    f"Delete all that you gave to {dataset['name']}? {DELETED}",
                    visit.on(delete_all, said),
                )

        shown = layout.Part(visit, fill, said)
        await shown.show()


def _record(
    visit: Visit, dataset: str, record: dict[str, Any], said: Box, shown: layout.Part
) -> None:
    with ui.element("div").classes("entry"):
        html("{}", record["text"]).classes("textual")
        with ui.element("div").classes("line"):
            html("{}", layout.moment(record["created"])).classes("small").style("flex: 1")

            async def delete() -> None:
                gone = await visit.call(api.forget_one, dataset, record["id"])
                seen = len(gone["runs"])
                learned = f" {seen} earlier run(s) had learned from it." if seen else ""
                said.say(f"Deleted.{learned} {gone['consequence']}", "good")
                await shown.show()

            button("Delete", visit.on(delete, said), small=True, kind="bad")
