"""Leakage against perplexity: what has learnt less leaks less, so compare at like perplexity."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tacit.attacks.attack import Scores
from tacit.attacks.matching import HARDLY, common_level, off
from tacit.reports.overview import Section

if TYPE_CHECKING:
    from tacit.reports.report import RunFacts

NEAR = 1.25
"""Perplexities whose ratio is at most this are called alike."""


@dataclass(frozen=True)
class Leak:
    """What a model gives away, beside its perplexity; None where it was not attacked so."""

    step: int
    perplexity: float | None
    exposure: float | None
    most: float | None
    auc: float | None
    accuracy: float | None = None
    tab: float | None = None
    linkage: float | None = None


def leaks(step: int, scores: Mapping[str, Scores]) -> Leak:
    """Exposure of the most repeated canaries, and the headlines of other attacks, of one model."""
    bits = scores.get("exposure")
    figures, tab, linkage = (
        scores[name].figures if name in scores else {} for name in ("membership", "tab", "linkage")
    )
    return Leak(
        step,
        next((s.perplexity for s in scores.values() if s.perplexity is not None), None),
        most_repeated(bits) if bits is not None else None,
        bits.figures.get("most_possible_bits") if bits is not None else None,
        figures.get("users_auc", figures.get("records_auc")),
        figures.get("users_accuracy", figures.get("records_accuracy")),
        _beyond_controls(tab, "reproduced_when_begun", "reproduced"),
        linkage.get("accuracy_from_model"),
    )


def finite(value: float | None) -> float | None:
    """The number, where it is one: a score that could not be had is null in a file."""
    return None if value is None or not math.isfinite(value) else float(value)


def _beyond_controls(figures: Mapping[str, float], *ways: str) -> float | None:
    """How many more planted canaries came out than controls: those were never in the text."""
    for way in ways:
        planted = finite(figures.get(f"canaries_{way}"))
        if planted is not None:
            return max(0.0, planted - (finite(figures.get(f"controls_{way}")) or 0.0))
    return None


def most_repeated(scores: Scores) -> float | None:
    """The mean exposure of the canaries that were repeated most."""
    planted = [row for row in scores.rows if row["repetitions"] > 0]
    if not planted:
        return None
    return finite(max(planted, key=lambda row: row["repetitions"])["mean_bits"])


def over_steps(run: "RunFacts") -> list[Leak]:
    """The models of a run that were attacked, in the order of their steps."""
    return [leaks(step, scores) for step, scores in sorted(run.series.items())]


def matched(models: Mapping[str, Sequence[Leak]]) -> tuple[float, dict[str, Leak]] | None:
    """The lowest perplexity that all runs reached, and the model of each that is nearest to it.

    A run that has no model near it is left out, and so is one that hardly learnt.
    """
    known = {
        name: [one for one in found if one.perplexity is not None] for name, found in models.items()
    }
    best = {name: min(map(_ppl, found)) for name, found in known.items() if found}
    level = common_level(best)
    if level is None or sum(value <= level for value in best.values()) < 2:
        return None
    nearest = {
        name: min(known[name], key=lambda one: off(_ppl(one), level))
        for name, value in best.items()
        if value <= level
    }
    near = {name: one for name, one in nearest.items() if off(_ppl(one), level) <= math.log(NEAR)}
    return level, near


def _ppl(leak: Leak) -> float:
    assert leak.perplexity is not None
    return leak.perplexity


def leakage_sections(runs: Sequence["RunFacts"]) -> Iterator[Section]:
    """The models of all runs over perplexity, and those at like perplexity side by side."""
    from tacit.reports.report_figures import OFF, leakage_drawing

    models = {run.name: over_steps(run) for run in runs if run.series}
    if not models:
        return
    rows = [_row(name, one) for name, found in models.items() for one in found]
    headings = ["run", "step (public)", *_MEASURED.values()]
    prose = (
        "Models kept on the way, and the last one of each run. What has learnt less also gives "
        "away less, so methods are to be compared where their curves stand at one perplexity. "
        f"Models of {OFF:,.0f} times the lowest perplexity are not drawn."
    )
    drawing = leakage_drawing(models)
    yield Section("Leakage against perplexity", prose, (), headings, rows, drawing)
    yield from _matched_section(models)


_MEASURED = {
    "perplexity": "test perplexity (not private)",
    "exposure": "exposure, bits (not private)",
    "auc": "membership AUC (not private)",
    "tab": "tab accuracy beyond controls (not private)",
    "linkage": "linkage accuracy (not private)",
}


def _row(name: str, one: Leak) -> list[str]:
    return [name, f"{one.step:,}", *(_shown(getattr(one, figure)) for figure in _MEASURED)]


def _matched_section(models: Mapping[str, Sequence[Leak]]) -> Iterator[Section]:
    found = matched(models)
    if found is None:
        return
    level, near = found
    rows = [_row(name, one) for name, one in near.items()]
    prose = (
        f"The lowest perplexity that every run reached is {level:.4g} (not private), those left "
        f"out whose best is over {HARDLY:.0f} times the best of all. Of each run, the model "
        f"nearest to it, if within {NEAR - 1:.0%}."
    )
    lacking = [name for name in models if name not in near]
    if lacking:
        prose += f" None that near: {', '.join(lacking)}; more models kept on the way may help."
    if len(near) < 2:
        rows = []  # one run is like nobody
    headings = ["run", "step (public)", *_MEASURED.values()]
    yield Section("At like perplexity", prose, (), headings, rows)


def _shown(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.4g}"
