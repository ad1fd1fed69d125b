"""Is a model any good? A verdict in words, from its scores beside those of what it has to beat.

The scores are exact figures over private or test text, so the verdict is one, too: it stays inside.
What leaves with a model says what a charged comparison decided, or nothing; see the model card.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

MEASURES: Mapping[str, tuple[str, bool]] = {
    "perplexity": ("perplexity", True),
    "masked_perplexity": ("perplexity of masked words", True),
    "error_rate": ("error rate", True),
    "squared_error": ("squared error", True),
    "accuracy": ("share of right tags", False),
}
"""What a task is judged by, the first that it has: its name, and whether less is better."""

STARTS = {"public_only": "its public start", "redacted_only": "its start on masked text"}
OTHERS = {
    "trigram": "counted trigrams",
    "unigram": "counted words",
    "majority": "always naming the most frequent label",
    "constant": "always naming the mean",
    "uniform": "guessing uniformly",
}
_NAMES = STARTS | OTHERS | {"began": "step 1"}
_ALIKE = 0.005
"""Scores that differ by less than this share are called alike: no user would notice."""

Grade = Literal["good", "warn", "bad", "none"]


@dataclass(frozen=True)
class Verdict:
    """A sentence, the same with its figures, and a grade.

    *good* beats all that stands beside it, *warn* only its start and guessing; *bad* is worse
    than its start or no better than guessing, and *none* was not measured.
    """

    words: str
    figures: str
    grade: Grade

    def as_json(self) -> dict[str, str]:
        """The sentence with its figures, and the grade."""
        return {"words": self.figures, "grade": self.grade}


_UNMEASURED = "How good it is was not measured yet: it was scored on no text."
UNMEASURED = Verdict(_UNMEASURED, _UNMEASURED, "none")


def verdict(values: Mapping[str, Any]) -> Verdict:
    """What the scores on a split say."""
    measure = next((name for name in MEASURES if name in values), None)
    if measure is None:
        return UNMEASURED
    (called, less), value = MEASURES[measure], _number(values[measure])
    if math.isnan(value):
        said = "Its answers are no numbers: it learnt nothing that can be used."
        return Verdict(said, said, "bad")
    beside = {n: _number(values.get(f"{n}_{measure}")) for n in (*STARTS, *OTHERS)}
    known = {name: other for name, other in beside.items() if not math.isnan(other)}
    sides = _sides(value, known, less)
    sides[1] = _strongest(sides[1], known, less)
    words, figures = (_sentence(sides, known, shown) for shown in (False, True))
    figures = f"{called.capitalize()} {_shown(value)}: {figures}."
    return Verdict(f"{words[0].upper()}{words[1:]}.", figures, _grade(sides, known))


def verdict_of(metrics: Mapping[str, Any]) -> Verdict:
    """The verdict on a run: from its scores on test where it has some, else on validation.

    One that diverged says so first: what is left of it is its start.
    """
    splits = (verdict(metrics.get(split) or {}) for split in ("test", "valid"))
    found = next((one for one in splits if one.grade != "none"), UNMEASURED)
    if diverged := metrics.get("diverged"):
        short = diverged.split(":")[0].rstrip(".")
        return Verdict(f"{short}. {found.words}", f"{diverged} {found.figures}", "bad")
    return found


def so_far(loss: float, began: float | None, uniform: float | None) -> str:
    """How the loss of a step stands beside that of the first one, and of a uniform guess.

    >>> so_far(4.1, 6.25, 8.3)
    'better than step 1 (6.25) and guessing uniformly (8.3)'
    """
    if math.isnan(loss):
        return "no number"
    beside = {"began": began, "uniform": uniform}
    known = {name: other for name, other in beside.items() if other is not None}
    return _sentence(_sides(loss, known, less=True), known, shown=True)


def _number(value: Any) -> float:
    """A score as metrics.json spells it; NaN where there is none."""
    if value == "infinity":
        return math.inf
    return float(value) if isinstance(value, int | float) else math.nan


def _compared(value: float, other: float, less: bool) -> int:
    """1 if the model is better, -1 if it is worse, 0 if nobody would notice."""
    if value == other or abs(value - other) <= _ALIKE * abs(other):
        return 0
    return 1 if (value < other) == less else -1


def _sides(value: float, known: Mapping[str, float], less: bool) -> dict[int, list[str]]:
    """Those that are better (-1), alike, and worse (1) than a value."""
    sides: dict[int, list[str]] = {-1: [], 0: [], 1: []}
    for name, other in known.items():
        sides[_compared(value, other, less)].append(name)
    return sides


def _strongest(better: list[str], known: Mapping[str, float], less: bool) -> list[str]:
    """Of those that are beaten: where it began, and the strongest of the others."""
    others = sorted((n for n in better if n in OTHERS), key=known.__getitem__, reverse=not less)
    return [*(name for name in better if name in STARTS), *others[:1]]


def _sentence(sides: Mapping[int, list[str]], known: Mapping[str, float], shown: bool) -> str:
    def named(name: str) -> str:
        called = _NAMES[name]
        return f"{called} ({_shown(known[name])})" if shown else called

    says = {-1: "worse than", 0: "no better than", 1: "better than"}
    parts = [
        f"{said} {_listed([named(name) for name in sides[side]])}"
        for side, said in says.items()
        if sides[side]
    ]
    return "; ".join(parts) or "nothing stands beside it"


def _listed(names: list[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _shown(value: float) -> str:
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _grade(sides: Mapping[int, list[str]], known: Mapping[str, float]) -> Grade:
    lost = {*sides[-1], *sides[0]}
    if lost & {*STARTS, "majority", "constant", "uniform"}:
        return "bad"
    return "warn" if lost or not known else "good"
