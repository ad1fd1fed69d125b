"""The drawings of the report; each is an SVG element, narrow enough for a phone."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tacit.attacks.attack import Drawing, Headline
from tacit.audits.epsilon_bounds import BREAKING
from tacit.errors import TacitError
from tacit.privacy.accounting.pricing import curve_over_steps
from tacit.privacy.events import NotPrivate, Public
from tacit.privacy.ledger import read_ledger
from tacit.privacy.rounding import down
from tacit.reports.facts import MEASURES, Leakage, Model, RunFacts, finite, leakage_of
from tacit.reports.plots import BLUE, GREY, INK, VERMILION, inline_svg, new_figure, plain_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours; markers differ as well, for print and for other eyes.
COLOURS = (BLUE, VERMILION, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vP*"
WIDTH = 4.6
"""Inches: letters stay readable where the page is as narrow as a phone."""
OFF = 1000.0
"""A perplexity so many times the best one is no model at all; drawing it would hide the others."""


def _look(number: int) -> dict[str, Any]:
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}


def _off_scale(perplexities: Sequence[float]) -> float:
    """Beyond this a perplexity is not drawn."""
    return OFF * min((p for p in perplexities if math.isfinite(p)), default=math.inf)


def _panels(
    title: str, x: str, labels: Sequence[str], height: float = 3.2
) -> "tuple[Figure, list[Axes]]":
    """Panels one below the other, one for each label of the vertical axis."""
    figure = new_figure(title, (WIDTH, height))
    axes = list(figure.subplots(len(labels), 1, squeeze=False, sharex=True)[:, 0])
    axes[0].set_title(title, loc="left", fontsize=11, color=INK)
    axes[-1].set_xlabel(x, fontsize=9.5, color=GREY)
    for place, label in zip(axes, labels, strict=True):
        place.set_ylabel(label, fontsize=9.5, color=GREY)
        place.tick_params(labelsize=9)
        place.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _line(axes: "Axes", value: float) -> None:
    axes.axhline(value, color=GREY, ls=":", lw=1)


def _score_axis(axes: "Axes", values: Sequence[float]) -> None:
    """From nothing up; on a logarithmic scale where models are far apart."""
    if min(values) > 0 and max(values) > 8 * min(values):
        axes.set_yscale("log")
        axes.set_ylim(min(values) / 1.5, max(values) * 1.8)
        plain_ticks(axes.yaxis, *axes.get_ylim())
    else:
        axes.set_ylim(bottom=1.15 * min(0.0, *values), top=1.15 * max(0.01, *values))


def _points(
    axes: "Axes", at: Sequence[float], values: Sequence[tuple[Any, Any, Any]], **look: Any
) -> None:
    """Values with the ends of their intervals, where these are known."""
    ends = [(y if finite(low) is None else low, y if finite(high) is None else high)
            for y, low, high in values]  # fmt: skip
    y = [float(value) for value, _, _ in values]
    below = [max(0.0, own - low) for own, (low, _) in zip(y, ends, strict=True)]
    above = [max(0.0, high - own) for own, (_, high) in zip(y, ends, strict=True)]
    axes.errorbar(at, y, yerr=[below, above], ms=6, capsize=3, **look)


def standing_drawing(runs: Sequence[RunFacts], beside: Mapping[str, float]) -> str:
    """What attacks got, at most, over how good each model is; what it has to beat are lines.

    Nothing where no run was both scored and attacked.
    """
    measures = {run.measure for run in runs}
    measure = measures.pop() if len(measures) == 1 else None
    found = []
    for run in runs:
        leaks = [one.share for one in leakage_of(run.scores.values(), first=True).values()]
        known = [share for share in leaks if share is not None]
        value = run.utility(measure) if measure else None
        if known and value is not None:
            found.append((run.name, value, max(known)))
    if measure is None or not found:
        return ""
    limit = _off_scale([v for _, v, _ in found]) if measure == "perplexity" else math.inf
    label = "largest leak: 0 guessing, 1 all"
    what = f"{MEASURES[measure][0]} (not private; {MEASURES[measure][1]} is better)"
    figure, (axes,) = _panels("Utility against leakage", what, [label], 3.0)
    for place, (name, value, share) in enumerate(found):
        if value <= limit:
            axes.plot([value], [share], ms=9, lw=0, label=name, **_look(place))
    lines = {name: value for name, value in beside.items() if math.isfinite(value)}
    for (name, value), style in zip(lines.items(), (":", "-.", (0, (1, 3))), strict=False):
        axes.axvline(value, color=GREY, ls=style, lw=1.2, label=name)
    values = [value for _, value, _ in found if value <= limit] + list(lines.values())
    if min(values) > 0 and max(values) > 8 * min(values):
        axes.set_xscale("log")
        axes.set_xlim(min(values) / 1.5, max(values) * 1.8)
        plain_ticks(axes.xaxis, *axes.get_xlim())
    else:
        axes.set_xlim(0.9 * min(0.0, *values), 1.15 * max(values))
    axes.set_ylim(-0.04, 1.04)
    figure.legend(loc="outside lower center", ncol=2, frameon=False, fontsize=8.5)
    return inline_svg(figure)


def steps_drawing(run: RunFacts, points: int = 5) -> str:
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
    figure, (axes,) = _panels("Epsilon grows with the steps", "steps", ["epsilon (public)"], 2.8)
    axes.plot([0, *at], [0, *(cost.epsilon for _, cost in curve)], color=BLUE, marker="o", ms=4)
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    return inline_svg(figure)


def interval_drawing(runs: Sequence[RunFacts]) -> str:
    """What audits found and what is certified, one bar for each unit of each run."""
    bars = [(f"{run.name}, {a.unit}", a) for run in runs for a in run.audits]
    title = "From what was found to what is certified"
    figure, (axes,) = _panels(title, "epsilon (public)", [""], 1.3 + 0.45 * len(bars))
    largest = max([a.upper for _, a in bars if math.isfinite(a.upper)], default=1.0)
    largest = max(largest, *(a.lower for _, a in bars))
    for place, (_, audit) in enumerate(bars):
        upper = audit.upper if math.isfinite(audit.upper) else 1.15 * largest
        low, high = sorted((audit.lower, upper))
        colour = VERMILION if audit.verdict in BREAKING else BLUE
        axes.barh(place, high - low, left=low, height=0.45, color=colour, alpha=0.35)
        axes.plot([audit.lower], [place], marker=">", color=colour, ms=8)
        axes.plot([upper], [place], marker="|", color=INK, ms=16, mew=2)
        said = f"{audit.verdict}: at least {down(audit.lower)}"
        axes.annotate(
            said, (low, place), xytext=(0, 13), textcoords="offset points", fontsize=8.5, color=INK
        )
    axes.set_yticks(range(len(bars)), [name for name, _ in bars])
    axes.set_ylim(-0.6, len(bars) - 0.2)
    axes.set_xlim(0, 1.25 * largest)
    return inline_svg(figure)


def frontier_drawing(
    runs: Sequence[tuple[RunFacts, float]], beside: Mapping[str, float], measure: str
) -> str:
    """A score over epsilon; runs without an epsilon are lines, and so is what stands beside."""
    limit = _off_scale([v for _, v in runs]) if measure == "perplexity" else math.inf
    known = [(run, value) for run, value in runs if value <= limit]
    title = "What a promise costs"
    figure, (axes,) = _panels(title, "epsilon (public)", [f"{measure} (not private)"])
    for place, (run, value) in enumerate(known):
        look = _look(place)
        if math.isfinite(run.epsilon):
            axes.plot([run.epsilon], [value], ms=8, lw=0, label=run.name, **look)
        else:
            axes.axhline(value, color=look["color"], ls="--", lw=1.5, label=run.name)
    for (name, value), style in zip(beside.items(), (":", "-.", (0, (1, 3))), strict=False):
        axes.axhline(value, color=GREY, ls=style, lw=1.2, label=name)
    if known:
        _score_axis(axes, [value for _, value in known] + list(beside.values()))
    most = max([run.epsilon for run, _ in known if math.isfinite(run.epsilon)], default=1.0)
    axes.set_xlim(0, 1.12 * most)
    axes.legend(frameon=False, fontsize=8.5)
    return inline_svg(figure)


def comparison_drawing(
    found: Mapping[str, Mapping[str, float | None]],
    titles: Mapping[str, str],
    ratios: Sequence[str],
) -> str:
    """One narrow panel for each figure, one bar for each run, all runs in the same order."""
    names, lines = list(found), -(-len(titles) // 2)
    height = 0.5 + lines * (0.55 + 0.17 * len(found))
    figure = new_figure("Methods side by side", (1.6 * WIDTH, height))
    panels = list(figure.subplots(lines, 2, squeeze=False, sharey=True).flat)
    for place, (key, title) in zip(panels, titles.items(), strict=False):
        values = [finite(found[name].get(key)) for name in names]
        shown = [v for v in values if v is not None]
        colours = [COLOURS[at % len(COLOURS)] for at in range(len(names))]
        place.barh(range(len(names)), [v or 0 for v in values], height=0.7, color=colours)
        if key in ratios and shown and min(shown) > 0 and max(shown) / min(shown) > 20:
            place.set_xscale("log")
            place.set_xlim(left=min(shown) / 1.5)
            plain_ticks(place.xaxis, *place.get_xlim())
        place.set_title(title, loc="left", fontsize=9, color=INK)
        place.tick_params(labelsize=8)
        place.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    for place in panels[len(titles) :]:
        place.set_visible(False)
    return inline_svg(figure)


def attack_drawing(drawing: Drawing, runs: Sequence[RunFacts], attack: str) -> str:
    """What an attack wants drawn, one line for each run."""
    label = f"{drawing.y} (not private)"
    figure, (axes,) = _panels(drawing.title, drawing.x, [label], 3.2 if drawing.columns else 3.8)
    if drawing.columns:
        _draw_table(axes, drawing.columns, runs, attack)
    else:
        _draw_curves(axes, drawing.curves, runs, attack)
    axes.legend(frameon=False, fontsize=8.5)
    return inline_svg(figure)


def _draw_table(
    axes: "Axes", columns: tuple[str, str, str, str], runs: Sequence[RunFacts], attack: str
) -> None:
    """A column over another, with its interval; the first headline says chance and limit."""
    x, y, low, high = columns
    places = sorted({row[x] for run in runs for row in run.scores[attack].rows})
    for number, run in enumerate(runs):
        rows = [row for row in run.scores[attack].rows if finite(row[y]) is not None]
        values = [(row[y], row[low], row[high]) for row in rows]
        at = [places.index(row[x]) for row in rows]
        _points(axes, at, values, label=run.name, lw=1.6, **_look(number))
    axes.set_xticks(range(len(places)), [str(place) if place else "never" for place in places])
    scores = [run.scores[attack] for run in runs]
    for headline in scores[0].presentation.headlines[:1]:
        if headline.chance is not None:
            _line(axes, headline.chance)
        most = max((one.figures.get(headline.most, 0.0) for one in scores), default=0.0)
        if most:
            _line(axes, most)
            axes.set_ylim(0, 1.14 * most)


def _draw_curves(
    axes: "Axes", wanted: Sequence[str], runs: Sequence[RunFacts], attack: str
) -> None:
    """True over false positives on logarithmic axes: what happens at the left end matters."""
    for number, run in enumerate(runs):
        curves = run.scores[attack].curves
        name = next((n for n in (*wanted, *curves) if n in curves), None)
        if name is not None:
            points = [(x, y) for x, y in curves[name] if x > 0 and y > 0]
            x, y = [x for x, _ in points], [y for _, y in points]
            colour = COLOURS[number % len(COLOURS)]
            axes.plot(x, y, lw=1.6, color=colour, label=f"{run.name}: {name}")
    axes.plot([1e-3, 1], [1e-3, 1], color=GREY, ls=":", lw=1, label="guessing")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(1e-3, 1)
    axes.set_ylim(1e-3, 1.2)


def leakage_drawing(
    models: Mapping[str, Sequence[Model]], headlines: Mapping[str, Headline]
) -> str:
    """What attacks got over perplexity, one line for each run; the last model is filled."""
    every = [one for found in models.values() for one in found]
    # One panel for each attack: its first headline.
    first = {key.partition(".")[0]: key for key in reversed(list(headlines))}
    known = [
        k for k in headlines if k in first.values() and any(m.value(k) is not None for m in every)
    ]
    if not known:
        return ""
    limit = _off_scale([m.perplexity for m in every if m.perplexity])
    labels = [f"{headlines[key].label} (not private)" for key in known]
    figure, axes = _panels(
        "Leakage against perplexity",
        "test perplexity (not private)",
        labels,
        0.6 + 2.5 * len(known),
    )
    for place, key in zip(axes, known, strict=True):
        for number, (run, found) in enumerate(models.items()):
            points = [
                (m.perplexity, m.value(key))
                for m in found
                if m.perplexity is not None and m.perplexity <= limit and m.value(key) is not None
            ]
            if points:
                x, y = zip(*points, strict=True)
                place.plot(x, y, ms=6, lw=1.4, mfc="white", label=run, **_look(number))
                place.plot(x[-1:], y[-1:], ms=7, lw=0, **_look(number))
        _leakage_axis(place, headlines[key], [m.leakage[key] for m in every if key in m.leakage])
        place.set_xscale("log")
        plain_ticks(place.xaxis, *place.get_xlim())
    axes[0].legend(frameon=False, fontsize=8.5)
    return inline_svg(figure)


def _leakage_axis(axes: "Axes", headline: Headline, found: Sequence[Leakage]) -> None:
    """What guessing gets, and the upper limit, as lines where they are known."""
    most = max((one.most or 0.0 for one in found), default=0.0)
    if headline.chance is not None:
        _line(axes, headline.chance)
    if most:
        _line(axes, most)
        axes.set_ylim(0, 1.14 * most)
    elif headline.chance:
        low, high = axes.get_ylim()
        axes.set_ylim(min(0.8 * headline.chance, low), max(1.6 * headline.chance, high))
    else:
        axes.set_ylim(bottom=-0.02)


def groups_drawing(runs: Sequence[RunFacts]) -> str:
    """Perplexity of each group under each run, with its interval."""
    found = {run.name: run.groups.groups for run in runs if run.groups is not None}
    limit = _off_scale([g.perplexity for groups in found.values() for g in groups])
    found = {n: gs for n, gs in found.items() if all(g.perplexity <= limit for g in gs)}
    names = list(dict.fromkeys(g.name for groups in found.values() for g in groups))
    height = 3.2 if len(names) < 8 else 4.0
    figure, (axes,) = _panels("Perplexity by group", "", ["perplexity (not private)"], height)
    width = 0.6 / max(1, len(found) - 1) if len(found) > 1 else 0.0
    for number, (name, groups) in enumerate(found.items()):
        x = [names.index(g.name) + (number - (len(found) - 1) / 2) * width for g in groups]
        values = [(g.perplexity, g.low, g.high) for g in groups]
        _points(axes, x, values, label=name, lw=0, elinewidth=1.4, **_look(number))
    turned = max((len(name) for name in names), default=0) * len(names) > 48
    axes.set_xticks(
        range(len(names)), names, rotation=30 if turned else 0, ha="right" if turned else "center"
    )
    drawn = [group.perplexity for groups in found.values() for group in groups]
    if drawn:
        _score_axis(axes, drawn)
        figure.legend(loc="outside lower center", ncol=2, frameon=False, fontsize=8.5)
    return inline_svg(figure)
