"""How well scores tell members from others: AUC, accuracy, true positives at few false ones.

Every figure is what guessing gets on average where scores tell nothing, whatever their ties and
however few they are, and comes with a 95 % confidence interval. Equal scores count as if chance
broke them. Records of one user are not independent; where that matters, users are what is counted.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import betaincinv, stdtrit

from tacit.errors import DataError

Values = NDArray[np.float64]
Interval = tuple[float, float]


def proportion(hits: float, trials: int, confidence: float = 0.95) -> Interval:
    """The exact (Clopper-Pearson) interval of a share; hits may be halves, for ties.

    >>> tuple(round(x, 4) for x in proportion(0, 10))
    (0.0, 0.3085)
    """
    if trials == 0:
        return 0.0, 1.0
    tail = (1 - confidence) / 2
    low = float(betaincinv(hits, trials - hits + 1, tail)) if hits > 0 else 0.0
    high = float(betaincinv(hits + 1, trials - hits, 1 - tail)) if hits < trials else 1.0
    return low, high


class Measured:
    """Figures by name, each with its 95 % interval."""

    def __init__(self) -> None:
        self.figures: dict[str, float] = {}
        self.intervals: dict[str, Interval] = {}

    def share(self, name: str, hits: int, trials: int) -> None:
        """How many of those that were tried; nothing where none was."""
        if trials:
            self.put(name, hits / trials, proportion(hits, trials))

    def put(self, name: str, value: float, interval: Interval) -> None:
        """A figure and its interval."""
        self.figures[name], self.intervals[name] = value, interval


def ordered(scores: Values) -> Values:
    """Scores that can be ranked: what is no number says nothing, and ranks last.

    >>> ordered(np.array([1.0, np.nan, np.inf])).tolist()
    [1.0, -inf, inf]
    """
    values = np.asarray(scores, dtype=np.float64)
    return np.where(np.isnan(values), -np.inf, values)


def auc(members: Values, others: Values) -> tuple[float, Interval]:
    """The chance that a member scores above another one, ties counting half, and its interval.

    The interval holds those of DeLong, which assumes nothing of the scores, and of Newcombe, which
    holds where few are compared or all fall on one side; both with Student's quantile.

    Source: DeLong, DeLong and Clarke-Pearson 1988; Newcombe 2006 (method 5).

    >>> auc(np.array([2.0, 3.0]), np.array([0.0, 1.0]))[0]
    1.0
    """
    members, others = ordered(members), ordered(others)
    m, n = len(members), len(others)
    both = stats.rankdata(np.concatenate([members, others]))
    above = (both[:m] - stats.rankdata(members)) / n
    below = 1 - (both[m:] - stats.rankdata(others)) / m
    value = min(1.0, max(0.0, float(above.mean())))
    if m < 2 or n < 2:
        return value, (0.0, 1.0)
    width = float(stdtrit(m + n - 2, 0.975))
    error = math.sqrt(float(above.var(ddof=1)) / m + float(below.var(ddof=1)) / n)
    low, high = _newcombe(value, m, n, width)
    low, high = min(low, value - width * error), max(high, value + width * error)
    return value, (max(0.0, low), min(1.0, high))


def _newcombe(value: float, m: int, n: int, width: float) -> Interval:
    """All areas from which the one that was found is at most `width` standard errors away."""
    spread = (m + n) / 2 - 1

    def near(area: float) -> bool:
        shape = 1 + spread * ((1 - area) / (2 - area) + area / (1 + area))
        return abs(value - area) <= width * math.sqrt(area * (1 - area) * shape / (m * n))

    def end(far: float) -> float:
        close = value
        for _ in range(50):
            middle = (far + close) / 2
            far, close = (far, middle) if near(middle) else (middle, close)
        return close

    return end(0.0), end(1.0)


def true_positives(members: Values, others: Values, fpr: float) -> tuple[float, Interval, bool]:
    """The share of members that a test finds which is wrong about `fpr` of the others.

    A member is found if its rank among the others is that small; of those at the edge, as many as
    make the rate exact, so that scores that tell nothing give `fpr` on average. The last value
    says whether there are enough others to resolve such a rate: without, even one who scores above
    all of them is found only sometimes.

    The interval is exact and wide: where the bar stands is not known either.
    """
    members, theirs = ordered(members), np.sort(ordered(others))
    n = len(theirs)
    upto = np.searchsorted(theirs, members, side="right")
    equal = upto - np.searchsorted(theirs, members, side="left")
    room = fpr * (n + 1)
    value = float(np.clip((room - (n - upto)) / (1 + equal), 0, 1).mean())
    low, high = _between_bars(members, theirs, fpr)
    return value, (min(low, value), max(high, value)), room >= 1 - 1e-9


def _between_bars(members: Values, theirs: Values, fpr: float) -> Interval:
    """What members find above the highest, and from the lowest, bar that may have this rate."""
    n, tail = len(theirs), 0.0125
    most, least = (int(k) for k in stats.binom.ppf([1 - tail, tail], n, fpr))
    # Two chances to be wrong at either end, the bar and the share, so each has half of the error.
    highest = theirs[n - least] if least > 0 else math.inf
    lowest = theirs[n - 1 - most] if most < n else -math.inf
    low, _ = proportion(int((members > highest).sum()), len(members), 1 - 2 * tail)
    _, high = proportion(int((members >= lowest).sum()), len(members), 1 - 2 * tail)
    return low, high


def mean_of_shares(
    hit: float, hits_of: int, right: float, rights_of: int
) -> tuple[float, Interval]:
    """The mean of two independent shares, and its interval from those of either.

    Source: Newcombe 1998 (square and add), here on exact intervals: few trials stay honest.
    """
    value = (hit + right) / 2
    first, second = (
        # One trial says nothing.
        proportion(share * trials, trials) if trials > 1 else (0.0, 1.0)
        for share, trials in ((hit, hits_of), (right, rights_of))
    )
    down = math.hypot(hit - first[0], right - second[0]) / 2
    up = math.hypot(first[1] - hit, second[1] - right) / 2
    return value, (max(0.0, value - down), min(1.0, value + up))


def accuracy(members: Values, others: Values) -> tuple[float, Interval]:
    """The share of right guesses if the upper half is called members, sides weighed alike.

    Source: Shi et al. 2022, where the two sides are equally many.
    """
    members, others = ordered(members), ordered(others)
    pooled = np.concatenate([members, others])
    weight = np.concatenate(
        [np.full(len(members), 0.5 / len(members)), np.full(len(others), 0.5 / len(others))]
    )
    order = np.argsort(pooled)
    bar = pooled[order][np.searchsorted(np.cumsum(weight[order]), 0.5 - 1e-12)]
    # Of those at the bar, as many are called members as the upper half still has room for.
    above, at = float(weight[pooled > bar].sum()), float(weight[pooled == bar].sum())
    share = min(1.0, max(0.0, (0.5 - above) / at))
    hit = float(((members > bar) + share * (members == bar)).mean())
    miss = float(((others > bar) + share * (others == bar)).mean())
    return mean_of_shares(hit, len(members), 1 - miss, len(others))


def roc(members: Values, others: Values, points: int = 200) -> list[tuple[float, float]]:
    """False and true positive rates as the bar is lowered, at most so many points."""
    members, others = ordered(members), ordered(others)
    bars = np.unique(np.concatenate([members, others]))[::-1]
    if len(bars) > points:
        # As many small rates as large ones: the left end of the curve is what matters.
        at = np.unique(np.round(np.geomspace(1, len(bars), points)).astype(int)) - 1
        bars = bars[at]
    ours, theirs = np.sort(members), np.sort(others)
    curve = [(0.0, 0.0)]
    for bar in bars:
        x = 1 - np.searchsorted(theirs, bar, side="left") / len(theirs)
        y = 1 - np.searchsorted(ours, bar, side="left") / len(ours)
        curve.append((float(x), float(y)))
    return [*curve, (1.0, 1.0)] if curve[-1] != (1.0, 1.0) else curve


def rates_of(
    members: Values, others: Values, fprs: Sequence[float] = (0.01, 0.001)
) -> tuple[Measured, list[str]]:
    """AUC, accuracy and true positive rates, and what the numbers cannot resolve."""
    if not len(members) or not len(others):
        raise DataError(
            "There is nothing to tell apart: the text that was trained on, canaries left out, and "
            "the text that was not must have a record each."
        )
    found, notes = Measured(), []
    found.put("auc", *auc(members, others))
    found.put("accuracy", *accuracy(members, others))
    for fpr in fprs:
        value, interval, resolved = true_positives(members, others, fpr)
        found.put(f"tpr_at_{fpr:g}", value, interval)
        if not resolved:
            notes.append(
                f"{len(others)} others are too few for a false positive rate of {fpr:g}: whoever "
                f"scores above all of them is found {fpr * (len(others) + 1):.2g} of the time"
            )
    lost = int(np.isnan(members).sum() + np.isnan(others).sum())
    if lost:
        notes.append(f"{lost} scores are no numbers; they rank last")
    return found, notes
