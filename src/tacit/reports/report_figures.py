"""The drawings of the report; each is an SVG element, narrow enough for a phone."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tacit.audits.epsilon_bounds import BREAKING
from tacit.errors import TacitError, require_package
from tacit.privacy.accounting.pricing import curve_over_steps
from tacit.privacy.events import NotPrivate, Public
from tacit.privacy.ledger import read_ledger
from tacit.privacy.rounding import down
from tacit.reports.leakage import finite
from tacit.reports.plots import BLUE, GREY, INK, STYLE, VERMILION, inline_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tacit.reports.leakage import Leak
    from tacit.reports.report import RunFacts

# Okabe and Ito's colours; markers differ as well, for print and for other eyes.
COLOURS = (BLUE, VERMILION, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vP*"
WIDTH = 4.6
"""Inches: letters stay readable where the page is as narrow as a phone."""
OFF = 1000.0
"""A perplexity so many times the best one is no model at all; drawing it would hide the others."""


def off_scale(perplexities: Sequence[float]) -> float:
    """Beyond this a perplexity is not drawn."""
    return OFF * min((p for p in perplexities if math.isfinite(p)), default=math.inf)


def _score_axis(axes: "Axes", values: Sequence[float]) -> None:
    """From nothing up; on a logarithmic scale where models are far apart."""
    if min(values) > 0 and max(values) > 8 * min(values):
        axes.set_yscale("log")
        axes.set_ylim(min(values) / 1.5, max(values) * 1.8)
        _plain_ticks(axes, "y")
    else:
        axes.set_ylim(bottom=1.15 * min(0.0, *values), top=1.15 * max(0.01, *values))


def _axes(title: str, x: str, y: str, height: float = 3.2) -> "tuple[Figure, Axes]":
    matplotlib = require_package("matplotlib", "A figure")
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height), layout="constrained", facecolor="white")
        axes = figure.add_subplot()
    figure.set_label(title)
    axes.set_title(title, loc="left", fontsize=11, color=INK)
    axes.set_xlabel(x, fontsize=9.5, color=GREY)
    axes.set_ylabel(y, fontsize=9.5, color=GREY)
    axes.tick_params(labelsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _drawn(figure: "Figure", axes: "Axes", *, legend: bool) -> str:
    if legend:
        axes.legend(frameon=False, fontsize=8.5)
    return inline_svg(figure)


def steps_drawing(run: "RunFacts", points: int = 5) -> str:
    """Epsilon over steps, from the ledger."""
    path = run.folder / "ledger.jsonl"
    if not math.isfinite(run.epsilon) or not path.exists():
        return ""
    try:
        released = read_ledger(path).releases()
        paid = [(e, n) for e, n in released.items() if not isinstance(e, Public | NotPrivate)]
        if len(paid) != 1 or paid[0][1] < 2:
            return ""
        event, count = paid[0]
        at = sorted({max(1, round(count * k / points)) for k in range(1, points + 1)})
        unit, delta = run.certificate.protect, run.certificate.delta
        curve = curve_over_steps(event, at, unit, delta, lower=False)
    except TacitError:
        return ""
    figure, axes = _axes("Epsilon grows with the steps", "steps", "epsilon (public)", 2.8)
    axes.plot([0, *at], [0, *(cost.epsilon for _, cost in curve)], color=BLUE, marker="o", ms=4)
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    return _drawn(figure, axes, legend=False)


def interval_drawing(runs: "Sequence[RunFacts]") -> str:
    """What audits found and what is certified, one bar for each unit of each run."""
    bars = [(f"{run.name}, {a.unit}", a) for run in runs for a in run.audits]
    figure, axes = _axes(
        "From what was found to what is certified", "epsilon (public)", "", 1.3 + 0.45 * len(bars)
    )
    largest = max([a.upper for _, a in bars if math.isfinite(a.upper)], default=1.0)
    largest = max(largest, *(a.lower for _, a in bars))
    for place, (_, audit) in enumerate(bars):
        broken = audit.verdict in BREAKING
        upper = audit.upper if math.isfinite(audit.upper) else 1.15 * largest
        low, high = sorted((audit.lower, upper))
        colour = VERMILION if broken else BLUE
        axes.barh(place, high - low, left=low, height=0.45, color=colour, alpha=0.35)
        axes.plot([audit.lower], [place], marker=">", color=colour, ms=8)
        axes.plot([upper], [place], marker="|", color=INK, ms=16, mew=2)
        said = f"{audit.verdict}: at least {down(audit.lower)}"
        axes.annotate(
            said, (low, place), xytext=(0, 13), textcoords="offset points", fontsize=8.5,
            color=INK,
        )  # fmt: skip
    axes.set_yticks(range(len(bars)), [name for name, _ in bars])
    axes.set_ylim(-0.6, len(bars) - 0.2)
    axes.set_xlim(0, 1.25 * largest)
    return _drawn(figure, axes, legend=False)


def frontier_drawing(
    runs: "Sequence[tuple[RunFacts, float]]", beside: Mapping[str, float], measure: str
) -> str:
    """A score over epsilon; runs without an epsilon are lines, and so is what stands beside."""
    limit = off_scale([v for _, v in runs]) if measure == "perplexity" else math.inf
    known = [(run, value) for run, value in runs if value <= limit]
    figure, axes = _axes("What a promise costs", "epsilon (public)", f"{measure} (not private)")
    for place, (run, value) in enumerate(known):
        colour = COLOURS[place % len(COLOURS)]
        if math.isfinite(run.epsilon):
            marker = MARKERS[place % len(MARKERS)]
            axes.plot([run.epsilon], [value], marker=marker, ms=8, color=colour, lw=0,
                      label=run.name)  # fmt: skip
        else:
            axes.axhline(value, color=colour, ls="--", lw=1.5, label=run.name)
    for (name, value), style in zip(beside.items(), (":", "-.", (0, (1, 3))), strict=False):
        axes.axhline(value, color=GREY, ls=style, lw=1.2, label=name)
    if known:
        _score_axis(axes, [value for _, value in known] + list(beside.values()))
    most = max([run.epsilon for run, _ in known if math.isfinite(run.epsilon)], default=1.0)
    axes.set_xlim(0, 1.12 * most)
    return _drawn(figure, axes, legend=True)


def comparison_drawing(
    found: "Mapping[str, Mapping[str, float | None]]", titles: Mapping[str, str]
) -> str:
    """One narrow panel for each figure, one bar for each run, all runs in the same order."""
    matplotlib = require_package("matplotlib", "A figure")
    from matplotlib.figure import Figure

    columns = 2
    lines = -(-len(titles) // columns)
    height = 0.5 + lines * (0.55 + 0.17 * len(found))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(1.6 * WIDTH, height), layout="constrained", facecolor="white")
        panels = list(figure.subplots(lines, columns, squeeze=False, sharey=True).flat)
    figure.set_label("Methods side by side")
    names = list(found)
    for place, (figure_name, title) in zip(panels, titles.items(), strict=False):
        values = [_number(found[name][figure_name], math.nan) for name in names]
        shown = [v for v in values if math.isfinite(v)]
        # Perplexities are ratios; bits are logarithms already, and shares end at one.
        ratio = figure_name in ("perplexity", "plain", "sensitive", "masked")
        wide = ratio and bool(shown) and min(shown) > 0 and max(shown) / min(shown) > 20
        place.barh(
            range(len(names)), [v if math.isfinite(v) else 0 for v in values], height=0.7,
            color=[COLOURS[at % len(COLOURS)] for at in range(len(names))],
        )  # fmt: skip
        if wide:
            place.set_xscale("log")
            place.set_xlim(left=min(shown) / 1.5)
            _plain_ticks(place, "x")
        place.set_title(title.removesuffix(" (not private)"), loc="left", fontsize=9, color=INK)
        place.tick_params(labelsize=8)
        for side in ("top", "right"):
            place.spines[side].set_visible(False)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    for place in panels[len(titles) :]:
        place.set_visible(False)
    return inline_svg(figure)


def exposure_drawing(runs: "Sequence[RunFacts]") -> str:
    """Exposure by repetition, with its interval, the maximum and what controls have."""
    figure, axes = _axes(
        "Exposure by repetition", "how often planted",
        "mean exposure, bits (not private)",
    )  # fmt: skip
    counts = sorted({row["repetitions"] for r in runs for row in r.scores["exposure"].rows})
    place_of = {count: place for place, count in enumerate(counts)}
    for number, run in enumerate(runs):
        rows = [r for r in run.scores["exposure"].rows if finite(r["mean_bits"]) is not None]
        x = [place_of[row["repetitions"]] for row in rows]
        y = [float(row["mean_bits"]) for row in rows]
        low = [max(0.0, m - _number(row["low"], m)) for m, row in zip(y, rows, strict=True)]
        high = [max(0.0, _number(row["high"], m) - m) for m, row in zip(y, rows, strict=True)]
        axes.errorbar(
            x, y, yerr=[low, high], label=run.name, color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)], ms=6, capsize=3, lw=1.6,
        )  # fmt: skip
    most = max(run.scores["exposure"].figures["most_possible_bits"] for run in runs)
    axes.axhline(most, color=GREY, ls=":", lw=1)
    axes.text(0.02, most, "read out in full", fontsize=8.5, color=GREY, va="bottom")
    axes.axhline(1 / math.log(2), color=GREY, ls=":", lw=1)
    axes.set_xticks(range(len(counts)), [str(c) if c else "never" for c in counts])
    axes.set_ylim(0, 1.14 * most)
    return _drawn(figure, axes, legend=True)


def _number(value: float | None, otherwise: float) -> float:
    known = finite(value)
    return otherwise if known is None else known


def roc_drawing(runs: "Sequence[RunFacts]") -> str:
    """True over false positives on logarithmic axes: what happens at the left end matters."""
    figure, axes = _axes(
        "Who was in the training text?", "wrong about those who were not",
        "right about those who were (not private)", 3.8,
    )  # fmt: skip
    for number, run in enumerate(runs):
        curves = run.scores["membership"].curves
        wanted = [n for n in ("users by reference", "users by loss") if n in curves]
        if not curves:
            continue
        name = [*wanted, *curves][0]
        points = [(x, y) for x, y in curves[name] if x > 0 and y > 0]
        axes.plot(
            [x for x, _ in points], [y for _, y in points], lw=1.6,
            color=COLOURS[number % len(COLOURS)], label=f"{run.name}: {name}",
        )  # fmt: skip
    axes.plot([1e-3, 1], [1e-3, 1], color=GREY, ls=":", lw=1, label="guessing")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(1e-3, 1)
    axes.set_ylim(1e-3, 1.2)
    return _drawn(figure, axes, legend=True)


def leakage_drawing(models: "Mapping[str, Sequence[Leak]]") -> str:
    """What attacks got over perplexity, one line for each run; the last model is filled."""
    panels = [
        ("exposure", "exposure, bits (not private)"),
        ("auc", "membership AUC (not private)"),
        ("tab", "tab beyond controls (not private)"),
        ("linkage", "linkage accuracy (not private)"),
    ]
    known = [
        (name, says)
        for name, says in panels
        if any(finite(getattr(m, name)) is not None for found in models.values() for m in found)
    ]
    if not known:
        return ""
    limit = off_scale([m.perplexity for f in models.values() for m in f if m.perplexity])
    figure, axes = _stacked("Leakage against perplexity", "test perplexity (not private)", known)
    for place, (name, _) in zip(axes, known, strict=True):
        for number, (run, found) in enumerate(models.items()):
            points = [
                (m.perplexity, getattr(m, name))
                for m in found
                if m.perplexity is not None
                and m.perplexity <= limit
                and finite(getattr(m, name)) is not None
            ]
            if not points:
                continue
            colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
            x, y = zip(*points, strict=True)
            place.plot(
                x, y, color=colour, marker=marker, ms=6, lw=1.4, mfc="white", label=run
            )  # fmt: skip
            place.plot(x[-1:], y[-1:], color=colour, marker=marker, ms=7, lw=0)
        if name == "exposure":
            most = max((m.most or 0.0 for found in models.values() for m in found), default=0.0)
            place.axhline(most, color=GREY, ls=":", lw=1)
            place.set_ylim(0, 1.14 * most)
        elif name in ("tab", "linkage"):
            place.set_ylim(bottom=-0.02)
        else:
            place.axhline(0.5, color=GREY, ls=":", lw=1)
            low, high = place.get_ylim()
            place.set_ylim(min(0.4, low), max(0.8, high))
        place.set_xscale("log")
        _plain_ticks(place, "x")
    axes[0].legend(frameon=False, fontsize=8.5)
    return inline_svg(figure)


def _stacked(
    title: str, x: str, panels: "Sequence[tuple[str, str]]"
) -> "tuple[Figure, list[Axes]]":
    matplotlib = require_package("matplotlib", "A figure")
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(
            figsize=(WIDTH, 0.6 + 2.5 * len(panels)), layout="constrained", facecolor="white"
        )
        axes = list(figure.subplots(len(panels), 1, squeeze=False, sharex=True)[:, 0])
    figure.set_label(title)
    axes[0].set_title(title, loc="left", fontsize=11, color=INK)
    axes[-1].set_xlabel(x, fontsize=9.5, color=GREY)
    for place, (_, says) in zip(axes, panels, strict=True):
        place.set_ylabel(says, fontsize=9.5, color=GREY)
        place.tick_params(labelsize=9)
        for side in ("top", "right"):
            place.spines[side].set_visible(False)
    return figure, axes


def _plain_ticks(axes: "Axes", which: str) -> None:
    """Few whole numbers on a logarithmic axis that may span less than a power of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
    axis = axes.xaxis if which == "x" else axes.yaxis
    every = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)
    subs = (1.0,) if high / low > 300 else (1.0, 2.0, 5.0) if high / low > 4 else every
    axis.set_major_locator(LogLocator(base=10, subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axis.set_minor_formatter(NullFormatter())


def groups_drawing(runs: "Sequence[RunFacts]") -> str:
    """Perplexity of each group under each run, with its interval."""
    values = {r.name: [g.perplexity for g in r.groups.groups] for r in runs if r.groups}
    limit = off_scale([value for found in values.values() for value in found])
    runs = [run for run in runs if max(values.get(run.name, [math.inf])) <= limit]
    names = list(dict.fromkeys(g.name for run in runs if run.groups for g in run.groups.groups))
    figure, axes = _axes(
        "Perplexity by group", "", "perplexity (not private)", 3.2 if len(names) < 8 else 4.0
    )
    width = 0.6 / max(1, len(runs) - 1) if len(runs) > 1 else 0.0
    for number, run in enumerate(runs):
        if run.groups is None:
            continue
        groups = run.groups.groups
        x = [names.index(g.name) + (number - (len(runs) - 1) / 2) * width for g in groups]
        y = [g.perplexity for g in groups]
        low = [max(0.0, g.perplexity - _number(g.low, g.perplexity)) for g in groups]
        high = [max(0.0, _number(g.high, g.perplexity) - g.perplexity) for g in groups]
        axes.errorbar(
            x, y, yerr=[low, high], label=run.name, color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)], ms=6, capsize=3, lw=0, elinewidth=1.4,
        )  # fmt: skip
    turned = max((len(name) for name in names), default=0) * len(names) > 48
    axes.set_xticks(
        range(len(names)), names, rotation=30 if turned else 0, ha="right" if turned else "center"
    )
    drawn = [value for run in runs for value in values[run.name]]
    if drawn:
        _score_axis(axes, drawn)
        figure.legend(loc="outside lower center", ncol=2, frameon=False, fontsize=8.5)
    return _drawn(figure, axes, legend=False)
