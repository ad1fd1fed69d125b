"""People: accounts, tokens, and who did what. For admins."""

from nicegui import ui

from tacit.server import Json
from tacit.server.api import accounts as api
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
    _log(ctx, lines)


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


def _log(ctx: PageContext, lines: list[Json]) -> None:
    with card("Audit log", "The latest hundred entries; none has text of a record in it."):
        place = ui.element("div")

        def show(some: list[Json]) -> None:
            with place:
                layout.show("audit_entries", some, kind="scroll-x")

        show(lines)
        notice = Notice()
        last = lines[-1]["number"] if lines else 1

        async def older() -> None:
            nonlocal last
            some = await ctx.call(api.audit_log, before=last, limit=100)
            if not some:
                notice.show("There is nothing older.", "plain")
                return
            last = some[-1]["number"]
            show(some)

        button("Older", ctx.on(older, notice), small=True)
