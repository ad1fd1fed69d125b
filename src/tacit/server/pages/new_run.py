"""A new run: choose how, whom and at what price, and see what that would do before it is done."""

import asyncio
from collections.abc import Iterable
from typing import Any

from markupsafe import Markup
from nicegui import ui

from tacit.errors import TacitError, UsageError
from tacit.privacy.rounding import up
from tacit.server.api import datasets as api
from tacit.server.api import models as api_models
from tacit.server.api import runs as api_runs
from tacit.server.errors import NotKnown
from tacit.server.pages import layout
from tacit.server.pages.datasets import DETECTORS, NO_NAMES, budget_meters, kind_word
from tacit.server.pages.layout import Box, button, card, html, number
from tacit.server.pages.visits import Visit, sentence_of
from tacit.server.run_requests import RunRequest
from tacit.training.settings import PLANNED

_QUIET_SECONDS = 0.45
"""Nothing is computed while somebody still moves a slider or types."""

METHOD_WORDS = {
    "private": "Private: every step is clipped and noised (recommended)",
    "fedavg": "Federated averaging: users train by themselves, their updates are noised",
    "selective": "Selective: only words that a rule marks are protected",
    "redact-then-private": "First on masked text, then on all of it with noise",
    "deidentify": "Replace what was found by its kind, then train; proves nothing",
    "uedp": "The user-entity algorithm as published; its claim is not proved here",
    "adversarial": "Hide authors by a discriminator; proves nothing",
    "triplet": "Hide authors by drawing their states together; proves nothing",
    "plain": "Without protection; proves nothing",
}
WHOM_WORDS = {
    "users": "Users: everything that one person wrote",
    "entities": "Entities: somebody or something that texts name, whoever names it",
    "both": "Both at once",
}
_ADAM = {"name": "adam", "learning_rate": 2e-3}
"""Its steps have one size however loud the noise is, so nothing runs away on a small dataset."""


def _lstm(size: int, layers: int) -> dict[str, Any]:
    sizes = {"embedding_size": size, "hidden_size": size, "layers": layers}
    return {"kind": "lstm", "config": sizes, "public_frequencies": True}


PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "trial": (
        "Trial: a tiny LSTM, seconds to train; learns next to nothing",
        {"model": _lstm(16, 1),
         "tokenizer": {"size": 400}, "context": 32, "optimizer": _ADAM},
    ),
    "small": (
        "Small: an LSTM of one layer of 128",
        {"model": _lstm(128, 1),
         "tokenizer": {"size": 2000}, "context": 64, "optimizer": _ADAM},
    ),
    "medium": (
        "Medium: an LSTM of two layers of 256",
        {"model": _lstm(256, 2),
         "tokenizer": {"size": 4000}, "context": 128, "optimizer": _ADAM},
    ),
    "transformer": (
        "Transformer: a small GPT-2 (four layers of 128)",
        {"model": {"kind": "gpt2", "config": {"layers": 4, "hidden_size": 128, "heads": 4,
                                              "dropout": 0.0}},
         "tokenizer": {"size": 4000}, "context": 128, "optimizer": _ADAM},
    ),
}  # fmt: skip
TASK_WORDS = {
    "next-word": "Suggest the next words",
    "classification": "Say which label a text has",
    "tagging": "Mark words in a text (needs tags in the records)",
}


@layout.page("/datasets/{dataset}/new-run", "New run")
async def new_run(visit: Visit, dataset: str) -> None:
    """The form on the left, what it would do on the right."""
    visit.caller.need("plan")
    found = await visit.call(api.dataset_, dataset)
    lists = await visit.call(api.lists, dataset)
    models = [m for m in await visit.call(api_models.models)]
    status = await visit.call(api.budget, dataset)
    mine = {run["run"] for run in status["runs"]}
    crumbs = [("/datasets", "Datasets"), (f"/datasets/{dataset}", found["name"])]
    layout.title(
        "New run",
        "Choose whom to protect and at what price, and see what that would promise and cost. "
        "Nothing is spent until you start.",
        crumbs=crumbs,
    )
    if not found["not_private"]["records"]:
        Box("The dataset has no record to learn from yet.", "warn")
        layout.way("Add text", f"/datasets/{dataset}")
        return
    with ui.element("div").classes("split"):
        with ui.element("div"):
            form = RunForm(found, lists, [m for m in models if m["id"] in mine])
        with ui.element("div").classes("sticky"):
            plan = LivePlan(visit, dataset, status, form)
    form.on_change(plan.soon)
    ui.timer(0, plan.soon, once=True)


def model_fields(preset: str, task: str) -> dict[str, Any]:
    """What a request says of a model and its task."""
    _, fields = PRESETS[preset]
    model = dict(fields["model"])
    if task != "next-word":
        model.pop("public_frequencies", None)  # how frequent words are helps to guess words only
    return {**fields, "model": model, "task": task}


class RunForm:
    """What somebody chose."""

    def __init__(
        self, dataset: dict[str, Any], lists: list[dict[str, Any]], models: list[dict[str, Any]]
    ) -> None:
        limits = dataset["budget"]["limits"] or {}
        whom = "both" if "users+entities" in limits else "users"
        if "entities" in limits:
            whom = "both"
        limit = float(min(limits.values(), default=8.0))
        with card("How"), ui.element("div").classes("fields full"):
            self.name = layout.text_field("Name of the run", value="my first model")
            self.method = _select("Method", METHOD_WORDS, "private")
            self.task = _select("What the model is to do", TASK_WORDS, "next-word")
            self.preset = _select("Model", {k: v[0] for k, v in PRESETS.items()}, "small")
            self.start = _select(
                "Begin with",
                {"": "Nothing: a new model"} | {m["id"]: f"{m['name']} (go on)" for m in models},
                "",
            )
            self.start.set_visibility(bool(models))
        with card("Whom to protect"):
            self.whom = ui.radio(WHOM_WORDS, value=whom)
            with ui.element("div").classes("fields full").style("margin-top: .6rem") as entities:
                with ui.element("fieldset").style("margin: 0"):
                    html("What counts as an entity", tag="legend")
                    self.detectors = {
                        name: ui.checkbox(words, value=name != "gold")
                        for name, words in DETECTORS.items()
                    }
                html("{}", NO_NAMES, tag="p").classes("small")
                self.kinds = ui.select(
                    {k: kind_word(k) for k in _common_kinds()}, label="Only these kinds (all if "
                    "none is chosen)", multiple=True, value=[],
                ).props("outlined dense use-chips hide-bottom-space")  # fmt: skip
                self.list = _select(
                    "Only what a list names",
                    {"": "No list: everything that is found"}
                    | {one["id"]: f"{one['name']} ({one['count']} names)" for one in lists},
                    "",
                )
            self.policy = _select(
                "Which words to protect",
                {"digits": "Words with digits", "patterns": "What patterns find",
                 "lists": "What lists find", "digits+patterns+lists": "All of these"},
                "digits",
            )  # fmt: skip
            self._entities = entities
        with card("At what price", "A smaller epsilon hides people better, with more noise."):
            html("Epsilon", tag="div").classes("small").props("id=epsilon-name")
            with ui.element("div").classes("line"):
                top = max(limit, 1.0)
                self.epsilon = ui.slider(min=0.1, max=top, step=0.1, value=min(4.0, top))
                self.epsilon.props('aria-labelledby="epsilon-name"').style("flex: 1 1 12rem")
                self.exactly = ui.number(
                    value=min(4.0, top), min=0.01, format="%g", step=0.1
                ).props('outlined dense hide-bottom-space aria-label="Epsilon, exactly"')
                self.exactly.style("width: 6rem")
            with ui.element("div").classes("pair").style("margin-top: .9rem"):
                self.steps = ui.number("Steps", value=100, min=1, max=10**7, format="%d")
                self.rate = ui.number(
                    "Share in a step", value=0.1, min=1e-6, max=1, step=0.05, format="%g"
                )
                for part in (self.steps, self.rate):
                    part.props("outlined dense hide-bottom-space")
            self.users = ui.number(
                "About how many users there are", min=1, max=10**9, format="%d"
            ).props("outlined dense hide-bottom-space")
            self.users.style("margin-top: .9rem")
            self._users_why = html(
                "A round number that you knew before, such as 100. It is public, so it must not be "
                "counted from this dataset.",
                tag="p",
            ).classes("small")
            html("Learning goes in steps. In each, every user takes part with this chance: 0.1 is "
                 "one in ten.", tag="p").classes("small").style("margin-top: .5rem")  # fmt: skip
        self.epsilon.on_value_change(lambda e: self._same(self.exactly, e.value))
        self.exactly.on_value_change(lambda e: self._same(self.epsilon, e.value))
        self.method.on_value_change(self._fit)
        self.whom.on_value_change(self._fit)
        self._fit()

    @staticmethod
    def _same(other: Any, value: Any) -> None:
        if value is not None and other.value != value:
            other.value = value

    def _fit(self, _: Any = None) -> None:
        """Show what the method has."""
        tokens = self.method.value in ("selective", "redact-then-private")
        self.whom.set_visibility(self.method.value == "private")
        self.policy.set_visibility(tokens)
        finds = self.method.value in ("deidentify", "uedp") or (
            self.method.value == "private" and self.whom.value != "users"
        )
        self._entities.set_visibility(finds)
        # Where entities are protected, who wrote how much is held fixed, so it may be counted.
        counted = self.method.value not in ("private", "fedavg") or finds
        self.users.set_visibility(not counted)
        self._users_why.set_visibility(not counted)
        for part in (self.epsilon, self.exactly):
            part.set_enabled(self.method.value in PLANNED)
        self.rate.set_enabled(self.method.value in (*PLANNED, "uedp"))

    def on_change(self, act: Any) -> None:
        """Call whenever anything changes."""
        parts: Iterable[Any] = (
            self.method, self.task, self.preset, self.start, self.whom, self.kinds, self.list,
            self.policy, self.exactly, self.steps, self.rate, self.users,
            *self.detectors.values(),
        )  # fmt: skip
        for part in parts:
            part.on_value_change(act)

    def asked(self) -> RunRequest:
        """The same as a request to the API."""
        if not (self.name.value or "").strip():
            raise UsageError("Give the run a name.")
        if not self.steps.value:
            raise UsageError("Say how many steps.")
        method, steps = self.method.value, int(self.steps.value)
        fields: dict[str, Any] = {"name": self.name.value.strip(), "method": method,
                                  **model_fields(self.preset.value, self.task.value)}  # fmt: skip
        tokens = method in ("selective", "redact-then-private")
        if method in PLANNED:
            if not self.exactly.value or not self.rate.value:
                raise UsageError("Say which epsilon, and how large a share takes part in a step.")
            rate = "record_rate" if tokens else "user_rate"
            whom = "tokens" if tokens else "users" if method == "fedavg" else self.whom.value
            fields["plan"] = {"protect": whom, "epsilon": float(self.exactly.value),
                              "steps": steps, rate: float(self.rate.value)}  # fmt: skip
            if self.users.visible:
                if not self.users.value:
                    raise UsageError(
                        "Say about how many users there are, a round number that you knew before."
                    )
                fields["plan"]["users"] = int(self.users.value)
        else:
            fields["steps"] = steps
        if method == "uedp" and self.rate.value:
            fields["method_settings"] = {"user_rate": float(self.rate.value)}
        if tokens:
            fields["policy"] = self.policy.value
        if self._entities.visible:
            fields["detectors"] = tuple(n for n, box in self.detectors.items() if box.value)
            if not fields["detectors"]:
                raise UsageError("Say what counts as an entity: choose at least one way to look.")
            if self.kinds.value and method == "private":
                fields["plan"]["kinds"] = list(self.kinds.value)
            fields["entity_list"] = self.list.value or None
        if self.start.value:
            fields["continue_from"] = self.start.value
            for made_new in ("tokenizer",):
                fields.pop(made_new)
        return RunRequest(**fields)


class LivePlan:
    """What the choices would do, computed anew a moment after each change."""

    def __init__(self, visit: Visit, dataset: str, status: dict[str, Any], form: RunForm) -> None:
        self.visit, self.dataset, self.status, self.form = visit, dataset, status, form
        self._turn = 0
        self._one = asyncio.Lock()
        with card("What this run would do") as self._card:
            self._busy = html("Computing …").classes("busy-note").props('role="status"')
            self._said = Box()
            self._words = html("")
            self._plot = layout.plot(_path_options([]), "Epsilon over the steps", short=True)
            self._more = html("")
            with ui.element("div").classes("line").style("margin-top: 1rem"):
                self._start = button(
                    "Start the run", visit.on(self._begin, self._said), kind="main"
                )
            self._note = html("", tag="p").classes("small")
            with layout.more("In exact words, and what is not covered"):
                self._exact = ui.html("", sanitize=True).classes("prose small")
            with layout.more("The same as a command line"):
                self._command = html("")

    async def soon(self, _: Any = None) -> None:
        """Look again, unless something changes meanwhile."""
        self._turn += 1
        turn = self._turn
        self._busy.set_content("Computing …")
        self._card.classes("working")
        await asyncio.sleep(_QUIET_SECONDS)
        if turn != self._turn:
            return
        async with self._one:
            if turn == self._turn:
                await self._look(turn)

    async def _look(self, turn: int) -> None:
        plan: dict[str, Any] | None = None
        try:
            asked = self.form.asked()
            plan = await self.visit.call(api.plan, self.dataset, asked)
            if turn != self._turn:
                return
            self._show(plan)
            if plan.get("epsilon"):
                path = await self.visit.call(api.plan_path, self.dataset, asked)
                if turn == self._turn:
                    self._draw(path, plan)
        except NotKnown:
            ui.navigate.to("/sign-in")
        except Exception as error:
            self._said.say(sentence_of(error))
            self._words.set_content("")
            self._more.set_content("")
            self._plot.set_visibility(False)
            self._start.set_enabled(False)
        finally:
            if turn == self._turn:
                self._busy.set_content("")
                self._card.classes(remove="working")

    def _show(self, plan: dict[str, Any]) -> None:
        if plan["refused"]:
            self._said.say(f"This run would be refused. {plan['refused']}")
        elif plan["unproved"]:
            self._said.say(plan["unproved"] + " Its model will carry a warning.", "warn")
        else:
            self._said.clear()
        self._start.set_enabled(plan["fits_budget"])
        self._words.set_content(promise_words(plan))
        self._plot.set_visibility(bool(plan.get("epsilon")))
        self._more.set_content(_what_is_kept(plan) + _budget_after(self.status, plan))
        self._exact.set_content(_rendered(plan.get("explained", "")))
        self._command.set_content(_command_words(plan))
        seconds = plan.get("seconds")
        self._note.set_content(
            Markup("Time to train, after some seconds to begin: {}{}.").format(
                f"{layout.lasting(seconds)}, " if seconds is not None else "",
                plan.get("seconds_note", ""),
            )
            if plan.get("epsilon")
            else ""
        )

    def _draw(self, path: list[list[float]], plan: dict[str, Any]) -> None:
        self._plot.options.clear()
        self._plot.options.update(_path_options(path))
        self._plot.props["aria-label"] = "Epsilon over the steps: " + ", ".join(
            f"{layout.epsilon(e)} after {number(s)}" for s, e in path
        )
        self._plot.update()

    async def _begin(self) -> None:
        self._start.set_enabled(False)
        try:
            asked = self.form.asked()
            made = await self.visit.call(api_runs.add_run, self.dataset, asked)
        except TacitError:
            self._start.set_enabled(True)
            raise
        ui.navigate.to(f"/runs/{made['id']}")


def promise_words(plan: dict[str, Any]) -> Markup:
    """What a plan promises, so that somebody who never heard of epsilon knows."""
    if not plan.get("epsilon"):
        return Markup(
            '<p class="plainly">Nothing is promised: the model may repeat text that it learned '
            "from.</p><p>Its promise is {}</p>"
        ).format(layout.tag(plan["standing"]))
    protect = main_unit(plan)
    words = plain_promise(plan["protected"], plan.get("gain"))
    words += Markup('<div class="figures">{}</div>').format(
        layout.figures_markup(
            [
                (layout.epsilon(plan["epsilon"][protect]), "epsilon: how much may show"),
                (number(plan["noise_multiplier"]), "noise, over the most that one person adds"),
                (layout.tag(plan["standing"]), "how sure this promise is"),
            ]
        )
    )
    return words


def plain_promise(protected: list[str], gain: dict[str, str] | None) -> Markup:
    """Who is protected and how well, in the certificate's own words."""
    said = Markup('<p class="plainly"><b>Who is protected.</b> {}</p>').format(
        protected[0] if protected else ""
    )
    if gain is not None:
        said += Markup(
            '<p class="plainly"><b>The protection is {}.</b> {}</p><p class="small">{}</p>'
        ).format(gain["grade"], gain["verdict"], gain["figures"])
    return said


def main_unit(plan: dict[str, Any]) -> str:
    """Whom a plan is about: the broadest that it bounds."""
    for unit in ("users+entities", "entities", "users", "records", "tokens"):
        if unit in plan["epsilon"] and f"protect: {unit}" in plan["plan"]:
            return unit
    return str(next(iter(plan["epsilon"])))


def _what_is_kept(plan: dict[str, Any]) -> Markup:
    counts = plan.get("not_private")
    if not counts:
        return Markup()
    words = Markup(
        '<h3>What it learns from <span class="tag">not private: keep inside</span></h3><p>{} of {} '
        "records are kept, {} are left out</p>"
    ).format(number(counts["kept"]), number(counts["records"]), number(counts["dropped"]))
    if counts["dropped"]:
        why = {"users_per_entity": "too many users share what they name",
               "records_per_user_entity": "one user names the same thing in too many"}  # fmt: skip
        parts = ", ".join(
            f"{number(v)} because {why.get(k, k)}" for k, v in counts["dropped_by"].items() if v
        )
        words += Markup('<p class="small">{}. A bound on how often one entity may appear is what '
                        "lets its promise hold.</p>").format(parts)  # fmt: skip
    return words


def _budget_after(status: dict[str, Any], plan: dict[str, Any]) -> Markup:
    if not status["limits"]:
        return Markup()
    return Markup(
        '<h3>The dataset\'s budget</h3>{}<p class="small">Hatched: what this run would add, at '
        "most.</p>"
    ).format(budget_meters(status, plan.get("epsilon") or {}))


def _rendered(text: str) -> str:
    from markdown_it import MarkdownIt

    return str(MarkdownIt().render(text))


def _command_words(plan: dict[str, Any]) -> Markup:
    text = f"cat > run.yml <<'END'\n{plan['run'].strip()}\nEND\n{plan['command']}"
    return Markup(
        '<p class="small">With the dataset\'s records in <code>corpus.jsonl</code>:</p>'
        '<button type="button" class="quiet" data-copy="the-command">Copy</button>'
        '<pre class="code" tabindex="0" id="the-command">{}</pre>'
    ).format(text)


def _path_options(path: list[list[float]]) -> dict[str, Any]:
    return layout.axes(
        {"type": "value", "name": "steps", "nameLocation": "middle", "nameGap": 26, "min": 0,
         "max": path[-1][0] if path else None},
        {"type": "value", "name": "epsilon so far", "min": 0,
         "nameTextStyle": {"align": "left", "color": layout.GREY}},
        [{"type": "line", "name": "epsilon", "smooth": 0.35, "symbolSize": 7,
          "lineStyle": {"width": 2.5, "color": layout.BLUE}, "itemStyle": {"color": layout.BLUE},
          "areaStyle": {"color": layout.BLUE, "opacity": 0.1},
          "data": [[step, float(up(epsilon))] for step, epsilon in path]}],
        grid={"left": 8, "right": 18, "top": 34, "bottom": 24, "containLabel": True},
    )  # fmt: skip


def _select(label: str, options: dict[str, str], value: str) -> ui.select:
    made = ui.select(options, label=label, value=value)
    return made.props("outlined dense hide-bottom-space options-dense=false")


def _common_kinds() -> tuple[str, ...]:
    return ("PERSON", "ORG", "GPE", "LOC", "DATE", "PRODUCT", "PII", "PII/EMAIL", "PII/PHONE",
            "PII/ADDRESS", "PII/ORDER", "PII/TRACKING", "PII/CARD", "PII/IBAN", "PII/SSN",
            "PII/ID", "PII/DIAGNOSIS", "PII/SYMPTOM")  # fmt: skip
