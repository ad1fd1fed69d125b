"""How well scores tell members from others: AUC, accuracy, true positives at few false ones.

Everything comes with a 95 % confidence interval. Records of one user are not independent; where
that matters, users are what is counted.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Values = NDArray[np.float64]


def proportion(hits: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact (Clopper-Pearson) interval of a share.

    >>> tuple(round(x, 4) for x in proportion(0, 10))
    (0.0, 0.3085)
    """
    if trials == 0:
        return 0.0, 1.0
    tail = (1 - confidence) / 2
    low = float(stats.beta.ppf(tail, hits, trials - hits + 1)) if hits else 0.0
    high = float(stats.beta.ppf(1 - tail, hits + 1, trials - hits)) if hits < trials else 1.0
    return low, high


def auc(members: Values, others: Values) -> tuple[float, tuple[float, float]]:
    """The chance that a member scores above another one, ties counting half, and its interval.

    Source: DeLong, DeLong and Clarke-Pearson 1988.

    >>> auc(np.array([2.0, 3.0]), np.array([0.0, 1.0]))[0]
    1.0
    """
    m, n = len(members), len(others)
    both = stats.rankdata(np.concatenate([members, others]))
    above = (both[:m] - stats.rankdata(members)) / n
    below = 1 - (both[m:] - stats.rankdata(others)) / m
    value = float(above.mean())
    if m < 2 or n < 2:
        return value, (0.0, 1.0)
    error = math.sqrt(float(above.var(ddof=1)) / m + float(below.var(ddof=1)) / n)
    # Where all fall on one side the formula has no spread; three misses in n is the rule.
    error = max(error, 1.0 / (min(m, n) * 1.96))
    return value, (max(0.0, value - 1.96 * error), min(1.0, value + 1.96 * error))


def true_positives(
    members: Values, others: Values, fpr: float
) -> tuple[float, tuple[float, float], bool]:
    """The share of members above the score that at most `fpr` of the others exceed.

    The last value says whether there are enough others to resolve such a rate; without, the score
    must exceed that of all others.
    """
    allowed = math.floor(fpr * len(others) + 1e-9)
    ordered = np.sort(others)[::-1]
    bar = ordered[allowed] if allowed < len(ordered) else -math.inf
    hits = int((members > bar).sum())
    return hits / len(members), proportion(hits, len(members)), allowed >= 1


def accuracy(members: Values, others: Values) -> tuple[float, tuple[float, float]]:
    """The share of right guesses if the upper half is called members, sides weighed alike.

    Source: Shi et al. 2022, where the two sides are equally many.
    """
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
    value = (hit + 1 - miss) / 2
    error = 0.5 * math.sqrt(
        hit * (1 - hit) / len(members) + miss * (1 - miss) / len(others)
    ) + 0.25 / min(len(members), len(others))
    return value, (max(0.0, value - 1.96 * error), min(1.0, value + 1.96 * error))


def roc(members: Values, others: Values, points: int = 200) -> list[tuple[float, float]]:
    """False and true positive rates as the bar is lowered, at most so many points."""
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
) -> tuple[dict[str, float], dict[str, tuple[float, float]], list[str]]:
    """All figures by name, their intervals, and what the numbers cannot resolve."""
    figures: dict[str, float] = {}
    intervals: dict[str, tuple[float, float]] = {}
    notes = []
    figures["auc"], intervals["auc"] = auc(members, others)
    figures["accuracy"], intervals["accuracy"] = accuracy(members, others)
    for fpr in fprs:
        name = f"tpr_at_{fpr:g}"
        figures[name], intervals[name], resolved = true_positives(members, others, fpr)
        if not resolved:
            notes.append(
                f"{len(others)} others are too few for a false positive rate of {fpr:g}: the share "
                "of members above all of them is given"
            )
    return figures, intervals, notes
