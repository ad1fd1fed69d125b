"""Runs: the list, and one of them as it happens."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from nicegui import ui

from tacit.privacy.rounding import up
from tacit.server import Json
from tacit.server.api import datasets as api_datasets
from tacit.server.api import runs as api
from tacit.server.errors import NotAuthenticated
from tacit.server.jobs import ENDED
from tacit.server.pages import layout
from tacit.server.pages.layout import button, card, html, show, small
from tacit.server.pages.page_context import Notice, PageContext, sentence_of
from tacit.server.pages.rendering import WORDS, duration, epsilon, fragment, number

Points = list[tuple[int, float]]
_SPENT = re.compile(r"epsilon <= ([\d.e+-]+) of ([\d.e+-]+)")


@layout.page("/runs", "Runs")
async def all_runs(ctx: PageContext) -> None:
    """The latest first, with filters; some of them to be compared."""
    rows = await _rows(ctx)
    layout.title("Runs", "Every time that a model learned from a dataset, or tried to.")
    if not rows:
        small("None yet. A run learns from a dataset: it takes a plan (whom to protect, at what "
              "price), reserves that price in the dataset's budget, and leaves a model with a "
              "certificate. Open a dataset to start one.", kind="why")  # fmt: skip
        layout.link_button("Datasets", "/datasets", kind="main")
        return
    with ui.element("section").classes("card"):
        with layout.div("line filters"):
            words = layout.text_field("Search").style("flex: 1 1 9rem")
            dataset = _filter("Dataset", (row["where"] for row in rows))
            method = _filter("Method", (row["request"]["method"] for row in rows))
            state = _filter("State", (row["state"] for row in rows))
        shown = html("")

        def fill(_: Any = None) -> None:
            wanted = (words.value or "").lower()
            kept = [
                row for row in rows
                if wanted in f"{row['called']} {row['author']}".lower()
                and dataset.value in ("", row["where"])
                and method.value in ("", row["request"]["method"])
                and state.value in ("", row["state"])
            ]  # fmt: skip
            shown.set_content(fragment("runs_compared", kept))

        for part in (words, dataset, method, state):
            part.on_value_change(fill)
        fill()


def _filter(label: str, values: Iterable[str]) -> ui.select:
    options = {"": "all"} | {value: value for value in dict.fromkeys(values)}
    return layout.select(label, options, "").style("min-width: 9.5rem")


async def _rows(ctx: PageContext) -> list[Json]:
    """The runs with what became of them, under names that differ."""
    found = await ctx.call(api.runs)
    known = {one["run"]: one["not_private"] for one in await ctx.call(api.outcomes)}
    named = {one["id"]: one["name"] for one in await ctx.call(api_datasets.datasets)}
    called = Counter(run["name"] for run in found)
    seen: Counter[str] = Counter()
    rows = []
    for run in reversed(found):
        seen[run["name"]] += 1
        number = f" ({seen[run['name']]})" if called[run["name"]] > 1 else ""
        rows.append(run | {
            "called": run["name"] + number, "outcome": known.get(run["id"]) or {},
            "where": named.get(run["dataset"], "–"), "lasted": seconds_between(run),
        })  # fmt: skip
    return rows[::-1]


def seconds_between(run: Json) -> float | None:
    """How long a run took, or has taken so far.

    >>> seconds_between({"started": "2026-01-01T10:00+00:00", "ended": "2026-01-01T10:01+00:00"})
    60.0
    """
    if not run["started"]:
        return None
    began = datetime.fromisoformat(run["started"])
    ended = datetime.fromisoformat(run["ended"]) if run["ended"] else datetime.now(UTC)
    return (ended - began).total_seconds()


@layout.page("/runs/compare", "Compare runs")
async def compare(ctx: PageContext) -> None:
    """Some runs beside each other: what they cost, how good they are, what they give away."""
    ctx.caller.require("runs:read")
    wanted = ui.context.client.request.query_params.getlist("run")
    rows = [row for row in await _rows(ctx) if row["id"] in wanted][:12]
    layout.title("Compare runs", crumbs=[("/runs", "Runs")])
    if len(rows) < 2:
        small("Choose two runs or more in the list of runs.", kind="why")
        layout.link_button("Runs", "/runs", kind="main")
        return
    tag = layout.NOT_PRIVATE
    with layout.div("two"):
        why = "How good it is for what it may give away."
        with card("Utility against epsilon", why, tag=tag):
            _utility(rows)
        with card("Leakage", "What attacks got, in the share of the way from guessing to all "
                  "there is.", tag=tag):  # fmt: skip
            _leakage(rows)
    with card("Side by side", tag=tag):
        show("runs_side_by_side", rows, kind="scroll-x")
    every = {row["id"]: row for row in await _rows(ctx)}
    lines = [_ancestors(row["id"], every) for row in rows if row["target"]]
    if lines:
        with card("Continued models", "Each carries the epsilon of all before it."):
            for line in lines:
                show("lineage", line)


def _ancestors(run: str, every: Mapping[str, Json]) -> list[Json]:
    """A run after those that it continued, the first one first."""
    line: list[Json] = []
    at: str | None = run
    while at is not None and at in every and len(line) < 50:
        line.append(every[at])
        at = every[at]["target"]
    return line[::-1]


def _epsilon_of(row: Json) -> float | None:
    result = row["result"] or {}
    value = (result.get("epsilon") or {}).get(result.get("protect"))
    return float(value) if isinstance(value, int | float) else None


def _utility(rows: Sequence[Json]) -> None:
    measures = dict.fromkeys(
        row["outcome"]["measure"] for row in rows if row["outcome"].get("measure")
    )
    if not measures:
        small("None of them was scored yet.", kind="why")
    for measure in measures:
        own = [r for r in rows if r["outcome"].get("measure") == measure]
        layout.plot(frontier(own, measure.replace("_", " ")), "; ".join(_said(r) for r in own))
        off = [r["called"] for r in own if r not in _on_scale(own)]
        if off:
            small("Far off the scale: {}.", ", ".join(off))
        if len({r["outcome"]["tokenizer"] for r in own}) > 1 and measure == "perplexity":
            small("Their tokens differ, so their perplexities cannot be compared.")


_FAR = 50.0
"""A score so many times the best one says no more than that nothing was learnt."""


def _on_scale(rows: Sequence[Json]) -> list[Json]:
    best = min(row["outcome"]["score"] for row in rows)
    return [row for row in rows if best <= 0 or row["outcome"]["score"] <= _FAR * best]


def _said(row: Json) -> str:
    out = row["outcome"]
    return f"{row['called']}: {out['measure']} {out['score']:.4g} at {epsilon(_epsilon_of(row))}"


def frontier(own: Sequence[Json], words: str) -> Json:
    """A score over epsilon; a run without one is a line."""
    series: list[Json] = []
    for place, row in enumerate(own):
        if row not in _on_scale(own):
            continue
        colour = layout.COLOURS[place % len(layout.COLOURS)]
        score, spent = row["outcome"]["score"], _epsilon_of(row)
        point: Json = {"type": "scatter", "name": row["called"], "symbolSize": 14, "data": []}
        if spent is None:
            said = f"{row['called']}: no promise"
            point["markLine"] = layout.mark_line(score, said, colour, "insideStartTop")
        else:
            label = {"show": True, "formatter": row["called"], "color": layout.GREY}
            point |= {"data": [[float(up(spent)), score]], "label": label | {"position": "top"},
                      "labelLayout": {"moveOverlap": "shiftY"}}  # fmt: skip
        series.append(point | {"itemStyle": {"color": colour}})
    scores = [row["outcome"]["score"] for row in _on_scale(own)]
    apart = min(scores) > 0 and max(scores) > 8 * min(scores)
    ends = (min(scores) / 1.5, 1.8 * max(scores)) if apart else (0, 1.2 * max(scores))
    low, high = (float(f"{end:.2g}") for end in ends)
    y = {"name": words, "min": low, "max": high, "type": "log" if apart else "value"}
    spent_most = max([e for row in own if (e := _epsilon_of(row)) is not None], default=1.0)
    x = {"name": "epsilon", "min": 0, "max": round(1.25 * spent_most, 1)}
    item = {"trigger": "item", "confine": True}
    return layout.axes(x, y, series, tooltip=item)


def _leakage(rows: Sequence[Json]) -> None:
    """Figures of different kinds on one scale: 0 is guessing, 1 is all that there is."""
    labels = list(dict.fromkeys(
        one["label"] for row in rows for one in row["outcome"].get("leakage", ())
    ))  # fmt: skip
    if not labels:
        small("None of them was attacked yet: open a model, and put it to the test.", kind="why")
        return
    series, said = [], []
    for place, row in enumerate(rows):
        found = {one["label"]: one for one in row["outcome"].get("leakage", ())}
        values = [share_of_way(found[label]) if label in found else None for label in labels]
        colour = layout.COLOURS[place % len(layout.COLOURS)]
        series.append({"type": "bar", "name": row["called"], "data": values, "barMaxWidth": 18,
                       "itemStyle": {"color": colour, "borderRadius": [4, 4, 0, 0]}})  # fmt: skip
        said.append(f"{row['called']}: " + ", ".join(
            f"{label} {value:.2f}" for label, value in zip(labels, values, strict=True)
            if value is not None))  # fmt: skip
    y = {"name": "0 guessing, 1 everything", "max": 1}
    names = {
        "color": layout.GREY,
        "interval": 0,
        "width": 92,
        "overflow": "break",
        "lineHeight": 14,
    }
    x = {"type": "category", "data": labels, "axisLabel": names}
    options = layout.axes(x, y, series,
                          legend={"bottom": 0, "textStyle": {"color": layout.GREY}})  # fmt: skip
    options["grid"] = options["grid"] | {"bottom": 40}
    layout.plot(options, "; ".join(said))


def share_of_way(one: Mapping[str, Any]) -> float:
    """How far an attack got from what guessing gets to the most that there is.

    >>> share_of_way({"value": 0.75, "chance": 0.5, "most": None})
    0.5
    """
    chance, most = one["chance"] or 0.0, one["most"] or 1.0
    return round((one["value"] - chance) / (most - chance), 3)


@layout.page("/runs/{run}", "Run")
async def one_run(ctx: PageContext, run: str) -> None:
    """Live, until it ends; the same after a reload."""
    found = await ctx.call(api.run_, run)
    done = found["state"] == "done"
    layout.way(found["dataset"], "Train", model=run if done else "")
    layout.title(found["name"], crumbs=[("/runs", "Runs")])
    monitor = RunMonitor(ctx, run)
    await _about(ctx, found)
    await monitor.refresh()
    if found["state"] not in ENDED:
        monitor.timer = ui.timer(1.0, monitor.refresh)


async def _about(ctx: PageContext, found: Json) -> None:
    """Who asked for what, and what it went on from."""
    dataset = await ctx.call(api_datasets.dataset_, found["dataset"])
    with layout.div("two"):
        with card("Settings"):
            show("run_settings", found, dataset["name"])
        with card("Where it comes from"):
            if not found["target"]:
                small("It began anew. A later run may go on from it; that one carries this "
                      "epsilon, and its own comes on top.", kind="why")  # fmt: skip
                return
            every = {one["id"]: one for one in await ctx.call(api.runs)}
            show("lineage", _ancestors(found["id"], every))
            small("Epsilon is that of all before it and its own together, as if they were one.")


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
            self._clock = html("").classes("small")
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
        self._clock.set_content(fragment("clock", *clock(found, self._lines), found["ended"]))
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


def clock(found: Json, lines: Sequence[Json]) -> tuple[str, str]:
    """How long a run has taken, and how long it will, by the pace of its latest steps.

    >>> lines = [{"step": n, "steps": 60, "at": 2.0 * n} for n in range(1, 31)]
    >>> clock({"started": None, "ended": None}, lines)[1]
    'about 1 minute'
    """
    lasted = seconds_between(found)
    timed = [line for line in lines if "step" in line][-20:]
    left = ""
    if not found["ended"] and len(timed) > 1 and timed[-1]["step"] > timed[0]["step"]:
        pace = (timed[-1]["at"] - timed[0]["at"]) / (timed[-1]["step"] - timed[0]["step"])
        left = duration(pace * (timed[-1]["steps"] - timed[-1]["step"]))
    return ("" if lasted is None else duration(lasted)), left


def smoothed(points: Points, weight: float = 0.85) -> Points:
    """An exponential mean: single steps jump, their trend is what counts.

    >>> smoothed([(1, 4.0), (2, 2.0), (3, 2.0)], weight=0.5)
    [(1, 4.0), (2, 3.0), (3, 2.5)]
    """
    mean, made = points[0][1] if points else 0.0, []
    for step, value in points:
        mean = weight * mean + (1 - weight) * value
        made.append((step, mean))
    return made


def _spent(line: Json) -> re.Match[str] | None:
    return _SPENT.search(str(line.get("spent", "")))


def _epsilon_chart(points: Points, target: float | None = None) -> Json:
    planned = {"max": round(target * 1.1, 3)} if target else {}
    mark = {"markLine": layout.mark_line(target, f"planned {number(target, 6)}")} if target else {}
    return _over_steps(points, {"name": "epsilon", **planned}, layout.BLUE, **mark)


def _loss_chart(points: Points, guess: float | None = None) -> Json:
    mark = {"markLine": layout.mark_line(guess, "a uniform guess")} if guess else {}
    made = _over_steps(smoothed(points), {"name": "loss", "scale": True}, layout.ORANGE, **mark)
    single = layout.curve("of one step", layout.ORANGE, [[s, round(v, 4)] for s, v in points],
                          showSymbol=False, z=1)  # fmt: skip
    single["lineStyle"] = {"width": 1, "color": layout.ORANGE, "opacity": 0.35}
    made["series"] += [single] if len(points) > 2 else []
    return made


def _over_steps(points: Points, y: Json, colour: str, **more: Any) -> Json:
    values = [[step, round(value, 4)] for step, value in points]
    more |= {"showSymbol": len(points) < 40, "symbolSize": 6}
    x = {"name": "step", "min": 0, "minInterval": 1}
    return layout.axes(x, y, [layout.curve(y["name"], colour, values, **more)])
