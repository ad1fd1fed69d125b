"""A contributor's page: add text, see it, delete it. Nobody else's is ever here."""

from nicegui import ui
from starlette.responses import Response

from tacit.server import Json
from tacit.server.api import datasets as api
from tacit.server.pages import layout
from tacit.server.pages.datasets import flash_notice, upload_form
from tacit.server.pages.layout import Refreshable, button, card, html, small
from tacit.server.pages.page_context import Notice, PageContext
from tacit.server.pages.rendering import WORDS, fragment, number, pieces, timestamp

_PAGE = 50


@layout.page("/my-text", "My text")
async def my_text(ctx: PageContext) -> None:
    """All datasets that one may give text to, each with one's own text."""
    ctx.caller.require("records:own")
    found = await ctx.call(api.datasets)
    layout.title(
        "My text", "What you gave, and nobody else's. You can add to it, and take it back."
    )
    if not found:
        small("There is no dataset yet. An admin makes one; then you can give it text here, see "
              "first what is sensitive in it, and take it back whenever you like.",
              kind="why")  # fmt: skip
    flash_notice(ctx, "upload", "records are stored")
    for dataset in found:
        await _one(ctx, dataset)


async def _one(ctx: PageContext, dataset: Json) -> None:
    which = dataset["id"]
    with card(dataset["name"], dataset["description"]):
        small("{}: how much models that learn from it may show of anybody, all together.",
              fragment("budget_words", dataset["budget"]["limits"]))  # fmt: skip
        Notice(dataset["protection"], "plain" if dataset["protected"] else "bad")
        notice = Notice()
        text = layout.text_area("Your text").style("max-width: 46rem")
        seen = html("")
        consent = None
        if not dataset["protected"]:
            consent = ui.checkbox("I know, and what I add may be known to anybody")

        async def look() -> None:
            layout.written(text, "Write something first.")
            found = await ctx.call(api.preview, which, api.Preview(text=text.value))
            seen.set_content(fragment("marked", pieces(text.value, found["marks"])))

        async def add() -> None:
            layout.written(text, "Write something first.")
            agreed = consent is not None and bool(consent.value)
            asked = api.NewRecord(text=text.value, consent=agreed)
            await ctx.call(api.add_record, which, asked, response=Response())
            text.value = ""
            seen.set_content("")
            notice.show("Stored.", "good")
            await listed.show()

        with layout.div("line", "margin: .7rem 0"):
            button("Add the text", ctx.on(add, notice), kind="main")
            button("What is sensitive in it?", ctx.on(look, notice))
        with layout.details("Add a file"):
            upload_form(ctx, which, ask_user=False, ask_consent=not dataset["protected"])
        html("What you gave", tag="h3")

        async def fill(after: str = "") -> None:
            mine = await ctx.call(api.records, which, limit=_PAGE, after=after)
            if not mine:
                small("Nothing yet." if not after else "Nothing more.", kind="why")
                return
            small("{}", WORDS["deleted"])
            for record in mine:
                _record(ctx, which, record, notice, listed)
            full = len(mine) == _PAGE
            if full or after:

                async def further() -> None:
                    await listed.show(mine[-1]["id"] if full else "")

                words = "More" if full else "Back to the first"
                button(words, ctx.on(further, notice), small=True)
            with layout.line():
                question = f"Delete all that you gave to {dataset['name']}? {WORDS['deleted']}"
                opener = button("Delete all of mine …", kind="bad")
                layout.confirm(opener, question, ctx.on(delete_all, notice))

        async def delete_all() -> None:
            gone = await ctx.call(api.forget, which)
            notice.show(f"{number(gone['deleted'])} deleted. {gone['consequence']}", "good")
            await listed.show()

        listed = Refreshable(ctx, fill, notice)
        await listed.show()


def _record(
    ctx: PageContext, dataset: str, record: Json, notice: Notice, listed: Refreshable
) -> None:
    async def delete() -> None:
        gone = await ctx.call(api.forget_one, dataset, record["id"])
        runs = len(gone["runs"])
        learned = f" {runs} earlier run(s) had learned from it." if runs else ""
        notice.show(f"Deleted.{learned} {gone['consequence']}", "good")
        await listed.show()

    with ui.element("div").classes("entry"):
        html("{}", record["text"]).classes("textual")
        with layout.div("line"):
            html("{}", timestamp(record["created"])).classes("small").style("flex: 1")
            button("Delete", ctx.on(delete, notice), small=True, kind="bad")
