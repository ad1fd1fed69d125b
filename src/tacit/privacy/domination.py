"""From one release to a dominating pair.

A *dominating pair* is two distributions P, Q that are at least as easy to tell apart as the
outputs of the mechanism on any two neighbours, at every epsilon. It is known here through its two
hockey-stick curves for epsilon >= 0, always in units of the noise:

    forward(eps)  >= H_eps(P || Q) = sup_S P(S) - e^eps Q(S)
    backward(eps) >= H_eps(Q || P)

Three kinds of pairs are enough for every event we price:

    ShiftMixture   sum_i p_i N(s_i, 1) against N(0, 1)
    OwnerMixture   a user and an entity with k holders under per-user clipping (AJC bound)
    VisibleCoin    with a public coin of probability q, N(mu, 1) against N(0, 1)

`tacit.privacy.losses` turns the curves into losses on a grid. The proofs are in
docs/guarantees.md.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
from scipy.stats import binom

from tacit.privacy.divergences import (
    Array,
    gaussian_over_mixture,
    log_one_minus_exp,
    log_or_minus_infinity,
    mixture_over_gaussian,
)

MAX_GROUPS = 128  # more values of a binomial than this are merged upwards


class Instance(NamedTuple):
    """Two explicit mixtures of unit Gaussians that two real neighbours can produce."""

    p_shifts: tuple[float, ...]
    p_weights: tuple[float, ...]
    q_shifts: tuple[float, ...]
    q_weights: tuple[float, ...]
    coin: float = 1.0
    """The probability of a public coin; without it P and Q are the same."""


class Pair(Protocol):
    """A dominating pair, known through its curves; equal pairs are equal and hash alike."""

    def __hash__(self) -> int: ...

    def forward(self, eps: Array) -> Array:
        """An upper bound on H_eps(P || Q) for eps >= 0."""
        ...

    def backward(self, eps: Array) -> Array:
        """An upper bound on H_eps(Q || P) for eps >= 0."""
        ...

    @property
    def revealed_shift(self) -> float:
        """The largest shift over all coins: the pair is dominated by N(shift, 1), N(0, 1)."""
        ...

    def instances(self) -> list[Instance]:
        """Pairs that real neighbours attain, for lower bounds."""
        ...


# --- the pairs ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShiftMixture:
    """sum_j Bin(units, rate)(j) N(j * shift, 1) against N(0, 1): Poisson-sampled Gaussian sums.

    Guarantee: dominates every mechanism in which at most `units` independently sampled vectors of
    norm at most `shift` (in units of the noise) appear in one neighbour and not in the other.
    """

    rate: float
    units: int
    shift: float

    def forward(self, eps: Array) -> Array:
        counts, weights, _ = _drawn(self.units, self.rate)
        return mixture_over_gaussian(eps, counts * self.shift, np.log(weights))

    def backward(self, eps: Array) -> Array:
        counts, weights, log_none = _drawn(self.units, self.rate)
        rows = np.repeat(np.log(weights)[:, None], eps.size, axis=1)
        gap = log_one_minus_exp(eps + log_none)
        return gaussian_over_mixture(eps, counts * self.shift, rows, gap)

    @property
    def revealed_shift(self) -> float:
        return self.units * self.shift

    def instances(self) -> list[Instance]:
        counts, weights = _every_count(self.units, self.rate)
        return [Instance(tuple(counts * self.shift), tuple(weights), (0.0,), (1.0,))]


@dataclass(frozen=True)
class VisibleCoin:
    """With probability `rate`, and everybody sees it, N(shift, 1) against N(0, 1)."""

    rate: float
    shift: float

    def forward(self, eps: Array) -> Array:
        return self.rate * mixture_over_gaussian(eps, np.array([self.shift]), np.zeros(1))

    def backward(self, eps: Array) -> Array:
        return self.forward(eps)

    @property
    def revealed_shift(self) -> float:
        return self.shift

    def instances(self) -> list[Instance]:
        return [Instance((self.shift,), (1.0,), (0.0,), (1.0,), self.rate)]


@dataclass(frozen=True)
class OwnerMixture:
    """One user and one entity with k holders, under per-user clipping (the AJC bound).

    Legend: q = user_rate, k = holders, tau = share, q_e = entity_rate, a = with_user, all shifts
    times `scale` = 1/z. W is what is drawn of the user and the holders, K the drawn holders,
    A = 1[user drawn], B = 1[entity drawn], eta = P[W not empty]; for eps >= 0

        e = log(1 + (e^eps - 1)/eta),   th = e^(eps - e),   p_K = P[K | W not empty]

        H_eps(P||Q) <= eta min(f1, f2)
            f1 = (1-th) F(e; Bin(k+a, q) | >= 1) + th sum_K p_K F(e; A + tau B K)
            f2 = sum_{K,A,B} p R(e; {K+A: 1-th, A + tau B K: th})         (K = 0: F(e; 1))
        H_eps(Q||P) <= eta sum_K p_K R(e; {K: 1-th} + th law(A + tau B K)) (K = 0: {0: 1-th, 1: th})

    Guarantee: dominates user clipping for neighbours in which the records of the user (if
    `with_user`) and of the entity contribute zero, the graph fixed, users drawn independently.
    With holders = 1, no user and share = 2 it is tight for replacing one unit.
    """

    user_rate: float
    holders: int
    share: float
    entity_rate: float
    with_user: bool
    scale: float

    @property
    def revealed_shift(self) -> float:
        return (self.with_user + min(self.share, 2.0) * self.holders) * self.scale

    def forward(self, eps: Array) -> Array:
        c = self._conditioned(eps)
        counts, weights, _ = _drawn(self.holders + self.with_user, self.user_rate)
        near = mixture_over_gaussian(c.e, counts * self.scale, np.log(weights / weights.sum()))
        f1, f2 = c.one_minus_th * near, np.zeros_like(eps)
        for holders, weight in self._holders_given_any():
            shifts, probs, _ = self._moves(holders)
            f1 += c.th * weight * mixture_over_gaussian(c.e, shifts * self.scale, np.log(probs))
            f2 += weight * self._one_revealed(c, holders)
        return np.minimum(c.eta * np.minimum(f1, f2), 1.0)

    def backward(self, eps: Array) -> Array:
        c = self._conditioned(eps)
        total = np.zeros_like(eps)
        for holders, weight in self._holders_given_any():
            shifts, probs, log_still = self._moves(holders)
            rows = log_or_minus_infinity(probs)[:, None] + log_or_minus_infinity(c.th)
            if holders == 0:
                # 1 - e^e (1-th) = (1 - surv e^eps) / eta, written without the cancellation
                gap = log_one_minus_exp(eps + c.log_none) - math.log(c.eta)
            else:
                shifts = np.append(shifts, holders)
                rows = np.vstack([rows, log_or_minus_infinity(c.one_minus_th)[None]])
                gap = log_one_minus_exp(eps + log_still)  # 1 - e^e th P[no move]
            total += weight * gaussian_over_mixture(
                c.e, shifts * self.scale, rows, np.minimum(gap, 0)
            )
        return np.minimum(c.eta * total, 1.0)

    def instances(self) -> list[Instance]:
        """Holders whose clipped update is `start` without the entity, `start + share` with it."""
        starts = {-1.0, -self.share / 2, min(0.0, 1 - self.share), 1 - self.share}
        return [self._instance(start) for start in sorted(starts)]

    def _conditioned(self, eps: Array) -> "_Conditioned":
        return _condition(eps, self.user_rate, self.holders + self.with_user)

    def _holders_given_any(self) -> list[tuple[int, float]]:
        """The law of K given that W is not empty, merged upwards; K = 0 means the user alone."""
        counts, weights, log_none = _drawn(self.holders, self.user_rate)
        law = [(int(count), float(weight)) for count, weight in zip(counts, weights, strict=True)]
        if self.with_user:
            law.insert(0, (0, self.user_rate * math.exp(log_none)))
        eta = -math.expm1((self.holders + self.with_user) * _log_miss(self.user_rate))
        return [(count, min(weight / eta, 1.0)) for count, weight in law if weight > 0]

    def _coins(self, holders: int) -> list[tuple[int, int, float]]:
        """All (A, B, probability) that can occur with this many holders drawn."""
        if holders == 0:
            return [(1, 0, 1.0)]
        users, entities = self._user_coin(), self._entity_coin()
        return [(a, b, p * r) for a, p in users for b, r in entities if p * r > 0]

    def _user_coin(self) -> list[tuple[int, float]]:
        return [(1, self.user_rate), (0, 1 - self.user_rate)] if self.with_user else [(0, 1.0)]

    def _entity_coin(self) -> list[tuple[int, float]]:
        return [(1, self.entity_rate), (0, 1 - self.entity_rate)]

    def _moves(self, holders: int) -> tuple[Array, Array, float]:
        """The positive values of A + tau B K, their probabilities, and log P[it is 0]."""
        coins = self._coins(holders)
        moves = [(a + self.share * b * holders, p) for a, b, p in coins]
        shifts = np.array([move for move, _ in moves if move > 0])
        probs = np.array([p for move, p in moves if move > 0])
        still = sum(p for move, p in moves if move == 0)
        return shifts, probs, (math.log(still) if still > 0 else -math.inf)

    def _one_revealed(self, c: "_Conditioned", holders: int) -> Array:
        """The K-th term of f2, everything revealed in the first argument."""
        if holders == 0:
            return mixture_over_gaussian(c.e, np.array([self.scale]), np.zeros(1))
        total = np.zeros_like(c.e)
        for a, b, p in self._coins(holders):
            move = a + self.share * b * holders
            if move == 0:  # e^e th = e^eps >= 1, so nothing is left
                continue
            shifts = np.array([holders + a, move]) * self.scale
            rows = np.vstack([log_or_minus_infinity(c.one_minus_th), log_or_minus_infinity(c.th)])
            total += p * gaussian_over_mixture(c.e, shifts, rows, np.zeros_like(c.e))
        return total

    def _instance(self, start: float) -> Instance:
        counts, weights = _every_count(self.holders, self.user_rate)
        p: dict[float, float] = {}
        for count, weight in zip(counts, weights, strict=True):
            for a, p_a in self._user_coin():
                for b, p_b in self._entity_coin():
                    where = (start * count + a + self.share * b * count) * self.scale
                    p[where] = p.get(where, 0.0) + weight * p_a * p_b
        return Instance(
            tuple(p),
            tuple(p.values()),
            tuple(start * counts * self.scale),
            tuple(weights),
        )


class _Conditioned(NamedTuple):
    e: Array
    th: Array
    one_minus_th: Array
    eta: float
    log_none: float


def _condition(eps: Array, q: float, n: int) -> _Conditioned:
    """Advanced joint convexity: the levels at which the non-empty parts are compared.

    Legend: surv = (1-q)^n, eta = 1 - surv, e = log(1 + (e^eps - 1)/eta), th = e^(eps - e).
    1 - th is never formed as a difference: when eta rounds to 1 that would turn negative, one
    point of the curve would become 0, and the convex minorant would pull the whole tail down.
    """
    log_none = n * _log_miss(q)
    surv, eta = math.exp(log_none), -math.expm1(log_none)
    small = np.minimum(eps, 1.0)
    with np.errstate(divide="ignore"):
        e = np.where(
            eps < 1,
            np.log1p(np.expm1(small) / eta),
            eps + np.log1p(-surv * np.exp(-eps)) - math.log(eta),
        )
    decay = np.exp(-eps)
    below = eta * decay - np.expm1(-eps)  # e^-eps (eta + expm1(eps)), without overflow
    return _Conditioned(e, eta / below, surv * -np.expm1(-eps) / below, eta, log_none)


def _log_miss(q: float) -> float:
    """log(1 - q), exactly -inf at 1."""
    return math.log1p(-q) if q < 1 else -math.inf


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


def _drawn(n: int, q: float) -> tuple[Array, Array, float]:
    """How many of n were drawn: positive counts, their probabilities, and log P[none].

    Neighbouring counts may be merged and counted as the largest of them, which the dominance
    lemma allows: a longer shift is never harder to see.
    """
    counts, weights = _groups(n, q)
    return np.array(counts), np.array(weights), (n * _log_miss(q) if n else 0.0)


def _every_count(n: int, q: float) -> tuple[Array, Array]:
    """Every value of Bin(n, q) with its probability, for the instances behind lower bounds.

    With more than 400 the first 400 stand for all: a neighbour with fewer holders is a neighbour.
    """
    n = min(n, 400)
    if n == 0 or q in (0.0, 1.0):
        return np.array([n * q]), np.array([1.0])
    counts = np.arange(n + 1, dtype=np.float64)
    weights = np.asarray(binom.pmf(counts, n, q), dtype=np.float64)
    felt = weights > 1e-100
    return counts[felt], weights[felt]
