"""Models: try one, see what is promised, check it, take it along."""

import asyncio
from typing import Any

from markupsafe import Markup
from nicegui import ui

from tacit.privacy.rounding import up
from tacit.server.api import models as api
from tacit.server.api import runs as api_runs
from tacit.server.pages import layout
from tacit.server.pages.datasets import sure
from tacit.server.pages.layout import UNIT_WORDS, Box, button, card, html, number
from tacit.server.pages.new_run import plain_promise
from tacit.server.pages.visits import Visit

_QUIET_SECONDS = 0.35
STANDING_WORDS = {
    "proved": "The argument is written down, and epsilon is computed from the list of everything "
    "that was released.",
    "published": "A paper claims it; it is not proved here.",
    "heuristic": "There is no promise at all.",
    "broken": "An attack contradicted it: treat the model as if it were the text itself.",
}


@layout.page("/models", "Models")
async def all_models(visit: Visit) -> None:
    """What there is to use."""
    found = await visit.call(api.models)
    layout.title("Models", "What came out of finished runs: try them here, or take them along.")
    if not found:
        html("None yet: a model appears here when a run is done.", tag="p").classes("why")
        return
    rows = Markup("").join(
        Markup(
            '<li><a class="name" href="/models/{}">{}</a> {}<div>{}</div><div class="small">{}'
            "</div></li>"
        ).format(one["id"], one["name"], layout.tag(one["standing"]), promised(one),
                 layout.moment(one["created"]))
        for one in found
    )  # fmt: skip
    html("{}", rows, tag="ul").classes("list")


def promised(model: dict[str, Any]) -> str:
    """A model's promise in a few words."""
    unit = model["protect"]
    if model["standing"] != "proved" or unit not in model["epsilon"]:
        return "Nothing is promised."
    return str(model["headline"])


@layout.page("/models/{model}", "Model")
async def one_model(visit: Visit, model: str) -> None:
    """Everything that one can do with it."""
    found = await visit.call(api.model_, model)
    crumbs = [("/models", "Models")]
    if visit.may("runs:read"):
        crumbs.append((f"/runs/{model}", "its run"))
    layout.title(found["name"], crumbs=crumbs)
    if found["warning"]:
        Box(found["warning"], "warn")
    with ui.element("div").classes("line"):
        layout.way("Download the model", f"/models/{model}/download", kind="main", download=True)
        layout.way("Read the certificate", f"/models/{model}/certificate.html")
        layout.way("certificate.json", f"/models/{model}/certificate.json", download=True)
    html(
        "A zip of an ordinary Hugging Face folder (a common way to keep models), with its "
        "certificate and the list of everything that was released. Unzipped into a folder m: "
        '<code>tacit verify m</code>, <code>tacit predict m "my text"</code>.',
        tag="p",
    ).classes("small").style("margin-top: .5rem; max-width: 46rem")
    with ui.element("div").classes("two").style("margin-top: 1.1rem"):
        _try(visit, found)
        _promise(visit, found)
    if visit.may("runs:read"):
        _report(model)
    if visit.may("attack"):
        await _attacks(visit, model)
    if visit.may("datasets:write"):
        _delete(visit, found)


def _try(visit: Visit, model: dict[str, Any]) -> None:
    says = {"next-word": "Write, and see which words the model would put next.",
            "classification": "Write a text, and see which label the model gives it.",
            "tagging": "Write a text, and see which words the model marks."}  # fmt: skip
    with card("Try it", says.get(model["task"], "Write a text.") + " What you write is not kept."):
        text = ui.textarea("Your text").props("outlined autogrow input-style='min-height: 5rem'")
        said = Box()
        shown = ui.element("div").props('aria-live="polite"')
        turn = 0

        async def look(_: Any = None) -> None:
            nonlocal turn
            turn += 1
            mine = turn
            await asyncio.sleep(_QUIET_SECONDS)
            if mine != turn:
                return
            if not text.value:
                shown.clear()
                return
            if not shown.default_slot.children:
                with shown:
                    html("Asking the model …").classes("busy-note")
            asked = api.Question(text=text.value[-4000:], words=12, choices=6)
            answer = await visit.call(api.predict, model["id"], asked)
            if mine != turn:
                return
            shown.clear()
            with shown:
                _answer(answer, text)

        text.on_value_change(visit.on(look, said))


def _answer(answer: dict[str, Any], text: ui.textarea) -> None:
    if "next" in answer:
        with ui.element("div").classes("chips"):
            for word, chance in answer["next"]:
                if not word.strip() or "�" in word:
                    continue

                def add(word: str = word) -> None:
                    text.value = (text.value or "") + word

                said = f"{chance:.0%}" if chance >= 0.01 else "under 1%"
                made = button(f"{word.strip()} · {said}", add, small=True)
                made.props["aria-label"] = f"Add {word.strip()}, {said} likely"
        html("It would go on: <span class='textual'>{}</span>",
             answer["completion"][-200:].replace("�", ""), tag="p").classes("small")  # fmt: skip
    elif "probabilities" in answer:
        rows = Markup("").join(
            Markup('<div><span>{}</span><span class="bar" style="width:{:.0f}%"></span>'
                   "<span>{:.0%}</span></div>").format(label, 100 * chance, chance)
            for label, chance in answer["probabilities"]
        )  # fmt: skip
        html("{}", rows).classes("chances")
    elif "tags" in answer:
        parts = Markup(" ").join(
            Markup(
                '<span class="hue" style="--h:{}" title="{}">{} <small>{}</small></span>'
            ).format(hash(label) % 360, label, word, label)
            if label != "O"
            else Markup("{}").format(word)
            for word, label in answer["tags"]
        )
        html("<p>{}</p>", parts)
    else:
        html("<p><b>{}</b></p>", number(answer.get("value")))


def _promise(visit: Visit, model: dict[str, Any]) -> None:
    with card("What is promised"):
        unit = model["protect"]
        known = unit in model["epsilon"] and model["standing"] == "proved"
        if known:
            html("{}", plain_promise(model["protected"], model["gain"]))
            layout.figures(
                (layout.epsilon(value), f"epsilon for {UNIT_WORDS.get(u, u)}")
                for u, value in model["epsilon"].items()
            )
        html("{} {}", layout.tag(model["standing"]), STANDING_WORDS.get(model["standing"], ""),
             tag="p")  # fmt: skip
        if known:
            with layout.more("In exact words"):
                html("{} Delta, the chance that this fails altogether, is {}.", model["sentence"],
                     up(model["delta"]), tag="p").classes("small")  # fmt: skip
        with layout.more("What is not covered"):
            points = Markup("").join(Markup("<li>{}</li>").format(p) for p in model["not_covered"])
            html("{}", points, tag="ul").classes("small")
        said = Box()
        checks = html("")

        async def verify() -> None:
            found = await visit.call(api.verify, model["id"])
            said.say(verdict(found), "good" if found["ok"] else "bad")
            checks.set_content(check_list(found))

        button("Verify the certificate", visit.on(verify, said)).style("margin-top: 1rem")
        html("Recomputes epsilon from the list of what was released, and compares every file.",
             tag="p").classes("small")  # fmt: skip


def verdict(found: dict[str, Any]) -> str:
    """What a verification says, in a sentence."""
    if not found["ok"]:
        return "The certificate does not hold: see which check failed."
    if found["standing"] != "proved":
        return f"The files fit together, but the promise is only {found['standing']}."
    return "Everything matches: the certificate holds."


def check_list(found: dict[str, Any]) -> Markup:
    """Every check."""
    rows = Markup("").join(
        Markup('<li class="{}">{}: {}</li>').format("" if c["ok"] else "no", c["what"], c["detail"])
        for c in found["checks"]
    )
    rows += Markup("").join(
        Markup('<li class="skipped">{}: not given, so not checked</li>').format(what)
        for what in found["not_checked"]
    )
    opened = Markup() if found["ok"] else Markup(" open")
    return Markup(
        '<details{}><summary>{} checks</summary><ul class="checks">{}</ul></details>'
    ).format(opened, len(found["checks"]), rows)


def _report(model: str) -> None:
    with card("Report", "Usefulness, promise and what attacks measured, on one page.",
              tag=layout.NOT_PRIVATE):  # fmt: skip
        shown = html("")

        def open_report() -> None:
            shown.set_content(
                Markup(
                    '<iframe class="sheet" sandbox="allow-scripts" title="Report" '
                    'src="/runs/{}/report"></iframe>'
                ).format(model)
            )

        with ui.element("div").classes("line").style("margin-bottom: .8rem"):
            button("Show the report", open_report)
            layout.way("In a tab of its own", f"/runs/{model}/report", new=True)
            layout.way("Without what is not private", f"/runs/{model}/report?shareable=true",
                      new=True)  # fmt: skip


async def _attacks(visit: Visit, model: str) -> None:
    with card("Put it to the test", "Attack the model, to see whether what it gives away fits its "
              "promise. What is found stands in the report."):  # fmt: skip
        said = Box()

        def order(call: Any, asked: Any) -> Any:
            async def begin() -> None:
                await visit.call(call, model, asked)
                await shown.show()

            return visit.on(begin, said)

        with ui.element("div").classes("line"):
            button("Attack it", order(api_runs.add_attack, api_runs.NewAttack()))
            button("Audit its epsilon", order(api_runs.add_audit, api_runs.NewAudit()))
            button("Score it on the test records",
                   order(api_runs.add_evaluation, api_runs.NewEvaluation()))  # fmt: skip

        async def fill() -> bool:
            found = await visit.call(api_runs.jobs_of, model)
            if not found:
                return False
            rows = [
                (job["kind"], layout.tag(job["state"]), job["message"] or "–",
                 layout.moment(job["created"]))
                for job in found[:10]
            ]  # fmt: skip
            layout.table(["What", "State", "", "Asked"], rows)
            return any(job["state"] in ("queued", "running") for job in found)

        shown = layout.Part(visit, fill, said)
        await shown.show()


def _delete(visit: Visit, model: dict[str, Any]) -> None:
    with card("Delete the model", "The weights, the scores and what attacks found are deleted for "
              "good; copies that somebody downloaded are theirs. The list of what was released is "
              "kept, and what was spent stays spent."):  # fmt: skip
        said = Box()

        async def delete() -> None:
            await visit.call(api.delete, model["id"])
            ui.navigate.to("/models")

        sure(
            button("Delete for good …", kind="bad"),
            f"Delete the model {model['name']}? It cannot be brought back.",
            visit.on(delete, said),
        )


@layout.page("/check", "Verify a certificate")
async def check(visit: Visit) -> None:
    """For a model from anywhere."""
    layout.title("Verify a certificate", "Of a model that somebody gave you: is what it promises "
                "what was really done?")  # fmt: skip
    with card("Its files", "The zip of the model, or certificate.json and ledger.jsonl of it. "
              "Nothing is kept."):  # fmt: skip
        found = visit.told.pop("verify", None)
        if found is not None and "refused" in found:
            Box(found["refused"])
        elif found is not None:
            result = found["ok"]
            Box(verdict(result), "good" if result["ok"] else "bad")
            html("{}", check_list(result))
        html(
            '<form method="post" action="/certificates/verify" enctype="multipart/form-data">'
            '<input type="hidden" name="key" value="{}"><input type="file" name="files" multiple '
            'required data-most="{}" aria-label="Files of the model" '
            'accept=".zip,.json,.jsonl,.md,.yml,.safetensors"><div class="line" '
            'style="margin-top:.8rem"><button class="act main">'
            "Check</button></div></form>",
            visit.form_key,
            visit.services.settings.upload_bytes - (1 << 16),
        )
