"""The budget of a dataset: what was spent, by which run, over time."""

from nicegui import ui

from tacit.privacy.rounding import up
from tacit.server import Json
from tacit.server.api import datasets as api
from tacit.server.pages import layout
from tacit.server.pages.layout import card, html, show, small
from tacit.server.pages.page_context import PageContext
from tacit.server.pages.rendering import WORDS, epsilon, number, timestamp, unit_words


@layout.page("/datasets/{dataset}/budget", "Budget")
async def budget(ctx: PageContext, dataset: str) -> None:
    """Everything here is computed from the ledgers, so it may be shown to anybody inside."""
    status = await ctx.call(api.budget, dataset)
    found = await ctx.call(api.dataset_, dataset)
    crumbs = [("/datasets", "Datasets"), (f"/datasets/{dataset}", found["name"])]
    layout.title("Budget", "What models that learned from this dataset may show of anybody, all of "
                 "them together.", crumbs=crumbs)  # fmt: skip
    with card("Spent and left", WORDS["epsilon"]):
        show("budget_meters", status)
        small("Everything that was released is priced together, so the total is less than the "
              "runs' own prices added up. Nothing gives it back: neither stopping a run nor "
              "deleting text.")  # fmt: skip
    if not status["runs"]:
        small("No run yet. Before one starts, its whole price is reserved here; what it did not "
              "spend is free again when it ends.", kind="why")  # fmt: skip
        return
    with card("Over time", "After each reservation, and after each end of a run."):
        place = ui.element("div")
        with place:
            html("Computing …").classes("busy-note")

        async def draw() -> None:
            points = await ctx.call(api.budget_history, dataset)
            place.clear()
            with place:
                _over_time(points, status["limits"] or {}, found["created"])

    with card("By run"):
        show("budget_runs", status["runs"], status["limits"] or {}, kind="scroll-x")
    ui.timer(0, ctx.on(draw), once=True)


def _over_time(points: list[Json], limits: dict[str, float], began: str) -> None:
    series = []
    for unit, colour in zip(limits, layout.COLOURS, strict=False):
        values = [
            {
                "value": [p["at"], _finite(p["epsilon"].get(unit))],
                "name": f"{p['name']}, {p['what']}",
            }
            for p in points
        ]
        limit = f"limit {number(limits[unit], 6)}"
        series.append(
            layout.curve(
                unit_words(unit), colour, [{"value": [began, 0], "name": "made"}, *values],
                step="end", symbolSize=8, areaStyle={"color": colour, "opacity": 0.08},
                markLine=layout.mark_line(limits[unit], limit, colour, "insideStartTop"),
            )
        )  # fmt: skip
    says = "; ".join(
        f"{timestamp(p['at'])}: {p['name']} {p['what']}, "
        + ", ".join(f"{epsilon(value)} for {unit}" for unit, value in p["epsilon"].items())
        for p in points[-5:]
    )
    top = max(limits.values(), default=1.0)
    y = {"name": "epsilon", "min": 0, "max": round(top * 1.12, 3)}
    made = layout.axes(
        {"type": "time"}, y, series, dataZoom=[{"type": "inside"}],
        legend={"top": 0, "right": 0, "textStyle": {"color": layout.GREY}},
        tooltip={"trigger": "item", "confine": True},
    )  # fmt: skip
    layout.plot(made, f"Epsilon spent over time. {says}")
    with layout.details("The same as a table"):
        show("budget_changes", points, limits, kind="scroll-x")


def _finite(value: float | str | None) -> float | None:
    return float(up(value)) if isinstance(value, float | int) else None
