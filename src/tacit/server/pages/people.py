"""People: accounts, tokens, and who did what. For admins."""

from collections.abc import Mapping
from typing import Any

from nicegui import ui

from tacit.server import Json
from tacit.server.api import accounts as api
from tacit.server.api import datasets as api_datasets
from tacit.server.api import runs as api_runs
from tacit.server.pages import layout
from tacit.server.pages.layout import Refreshable, button, card, html
from tacit.server.pages.page_context import Notice, PageContext
from tacit.server.pages.rendering import WORDS, fragment


@layout.page("/people", "People")
async def people(ctx: PageContext) -> None:
    """Kept small: the API has the rest."""
    lines = await ctx.call(api.audit_log, limit=100)
    layout.title("People", "Who may come in, with which key, and who did what.")
    with card("Add somebody", "They sign in with a token, which is shown here once, or with a "
              "password."):  # fmt: skip
        place = ui.element("div")
    with card("Accounts and tokens"):
        notice = Notice()
        once = html("")

        async def fill() -> None:
            tokens = await ctx.call(api.tokens)
            for account in await ctx.call(api.accounts):
                mine = [t for t in tokens if t["account"] == account["name"] and not t["revoked"]]
                with ui.element("div").classes("entry"):
                    _account(ctx, account, mine, notice, once, listed)

        listed = Refreshable(ctx, fill, notice)
        await listed.show()
    with place:
        _new_account(ctx, listed)
    _log(ctx, lines, await _names(ctx))


def _password_field(label: str) -> ui.input:
    return layout.text_field(label, password=True).props('autocomplete="new-password"')


def _new_account(ctx: PageContext, listed: Refreshable) -> None:
    notice = Notice()
    with layout.div("fields"):
        name = layout.text_field("Name")
        role = ui.select(WORDS["roles"], label="Role", value="contributor").props("outlined dense")
        password = _password_field("Password (optional, 12 characters or more)")
    once = html("")

    async def add() -> None:
        asked = api.NewAccount(name=layout.written(name, "Give a name."), role=role.value,
                               password=password.value or None)  # fmt: skip
        made = await ctx.call(api.add_account, asked)
        given = await ctx.call(api.add_token, api.NewToken(account=made["id"], label="first"))
        once.set_content(fragment("token_once", made["name"], given["token"]))
        await listed.show()
        name.value = password.value = ""

    act = ctx.on(add, notice)
    layout.on_enter(act, name, password)
    with layout.line(".9rem"):
        button("Add", act, kind="main")


def _account(
    ctx: PageContext, account: Json, tokens: list[Json], notice: Notice, once: ui.html,
    listed: Refreshable,
) -> None:  # fmt: skip
    off = account["disabled"]

    async def toggle() -> None:
        await ctx.call(api.change_account, account["id"], api.AccountChange(disabled=not off))
        await listed.show()

    async def give() -> None:
        given = await ctx.call(api.add_token, api.NewToken(account=account["id"]))
        once.set_content(fragment("token_once", account["name"], given["token"]))
        await listed.show()

    async def change() -> None:
        asked = api.AccountChange(password=secret.value or "")
        await ctx.call(api.change_account, account["id"], asked)
        secret.value = ""
        notice.show("The password is set; whoever was signed in is asked for it.", "good")

    with layout.div("line"):
        closed = fragment("tag", "closed", "bad") if off else ""
        html("<b>{}</b> · {} {}", account["name"], account["role"], closed).style("flex: 1")
        if not off:
            button("New token", ctx.on(give, notice), small=True)
        button("Open again" if off else "Close", ctx.on(toggle, notice), small=True,
               kind="" if off else "bad")  # fmt: skip
    if not off:
        with layout.details("Set a password"):
            secret = _password_field("New password (12 characters or more)")
            secret.style("max-width: 20rem")
            act = ctx.on(change, notice)
            layout.on_enter(act, secret)
            button("Set", act, small=True).style("margin-top: .5rem")
    for token in tokens:
        _token(ctx, token, notice, listed)


def _token(ctx: PageContext, token: Json, notice: Notice, listed: Refreshable) -> None:
    async def revoke() -> None:
        await ctx.call(api.revoke, token["id"])
        await listed.show()

    with layout.div("line"):
        layout.show("token_words", token, kind="small")
        button("Revoke", ctx.on(revoke, notice), small=True)


async def _names(ctx: PageContext) -> dict[str, tuple[str, str]]:
    """What the ids in the log are called, and where they lie."""
    known = {a["id"]: (a["name"], "") for a in await ctx.call(api.accounts)}
    for token in await ctx.call(api.tokens):
        known[token["id"]] = (f"a token of {token['account']}", "")
    for one in await ctx.call(api_datasets.datasets):
        known[one["id"]] = (one["name"], f"/datasets/{one['id']}")
    for run in await ctx.call(api_runs.runs):
        known[run["id"]] = (run["name"], f"/runs/{run['id']}")
    return known


def _log(ctx: PageContext, lines: list[Json], known: dict[str, tuple[str, str]]) -> None:
    with card("Audit log", "Who did what, the latest first; no entry has text of a record in it."):
        entries = list(lines)
        with layout.div("line filters"):
            words = layout.text_field("Search").style("flex: 1 1 9rem")
            who = layout.select("Who", {"": "all"}, "").style("min-width: 9rem")
            what = layout.select("What", {"": "all"}, "").style("min-width: 11rem")
        shown = html("")
        notice = Notice()

        def fill(_: Any = None) -> None:
            wanted = (words.value or "").lower()
            rows = [entry | dict(zip(("called", "to"), called(entry, known), strict=True))
                    for entry in entries]  # fmt: skip
            kept = [
                row for row in rows
                if who.value in ("", row["account"]) and what.value in ("", row["what"])
                and wanted in f"{row['account']} {row['what']} {row['called']} {row['outcome']}"
                .lower()
            ]  # fmt: skip
            shown.set_content(fragment("audit_entries", kept))

        def choices() -> None:
            for field, name in ((who, "account"), (what, "what")):
                values = sorted({entry[name] for entry in entries})
                field.set_options({"": "all"} | {value: value for value in values})
            fill()

        async def older() -> None:
            before = entries[-1]["number"] if entries else 1
            some = await ctx.call(api.audit_log, before=before, limit=100)
            if not some:
                notice.show("There is nothing older.", "plain")
                return
            entries.extend(some)
            choices()

        for part in (words, who, what):
            part.on_value_change(fill)
        choices()
        button("Older", ctx.on(older, notice), small=True)


def called(entry: Json, known: Mapping[str, tuple[str, str]]) -> tuple[str, str]:
    """What an entry is about, and where that lies; of what is gone, the beginning of its id.

    >>> called({"target": "0a1"}, {"0a1": ("diary", "/datasets/0a1")})
    ('diary', '/datasets/0a1')
    >>> called({"target": "0a1b2c3d4e5f6"}, {})
    ('0a1b2c3d4e5f…', '')
    """
    target = entry["target"]
    short = f"{target[:12]}…" if len(target) > 12 else target
    return known.get(target, (short, ""))
