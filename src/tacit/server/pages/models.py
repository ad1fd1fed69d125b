"""Models: try one, see what is promised, check it, take it along."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from nicegui import ui

from tacit.privacy.rounding import up
from tacit.server import Json
from tacit.server.api import models as api
from tacit.server.api import runs as api_runs
from tacit.server.errors import Busy
from tacit.server.pages import layout
from tacit.server.pages.layout import button, card, html, show, small
from tacit.server.pages.page_context import Notice, PageContext
from tacit.server.pages.rendering import WORDS, epsilon, fragment, number, unit_words
from tacit.training.evaluation.verdicts import MEASURES

_QUIET_SECONDS = 0.35
_TRIES = 4


@layout.page("/models", "Models")
async def all_models(ctx: PageContext) -> None:
    """What there is to use."""
    found = await ctx.call(api.models)
    layout.title("Models", "What came out of finished runs: try them here, or take them along.")
    if found:
        show("model_list", found, kind="list", tag="ul")
    else:
        small("None yet. A model appears here when a run is done: with a certificate of what it "
              "promises, a field to try it, and a download that works without this server.",
              kind="why")  # fmt: skip
        if ctx.may("runs:write"):
            layout.link_button("Begin with text", "/datasets", kind="main")


@layout.page("/models/{model}", "Model")
async def one_model(ctx: PageContext, model: str) -> None:
    """Everything that one can do with it."""
    found = await ctx.call(api.model_, model)
    crumbs = [("/models", "Models")]
    if ctx.may("runs:read"):
        dataset = (await ctx.call(api_runs.run_, model))["dataset"]
        layout.way(dataset, "Use", model=model)
        crumbs.append((f"/runs/{model}", "its run"))
    layout.title(found["name"], crumbs=crumbs)
    if found["warning"]:
        Notice(found["warning"], "warn")
    with layout.div("line"):
        download = f"/models/{model}/download"
        layout.link_button("Download the model", download, kind="main", download=True)
        layout.link_button("Read the certificate", f"/models/{model}/certificate.html")
        layout.link_button("certificate.json", f"/models/{model}/certificate.json", download=True)
    with layout.div("two", "margin-top: 1.1rem"):
        with ui.element("div"):
            await _usefulness(ctx, model)
            _try(ctx, found)
        _promise(ctx, found)
    with layout.details("How to use the download"):
        small(
            "A zip of an ordinary Hugging Face folder (a common way to keep models), with its "
            "certificate and the list of everything that was released. Unzipped into a folder m: "
            '<code>tacit verify m</code>, <code>tacit predict m "my text"</code>.'
        ).style("max-width: 46rem")
    if ctx.may("runs:read"):
        _report(model)
    if ctx.may("attack"):
        await _attacks(ctx, model)
    if ctx.may("datasets:write"):
        _delete(ctx, found)


_BESIDE = {
    "public_only": "its public start", "redacted_only": "its start on masked text",
    "trigram": "counted word triples", "unigram": "counted words",
    "majority": "the most frequent label", "constant": "always the mean",
    "uniform": "guessing",
}  # fmt: skip


async def _usefulness(ctx: PageContext, model: str) -> None:
    """Whether it is any good, for those who may see exact figures; others try it themselves."""
    if not ctx.may("runs:read"):
        small("How good it is was measured on private text and is not shown here: try it below.")
        return
    metrics = (await ctx.call(api_runs.metrics, model))["not_private"]
    found = metrics["verdict"]
    with card("Is it any good?", tag=layout.NOT_PRIVATE):
        Notice(f"{found['words']} (Not private: keep it inside.)", found["grade"])
        beside = figures_beside(metrics)
        if len(beside) > 1:
            words = ", ".join(f"{name} {value:,.4g}" for name, value in beside.items())
            layout.horizontal_bars(beside, words, first=True)


def figures_beside(metrics: Json) -> dict[str, float]:
    """A model's score and those of what it has to beat, by what they are called.

    >>> figures_beside({"test": {"perplexity": 20.0, "uniform_perplexity": 800.0}})
    {'this model': 20.0, 'guessing': 800.0}
    """
    scores = metrics.get("test") or metrics.get("valid") or {}
    measure = next((name for name in MEASURES if name in scores), None)
    if measure is None:
        return {}
    named = {"this model": measure} | {
        words: f"{name}_{measure}" for name, words in _BESIDE.items()
    }
    values = {words: scores.get(key) for words, key in named.items()}
    return {w: float(v) for w, v in values.items() if isinstance(v, int | float)}


def _try(ctx: PageContext, model: Json) -> None:
    ctx.services.predictions.warm_up()
    why = WORDS["tasks_tried"].get(model["task"], "Write a text.") + " What you write is not kept."
    with card("Try it", why):
        text = layout.text_area("Your text").props("input-style='min-height: 5rem'")
        notice = Notice()
        shown = ui.element("div").props('aria-live="polite"')
        turn = 0

        async def predict(_: Any = None) -> None:
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
            try:
                answer = await _patiently(lambda: ctx.call(api.predict, model["id"], asked))
            finally:
                if mine == turn:
                    shown.clear()
            if mine != turn:
                return
            with shown:
                _answer(answer, text)

        text.on_value_change(ctx.on(predict, notice))


async def _patiently(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Ask again where a model had no time: the first question waits for it to be loaded."""
    for _ in range(_TRIES - 1):
        try:
            return await ask()
        except Busy:
            await asyncio.sleep(1)
    return await ask()


def _answer(answer: Json, text: ui.textarea) -> None:
    if "next" in answer:
        with layout.div("chips"):
            for word, chance in answer["next"]:
                if not word.strip() or "�" in word:
                    continue

                def add(word: str = word) -> None:
                    text.value = (text.value or "") + word

                likely = f"{chance:.0%}" if chance >= 0.01 else "under 1%"
                made = button(f"{word.strip()} · {likely}", add, small=True)
                made.props["aria-label"] = f"Add {word.strip()}, {likely} likely"
        small("It would go on: <span class='textual'>{}</span>",
              answer["completion"][-200:].replace("�", ""))  # fmt: skip
    elif "probabilities" in answer:
        show("probabilities", answer["probabilities"], kind="chances")
    elif "tags" in answer:
        show("tags", answer["tags"])
    else:
        html("<p><b>{}</b></p>", number(answer.get("value")))


def _promise(ctx: PageContext, model: Json) -> None:
    with card("What is promised"):
        standing = model["standing"]
        known = model["protect"] in model["epsilon"] and standing == "proved"
        if known:
            show("promise", model["protected"], model["gain"])
            layout.figures((epsilon(value), f"epsilon for {unit_words(unit)}")
                           for unit, value in model["epsilon"].items())  # fmt: skip
        html("{} {}", fragment("tag", standing), WORDS["standings"].get(standing, ""), tag="p")
        if known:
            with layout.details("In exact words"):
                small("{} Delta, the chance that this fails altogether, is {}.", model["sentence"],
                      up(model["delta"]))  # fmt: skip
        with layout.details("What is not covered"):
            show("items", model["not_covered"], kind="small", tag="ul")
        notice = Notice()
        checks = html("")

        async def verify() -> None:
            found = await ctx.call(api.verify, model["id"])
            notice.show(verdict(found), "good" if found["ok"] else "bad")
            checks.set_content(fragment("check_list", found))

        button("Verify the certificate", ctx.on(verify, notice)).style("margin-top: 1rem")
        small("Recomputes epsilon from the list of what was released, and compares every file.")


def verdict(found: Json) -> str:
    """What a verification says, in a sentence."""
    if not found["ok"]:
        return "The certificate does not hold: see which check failed."
    if found["standing"] != "proved":
        return f"The files fit together, but the promise is only {found['standing']}."
    return "Everything matches: the certificate holds."


def _report(model: str) -> None:
    address = f"/runs/{model}/report"
    with card("Report", "Usefulness, promise and what attacks measured, on one page.",
              tag=layout.NOT_PRIVATE):  # fmt: skip
        shown = html("")
        frame = fragment("frame", "Report", address)
        with layout.div("line", "margin-bottom: .8rem"):
            button("Show the report", lambda: shown.set_content(frame))
            layout.link_button("In a tab of its own", address, new=True)
            shareable = f"{address}?shareable=true"
            layout.link_button("Without what is not private", shareable, new=True)


async def _attacks(ctx: PageContext, model: str) -> None:
    with card("Put it to the test", "Attack the model, to see whether what it gives away fits its "
              "promise. What is found stands in the report."):  # fmt: skip
        notice = Notice()

        def order(call: Any, asked: Any) -> Any:
            async def begin() -> None:
                await ctx.call(call, model, asked)
                await jobs.show()

            return ctx.on(begin, notice)

        with layout.div("line"):
            button("Attack it", order(api_runs.add_attack, api_runs.NewAttack()))
            button("Audit its epsilon", order(api_runs.add_audit, api_runs.NewAudit()))
            evaluate = order(api_runs.add_evaluation, api_runs.NewEvaluation())
            button("Score it on the test records", evaluate)

        async def fill() -> bool:
            found = await ctx.call(api_runs.jobs_of, model)
            if found:
                show("jobs_table", found[:10], kind="scroll-x")
            return any(job["state"] in ("queued", "running") for job in found)

        jobs = layout.Refreshable(ctx, fill, notice)
        await jobs.show()


def _delete(ctx: PageContext, model: Json) -> None:
    with card("Delete the model", "The weights, the scores and what attacks found are deleted for "
              "good; copies that somebody downloaded are theirs. The list of what was released is "
              "kept, and what was spent stays spent."):  # fmt: skip
        notice = Notice()

        async def delete() -> None:
            await ctx.call(api.delete, model["id"])
            ui.navigate.to("/models")

        question = f"Delete the model {model['name']}? It cannot be brought back."
        layout.confirm(button("Delete for good …", kind="bad"), question, ctx.on(delete, notice))


@layout.page("/check", "Verify a certificate")
async def check(ctx: PageContext) -> None:
    """For a model from anywhere."""
    layout.title("Verify a certificate", "Of a model that somebody gave you: is what it promises "
                 "what was really done?")  # fmt: skip
    with card("Its files", "The zip of the model, or certificate.json and ledger.jsonl of it. "
              "Nothing is kept."):  # fmt: skip
        found = ctx.flash.pop("verify", {})
        if "refused" in found:
            Notice(found["refused"])
        elif found:
            result = found["ok"]
            Notice(verdict(result), "good" if result["ok"] else "bad")
            show("check_list", result)
        show("check_form", ctx.form_key, ctx.services.settings.upload_bytes)
