"""What all pages are made of: the header, cards, notices, forms, plots."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from nicegui import ui

from tacit.errors import UsageError
from tacit.server import Json
from tacit.server.identity import Permission
from tacit.server.pages.page_context import Notice, PageContext
from tacit.server.pages.rendering import fragment

Build = Callable[..., Awaitable[None]]
BLUE, ORANGE, GREY = "#4a7fd0", "#d0722f", "#80868f"
"""Of plots: each stands out on light and on dark paper, and all common eyes tell them apart."""
COLOURS = (BLUE, ORANGE, "#3f9b6b", "#9a6fc4", "#b8902e", "#c2577b")
NOT_PRIVATE = "not private: keep inside"


@dataclass(frozen=True)
class Page:
    """A page: where it lies, what it is called, and who builds it."""

    path: str
    title: str
    build: Build


PAGES: list[Page] = []

_NAV: tuple[tuple[str, str, Permission | None], ...] = (
    ("/datasets", "Datasets", "detect"),
    ("/my-text", "My text", "records:own"),
    ("/runs", "Runs", "runs:read"),
    ("/models", "Models", "models:use"),
    ("/check", "Verify", None),
    ("/people", "People", "accounts"),
    ("/docs", "API", None),
)


def page(path: str, title: str) -> Callable[[Build], Build]:
    """Register a function that fills a page."""

    def register(build: Build) -> Build:
        PAGES.append(Page(path, title, build))
        return build

    return register


def nav_links(ctx: PageContext) -> list[tuple[str, str]]:
    """The pages that somebody may go to, in a person's order."""
    found = [(to, name) for to, name, needed in _NAV if needed is None or ctx.may(needed)]
    return [one for one in found if one[0] != "/my-text" or not ctx.may("records:any")]


def header(ctx: PageContext, path: str) -> None:
    """The bar above every page."""
    caller = ctx.caller
    bar = fragment("header", nav_links(ctx), path, caller.name, caller.role, ctx.form_key)
    html("{}", bar, tag="header").classes("top")


def way(dataset: str, here: str, *, model: str = "", inside: bool = False) -> ui.html:
    """The path from text to a model, with where somebody is on it.

    `inside` the page of a new run its own steps are no links, which would forget what was chosen.
    """
    return html("{}", fragment("path", dataset, here, model, inside), tag="nav").props(
        'aria-label="From text to a model"'
    )


def html(text: str, *values: Any, tag: str = "div") -> ui.html:
    """HTML of ours with values of anybody, which are escaped."""
    return ui.html(Markup(text).format(*values), sanitize=False, tag=tag)


def show(name: str, *values: Any, kind: str = "", tag: str = "div") -> ui.html:
    """A fragment on the page."""
    return html("{}", fragment(name, *values), tag=tag).classes(kind)


def small(text: str, *values: Any, kind: str = "small") -> ui.html:
    """A paragraph in small print; of kind `why`, what something is for."""
    return html(text, *values, tag="p").classes(kind)


def title(text: str, lead: str = "", *, crumbs: Sequence[tuple[str, str]] = ()) -> None:
    """The head of a page, with the way back."""
    ui.page_title(f"{text} · tacit")
    if crumbs:
        show("crumbs", crumbs, kind="crumbs", tag="p")
    html("{}", text, tag="h1")
    if lead:
        html("{}", lead, tag="p").classes("lead")


def div(kind: str, style: str = "") -> ui.element:
    """A part of a page of a kind: `line`, `fields`, `two` columns, `entry`."""
    return ui.element("div").classes(kind).style(style)


def line(above: str = ".8rem") -> ui.element:
    """Buttons or fields beside each other."""
    return div("line", f"margin-top: {above}")


@contextmanager
def card(heading: str, why: str = "", *, tag: str = "") -> Iterator[Any]:
    """A part of a page with a heading and, in a sentence, what it is for."""
    with ui.element("section").classes("card") as made:
        html("{} {}", heading, fragment("tag", tag, "") if tag else "", tag="h2")
        if why:
            small("{}", why, kind="why")
        yield made


@contextmanager
def details(name: str) -> Iterator[Any]:
    """Something to unfold."""
    with ui.element("details") as made:
        html("{}", name, tag="summary")
        yield made


class Refreshable:
    """A part of a page that can be filled anew; by itself, as long as `fill` answers True."""

    def __init__(
        self, ctx: PageContext, fill: Callable[..., Awaitable[bool | None]], notice: Notice
    ) -> None:
        with ui.element("div") as self._around:
            self._place = ui.element("div")
        self._fill, self._again = fill, ctx.on(self.show, notice)
        self._timer: ui.timer | None = None

    async def show(self, *given: Any) -> None:
        """Fill it."""
        self._place.clear()
        with self._place:
            again = bool(await self._fill(*given))
        if self._timer is not None:
            self._timer.active = again
        elif again:
            # Beside the place, since what is in there goes when it is filled; and not before it is
            # needed, since a page with a timer is sent before it is whole.
            with self._around:
                self._timer = ui.timer(1.0, self._again, immediate=False)


def button(
    name: str, act: Callable[..., Any] | None = None, *, kind: str = "", small: bool = False
) -> ui.button:
    """A button: `main` for the one thing a page is for, `bad` for what cannot be undone."""
    made = ui.button(name, on_click=act, color=None).props("unelevated no-caps")
    return made.classes(f"act {kind} {'small-act' if small else ''}")


def confirm(opener: ui.button, question: str, act: Any) -> None:
    """Ask once more before something that cannot be undone."""
    with ui.dialog() as dialog, ui.element("div").style("padding: 1.3rem; max-width: 30rem"):
        html("{}", question, tag="p")
        with line("1rem"):
            button("Yes, delete", kind="bad").on("click", dialog.close).on("click", act)
            button("No", dialog.close)
    opener.on("click", dialog.open)


def link_button(
    name: str, to: str, *, kind: str = "", new: bool = False, download: bool = False
) -> ui.html:
    """A link that looks like a button."""
    return show("link_button", name, to, kind, new, download)


# --- fields -----------------------------------------------------------------------------------

_FIELD = "outlined dense hide-bottom-space"


def text_field(label: str, **options: Any) -> ui.input:
    """A line to write on."""
    return ui.input(label, **options).props(_FIELD)


def text_area(label: str) -> ui.textarea:
    """Some lines to write on."""
    return ui.textarea(label).props("outlined autogrow")


def number_field(label: str, value: float | None = None, **options: Any) -> ui.number:
    """A number."""
    return ui.number(label, value=value, **{"format": "%g"} | options).props(_FIELD)


def select(label: str, options: dict[str, str], value: str) -> ui.select:
    """One of several."""
    made = ui.select(options, label=label, value=value)
    return made.props(f"{_FIELD} options-dense=false")


def on_enter(act: Any, *fields: Any) -> None:
    """Do what the form's button does when somebody presses Enter in a field."""
    for field in fields:
        field.on("keydown.enter", act)


def written(field: Any, otherwise: str) -> str:
    """What stands in a field; a refusal with that sentence if it is empty."""
    text = (field.value or "").strip()
    if not text:
        raise UsageError(otherwise)
    return str(text)


# --- plots ------------------------------------------------------------------------------------


def plot(options: Mapping[str, Any], says: str, *, short: bool = False) -> ui.echart:
    """A plot that can be pointed at; `says` is the same in a sentence, for who does not see it."""
    made = ui.echart(dict(options), renderer="svg").classes(f"plot {'short' if short else ''}")
    made.props["role"] = "img"
    made.props["aria-label"] = says
    return made


def redraw(plot: ui.echart, options: Json) -> None:
    """Other values in the same plot."""
    plot.options.clear()
    plot.options.update(options)
    plot.update()


def axes(x: Mapping[str, Any], y: Mapping[str, Any], series: Sequence[Any], **more: Any) -> Json:
    """The common look of a plot; a name of y stands on the left above it, one of x below."""
    named = {"nameLocation": "middle", "nameGap": 26} if "name" in x else {}
    return {
        "textStyle": {"fontFamily": "system-ui, sans-serif", "color": GREY},
        "grid": {"left": 8, "right": 18, "top": 34, "bottom": 24 if named else 8,
                 "containLabel": True},
        "tooltip": {"trigger": "axis", "confine": True}, "animationDuration": 300,
        "xAxis": _axis({**named, **x}), "yAxis": _axis(y), "series": list(series), **more,
    }  # fmt: skip


def _axis(given: Mapping[str, Any]) -> Json:
    rule = {"lineStyle": {"color": "rgba(128,134,143,.28)"}}
    middle = given.get("nameLocation") == "middle"
    return {
        "type": "value", "axisTick": {"show": False}, "axisLine": rule,
        "axisLabel": {"color": GREY, "hideOverlap": True, "showMaxLabel": "max" not in given},
        "nameTextStyle": {"color": GREY} | ({} if middle else {"align": "left"}),
        "splitLine": rule if given.get("type", "value") == "value" else {"show": False}, **given,
    }  # fmt: skip


def curve(name: str, colour: str, points: Sequence[Any], **more: Any) -> Json:
    """A line of a plot."""
    return {
        "type": "line", "name": name, "lineStyle": {"width": 2.5, "color": colour},
        "itemStyle": {"color": colour}, "data": list(points), **more,
    }  # fmt: skip


def mark_line(at: float, words: str, colour: str = GREY, position: str = "insideEndTop") -> Json:
    """A dashed line across a plot, where something may end."""
    return {
        "silent": True, "symbol": "none", "data": [{"yAxis": at}],
        "lineStyle": {"color": colour, "type": "dashed"},
        "label": {"formatter": words, "position": position, "color": GREY},
    }  # fmt: skip


def bars(counts: Mapping[str, Any], x: str, y: str, says: str, *, colour: str = BLUE) -> ui.echart:
    """How many of each."""
    bar = {"type": "bar", "name": y, "data": list(counts.values()), "barMaxWidth": 46,
           "itemStyle": {"color": colour, "borderRadius": [4, 4, 0, 0]}}  # fmt: skip
    category = {"type": "category", "data": list(counts), "name": x}
    return plot(axes(category, {"name": y, "minInterval": 1}, [bar]), says, short=True)


def horizontal_bars(counts: Mapping[str, Any], says: str, *, first: bool = False) -> ui.echart:
    """How many of each, with long names; the `first` in another colour, if it is what counts."""
    names = list(counts)[:14][::-1]
    labels = [name if len(name) <= 26 else f"{name[:25]}…" for name in names]
    own: Any = [
        {"value": counts[n], "itemStyle": {"color": ORANGE if first and n == names[-1] else BLUE}}
        for n in names
    ]
    bar = {"type": "bar", "name": "found", "data": own, "barMaxWidth": 16,
           "itemStyle": {"borderRadius": [0, 4, 4, 0]}}  # fmt: skip
    grid = {"left": 14 + 6.6 * max(map(len, labels)), "right": 24, "top": 8, "bottom": 24}
    values = [float(counts[n]) for n in names]
    x: Json = {"minInterval": 1}
    if first:
        low, high = min(values), max(values)
        far = low > 0 and high > 12 * low
        x = {"type": "log", "min": float(f"{low / 2:.1g}")} if far else {"min": 0}
        shown = {"show": True, "position": "right", "color": GREY}
        bar |= {"name": "score", "label": shown}
        for one in own:
            one["value"] = float(f"{one['value']:.4g}")
        grid["right"] = 64
    made = axes(x, {"type": "category", "data": labels}, [bar], grid=grid)
    return plot(made, says).style(f"height: {3 + 1.7 * len(names)}rem")


def figures(pairs: Iterable[tuple[Any, str]]) -> ui.html:
    """Numbers with what they are."""
    return show("figures", list(pairs), kind="figures")
