"""Figures: how they look and are saved, and the picture of owners that decides a plan.

matplotlib is imported when a figure is made, through its object interface: no window, no
global state. Names, where the caller joins them, are the caller's to guard.
"""

import io
import math
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, StrictUndefined

from tacit.corpus.description import histogram
from tacit.errors import UsageError, require_package
from tacit.files import whole_file
from tacit.owners import Owners, most_shared
from tacit.owners.bounding import Kept

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "html")

# Okabe and Ito's colours, which all common kinds of colour vision tell apart.
BLUE, VERMILION, INK, GREY, RULE = "#0072B2", "#D55E00", "#222222", "#6B6B6B", "#D9D9D9"

STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "svg.fonttype": "none",
    "svg.hashsalt": "tacit",
}


def format_of(path: Path) -> str:
    """The format that a file's suffix asks for; an unknown one is refused."""
    suffix = Path(path).suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        raise UsageError(
            f"{path}: no figure is written as {suffix or 'a file without suffix'!r}; end the name "
            "in .png, .svg or .html."
        )
    return suffix


def save(figure: "Figure", path: Path) -> None:
    """Write a figure as PNG, SVG or a self-contained HTML page, by the suffix of the name."""
    kind = format_of(path)
    data = _drawn(figure, "png" if kind == "png" else "svg")
    if kind == "html":
        source = (files("tacit.reports") / "figure.html.jinja").read_text(encoding="utf-8")
        page = Environment(autoescape=True, undefined=StrictUndefined).from_string(source)
        title = str(figure.get_label() or "Figure")
        data = page.render(title=title, drawing=inline_svg(figure)).encode()
    with whole_file(Path(path)) as draft:
        draft.write_bytes(data)


def inline_svg(figure: "Figure") -> str:
    """The figure as an `<svg>` element to put into a page."""
    svg = _drawn(figure, "svg").decode()
    return svg[svg.index("<svg") :]


def _drawn(figure: "Figure", kind: str) -> bytes:
    matplotlib = require_package("matplotlib", "A figure")

    out = io.BytesIO()
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # A name in a script that the font lacks shows as boxes; that is no reason to warn.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        if kind == "png":
            figure.savefig(out, format="png", dpi=160, metadata={"Software": "tacit"})
        else:
            figure.savefig(out, format="svg", metadata={"Date": None, "Creator": "tacit"})
    return out.getvalue()


def new_figure(title: str, size: tuple[float, float], layout: Any = "constrained") -> "Figure":
    """An empty figure in our style, labelled for those who cannot see it."""
    matplotlib = require_package("matplotlib", "A figure")
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, layout=layout, facecolor="white")
    figure.set_label(title)
    return figure


def plain_ticks(axis: "Axis", low: float = 0.0, high: float = 0.0) -> None:
    """Few whole numbers instead of powers on a logarithmic axis.

    One that spans less than a power of ten, from `low` to `high`, has more of them.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    every = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)
    ratio = high / low if low else math.inf
    subs = (1.0,) if ratio > 300 else (1.0, 2.0, 5.0) if ratio > 4 else every
    axis.set_major_locator(LogLocator(base=10, subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axis.set_minor_formatter(NullFormatter())


def degree_figure(
    owners: Owners,
    rows: Sequence[Kept],
    *,
    names: Mapping[str, str] | None = None,
    shared: int = 12,
) -> "Figure":
    """Who shares what: records per user, users per entity, what caps keep, who is shared most.

    `rows` come from `preview`; `names` may give the entities' names by id, from the entity
    table.
    """
    matplotlib = require_package("matplotlib", "A figure")
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    headline = (
        f"{len(owners):,} records of {_some(len(owners.users), 'user')} "
        f"name {_some(len(owners.entities), 'entity', 'entities')}"
    )
    layout = ConstrainedLayoutEngine(w_pad=0.18, h_pad=0.18, wspace=0.05, hspace=0.06)
    figure = new_figure(headline, (11.5, 8.4), layout)
    with matplotlib.rc_context(STYLE):
        figure.suptitle(headline, x=0.017, ha="left", fontsize=15, color=INK, fontweight="bold")
        (first, second), (third, fourth) = figure.subplots(2, 2)
        _records_per_user(first, owners)
        _users_per_entity(second, owners)
        _caps(third, owners, rows)
        _most_shared(fourth, owners, names or {}, shared)
        return figure


def _records_per_user(axes: "Axes", owners: Owners) -> None:
    counts = owners.records_per_user
    if len(counts) == 0:
        return _nothing(axes, "There are no users", "no records")
    buckets = histogram(counts)
    first = next((i for i, count in enumerate(buckets.values()) if count), 0)
    buckets = dict(list(buckets.items())[first:])  # without the empty ones before all others
    places = np.arange(len(buckets))
    bars = axes.bar(places, list(buckets.values()), width=0.82, color=BLUE)
    labels = [f"{v:,}" if v else "" for v in buckets.values()]
    axes.bar_label(bars, labels=labels, fontsize=8.5, color=GREY, padding=2)
    axes.set_xticks(places, [label.replace("-", "–") for label in buckets])
    usual, most = int(np.sort(counts)[(len(counts) - 1) // 2]), int(counts.max())
    _dress(
        axes,
        f"Half of the users wrote at most {_some(usual, 'record')}; the busiest wrote {most:,}",
        x="records of a user",
        y="users",
    )
    axes.margins(y=0.12)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlim(-0.6, max(len(buckets), 6) - 0.4)
    axes.tick_params(axis="x", length=0, labelsize=9 if len(buckets) < 8 else 8)
    if len(buckets) > 8:
        for tick in axes.get_xticklabels():
            tick.set(rotation=40, ha="right", rotation_mode="anchor")


def _users_per_entity(axes: "Axes", owners: Owners) -> None:
    degrees = owners.users_per_entity
    if len(degrees) == 0:
        return _nothing(axes, "No record names an entity", "no entities")
    # Each degree that occurs, and 1, with how many entities have at least that.
    at_least, counts = np.unique(np.append(degrees, 1), return_counts=True)
    counts[0] -= 1
    entities = np.cumsum(counts[::-1])[::-1]
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.plot(at_least, entities, drawstyle="steps-pre", color=BLUE, linewidth=2)
    axes.scatter(at_least[-1:], entities[-1:], color=BLUE, s=28, zorder=3)
    axes.set_xlim(0.9, max(10.0, float(at_least[-1]) * 1.6))
    axes.set_ylim(0.75, max(10.0, float(entities[0]) * 1.6))
    plain_ticks(axes.xaxis)
    plain_ticks(axes.yaxis)
    axes.grid(which="major", color=RULE, linewidth=0.6)
    several = int((degrees > 1).sum())
    _dress(
        axes,
        f"{_percent(several, len(degrees))} of the entities are named by more than one user; "
        f"one by {int(degrees.max()):,}"
        if several
        else "No entity is named by more than one user",
        x="named by at least so many users",
        y="entities",
    )


def _caps(axes: "Axes", owners: Owners, rows: Sequence[Kept]) -> None:
    sensitive = int(owners.sensitive.sum())
    if len(owners) == 0 or not rows:
        return _nothing(axes, "No cap was tried", "no caps")
    ordered = sorted(rows, key=lambda row: row.users_per_entity)
    places = np.arange(len(ordered))
    lines = [("all records", [r.records / len(owners) for r in ordered], BLUE, "o")]
    if sensitive:
        shares = [r.sensitive_records / sensitive for r in ordered]
        lines.append(("records naming an entity", shares, VERMILION, "s"))
    for label, values, color, marker in lines:
        axes.plot(places, values, color=color, marker=marker, markersize=5.5, linewidth=2)
        above = 8 if label == "all records" else -14
        for place, value in zip(places, values, strict=True):
            axes.annotate(
                f"{value:.0%}", (place, value), textcoords="offset points", xytext=(0, above),
                ha="center", fontsize=8.5, color=color,
            )  # fmt: skip
    for number, (label, _, color, _) in enumerate(reversed(lines)):  # in the free corner
        axes.text(
            0.985, 0.05 + 0.085 * number, label, transform=axes.transAxes, ha="right",
            fontsize=10, fontweight="bold", color=color,
        )  # fmt: skip
    axes.set_xticks(places, [f"{row.users_per_entity:,}" for row in ordered])
    axes.set_ylim(-0.02, 1.14)
    axes.set_xlim(-0.45, len(ordered) - 0.55)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])
    axes.grid(axis="y", color=RULE, linewidth=0.6)
    _dress(
        axes, _cap_finding(owners, ordered), x="at most so many users per entity", y="share kept"
    )


def _cap_finding(owners: Owners, rows: Sequence[Kept]) -> str:
    """The least tried cap that keeps nine records in ten, in words."""
    for row in rows:
        if row.records >= 0.9 * len(owners):
            users = _some(row.users_per_entity, "user")
            return (
                f"With at most {users} per entity, "
                f"{_percent(row.records, len(owners))} of the records stay"
            )
    last = rows[-1]
    return (
        f"Even {_some(last.users_per_entity, 'user')} per entity "
        f"keep only {_percent(last.records, len(owners))} of the records"
    )


def _most_shared(axes: "Axes", owners: Owners, names: Mapping[str, str], count: int) -> None:
    top = [i for i in most_shared(owners, count) if owners.users_per_entity[i] > 1]
    if not top:
        return _nothing(axes, "No entity is shared between users", "nothing shared")
    values = owners.users_per_entity[top]
    places = np.arange(len(top))
    bars = axes.barh(places, values, height=0.72, color=BLUE)
    axes.bar_label(bars, labels=[f"{v:,}" for v in values], fontsize=8.5, color=GREY, padding=3)
    labels = [
        f"{_short(names.get(owners.entities[i], owners.entities[i]))}  ({owners.kinds[i]})"
        for i in top
    ]
    axes.set_yticks(places, labels)
    for tick in axes.get_yticklabels():
        tick.set_parse_math(False)  # a "$" in a name is a dollar, not a formula
    axes.set_ylim(max(len(top), 8) - 0.4, -0.6)
    axes.margins(x=0.1)
    _dress(
        axes,
        f"{_percent(int(values[0]), len(owners.users))} of the users name the most shared entity",
        x="users who name it",
        y="",
    )
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _dress(axes: "Axes", title: str, *, x: str, y: str) -> None:
    """The look that all panels share."""
    axes.set_title(_wrapped(title), loc="left", fontsize=11.5, color=INK, pad=12, linespacing=1.25)
    axes.set_xlabel(x, fontsize=9.5, color=GREY)
    axes.set_ylabel(y, fontsize=9.5, color=GREY)
    axes.tick_params(labelsize=9, colors=INK, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#9A9A9A")
    axes.set_axisbelow(True)


def _wrapped(title: str, room: int = 58) -> str:
    """The title in lines of about equal length, so that no single word hangs over."""
    title = title[:1].upper() + title[1:]
    lines = -(-len(title) // room)
    return textwrap.fill(title, room if lines == 1 else min(room, len(title) // lines + 8))


def _nothing(axes: "Axes", title: str, note: str) -> None:
    _dress(axes, title, x="", y="")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    axes.text(0.5, 0.5, note, transform=axes.transAxes, ha="center", color=GREY, fontsize=11)


def _some(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _percent(part: int, whole: int) -> str:
    """A share in words that never rounds something to nothing, or not all to all."""
    share = part / whole
    if 0 < share < 0.005:
        return "less than 1%"
    if 0.995 <= share < 1:
        return "over 99%"
    return f"{share:.0%}"


def _short(name: str, room: int = 26) -> str:
    """A name fit for a label: one line, printable, not too long."""
    clean = " ".join("".join(c if c.isprintable() else " " for c in name).split())
    return clean if len(clean) <= room else clean[: room - 1].rstrip() + "…"
