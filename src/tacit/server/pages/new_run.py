"""A new run, in three steps: whom to protect, at what price, and what that does before it is done.

What to expect stands beside every step; what few people change is folded away in the last.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from markdown_it import MarkdownIt
from nicegui import ui

from tacit.errors import TacitError, UsageError
from tacit.privacy.rounding import up
from tacit.server import Json
from tacit.server.api import datasets as api
from tacit.server.api import models as api_models
from tacit.server.api import runs as api_runs
from tacit.server.errors import NotAuthenticated
from tacit.server.pages import layout
from tacit.server.pages.datasets import detector_boxes
from tacit.server.pages.layout import button, card, html, small
from tacit.server.pages.page_context import Notice, PageContext, sentence_of
from tacit.server.pages.rendering import WORDS, duration, epsilon, fragment, kind_word, number
from tacit.server.run_requests import RunRequest
from tacit.training.methods import DEFAULT_METHOD, METHODS

if TYPE_CHECKING:  # it loads torch, which pages need only once a method is looked at
    from tacit.training.methods.method import MethodSpec

STEPS = ("Whom to protect", "Price", "Train")
"""Of the path, those on this page."""
AUTO = "auto"
USUAL = (100, 0.1)
"""Steps, and the share in each, where a method needs them and no recipe chooses."""
_QUIET_SECONDS = 0.45
"""Nothing is computed while somebody still moves a slider or types."""


@layout.page("/datasets/{dataset}/new-run", "New run")
async def new_run(ctx: PageContext, dataset: str) -> None:
    """The form on the left, what it would do on the right."""
    ctx.caller.require("plan")
    found = await ctx.call(api.dataset_, dataset)
    lists = await ctx.call(api.lists, dataset)
    models = await ctx.call(api_models.models)
    status = await ctx.call(api.budget, dataset)
    mine = {run["run"] for run in status["runs"]}
    asked = ui.context.client.request.query_params.get("at", "")
    path = layout.way(dataset, STEPS[0], inside=True)
    crumbs = [("/datasets", "Datasets"), (f"/datasets/{dataset}", found["name"])]
    layout.title("New run", "Nothing is spent until you start.", crumbs=crumbs)
    if not found["not_private"]["records"]:
        Notice("The dataset has no record to learn from yet.", "warn")
        layout.link_button("Add text", f"/datasets/{dataset}", kind="main")
        return
    with layout.div("split"):
        with ui.element("div"):
            form = RunForm(found, lists, [m for m in models if m["id"] in mine], path)
        with layout.div("sticky"):
            plan = LivePlan(ctx, dataset, status, form)
    form.on_change(plan.refresh)
    form.on_step = plan.at_step
    form.go({"price": STEPS[1], "train": STEPS[2]}.get(asked, STEPS[0]))
    ui.timer(0, plan.refresh, once=True)


def model_fields(preset: str, task: str) -> Json:
    """What a request says of a model and its task.

    Adam's steps have one size however loud the noise is, so nothing runs away on a small dataset.
    """
    fields: Json = {name: v for name, v in WORDS["presets"][preset].items() if name != "label"}
    if task != "next-word":
        # How frequent words are helps to guess words only.
        fields["model"] = fields["model"] | {"public_frequencies": False}
    return fields | {"optimizer": {"name": "adam", "learning_rate": 2e-3}, "task": task}


class RunForm:
    """What somebody chose."""

    def __init__(self, dataset: Json, lists: list[Json], models: list[Json], path: ui.html) -> None:
        limits = dataset["budget"]["limits"] or {}
        whom = "users+names" if any("names" in unit for unit in limits) else "users"
        whom = "both" if any("entities" in unit for unit in limits) else whom
        self._dataset, self._path = dataset["id"], path
        self.on_step: Callable[[str], None] = lambda _: None
        self._panels = {step: ui.element("div") for step in STEPS}
        with self._panels[STEPS[0]]:
            self._what()
            self._whom(whom, lists)
            self._move(f"Next: {STEPS[1].lower()}", STEPS[1])
        with self._panels[STEPS[1]]:
            self._price(max(1.0, float(min(limits.values(), default=8.0))))
            self._move(f"Next: {STEPS[2].lower()}", STEPS[2], back=STEPS[0])
        with self._panels[STEPS[2]]:
            self._how(models)
            self._move("", "", back=STEPS[1])
        self.epsilon.on_value_change(lambda e: self._same(self.exactly, e.value))
        self.exactly.on_value_change(lambda e: self._same(self.epsilon, e.value))
        for part in (self.method, self.whom, self.task, self.preset, self.start):
            part.on_value_change(self._fit)
        self._fit()

    def _move(self, name: str, to: str, *, back: str = "") -> None:
        with layout.div("line next"):
            if name:
                button(name, lambda: self.go(to), kind="main")
            if back:
                button("Back", lambda: self.go(back))

    def go(self, step: str) -> None:
        """Show one of the steps."""
        for name, panel in self._panels.items():
            panel.set_visibility(name == step)
        self._path.set_content(fragment("path", self._dataset, step, "", True))
        self.on_step(step)
        ui.run_javascript("scrollTo(0, 0)")

    def _what(self) -> None:
        with card("What for"), layout.div("fields full"):
            self.task = layout.select("What the model is to do", WORDS["tasks"], "next-word")
            self.labels = layout.text_field("Labels, with commas between them")
            self._labels_why = small(
                "Such as work, home. They are released with the model, so write down those that "
                "you knew before: labels counted from this dataset would end the promise."
            )

    def _how(self, models: list[Json]) -> None:
        methods = {spec.name: spec.title for spec in METHODS.values()}
        starts = {m["id"]: f"{m['name']} (go on)" for m in models}
        with card("Train"), layout.div("fields full"):
            self.name = layout.text_field("Name of the run", value="my first model")
            self.start = layout.select("Begin with", {"": "Nothing: a new model"} | starts, "")
            self.start.set_visibility(bool(models))
        why = ("Chosen for you from the numbers that you declared, before any text is read; change "
               "them if you know better.")  # fmt: skip
        with card("All settings", why), layout.details("Change the method, the model or the steps"):
            self._settings(methods)

    def _settings(self, methods: dict[str, str]) -> None:
        presets = {name: preset["label"] for name, preset in WORDS["presets"].items()}
        chosen = {AUTO: "Chosen for you, with all settings (recommended)"}
        with layout.div("fields full"):
            self.method = layout.select("Method", methods, DEFAULT_METHOD)
            self.policy = layout.select("Which words to protect", WORDS["policies"], "digits")
            self.preset = layout.select("Model", chosen | presets, AUTO)
            with layout.div("pair"):
                self.steps = layout.number_field("Steps", min=1, max=10**7, format="%d")
                self.rate = layout.number_field("Share in a step", min=1e-6, max=1, step=0.05)
            small("Learning goes in steps. In each, every user takes part with this chance "
                  "(Poisson sampling): 0.1 is one in ten. With a model that is chosen for you, so "
                  "is what you leave empty.")  # fmt: skip

    def _whom(self, whom: str, lists: list[Json]) -> None:
        named = {one["id"]: f"{one['name']} ({one['count']} names)" for one in lists}
        with card("Whom to protect"):
            self.whom = ui.radio(WORDS["protect"], value=whom)
            self._promise = small("")
            with layout.div("fields full", "margin-top: .9rem"):
                self.users = layout.number_field(
                    "About how many users there are", min=1, max=10**9, format="%d"
                )
                self.records = layout.number_field(
                    "About how many texts there are", min=1, max=10**9, format="%d"
                )
                self._users_why = small(
                    "Round numbers that you knew before, such as 100. They are public, so they "
                    "must not be counted from this dataset. Texts may be left empty."
                )
            with layout.details("What counts as an entity or a name") as self._entities:
                self.detectors = detector_boxes("Look for")
                small("{}", WORDS["no_names"])
                with layout.div("fields full", "margin-top: .6rem"):
                    self._which(named)

    def _which(self, named: dict[str, str]) -> None:
        self.kinds = ui.select(
            {k: kind_word(k) for k in WORDS["common_kinds"]},
            label="Only these kinds (all if none is chosen)", multiple=True, value=[],
        ).props("outlined dense use-chips hide-bottom-space")  # fmt: skip
        everything = {"": "No list: everything that is found"}
        self.list = layout.select("Only what a list names", everything | named, "")

    def _price(self, top: float) -> None:
        with card("At what price", "A smaller epsilon hides people better, with more noise."):
            html("Epsilon", tag="div").classes("small").props("id=epsilon-name")
            with layout.div("line"):
                self.epsilon = ui.slider(min=0.1, max=top, step=0.1, value=min(4.0, top))
                self.epsilon.props('aria-labelledby="epsilon-name"').style("flex: 1 1 12rem")
                self.exactly = layout.number_field("", min(4.0, top), min=0.01, step=0.1)
                self.exactly.props('aria-label="Epsilon, exactly"').style("width: 6rem")
            with layout.details("What is epsilon?"):
                small("{}", WORDS["epsilon"])

    @staticmethod
    def _same(other: Any, value: Any) -> None:
        if value is not None and other.value != value:
            other.value = value

    def _fit(self, _: Any = None) -> None:
        """Show what the method has."""
        method = METHODS[self.method.value]
        chooses = len(method.protects) > 1
        self.whom.set_visibility(chooses)
        self.policy.set_visibility(method.protects_tokens)
        finds = method.needs_entities or (chooses and self.whom.value != "users")
        self._entities.set_visibility(finds)
        names = chooses and "names" in self.whom.value
        self.list.set_visibility(finds and not names)
        self._promise.set_content(WORDS["promises"][self.whom.value] if chooses else "")
        # Where entities are protected, who wrote how much is held fixed, so it may be counted.
        asked = method.planned and not method.protects_tokens and (names or not finds)
        self.users.set_visibility(asked)
        self.records.set_visibility(self.by_recipe)
        self._users_why.set_visibility(asked or self.by_recipe)
        labelled = self.task.value != "next-word"
        self.labels.set_visibility(labelled)
        self._labels_why.set_visibility(labelled)
        for part in (self.epsilon, self.exactly):
            part.set_enabled(method.planned)
        self.rate.set_enabled(method.planned or method.takes("user_rate"))
        before, after = ((None, None), USUAL) if not self.by_recipe else (USUAL, (None, None))
        if (self.steps.value, self.rate.value) == before:  # nobody has said anything
            self.steps.value, self.rate.value = after

    @property
    def by_recipe(self) -> bool:
        """Whether a recipe chooses what is left empty; it knows this method and these tasks."""
        own = self.method.value == DEFAULT_METHOD and self.task.value != "tagging"
        return bool(own and self.preset.value == AUTO and not self.start.value)

    def on_change(self, act: Any) -> None:
        """Call whenever anything changes."""
        parts: Iterable[Any] = (
            self.method, self.task, self.preset, self.start, self.whom, self.kinds, self.list,
            self.policy, self.exactly, self.steps, self.rate, self.users, self.records, self.labels,
            *self.detectors.values(),
        )  # fmt: skip
        for part in parts:
            part.on_value_change(act)

    def asked(self) -> RunRequest:
        """The same as a request to the API."""
        name = layout.written(self.name, "Give the run a name.")
        if not self.steps.value and not self.by_recipe:
            raise UsageError("Say how many steps.")
        method = METHODS[self.method.value]
        preset = "small" if self.preset.value == AUTO else self.preset.value
        # The method is left to the recipe, too: for a classifier it may take another.
        model = (
            {"recipe": "auto", "task": self.task.value}
            if self.by_recipe
            else model_fields(preset, self.task.value) | {"method": method.name}
        )
        fields: Json = {"name": name, **model}
        if self.labels.visible and (labels := _labels(self.labels.value)):
            fields["labels"] = labels
        if method.planned:
            fields["plan"] = self._plan(method)
        else:
            fields["steps"] = int(self.steps.value)
            if method.takes("user_rate") and self.rate.value:
                fields["method_settings"] = {"user_rate": float(self.rate.value)}
        if method.protects_tokens:
            fields["policy"] = self.policy.value
        if self._entities.visible:
            fields["detectors"] = tuple(n for n, box in self.detectors.items() if box.value)
            if not fields["detectors"]:
                raise UsageError(
                    "Say what counts as an entity or a name: choose at least one detector."
                )
            if self.kinds.value and method.planned:
                fields["plan"]["kinds"] = list(self.kinds.value)
            fields["entity_list"] = (self.list.value or None) if self.list.visible else None
        if self.start.value:
            fields["continue_from"] = self.start.value
            del fields["tokenizer"]
        return RunRequest(**fields)

    def _plan(self, method: "MethodSpec[Any]") -> Json:
        if not self.exactly.value or not (self.rate.value or self.by_recipe):
            raise UsageError("Say which epsilon, and how large a share takes part in a step.")
        rate = "record_rate" if method.protects_tokens else "user_rate"
        whom = self.whom.value if len(method.protects) > 1 else method.protects[0]
        plan: Json = {"protect": whom, "epsilon": float(self.exactly.value)}
        if self.steps.value:
            plan["steps"] = int(self.steps.value)
        if self.rate.value:
            plan[rate] = float(self.rate.value)
        if self.users.visible:
            if not self.users.value:
                raise UsageError(
                    "Say about how many users there are, a round number that you knew before."
                )
            plan["users"] = int(self.users.value)
        if self.records.visible and self.records.value:
            plan["records"] = int(self.records.value)
        return plan


def _labels(written: str | None) -> tuple[str, ...]:
    """The labels of a line, each once, in its order."""
    parts = (part.strip() for part in (written or "").split(","))
    return tuple(dict.fromkeys(part for part in parts if part))


class LivePlan:
    """What the choices would do, computed anew a moment after each change."""

    def __init__(self, ctx: PageContext, dataset: str, status: Json, form: RunForm) -> None:
        self.ctx, self.dataset, self.status, self.form = ctx, dataset, status, form
        self._turn = 0
        self._one = asyncio.Lock()
        with card("What this run would do") as self._card:
            self._busy = html("Computing …").classes("busy-note").props('role="status"')
            self._notice = Notice()
            self._expect = html("")
            self._start = button("Start the run", ctx.on(self._begin, self._notice), kind="main")
            self._note = small("")
            self._words = html("")
            self._plot = layout.plot(_path_options([]), "Epsilon over the steps", short=True)
            self._more = html("")
            with layout.details("In exact words, and what is not covered"):
                self._exact = ui.html("", sanitize=True).classes("prose small")
            with layout.details("The same as a command line"):
                self._command = html("")

    def at_step(self, step: str) -> None:
        """Only the last step starts: a page has one thing to do."""
        self._start.set_visibility(step == STEPS[-1])

    async def refresh(self, _: Any = None) -> None:
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
        plan: Json | None = None
        try:
            asked = self.form.asked()
            plan = await self.ctx.call(api.plan, self.dataset, asked)
            if turn != self._turn:
                return
            self._show(plan)
            if plan.get("epsilon"):
                path = await self.ctx.call(api.plan_path, self.dataset, asked)
                if turn == self._turn:
                    self._draw(path)
        except NotAuthenticated:
            ui.navigate.to("/sign-in")
        except Exception as error:
            # What is still to be said is no fault.
            kind = "plain" if isinstance(error, UsageError) else "bad"
            self._notice.show(sentence_of(error), kind)
            self._expect.set_content("")
            self._words.set_content("")
            self._more.set_content("")
            self._plot.set_visibility(False)
            self._start.set_enabled(False)
        finally:
            if turn == self._turn:
                self._busy.set_content("")
                self._card.classes(remove="working")

    def _show(self, plan: Json) -> None:
        if plan["refused"]:
            self._notice.show(f"This run would be refused. {plan['refused']}")
        elif plan["unproved"]:
            self._notice.show(plan["unproved"] + " Its model will carry a warning.", "warn")
        else:
            self._notice.clear()
        self._start.set_enabled(plan["fits_budget"])
        method = METHODS[plan["method"]].title
        said = fragment("plan_expect", plan, method, self.form.by_recipe)
        self._expect.set_content(said)
        self._words.set_content(fragment("plan_promise", plan, main_unit(plan)))
        self._plot.set_visibility(bool(plan.get("epsilon")))
        self._more.set_content(fragment("plan_effects", plan, self.status))
        self._exact.set_content(str(MarkdownIt().render(plan.get("explained", ""))))
        self._command.set_content(fragment("command", plan))
        seconds = plan.get("seconds")
        lasts = f"{duration(seconds)}, " if seconds is not None else ""
        words = f"Time to train, after some seconds to begin: {lasts}{plan.get('seconds_note')}."
        self._note.set_content(words if plan.get("epsilon") else "")

    def _draw(self, path: list[list[float]]) -> None:
        points = ", ".join(f"{epsilon(e)} after {number(s)}" for s, e in path)
        self._plot.props["aria-label"] = f"Epsilon over the steps: {points}"
        layout.redraw(self._plot, _path_options(path))

    async def _begin(self) -> None:
        self._start.set_enabled(False)
        try:
            asked = self.form.asked()
            made = await self.ctx.call(api_runs.add_run, self.dataset, asked)
        except TacitError:
            self._start.set_enabled(True)
            raise
        ui.navigate.to(f"/runs/{made['id']}")


def main_unit(plan: Json) -> str:
    """Whom a plan is about: the broadest that it bounds."""
    bounded = plan.get("epsilon") or {}
    for unit in (
        "users+entities",
        "entities",
        "users+names",
        "names",
        "users",
        "records",
        "tokens",
    ):
        if unit in bounded and f"protect: {unit}" in plan["plan"]:
            return unit
    return str(next(iter(bounded), ""))


def _path_options(path: list[list[float]]) -> Json:
    points = [[step, float(up(epsilon))] for step, epsilon in path]
    line = layout.curve("epsilon", layout.BLUE, points, smooth=0.35, symbolSize=7,
                        areaStyle={"color": layout.BLUE, "opacity": 0.1})  # fmt: skip
    x = {"name": "steps", "min": 0, "max": path[-1][0] if path else None}
    return layout.axes(x, {"name": "epsilon so far", "min": 0}, [line])
