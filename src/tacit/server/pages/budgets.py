"""The budget of a dataset: what was spent, by which run, over time."""

from typing import Any

from markupsafe import Markup
from nicegui import ui

from tacit.privacy.rounding import up
from tacit.server.api import datasets as api
from tacit.server.pages import layout
from tacit.server.pages.datasets import EPSILON, budget_meters
from tacit.server.pages.layout import UNIT_WORDS, card, html, number
from tacit.server.pages.visits import Visit

_COLOURS = (layout.BLUE, layout.ORANGE, "#3f9b6b", "#9a6fc4", "#b8902e")


@layout.page("/datasets/{dataset}/budget", "Budget")
async def budget(visit: Visit, dataset: str) -> None:
    """Everything here is computed from the ledgers, so it may be shown to anybody inside."""
    status = await visit.call(api.budget, dataset)
    found = await visit.call(api.dataset_, dataset)
    crumbs = [("/datasets", "Datasets"), (f"/datasets/{dataset}", found["name"])]
    layout.title("Budget", "What models that learned from this dataset may show of anybody, all of "
                "them together.", crumbs=crumbs)  # fmt: skip
    with card("Spent and left", EPSILON):
        html("{}", budget_meters(status))
        html("Everything that was released is priced together, so the total is less than the "
             "runs' own prices added up. Nothing gives it back: neither stopping a run nor "
             "deleting text.", tag="p").classes("small")  # fmt: skip
    if not status["runs"]:
        html("No run yet.", tag="p").classes("why")
        return
    with card("Over time", "After each reservation, and after each end of a run."):
        place = ui.element("div")
        with place:
            html("Computing …").classes("busy-note")

        async def draw() -> None:
            points = await visit.call(api.budget_history, dataset)
            place.clear()
            with place:
                _over_time(points, status, found["created"])

    with card("By run"):
        _by_run(status)
    ui.timer(0, visit.on(draw), once=True)


def _over_time(points: list[dict[str, Any]], status: dict[str, Any], began: str) -> None:
    limits = status["limits"] or {}
    series = []
    for unit, colour in zip(limits, _COLOURS, strict=False):
        series.append(
            {
                "type": "line", "step": "end", "name": UNIT_WORDS.get(unit, unit),
                "symbolSize": 8, "lineStyle": {"width": 2.5, "color": colour},
                "itemStyle": {"color": colour}, "areaStyle": {"color": colour, "opacity": 0.08},
                "data": [{"value": [began, 0], "name": "made"}] + [
                    {"value": [p["at"], _finite(p["epsilon"].get(unit))],
                     "name": f"{p['name']}, {p['what']}"}
                    for p in points
                ],
                "markLine": {
                    "silent": True, "symbol": "none", "data": [{"yAxis": limits[unit]}],
                    "lineStyle": {"color": colour, "type": "dashed"},
                    "label": {"formatter": f"limit {number(limits[unit], 6)}",
                              "position": "insideStartTop", "color": layout.GREY},
                },
            }
        )  # fmt: skip
    top = max(limits.values(), default=1.0)
    says = "; ".join(
        f"{layout.moment(p['at'])}: {p['name']} {p['what']}, "
        + ", ".join(f"{layout.epsilon(value)} for {unit}" for unit, value in p["epsilon"].items())
        for p in points[-5:]
    )
    layout.plot(
        layout.axes(
            {"type": "time"},
            {"type": "value", "name": "epsilon", "min": 0, "max": round(top * 1.12, 3),
             "nameTextStyle": {"align": "left", "color": layout.GREY}},
            series,
            legend={"top": 0, "right": 0, "textStyle": {"color": layout.GREY}},
            dataZoom=[{"type": "inside"}],
            tooltip={"trigger": "item", "confine": True},
        ),
        f"Epsilon spent over time. {says}",
    )  # fmt: skip
    rows = [
        (layout.moment(p["at"]), layout.link(p["name"], f"/runs/{p['run']}"),
         {"reserved": "reserved before it began", "settled": "charged when it ended"}.get(
             p["what"], p["what"]),
         *(layout.epsilon(p["epsilon"].get(u)) for u in limits))
        for p in reversed(points)
    ]  # fmt: skip
    with layout.more("The same as a table"):
        headings = ["When", "Run", "What", *(f"Spent for {UNIT_WORDS.get(u, u)}" for u in limits)]
        layout.table(headings, rows, numbers=range(3, 3 + len(limits)))


def _by_run(status: dict[str, Any]) -> None:
    limits = status["limits"] or {}
    rows = []
    for run in reversed(status["runs"]):
        own = run["epsilon"] or {}
        rows.append(
            (
                layout.link(run["name"], f"/runs/{run['run']}"), layout.tag(run["state"]),
                run["method"], number(run["releases"]),
                *(Markup('<span class="tag warn">no bound</span>') if run["unproved"]
                  else layout.epsilon(own.get(u)) for u in limits),
            )
        )  # fmt: skip
    headings = ["Run", "State", "Method", "Releases",
                *(f"Alone, for {UNIT_WORDS.get(u, u)}" for u in limits)]  # fmt: skip
    layout.table(headings, rows, numbers=range(3, 4 + len(limits)))


def _finite(value: Any) -> float | None:
    return float(up(value)) if isinstance(value, float | int) else None
