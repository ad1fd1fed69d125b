"""Runs: the list, and one of them as it happens."""

import re
from typing import Any

from markupsafe import Markup
from nicegui import ui

from tacit.server.api import runs as api
from tacit.server.errors import NotKnown
from tacit.server.jobs import ENDED
from tacit.server.pages import layout
from tacit.server.pages.datasets import runs_table
from tacit.server.pages.layout import UNIT_WORDS, Box, button, card, html, number
from tacit.server.pages.new_run import plain_promise
from tacit.server.pages.visits import Visit, sentence_of

_SPENT = re.compile(r"epsilon <= ([\d.e+-]+) of ([\d.e+-]+)")
STATES = {
    "queued": "Waiting for its turn.",
    "running": "Learning.",
    "cancelling": "Stopping.",
    "cancelled": "Stopped. What was released so far stays charged to the budget; the rest is free "
    "again.",
    "failed": "It ended with an error.",
    "done": "The model is ready.",
    "deleted": "The model is gone; the list of what it released is kept.",
}


@layout.page("/runs", "Runs")
async def all_runs(visit: Visit) -> None:
    """The latest first."""
    found = await visit.call(api.runs)
    layout.title("Runs", "Every time that a model learned from a dataset, or tried to.")
    if found:
        with ui.element("section").classes("card"):
            html("{}", runs_table(found)).classes("scroll-x")
    else:
        html("None yet: open a dataset and start one.", tag="p").classes("why")
        layout.way("Datasets", "/datasets")


@layout.page("/runs/{run}", "Run")
async def one_run(visit: Visit, run: str) -> None:
    """Live, until it ends; the same after a reload."""
    found = await visit.call(api.run_, run)
    layout.title(found["name"], crumbs=[("/runs", "Runs")])
    watching = Watching(visit, run)
    await watching.look()
    if found["state"] not in ENDED:
        timer = ui.timer(1.0, watching.look)
        watching.until_end(timer)


class Watching:
    """A run in a browser."""

    def __init__(self, visit: Visit, run: str) -> None:
        self.visit, self.run = visit, run
        self._lines: list[dict[str, Any]] = []
        self._timer: ui.timer | None = None
        self._state = ""
        with ui.element("section").classes("card"):
            self._head = html("").props('role="status" aria-live="polite"')
            self._said = Box()
            self._bar = html("")
            with ui.element("div").classes("line").style("margin-top: .9rem"):
                self._stop = button("Stop", visit.on(self._cancel, self._said), kind="bad")
                self._go_on = button("Go on", visit.on(self._resume, self._said), kind="main")
                self._result = layout.way("Open the result", f"/models/{run}", kind="main")
            for part in (self._stop, self._go_on, self._result):
                part.set_visibility(False)
        with ui.element("div").classes("two"):
            with card("Epsilon spent", "How much may show so far, against what was planned."):
                self._spent = layout.plot(_lines([], "epsilon", layout.BLUE), "Epsilon over steps",
                                         short=True)  # fmt: skip
            with card("Loss", "How badly the model guesses the next word; lower is better.",
                      tag=layout.NOT_PRIVATE):  # fmt: skip
                self._loss = layout.plot(_lines([], "loss", layout.ORANGE), "Loss over steps",
                                        short=True)  # fmt: skip
        with card("Log"):
            self._log = html("")

    def until_end(self, timer: ui.timer) -> None:
        """Look again and again, until there is nothing more to see."""
        self._timer = timer

    async def look(self) -> None:
        """Ask how far it is, and show it."""
        try:
            found = await self.visit.call(api.run_, self.run)
            fresh = await self.visit.call(api.progress, self.run, after=len(self._lines))
            if fresh or found["state"] != self._state:
                log = await self.visit.call(api.log, self.run)
                self._log.set_content(
                    Markup('<pre class="code" tabindex="0">{}</pre>').format(log.body.decode())
                )
        except NotKnown:
            ui.navigate.to("/sign-in")
            return
        except Exception as error:
            self._said.say(sentence_of(error))
            return
        if fresh and fresh[0]["number"] == 0:
            self._lines = []  # it was begun anew
        self._lines += fresh
        self._show(found, bool(fresh))
        if found["state"] in ENDED and self._timer is not None:
            self._timer.deactivate()

    def _show(self, found: dict[str, Any], moved: bool) -> None:
        self._state = state = found["state"]
        latest = self._lines[-1] if self._lines else {}
        gone = state == "deleted"
        self._head.set_content(
            Markup("<p>{} <b>{}</b> {}</p>{}").format(
                layout.tag(state),
                STATES.get(state, state),
                "" if gone else found["message"],
                "" if gone else _promise(found),
            )
        )
        self._bar.set_content(_bar(state, latest))
        self._stop.set_visibility(state in ("queued", "running"))
        self._go_on.set_visibility(state in ("failed", "cancelled"))
        self._result.set_visibility(state == "done")
        if moved:
            train = [line for line in self._lines if "step" in line]
            spent = [(line["step"], float(m[1])) for line in train
                     if (m := _SPENT.search(str(line.get("spent", ""))))]  # fmt: skip
            target = _SPENT.search(str(latest.get("spent", "")))
            _draw(self._spent, _lines(spent, "epsilon", layout.BLUE,
                                      target=float(target[2]) if target else None))  # fmt: skip
            loss = [(line["step"], line["not_private"]["loss"]) for line in train
                    if line.get("not_private", {}).get("loss") is not None]  # fmt: skip
            _draw(self._loss, _lines(loss, "loss", layout.ORANGE))

    async def _cancel(self) -> None:
        await self.visit.call(api.cancel, self.run)
        await self.look()

    async def _resume(self) -> None:
        await self.visit.call(api.resume, self.run)
        ui.navigate.reload()


def _promise(run: dict[str, Any]) -> Markup:
    result = run["result"]
    if not result:
        return Markup()
    if result.get("protect") not in UNIT_WORDS or result["standing"] != "proved":
        return Markup('<p class="plainly">Nothing is promised about this model.</p>')
    epsilon = result["epsilon"].get(result["protect"])
    return Markup("{}<p>Epsilon {} for {}, {}</p>").format(
        plain_promise(result.get("protected") or [], result.get("gain")),
        layout.epsilon(epsilon),
        UNIT_WORDS[result["protect"]],
        layout.tag(result["standing"]),
    )


def _bar(state: str, latest: dict[str, Any]) -> Markup:
    if "step" not in latest:
        return Markup('<p class="small">{}</p>').format(
            "Reading the text and getting ready …" if state == "running" else ""
        )
    part = latest["step"] / max(1, latest["steps"])
    spent = _SPENT.search(str(latest.get("spent", "")))
    words = f"; epsilon {spent[1]} of {spent[2]} spent" if spent else ""
    return Markup("<p>Step {} of {}{}</p>{}").format(
        number(latest["step"]), number(latest["steps"]), words, layout.meter(part, 1.0)
    )


def _lines(
    points: list[tuple[int, float]], name: str, colour: str, target: float | None = None
) -> dict[str, Any]:
    """A line over steps, and where it may end."""
    mark = {
        "silent": True, "symbol": "none", "label": {"formatter": f"planned {number(target, 6)}",
        "position": "insideEndTop", "color": layout.GREY},
        "lineStyle": {"color": layout.GREY, "type": "dashed"}, "data": [{"yAxis": target}],
    } if target else {}  # fmt: skip
    return layout.axes(
        {"type": "value", "name": "step", "nameLocation": "middle", "nameGap": 26, "min": 0,
         "minInterval": 1},
        {"type": "value", "scale": name == "loss", "name": name,
         "nameTextStyle": {"align": "left", "color": layout.GREY},
         **({"max": round(target * 1.1, 3)} if target else {})},
        [{"type": "line", "name": name, "showSymbol": len(points) < 40, "symbolSize": 6,
          "lineStyle": {"width": 2.5, "color": colour}, "itemStyle": {"color": colour},
          "data": [[step, round(value, 4)] for step, value in points],
          **({"markLine": mark} if mark else {})}],
        grid={"left": 8, "right": 18, "top": 34, "bottom": 24, "containLabel": True},
    )  # fmt: skip


def _draw(plot: ui.echart, options: dict[str, Any]) -> None:
    plot.options.clear()
    plot.options.update(options)
    plot.update()
