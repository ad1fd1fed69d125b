"""Figures of prices: epsilon over steps and over an entity's degree."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

from tacit.planning.prices import Quote
from tacit.privacy.accounting.pricing import Price
from tacit.privacy.rounding import up
from tacit.reports.plots import BLUE, GREY, INK, RULE, VERMILION, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def price_figure(quote: Quote) -> "Figure":
    """Epsilon over steps and, where entities are protected, over how many users share one."""
    panels = [p for p in (quote.over_steps, quote.over_degree) if p]
    main = quote.prices[quote.protect]
    title = (
        f"epsilon {up(main.epsilon)} for {quote.protect} after {quote.steps:,} steps "
        f"at delta {quote.delta:g} ({main.standing})"
    )
    count = max(1, len(panels))
    figure = new_figure(title, (5.8 * count, 4.4))
    figure.suptitle(title, x=0.02, ha="left", fontsize=12, color=INK, fontweight="bold")
    axes = figure.subplots(1, count, squeeze=False)[0]
    if quote.over_steps:
        _draw(axes[0], quote.over_steps, "steps", BLUE)
    if quote.over_degree:
        _draw(axes[-1], quote.over_degree, "users who share the entity", VERMILION, log=True)
    return figure


def published_figure(title: str, lines: Mapping[str, Sequence[tuple[int, float]]]) -> "Figure":
    """Published epsilons over steps, each line with its name; they promise nothing of ours."""
    figure = new_figure(title, (7.2, 4.6))
    figure.suptitle(title, x=0.02, ha="left", fontsize=12, color=INK, fontweight="bold")
    axes = figure.subplots()
    for (name, line), colour in zip(
        lines.items(), cycle((BLUE, GREY, INK, VERMILION)), strict=False
    ):
        points = [(at, epsilon) for at, epsilon in line if math.isfinite(epsilon)]
        axes.plot([at for at, _ in points], [e for _, e in points], color=colour, marker="o", ms=4,
                  lw=1.8, label=name)  # fmt: skip
    axes.set_yscale("log")
    axes.set_xlabel("steps", color=GREY)
    axes.set_ylabel("epsilon", color=GREY)
    axes.grid(color=RULE, lw=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    return figure


def _draw(
    axes: "Axes", curve: Sequence[tuple[int, Price]], label: str, colour: str, *, log: bool = False
) -> None:
    points = [(at, cost) for at, cost in curve if math.isfinite(cost.epsilon)]
    x = [at for at, _ in points]
    upper = [cost.epsilon for _, cost in points]
    axes.fill_between(x, [c.lower for _, c in points], upper, color=colour, alpha=0.15, lw=0)
    axes.plot(x, upper, color=colour, marker="o", ms=4, lw=1.8)
    for at, value in zip(x[-3:], upper[-3:], strict=True):
        axes.annotate(
            up(value), (at, value), xytext=(0, 7), textcoords="offset points",
            ha="center", fontsize=8.5, color=colour,
        )  # fmt: skip
    if log:
        axes.set_xscale("log", base=2)
        axes.set_xticks(x, [f"{at:,}" for at in x])
        axes.minorticks_off()
    axes.set_ylim(0, max(upper, default=1) * 1.15)
    axes.set_xlabel(label, color=GREY)
    axes.set_ylabel("epsilon (shaded: down to what is certainly lost)", color=GREY)
    axes.grid(color=RULE, lw=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
