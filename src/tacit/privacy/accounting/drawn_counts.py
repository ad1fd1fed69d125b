"""How many of n are drawn by independent coins: the binomial laws behind the dominating pairs."""

import math
from functools import lru_cache
from itertools import pairwise

import numpy as np
from scipy.stats import binom

from tacit.privacy.accounting.divergences import Array

MAX_GROUPS = 128  # more values of a binomial than this are merged upwards
MOST_IN_INSTANCES = 400  # so many holders stand for all in the neighbours behind a lower bound


def log_miss(q: float) -> float:
    """log(1 - q), exactly -inf at 1."""
    return math.log1p(-q) if q < 1 else -math.inf


def drawn(n: int, q: float) -> tuple[Array, Array, float]:
    """How many of n were drawn: positive counts, their probabilities, and log P[none].

    Neighbouring counts may be merged and counted as the largest of them, which the dominance
    lemma allows: a longer shift is never harder to see.
    """
    counts, weights = _groups(n, q)
    return np.array(counts), np.array(weights), (n * log_miss(q) if n else 0.0)


def every_count(n: int, q: float) -> tuple[Array, Array]:
    """Every value of Bin(n, q) with its probability, for the instances behind lower bounds.

    With more than 400 the first 400 stand for all: a neighbour with fewer holders is a neighbour.
    """
    n = min(n, MOST_IN_INSTANCES)
    if n == 0 or q in (0.0, 1.0):
        return np.array([n * q]), np.array([1.0])
    counts = np.arange(n + 1, dtype=np.float64)
    weights = np.asarray(binom.pmf(counts, n, q), dtype=np.float64)
    felt = weights > 1e-100
    return counts[felt], weights[felt]


@lru_cache(maxsize=256)
def _groups(n: int, q: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Positive values of Bin(n, q) and their probabilities, neighbours merged upwards."""
    if n == 0 or q == 0:
        return (), ()
    if q == 1:
        return (float(n),), (1.0,)
    first = max(1, int(binom.ppf(1e-13, n, q)))
    last = min(n, max(first, int(binom.isf(1e-13, n, q)) + 1))
    stride = max(1, math.ceil((last - first + 1) / MAX_GROUPS))
    edges = [0, *range(first, last, stride), last]
    while edges[-1] < n:  # the far tail: few groups, each counted as its largest value
        edges.append(min(n, math.ceil(edges[-1] * 1.2)))
    law = [(high, _between(n, q, low, high)) for low, high in pairwise(edges)]
    kept = [(float(value), weight) for value, weight in law if weight > 0]
    return tuple(value for value, _ in kept), tuple(weight for _, weight in kept)


def _between(n: int, q: float, low: int, high: int) -> float:
    """P[low < Bin(n, q) <= high]; single values by the mass function, which is most exact."""
    if high - low == 1:
        return float(binom.pmf(high, n, q))
    return float(binom.sf(low, n, q) - binom.sf(high, n, q))
