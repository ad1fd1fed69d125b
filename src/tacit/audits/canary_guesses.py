"""How many canaries an audit takes, what they can show, and what guesses about them do show.

An audit by canaries scores each by the log-likelihood ratio of what it heard, and guesses the
highest to be in and the lowest to be out. All that has to be fixed before looking is fixed here, by
a simulation of the declared mechanism: how many canaries, and how many guesses.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from tacit.audits.epsilon_bounds import (
    WANTED,
    Evidence,
    best_bound,
    one_run_bound,
)
from tacit.audits.worst_cases import Array, Draw
from tacit.privacy.rounding import down, up

DOUBT = (0.6, 0.1, 0.3)
"""How the three tests of an audit share the chance of being wrong."""
MOST, FEWEST = 32768, 2048
"""Canaries of an audit, if nobody says otherwise; delta limits what more of them would add."""
_AIM = 1.25
"""So much more than wanted is aimed at: a bound that is only expected is missed half the time."""
_SIMULATED = 1 << 24
"""Numbers that a simulation may draw."""

OnProgress = Callable[[str], None]
"""Says a sentence to whoever started the audit."""
Simulate = Callable[[int], Array]
"""Scores of so many canaries, as they would be if all is as declared."""


@dataclass(frozen=True)
class Reach:
    """What an audit can show, known before it runs.

    `at_best` is the bound if every guess is right, `expected` the one to be expected if all is as
    declared; `guesses` are so many "in" and so many "out".
    """

    canaries: int
    guesses: tuple[int, int]
    at_best: float
    expected: float
    certified: float

    @property
    def enough(self) -> bool:
        """Whether a third of what is certified can be shown at all."""
        return not math.isfinite(self.certified) or self.at_best >= WANTED * self.certified

    def sentence(self, unit: str) -> str:
        """What is said before the audit runs."""
        said = f"{self.canaries:,} canaries for {unit} can show epsilon {down(self.at_best)}"
        said += f" at best (every guess right); about {down(self.expected)} is to be "
        said += "expected if all is as declared"
        if math.isfinite(self.certified):
            said += f", of {up(self.certified)} certified"
        return said + ("." if self.enough else ": too few to show a third of it.")

    def details(self) -> dict[str, float]:
        """For the evidence."""
        return {"at_best": self.at_best, "expected": self.expected}


def reach_of(
    simulate: Simulate,
    delta: float,
    confidence: float,
    certified: float,
    *,
    canaries: int | None = None,
    most: int = MOST,
) -> Reach:
    """So many canaries as given, or else the fewest that can be expected to show a third.

    If no number up to `most` is expected to, the one that is expected to show most.
    """
    if canaries is not None:
        return _reach(simulate(canaries), canaries, delta, confidence, certified)
    scores = simulate(most)
    counts = [most]
    while counts[0] // 2 >= FEWEST:
        counts.insert(0, counts[0] // 2)
    tried: list[Reach] = []
    for count in counts:
        tried.append(_reach(scores, count, delta, confidence, certified))
        if tried[-1].expected >= _AIM * WANTED * certified:
            return tried[-1]
    return max(tried, key=lambda one: one.expected)


def _reach(scores: Array, count: int, delta: float, confidence: float, certified: float) -> Reach:
    (high, low), expected = planned_guesses(scores, count, delta, confidence)
    at_best = best_bound(count, delta, 1 - DOUBT[0] * (1 - confidence))
    return Reach(count, (high, low), at_best, expected, certified)


def planned_guesses(
    scores: Array, count: int, delta: float, confidence: float
) -> tuple[tuple[int, int], float]:
    """How many to guess in and out of `count` canaries, and the bound that this should give.

    The scores are simulated, before looking, and may be fewer or more than there will be.
    """
    # The chance that a guess is right, surest first; smoother than counting right ones.
    order = np.argsort(-np.abs(scores), kind="stable")
    sure = 1 / (1 + np.exp(-np.abs(scores[order])))
    level = 1 - DOUBT[0] * (1 - confidence)
    halves = (round(count * 2 ** (-k / 2)) for k in range(2, 21))
    tried = [r for r in halves if r >= 32] or [count]

    def surest(guesses: int) -> int:
        return max(1, min(len(scores), round(guesses * len(scores) / count)))

    def promised(guesses: int) -> float:
        share = float(sure[: surest(guesses)].mean())
        # One standard deviation less than expected: a plan that seldom disappoints.
        right = guesses * share - math.sqrt(guesses * share * (1 - share))
        return one_run_bound(count, guesses, max(0, int(right)), delta, level)

    best = max(tried, key=promised)
    high = round(best * float((scores[order[: surest(best)]] > 0).mean()))
    return (high, best - high), promised(best)


def evidence_of(
    how: str,
    scores: Array,
    inside: NDArray[np.bool_],
    reach: Reach,
    delta: float,
    confidence: float,
    steps: int,
) -> Evidence:
    """The best of three tests named in advance, each with its part of the doubt.

    A test says "in" of so many with the highest scores and "out" of so many with the lowest. The
    first is the planned one, the others are for builds that leak far more than declared: where few
    canaries are ever drawn, and where all are.
    """
    order = np.argsort(-scores, kind="stable")
    count = len(scores)
    made = []
    tests = (reach.guesses, (count // 10, 0), (2 * count // 5, 2 * count // 5))
    for (high, low), doubt in zip(tests, DOUBT, strict=True):
        right = int(inside[order[:high]].sum()) + int((~inside[order[count - low :]]).sum())
        level = 1 - doubt * (1 - confidence)
        made.append((one_run_bound(count, high + low, right, delta, level), high + low, right))
    lower, guesses, right = max(made)
    details = {"steps": float(steps)} | reach.details()
    return Evidence(how, lower, confidence, count, guesses, right, details)


def log_ratio(values: Array, draw: Draw, noise: float) -> Array:
    """How much likelier each value is with its canary in than out, under what is declared."""

    def log_density(means: Array) -> Array:
        apart = (values[:, None] - means) / noise
        found: Array = logsumexp(-0.5 * apart**2, b=draw.weight, axis=1)
        return found

    return log_density(draw.when_in) - log_density(draw.when_out)


def declared(draw: Draw, noise: float, steps: int) -> Simulate:
    """Simulates scores of canaries as they would be if all is as declared.

    Long trainings are simulated with fewer canaries than asked for.
    """

    def simulate(count: int) -> Array:
        rng = np.random.default_rng(0)
        count = min(count, max(FEWEST, _SIMULATED // (steps * len(draw.weight))))
        inside = rng.random(count) < 0.5
        total = np.zeros(count)
        for _ in range(steps):
            which = rng.choice(len(draw.weight), size=count, p=draw.weight / draw.weight.sum())
            mean = np.where(inside, draw.when_in[which], draw.when_out[which])
            total += log_ratio(mean + noise * rng.standard_normal(count), draw, noise)
        return total

    return simulate
