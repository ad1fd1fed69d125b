"""Runs: the list, and one of them as it happens."""

import re
from typing import Any

from nicegui import ui

from tacit.server import Json
from tacit.server.api import runs as api
from tacit.server.errors import NotAuthenticated
from tacit.server.jobs import ENDED
from tacit.server.pages import layout
from tacit.server.pages.layout import button, card, html, show, small
from tacit.server.pages.page_context import Notice, PageContext, sentence_of
from tacit.server.pages.rendering import WORDS, fragment, number

_SPENT = re.compile(r"epsilon <= ([\d.e+-]+) of ([\d.e+-]+)")


@layout.page("/runs", "Runs")
async def all_runs(ctx: PageContext) -> None:
    """The latest first."""
    found = await ctx.call(api.runs)
    layout.title("Runs", "Every time that a model learned from a dataset, or tried to.")
    if found:
        with ui.element("section").classes("card"):
            show("runs_table", found, kind="scroll-x")
    else:
        small("None yet: open a dataset and start one.", kind="why")
        layout.link_button("Datasets", "/datasets")


@layout.page("/runs/{run}", "Run")
async def one_run(ctx: PageContext, run: str) -> None:
    """Live, until it ends; the same after a reload."""
    found = await ctx.call(api.run_, run)
    layout.title(found["name"], crumbs=[("/runs", "Runs")])
    monitor = RunMonitor(ctx, run)
    await monitor.refresh()
    if found["state"] not in ENDED:
        monitor.timer = ui.timer(1.0, monitor.refresh)


class RunMonitor:
    """A run in a browser."""

    def __init__(self, ctx: PageContext, run: str) -> None:
        self.ctx, self.run = ctx, run
        self.timer: ui.timer | None = None
        self._lines: list[Json] = []
        self._state = ""
        self._verdict: Json | None = None
        with ui.element("section").classes("card"):
            self._head = html("").props('role="status" aria-live="polite"')
            self._notice = Notice()
            self._bar = html("")
            with layout.line(".9rem"):
                self._stop = button("Stop", ctx.on(self._cancel, self._notice), kind="bad")
                self._go_on = button("Go on", ctx.on(self._resume, self._notice), kind="main")
                self._result = layout.link_button("Open the result", f"/models/{run}", kind="main")
            for part in (self._stop, self._go_on, self._result):
                part.set_visibility(False)
        with layout.div("two"):
            with card("Epsilon spent", "How much may show so far, against what was planned."):
                self._spent = layout.plot(_epsilon_chart([]), "Epsilon over steps", short=True)
            with card("Loss", "How badly the model guesses the next word; lower is better.",
                      tag=layout.NOT_PRIVATE):  # fmt: skip
                self._loss = layout.plot(_loss_chart([]), "Loss over steps", short=True)
                self._beside = html("")
        with card("Log"):
            self._log = html("")

    async def refresh(self) -> None:
        """Ask how far it is, and show it."""
        try:
            found = await self.ctx.call(api.run_, self.run)
            fresh = await self.ctx.call(api.progress, self.run, after=len(self._lines))
            if fresh or found["state"] != self._state:
                log = await self.ctx.call(api.log, self.run)
                self._log.set_content(fragment("log", log.body.decode()))
            if found["state"] == "done" and self._verdict is None:
                metrics = await self.ctx.call(api.metrics, self.run)
                self._verdict = metrics["not_private"]["verdict"]
        except NotAuthenticated:
            ui.navigate.to("/sign-in")
            return
        except Exception as error:
            self._notice.show(sentence_of(error))
            return
        if fresh and fresh[0]["number"] == 0:
            self._lines = []  # it was begun anew
        self._lines += fresh
        self._show(found, bool(fresh))
        if found["state"] in ENDED and self.timer is not None:
            self.timer.deactivate()

    def _show(self, found: Json, moved: bool) -> None:
        self._state = state = found["state"]
        latest = self._lines[-1] if self._lines else {}
        said = WORDS["states"].get(state, state)
        self._head.set_content(fragment("run_head", found, said, self._verdict))
        self._bar.set_content(fragment("progress", state, latest, _spent(latest)))
        self._stop.set_visibility(state in ("queued", "running"))
        self._go_on.set_visibility(state in ("failed", "cancelled"))
        self._result.set_visibility(state == "done")
        if moved:
            train = [line for line in self._lines if "step" in line]
            spent = [(line["step"], float(m[1])) for line in train if (m := _spent(line))]
            target = _spent(latest)
            planned = float(target[2]) if target else None
            layout.redraw(self._spent, _epsilon_chart(spent, planned))
            losses = ((line["step"], line.get("not_private", {}).get("loss")) for line in train)
            guess = latest.get("uniform_loss")
            self._beside.set_content(fragment("beside", latest.get("not_private") or {}))
            layout.redraw(self._loss, _loss_chart([p for p in losses if p[1] is not None], guess))

    async def _cancel(self) -> None:
        await self.ctx.call(api.cancel, self.run)
        await self.refresh()

    async def _resume(self) -> None:
        await self.ctx.call(api.resume, self.run)
        ui.navigate.reload()


def _spent(line: Json) -> re.Match[str] | None:
    return _SPENT.search(str(line.get("spent", "")))


Points = list[tuple[int, float]]


def _epsilon_chart(points: Points, target: float | None = None) -> Json:
    planned = {"max": round(target * 1.1, 3)} if target else {}
    mark = {"markLine": layout.mark_line(target, f"planned {number(target, 6)}")} if target else {}
    return _over_steps(points, {"name": "epsilon", **planned}, layout.BLUE, **mark)


def _loss_chart(points: Points, guess: float | None = None) -> Json:
    mark = {"markLine": layout.mark_line(guess, "a uniform guess")} if guess else {}
    return _over_steps(points, {"name": "loss", "scale": True}, layout.ORANGE, **mark)


def _over_steps(points: Points, y: Json, colour: str, **more: Any) -> Json:
    values = [[step, round(value, 4)] for step, value in points]
    more |= {"showSymbol": len(points) < 40, "symbolSize": 6}
    x = {"name": "step", "min": 0, "minInterval": 1}
    return layout.axes(x, y, [layout.curve(y["name"], colour, values, **more)])
