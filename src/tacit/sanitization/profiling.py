"""Numbers to choose epsilon by, computed from the probabilities and not from trials.

Legend (Yue et al. 2021, section 5.5): N_x = Pr[x | x], how often a word stays; S_x, the expected
number of different words that x becomes in 1,000 draws; S*_y, the expected number of different
words that become y when every word is drawn 1,000 times. With p = Pr[y | x],

    S_x = sum over y of 1 - (1 - p)^1000,      S*_y = sum over x of the same.

Two entropies go with them: log S_x for the Hartley entropy of what is really seen, and -log of the
largest probability, the min-entropy.

Departs: the paper counts in 1,000 runs; these are the expectations of those counts, exactly.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tacit.errors import UsageError, require_package
from tacit.sanitization.kernel import Floats, Places, Space
from tacit.sanitization.sanitizer import Sanitizer

DRAWS = 1000
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
ALL_UP_TO = 8_000
"""Vocabularies up to this size are looked at whole, larger ones by words drawn from them."""
PROBES = 1_000

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Profile:
    """What one epsilon does to the words of a vocabulary; arrays hold one value for each word."""

    epsilon_per_distance: float
    stays: Floats
    spread: Floats
    sources: Floats
    min_entropy: Floats

    @property
    def hartley(self) -> Floats:
        """log S_x."""
        return np.log(np.maximum(self.spread, 1.0))

    def quantiles(self) -> dict[str, dict[str, float]]:
        """Each measure over the vocabulary."""
        measures = {
            "stay rate N_x": self.stays,
            "words from one, S_x": self.spread,
            "words to one, S*_y": self.sources,
            "Hartley entropy": self.hartley,
            "min-entropy": self.min_entropy,
        }
        return {
            name: {
                f"{q:.0%}": float(v)
                for q, v in zip(QUANTILES, np.quantile(values, QUANTILES), strict=True)
            }
            for name, values in measures.items()
        }


def profile(
    sanitizer: Sanitizer, epsilons: Sequence[float], *, progress: Progress | None = None
) -> list[Profile]:
    """The profile of a vocabulary at each epsilon.

    For a vocabulary of more than 8,000 words it is that of 1,000 words drawn by a fixed rule; each
    one's figures are exact all the same. SanText+ is looked at over its sensitive words.
    """
    if not sanitizer.mechanism.exact_rows:
        raise UsageError(
            f"method={sanitizer.recipe.method} has no rows of probabilities to look at; --profile "
            "goes with santext and santext+."
        )
    space = sanitizer.space
    chosen = space.outputs
    if len(chosen) > ALL_UP_TO:
        rng = np.random.default_rng(20_210_801)
        chosen = np.sort(rng.choice(chosen, PROBES, replace=False))
    totals = _totals(space, epsilons, progress)
    return [_one(space, chosen, eps, totals[at]) for at, eps in enumerate(epsilons)]


def _totals(space: Space, epsilons: Sequence[float], progress: Progress | None) -> Floats:
    """The sum of each output word's weights, at every epsilon; distances are computed once."""
    found = np.empty((len(epsilons), space.width))
    start = 0
    for block in space.blocks(space.outputs):
        apart = space.distances(block)
        for at, eps in enumerate(epsilons):
            found[at, start : start + len(block)] = np.exp(apart * (-0.5 * eps)).sum(1)
        start += len(block)
        if progress:
            progress(len(block))
    return found


def _one(space: Space, chosen: Places, epsilon: float, totals: Floats) -> Profile:
    place = np.full(space.size, -1)
    place[space.outputs] = np.arange(space.width)
    stays, spread, sources, largest = (np.empty(len(chosen)) for _ in range(4))
    start = 0
    for block in space.blocks(chosen):
        weights = np.exp(space.distances(block) * (-0.5 * epsilon))
        own = place[block]
        part = slice(start, start + len(block))
        # Distances are the same both ways, so a row of weights over each word's own total is
        # the column of probabilities of becoming this word.
        sources[part] = _seen(weights / totals)
        rows = weights / totals[own][:, None]
        spread[part] = _seen(rows)
        stays[part] = rows[np.arange(len(block)), own]
        largest[part] = rows.max(1)
        start += len(block)
    return Profile(epsilon, stays, spread, sources, -np.log(largest))


def _seen(p: Floats) -> Floats:
    """The expected number of different outcomes in 1,000 draws: the sum of 1 - (1 - p)^1000."""
    with np.errstate(divide="ignore"):
        return -np.expm1(DRAWS * np.log1p(-np.minimum(p, 1.0))).sum(1)


def plot_profile(profiles: Sequence[Profile], path: Path, title: str) -> None:
    """Draw N_x, S_x and S*_y over epsilon, with the spread over words."""
    rc_context = require_package("matplotlib", "A figure").rc_context
    from matplotlib.figure import Figure

    from tacit.reports.plots import GREY, INK, STYLE, save

    epsilons = [p.epsilon_per_distance for p in profiles]
    panels: list[tuple[str, Callable[[Profile], Floats], bool]] = [
        ("How often a word stays (N_x)", lambda p: p.stays, False),
        ("Words that one becomes in 1,000 draws (S_x)", lambda p: p.spread, True),
        ("Words that become this one (S*_y)", lambda p: p.sources, True),
    ]
    with rc_context(STYLE):
        figure = Figure(figsize=(11.5, 3.9), layout="constrained", facecolor="white")
        figure.set_label(title)
        figure.suptitle(title, color=INK, fontsize=11, x=0.01, ha="left")
        for axes, (name, read, log) in zip(figure.subplots(1, 3), panels, strict=True):
            rows = np.array([np.quantile(read(p), QUANTILES) for p in profiles])
            axes.set_title(name, fontsize=9.5, color=INK, loc="left")
            _draw_spread(axes, epsilons, rows, log=log)
        figure.supxlabel(
            "line: median word; dark band: half of the words; light band: four fifths",
            fontsize=8.5,
            color=GREY,
        )
        save(figure, path)


def as_json(profiles: Sequence[Profile]) -> list[dict[str, Any]]:
    """The quantiles of every epsilon."""
    return [
        {"epsilon_per_distance": p.epsilon_per_distance, "words": len(p.stays), **p.quantiles()}
        for p in profiles
    ]


def _draw_spread(axes: Any, epsilons: Sequence[float], rows: Floats, *, log: bool) -> None:
    """The median over words for each epsilon, and bands around it."""
    from matplotlib.ticker import ScalarFormatter

    from tacit.reports.plots import BLUE, GREY, RULE

    axes.fill_between(epsilons, rows[:, 0], rows[:, 4], color=BLUE, alpha=0.15, lw=0)
    axes.fill_between(epsilons, rows[:, 1], rows[:, 3], color=BLUE, alpha=0.3, lw=0)
    axes.plot(epsilons, rows[:, 2], color=BLUE, marker="o", lw=1.8)
    axes.set_xlabel("epsilon per distance", fontsize=9, color=GREY)
    if log:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.yaxis.set_minor_formatter(ScalarFormatter())
        axes.tick_params(which="minor", colors=GREY, labelsize=7.5)
    else:
        axes.set_ylim(-0.03, 1.03)
    if len(epsilons) <= 8:
        axes.set_xticks(epsilons, [f"{e:g}" for e in epsilons])
    axes.grid(axis="y", color=RULE, lw=0.6)
    axes.tick_params(colors=GREY, labelsize=8.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
