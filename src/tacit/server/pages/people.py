"""People: accounts, tokens, and who did what. For admins."""

from typing import Any

from markupsafe import Markup
from nicegui import ui

from tacit.errors import UsageError
from tacit.server.api import accounts as api
from tacit.server.pages import layout
from tacit.server.pages.layout import Box, button, card, html
from tacit.server.pages.visits import Visit

ROLE_WORDS = {
    "contributor": "Contributor: adds, reads and deletes their own text, nothing else",
    "consumer": "Consumer: uses and downloads models",
    "analyst": "Analyst: plans and starts runs, attacks models; never reads text",
    "admin": "Admin: everything, also reads text, which the audit log notes",
}


@layout.page("/people", "People")
async def people(visit: Visit) -> None:
    """Kept small: the API has the rest."""
    lines = await visit.call(api.audit_log, limit=100)
    layout.title("People", "Who may come in, with which key, and who did what.")
    with card("Add somebody", "They sign in with a token, which is shown here once, or with a "
              "password."):  # fmt: skip
        place = ui.element("div")
    with card("Accounts and tokens"):
        said = Box()
        once = html("")

        async def fill() -> None:
            tokens = await visit.call(api.tokens)
            for account in await visit.call(api.accounts):
                with ui.element("div").classes("entry"):
                    _account(visit, account, tokens, said, once, listed)

        listed = layout.Part(visit, fill, said)
        await listed.show()
    with place:
        _new_account(visit, listed)
    _log(visit, lines)


def _new_account(visit: Visit, listed: layout.Part) -> None:
    said = Box()
    with ui.element("div").classes("fields"):
        name = layout.text_field("Name")
        role = ui.select(ROLE_WORDS, label="Role", value="contributor").props("outlined dense")
        password = layout.text_field("Password (optional, 12 characters or more)", password=True)
        password.props('autocomplete="new-password"')
    once = html("")

    async def add() -> None:
        if not (name.value or "").strip():
            raise UsageError("Give a name.")
        asked = api.NewAccount(name=name.value.strip(), role=role.value,
                               password=password.value or None)  # fmt: skip
        made = await visit.call(api.add_account, asked)
        given = await visit.call(api.add_token, api.NewToken(account=made["id"], label="first"))
        once.set_content(_shown_once(made["name"], given["token"]))
        await listed.show()
        name.value = password.value = ""

    act = visit.on(add, said)
    name.on("keydown.enter", act)
    password.on("keydown.enter", act)
    with ui.element("div").classes("line").style("margin-top: .9rem"):
        button("Add", act, kind="main")


def _shown_once(name: str, token: str) -> Markup:
    return Markup(
        '<div class="saying good once" role="alert"><b>A token for {}, shown only now. Give it to '
        'them over a safe way.</b><code id="new-token">{}</code><button type="button" '
        'class="quiet" data-copy="new-token">Copy</button></div>'
    ).format(name, token)


def _account(
    visit: Visit,
    account: dict[str, Any],
    tokens: list[dict[str, Any]],
    said: Box,
    once: ui.html,
    listed: layout.Part,
) -> None:
    off = account["disabled"]

    async def turn() -> None:
        await visit.call(api.change_account, account["id"], api.AccountChange(disabled=not off))
        await listed.show()

    async def give() -> None:
        given = await visit.call(api.add_token, api.NewToken(account=account["id"]))
        once.set_content(_shown_once(account["name"], given["token"]))
        await listed.show()

    with ui.element("div").classes("line"):
        closed = Markup('<span class="tag bad">closed</span>') if off else ""
        html("<b>{}</b> · {} {}", account["name"], account["role"], closed).style("flex: 1")
        if not off:
            button("New token", visit.on(give, said), small=True)
        button("Open again" if off else "Close", visit.on(turn, said), small=True,
               kind="" if off else "bad")  # fmt: skip
    if not off:
        with layout.more("Set a password"):
            secret = layout.text_field("New password (12 characters or more)", password=True)
            secret.props('autocomplete="new-password"').style("max-width: 20rem")

            async def change() -> None:
                asked = api.AccountChange(password=secret.value or "")
                await visit.call(api.change_account, account["id"], asked)
                secret.value = ""
                said.say("The password is set; whoever was signed in is asked for it.", "good")

            act = visit.on(change, said)
            secret.on("keydown.enter", act)
            button("Set", act, small=True).style("margin-top: .5rem")
    for token in tokens:
        if token["account"] != account["name"] or token["revoked"]:
            continue
        with ui.element("div").classes("line"):
            words = f"Token of {layout.moment(token['created'])}"
            words += f", {token['label']}" if token["label"] else ""
            words += f", until {layout.moment(token['expires'])}" if token["expires"] else ""
            html("{}", words).classes("small")

            async def revoke(which: str = token["id"]) -> None:
                await visit.call(api.revoke, which)
                await listed.show()

            button("Revoke", visit.on(revoke, said), small=True)


def _log(visit: Visit, lines: list[dict[str, Any]]) -> None:
    with card("Audit log", "The latest hundred lines; none has text of a record in it."):
        place = ui.element("div")

        def show(some: list[dict[str, Any]]) -> None:
            rows = [
                (layout.moment(line["at"]).removesuffix(" UTC"), line["account"], line["what"],
                 Markup("<code>{}</code>").format(line["target"][:24]), line["outcome"])
                for line in some
            ]  # fmt: skip
            with place:
                layout.table(["When (UTC)", "Who", "What", "On", "Outcome"], rows)

        show(lines)
        said = Box()
        last = lines[-1]["number"] if lines else 1

        async def older() -> None:
            nonlocal last
            some = await visit.call(api.audit_log, before=last, limit=100)
            if not some:
                said.say("There is nothing older.", "plain")
                return
            last = some[-1]["number"]
            show(some)

        button("Older", visit.on(older, said), small=True)
