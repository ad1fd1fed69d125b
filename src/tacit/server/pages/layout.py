"""What all pages are made of: the top, cards, figures, sentences, tables, plots."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from markupsafe import Markup
from nicegui import ui

from tacit.privacy.rounding import up
from tacit.server.identity import Permission
from tacit.server.pages.visits import Visit

Build = Callable[..., Awaitable[None]]
BLUE, ORANGE, GREY = "#4a7fd0", "#d0722f", "#80868f"
"""Of plots: each stands out on light and on dark paper, and all common eyes tell them apart."""


@dataclass(frozen=True)
class PageFound:
    """A page: where it lies, what it is called, and who builds it."""

    path: str
    title: str
    build: Build


PAGES: list[PageFound] = []

_NAV: tuple[tuple[str, str, Permission | None], ...] = (
    ("/datasets", "Datasets", "detect"),
    ("/my-text", "My text", "records:own"),
    ("/runs", "Runs", "runs:read"),
    ("/models", "Models", "models:use"),
    ("/check", "Verify", None),
    ("/people", "People", "accounts"),
)


def page(path: str, title: str) -> Callable[[Build], Build]:
    """Make a function that fills a page known by its path."""

    def known(build: Build) -> Build:
        PAGES.append(PageFound(path, title, build))
        return build

    return known


def ways(visit: Visit) -> list[tuple[str, str]]:
    """The pages that somebody may go to, in a person's order."""
    found = [(to, name) for to, name, need in _NAV if need is None or visit.may(need)]
    if visit.may("records:any"):
        found = [way for way in found if way[0] != "/my-text"]
    return found


def top(visit: Visit, path: str) -> None:
    """The bar above every page."""
    links = Markup("").join(
        Markup('<a href="{}"{}>{}</a>').format(
            to, Markup(' aria-current="page"') if path.startswith(to) else Markup(), name
        )
        for to, name in ways(visit)
    )
    html(
        '<a class="skip" href="#main">To the content</a><div class="top-row"><a class="mark" '
        'href="/">tacit</a><nav class="nav" aria-label="Pages">{}</nav><span class="whoami" '
        'title="{}">{} · {}</span><button type="button" class="quiet" data-theme-switch '
        'aria-label="Light or dark">Dark</button><form class="inline-form" method="post" '
        'action="/sign-out"><input type="hidden" name="key" value="{}"><button class="quiet">'
        "Sign out</button></form>",
        links, visit.caller.name, visit.caller.name, visit.caller.role, visit.form_key,
        tag="header",
    ).classes("top")  # fmt: skip


def html(text: str, *values: Any, tag: str = "div") -> ui.html:
    """HTML of ours with values of anybody, which are escaped."""
    return ui.html(Markup(text).format(*values), sanitize=False, tag=tag)


def title(text: str, lead: str = "", *, crumbs: Sequence[tuple[str, str]] = ()) -> None:
    """The head of a page, with the way back."""
    ui.page_title(f"{text} · tacit")
    if crumbs:
        way = Markup(" / ").join(Markup('<a href="{}">{}</a>').format(*c) for c in crumbs)
        html("{} /", way, tag="p").classes("crumbs")
    html("{}", text, tag="h1")
    if lead:
        html("{}", lead, tag="p").classes("lead")


@contextmanager
def card(heading: str, why: str = "", *, tag: str = "") -> Iterator[Any]:
    """A part of a page with a heading and, in a sentence, what it is for."""
    with ui.element("section").classes("card") as made:
        html("{} {}", heading, Markup('<span class="tag">{}</span>').format(tag) if tag else "",
             tag="h2")  # fmt: skip
        if why:
            html("{}", why, tag="p").classes("why")
        yield made


NOT_PRIVATE = "not private: keep inside"


def figures(pairs: Iterable[tuple[Any, str]]) -> ui.html:
    """Numbers with what they are."""
    return html("{}", figures_markup(pairs)).classes("figures")


def figures_markup(pairs: Iterable[tuple[Any, str]]) -> Markup:
    """The same, to be put into something."""
    return Markup("").join(
        Markup("<div><b>{}</b><span>{}</span></div>").format(value, name) for value, name in pairs
    )


class Box:
    """A place for a sentence; empty it takes no room, and a screen reader is told of changes."""

    def __init__(self, sentence: str = "", kind: str = "bad") -> None:
        self._html = ui.html("", sanitize=False).props('role="status" aria-live="polite"')
        if sentence:
            self.say(sentence, kind)

    def say(self, sentence: str, kind: str = "bad") -> None:
        """Show it: `bad`, `warn`, `good` or plain."""
        self._html.set_content(
            Markup('<p class="saying {}" role="{}">{}</p>').format(
                kind, "alert" if kind == "bad" else "note", sentence
            )
        )

    def clear(self) -> None:
        """Show nothing."""
        self._html.set_content("")


class Part:
    """A part of a page that can be filled anew; by itself, as long as `fill` answers True."""

    def __init__(
        self, visit: Visit, fill: Callable[..., Awaitable[bool | None]], said: "Box | None" = None
    ) -> None:
        with ui.element("div") as self._around:
            self._place = ui.element("div")
        self._fill, self._again = fill, visit.on(self.show, said)
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


def way(
    name: str, to: str, *, kind: str = "", new: bool = False, download: bool = False
) -> ui.html:
    """A link that looks like a button."""
    extra = Markup(' target="_blank" rel="noopener"') if new else Markup()
    extra += Markup(" download") if download else Markup()
    return html('<a class="act {}" href="{}"{}>{}</a>', kind, to, extra, name)


def text_field(label: str, **options: Any) -> ui.input:
    """A line to write on."""
    return ui.input(label, **options).props("outlined dense hide-bottom-space")


def table(
    headings: Sequence[str], rows: Sequence[Sequence[Any]], numbers: Sequence[int] = ()
) -> ui.html:
    """Rows; the columns in `numbers` are set to the right."""
    return html("{}", table_markup(headings, rows, numbers)).classes("scroll-x")


def table_markup(
    headings: Sequence[str], rows: Sequence[Sequence[Any]], numbers: Sequence[int] = ()
) -> Markup:
    """The same, to be put into something."""

    def cells(kind: str, row: Sequence[Any]) -> Markup:
        return Markup("").join(
            Markup('<{0} class="{1}">{2}</{0}>').format(
                kind, "n" if place in numbers else "", value
            )
            for place, value in enumerate(row)
        )

    body = Markup("").join(Markup("<tr>{}</tr>").format(cells("td", row)) for row in rows)
    return Markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(
        cells("th", headings), body
    )


def link(name: str, to: str) -> Markup:
    """A link inside a sentence or a table."""
    return Markup('<a href="{}">{}</a>').format(to, name)


_TAGS = {
    "proved": "good", "done": "good", "published": "warn", "heuristic": "warn", "broken": "bad",
    "failed": "bad", "running": "", "queued": "", "cancelled": "warn", "cancelling": "warn",
    "deleted": "warn",
}  # fmt: skip


def tag(word: str) -> Markup:
    """A word in a coloured pill: a standing, a state."""
    return Markup('<span class="tag {}">{}</span>').format(_TAGS.get(word, ""), word)


@contextmanager
def more(name: str) -> Iterator[Any]:
    """Something to unfold."""
    with ui.element("details") as made:
        html("{}", name, tag="summary")
        yield made


# --- plots ------------------------------------------------------------------------------------


def plot(options: Mapping[str, Any], says: str, *, short: bool = False) -> ui.echart:
    """A plot that can be pointed at; `says` is the same in a sentence, for who does not see it."""
    made = ui.echart(dict(options), renderer="svg").classes(f"plot {'short' if short else ''}")
    made.props["role"] = "img"
    made.props["aria-label"] = says
    return made


def axes(
    x: Mapping[str, Any], y: Mapping[str, Any], series: Sequence[Any], **more: Any
) -> dict[str, Any]:
    """The common look of a plot."""
    return {
        "textStyle": {"fontFamily": "system-ui, sans-serif", "color": GREY},
        "grid": {"left": 8, "right": 18, "top": 34, "bottom": 8, "containLabel": True},
        "tooltip": {"trigger": "axis", "confine": True},
        "animationDuration": 300,
        "xAxis": _axis(x),
        "yAxis": _axis(y),
        "series": list(series),
        **more,
    }


def _axis(given: Mapping[str, Any]) -> dict[str, Any]:
    rule = {"lineStyle": {"color": "rgba(128,134,143,.28)"}}
    return {
        "axisLabel": {"color": GREY, "hideOverlap": True, "showMaxLabel": "max" not in given},
        "nameTextStyle": {"color": GREY},
        "axisLine": rule,
        "axisTick": {"show": False},
        "splitLine": rule if given.get("type", "value") == "value" else {"show": False},
        **given,
    }


def bars(counts: Mapping[str, Any], x: str, y: str, says: str, *, colour: str = BLUE) -> ui.echart:
    """How many of each."""
    return plot(
        axes(
            {"type": "category", "data": list(counts), "name": x, "nameLocation": "middle",
             "nameGap": 28},
            {"type": "value", "name": y, "minInterval": 1, "nameTextStyle": {"color": GREY,
             "align": "left"}},
            [{"type": "bar", "name": y, "data": list(counts.values()), "barMaxWidth": 46,
              "itemStyle": {"color": colour, "borderRadius": [4, 4, 0, 0]}}],
            grid={"left": 8, "right": 12, "top": 34, "bottom": 26, "containLabel": True},
        ),
        says, short=True,
    )  # fmt: skip


def sideways(counts: Mapping[str, Any], says: str) -> ui.echart:
    """How many of each, with long names."""
    names = list(counts)[:14][::-1]
    made = plot(
        axes(
            {"type": "value", "minInterval": 1},
            {"type": "category", "data": [_short(name) for name in names]},
            [{"type": "bar", "name": "found", "data": [counts[n] for n in names],
              "barMaxWidth": 16, "itemStyle": {"color": BLUE, "borderRadius": [0, 4, 4, 0]}}],
            grid={"left": 14 + 6.6 * max(len(_short(name)) for name in names), "right": 24,
                  "top": 8, "bottom": 24},
        ),
        says,
    )  # fmt: skip
    return made.style(f"height: {3 + 1.7 * len(names)}rem")


def _short(name: str) -> str:
    return name if len(name) <= 26 else f"{name[:25]}…"


# --- words ------------------------------------------------------------------------------------


def number(value: Any, digits: int = 3) -> str:
    """A number as people write it.

    >>> number(12345), number(2.73168), number("infinity"), number(None)
    ('12,345', '2.73', 'no bound', '–')
    """
    if value is None:
        return "–"
    if isinstance(value, str):
        return "no bound" if value == "infinity" else value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}g}"


def epsilon(value: float | str | None) -> str:
    """An epsilon as it is written everywhere, rounded up.

    >>> epsilon(7.98712), epsilon("infinity"), epsilon(None)
    ('7.988', 'no bound', '–')
    """
    return number(value if value is None else up(value))


def moment(iso: str | None) -> str:
    """A time as people write it, in UTC.

    >>> moment("2026-03-01T10:24:15.575371+00:00")
    '1 Mar 2026, 10:24 UTC'
    """
    if not iso:
        return "–"
    at = datetime.fromisoformat(iso)
    return f"{at.day} {at:%b %Y, %H:%M} UTC"


def lasting(seconds: float) -> str:
    """A length of time as people say it.

    >>> lasting(0.4), lasting(75), lasting(7300)
    ('about a second', 'about 1 minute', 'about 2 hours')
    """
    for size, name in ((3600, "hour"), (60, "minute"), (1, "second")):
        if seconds >= size:
            count = round(seconds / size)
            return f"about {count} {name}{'s' if count != 1 else ''}"
    return "about a second"


UNIT_WORDS = {
    "users": "users",
    "entities": "entities",
    "users+entities": "users and entities together",
    "records": "single records",
    "tokens": "marked words",
}


def meter(spent: float, limit: float, also: float = 0.0) -> Markup:
    """How full something is, and how full it would be with `also`."""
    full = min(100.0, 100 * spent / limit) if limit else 100.0
    extra = max(0.0, min(100.0 - full, 100 * also / limit)) if limit else 0.0
    # Widths cannot be had without a style; the policy allows those, and no text is in them.
    return Markup(
        '<div class="meter" role="img" aria-label="{:.0f} percent spent"><i style="width:{:.1f}%">'
        '</i><i class="more" style="width:{:.1f}%"></i></div>'
    ).format(full, full, extra)
