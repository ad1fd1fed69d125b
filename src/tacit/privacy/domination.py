"""From one release to a dominating pair, and from a pair to a privacy loss distribution.

A *dominating pair* is two distributions P, Q that are at least as easy to tell apart as the
outputs of the mechanism on any two neighbours, at every epsilon. It is known here through its two
hockey-stick curves for epsilon >= 0, always in units of the noise:

    forward(eps)  >= H_eps(P || Q) = sup_S P(S) - e^eps Q(S)
    backward(eps) >= H_eps(Q || P)

Three kinds of pairs are enough for every event we price:

    ShiftMixture   sum_i p_i N(s_i, 1) against N(0, 1)
    OwnerMixture   a user and an entity with k holders under per-user clipping (AJC bound)
    VisibleCoin    with a public coin of probability q, N(mu, 1) against N(0, 1)

`upper_loss` turns the curves into a distribution of losses on a grid that is never optimistic
(dots connected on the safe side); `lower_loss` turns an explicit instance into one that is never
pessimistic. Composition is left to dp-accounting. The proofs are in docs/guarantees.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, logsumexp
from scipy.stats import binom

from tacit.errors import PrivacyRefused

Array = npt.NDArray[np.float64]

MAX_GROUPS = 128  # more values of a binomial than this are merged upwards
MAX_CELLS = 60_000  # grid points of one step
MAX_BINS = 30_000  # bins of the explicit instance behind a lower bound
_ROUNDING = 1e-15  # allowance per term for the error of exp and ndtr, on the safe side
_LEAST_WEIGHT = 1e-300


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


# --- the two elementary divergences -------------------------------------------------------------


def _threshold(target: Array, shifts: Array, log_weights: Array) -> Array:
    """The t at which a mixture's likelihood ratio reaches exp(target).

    Legend: v = shifts > 0 (rows), w = exp(log_weights) (rows, or rows by columns), t in units of
    the noise. Solves log sum_i w_i exp(v_i t - v_i^2 / 2) = target. The left side is convex and
    increasing, so Newton from a point right of the root decreases to it; where one term alone
    reaches the target is such a point.
    """
    v = shifts[:, None]
    log_w = log_weights if log_weights.ndim == 2 else log_weights[:, None]
    t: Array = np.min((target - log_w + v * v / 2) / v, axis=0)
    live = np.isfinite(t)
    if not live.any():
        return t
    goal = target[live]
    base = (log_w[:, live] if log_w.shape[1] > 1 else log_w) - v * v / 2
    x = t[live]
    for _ in range(100):
        terms = base + v * x
        top = terms.max(axis=0)
        scaled = np.exp(terms - top)
        total = scaled.sum(axis=0)
        slope = (v * scaled).sum(axis=0) / total
        step = (top + np.log(total) - goal) / slope
        x = x - step
        if np.all(np.abs(step) <= 1e-13 * (1 + np.abs(x))):
            break
    t[live] = x
    return t


def _difference(log_first: Array, log_second: Array) -> Array:
    """sum exp(first) - sum exp(second), not below 0, plus what rounding may have taken away."""
    first, second = np.exp(log_first), np.exp(log_second)
    # exp(y) carries a relative error of about |y| units in the last place, and exp(y) |y| -> 0
    slack_first = first * (2 + np.abs(np.where(first > 0, log_first, 0)))
    slack_second = second * (2 + np.abs(np.where(second > 0, log_second, 0)))
    slack = _ROUNDING * (slack_first.sum(axis=0) + slack_second.sum(axis=0))
    value: Array = np.maximum(first.sum(axis=0) - second.sum(axis=0), 0) + slack
    return np.minimum(value, 1.0)


def _mixture_over_gaussian(e: Array, shifts: Array, log_weights: Array) -> Array:
    """F(e) = H_e(sum_i w_i N(v_i, 1) || N(0, 1)) for e >= 0; the weight missing to 1 is at 0.

    Legend: r = sum of the given weights, w_0 = 1 - r. The optimal test is t > t*, where
    sum_i w_i exp(v_i t - v_i^2/2) = e^e - w_0, so

        F = sum_i w_i Phi(v_i - t*) - (e^e - w_0) Phi(-t*).
    """
    if shifts.size == 0:
        return np.zeros_like(e)
    r = min(1.0, float(np.exp(logsumexp(log_weights))))
    if r < _LEAST_WEIGHT:  # F is at most r; below this its logarithm is lost
        return np.full_like(e, _LEAST_WEIGHT)
    near, far = np.minimum(e, 1.0), np.maximum(e, 1.0)
    # e^e - w_0 = expm1(e) + r, which does not cancel when w_0 is near 1
    target = np.where(e < 1, np.log(np.expm1(near) + r), e + np.log1p(-(1 - r) * np.exp(-far)))
    t = _threshold(target, shifts, log_weights)
    v = shifts[:, None]
    return _difference(log_weights[:, None] + log_ndtr(v - t), (target + log_ndtr(-t))[None])


def _gaussian_over_mixture(e: Array, shifts: Array, log_weights: Array, log_gap: Array) -> Array:
    """R(e) = H_e(N(0, 1) || w_0 N(0, 1) + sum_i w_i N(v_i, 1)) for e >= 0.

    Legend: log_weights = log w_i (rows by columns); w_0 enters through log_gap =
    log(1 - e^e w_0), which the caller computes without cancellation and which is -inf where the
    divergence is 0. The optimal test is t < t*, where sum_i w_i exp(v_i t - v_i^2/2) =
    e^-e - w_0, so

        R = (1 - e^e w_0) Phi(t*) - e^e sum_i w_i Phi(t* - v_i).
    """
    value = np.zeros_like(e)
    live = np.isfinite(log_gap)
    if shifts.size == 0 or not live.any():
        if shifts.size == 0:
            value[live] = np.exp(log_gap[live])
        return value
    e, log_gap, log_w = e[live], log_gap[live], log_weights[:, live]
    t = _threshold(log_gap - e, shifts, log_w)
    v = shifts[:, None]
    with np.errstate(invalid="ignore"):
        second = e + log_w + log_ndtr(t - v)
    value[live] = _difference((log_gap + log_ndtr(t))[None], second)
    return value


def _log_one_minus_exp(x: Array | float) -> Array:
    """log(1 - e^x), and -inf where x >= 0."""
    x = np.asarray(x, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        value: Array = np.where(x < 0, np.log(-np.expm1(np.minimum(x, 0))), -np.inf)
    return value


def _log(x: Array | float) -> Array:
    with np.errstate(divide="ignore"):
        value: Array = np.log(np.asarray(x, dtype=np.float64))
    return value


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
        return _mixture_over_gaussian(eps, counts * self.shift, np.log(weights))

    def backward(self, eps: Array) -> Array:
        counts, weights, log_none = _drawn(self.units, self.rate)
        rows = np.repeat(np.log(weights)[:, None], eps.size, axis=1)
        gap = _log_one_minus_exp(eps + log_none)
        return _gaussian_over_mixture(eps, counts * self.shift, rows, gap)

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
        return self.rate * _mixture_over_gaussian(eps, np.array([self.shift]), np.zeros(1))

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
        near = _mixture_over_gaussian(c.e, counts * self.scale, np.log(weights / weights.sum()))
        f1, f2 = c.one_minus_th * near, np.zeros_like(eps)
        for holders, weight in self._holders_given_any():
            shifts, probs, _ = self._moves(holders)
            f1 += c.th * weight * _mixture_over_gaussian(c.e, shifts * self.scale, np.log(probs))
            f2 += weight * self._one_revealed(c, holders)
        return np.minimum(c.eta * np.minimum(f1, f2), 1.0)

    def backward(self, eps: Array) -> Array:
        c = self._conditioned(eps)
        total = np.zeros_like(eps)
        for holders, weight in self._holders_given_any():
            shifts, probs, log_still = self._moves(holders)
            rows = _log(probs)[:, None] + _log(c.th)
            if holders == 0:
                # 1 - e^e (1-th) = (1 - surv e^eps) / eta, written without the cancellation
                gap = _log_one_minus_exp(eps + c.log_none) - math.log(c.eta)
            else:
                shifts = np.append(shifts, holders)
                rows = np.vstack([rows, _log(c.one_minus_th)[None]])
                gap = _log_one_minus_exp(eps + log_still)  # 1 - e^e th P[no move]
            total += weight * _gaussian_over_mixture(
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
        users = [(1, self.user_rate), (0, 1 - self.user_rate)] if self.with_user else [(0, 1.0)]
        entities = [(1, self.entity_rate), (0, 1 - self.entity_rate)]
        return [(a, b, p * r) for a, p in users for b, r in entities if p * r > 0]

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
            return _mixture_over_gaussian(c.e, np.array([self.scale]), np.zeros(1))
        total = np.zeros_like(c.e)
        for a, b, p in self._coins(holders):
            move = a + self.share * b * holders
            if move == 0:  # e^e th = e^eps >= 1, so nothing is left
                continue
            shifts = np.array([holders + a, move]) * self.scale
            rows = np.vstack([_log(c.one_minus_th), _log(c.th)])
            total += p * _gaussian_over_mixture(c.e, shifts, rows, np.zeros_like(c.e))
        return total

    def _instance(self, start: float) -> Instance:
        counts, weights = _every_count(self.holders, self.user_rate)
        p: dict[float, float] = {}
        for count, weight in zip(counts, weights, strict=True):
            users = [(1, self.user_rate), (0, 1 - self.user_rate)] if self.with_user else [(0, 1.0)]
            for a, p_a in users:
                for b, p_b in [(1, self.entity_rate), (0, 1 - self.entity_rate)]:
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


# --- from curves to losses on a grid ------------------------------------------------------------


@dataclass(frozen=True)
class Losses:
    """Probabilities of the losses (start + i) * step, i = 0, 1, ..., and of an infinite loss."""

    step: float
    start: int
    probs: Array
    infinite: float


class BothRoles(NamedTuple):
    """The loss of P against Q, and of Q against P."""

    forward: Losses
    backward: Losses


def spread(pair: Pair) -> float:
    """About the standard deviation of one loss: sqrt(2 KL(P || Q)), KL read off the curves.

    KL(P || Q) is the integral over eps >= 0 of H_eps(P || Q) + e^-eps H_eps(Q || P).
    """
    top = _most_loss(pair)
    eps = np.concatenate([[0.0], np.geomspace(top * 1e-9, top, 300)])
    height = pair.forward(eps) + np.exp(-eps) * pair.backward(eps)
    kl = float(np.trapezoid(height, eps))
    return math.sqrt(2 * kl)


def upper_loss(pair: Pair, step: float, tail: float) -> BothRoles:
    """A pair of discrete distributions on multiples of `step` that dominates the given pair.

    Both curves are evaluated on the grid up to where they fall below `tail`, which then counts as
    an infinite loss; the greatest convex minorant (in e^eps) of these points and of (0, 1) lies
    above the true curve, because that one is convex and below every point.

    Source: Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022, Algorithm 1 (connect the dots).
    """
    right = _curve(pair.forward, step, _reach(pair.forward, _most_loss(pair), tail))
    left = _curve(pair.backward, step, _reach(pair.backward, _most_loss(pair), tail))
    right[0] = left[0] = min(right[0], left[0])  # both bound the total variation distance
    return _masses(right, left, step)


def span(pair: Pair, tail: float) -> float:
    """How far the losses of either role reach before their curves fall below `tail`."""
    top = _most_loss(pair)
    return max(_reach(pair.forward, top, tail), _reach(pair.backward, top, tail))


def _most_loss(pair: Pair) -> float:
    """A loss beyond which no curve of ours is above 1e-60, revealed coins included."""
    shift = pair.revealed_shift
    return shift * shift / 2 + 17 * shift


def _reach(curve: Callable[[Array], Array], top: float, tail: float) -> float:
    """A loss at which the curve is at most `tail`, found to a few percent."""
    low, high = 0.0, top
    probes: Array = np.geomspace(top * 1e-12, top, 97)
    for _ in range(2):
        below = np.flatnonzero(curve(probes) <= tail)
        if below.size == 0:
            return high
        first = int(below[0])
        low, high = (float(probes[first - 1]) if first else low), float(probes[first])
        probes = np.linspace(low, high, 33, dtype=np.float64)
    return high


def _curve(curve: Callable[[Array], Array], step: float, reach: float) -> Array:
    cells = math.ceil(reach / step) + 1
    if cells > MAX_CELLS:
        raise GridTooLarge(f"{cells} grid points, more than {MAX_CELLS}")
    values = curve(np.arange(cells + 1, dtype=np.float64) * step)
    if not np.all(np.isfinite(values)) or np.any(values < 0):
        raise PrivacyRefused(
            "A privacy curve is not a number somewhere on its grid; no price is given. "
            "Please report the event's parameters."
        )
    falling: Array = np.minimum.accumulate(values)  # a hockey stick never rises
    return falling


class GridTooLarge(Exception):
    """The loss cannot be put on a grid this fine; a looser bound is used. Never leaves privacy."""


def _masses(right: Array, left: Array, step: float) -> BothRoles:
    """Probabilities of both roles from the curves at 0, step, 2 step, ...

    Legend: x_j = e^(j step); H_j = right[j] for j >= 0; for j < 0, H_j = 1 - x_j + x_j left[-j].
    The slope of H between two vertices of the minorant is minus a probability under Q; the change
    of slope at j is Q's mass there, and x_j times it is P's.
    """
    j = np.arange(-(left.size - 1), right.size)
    mass = _slope_changes(j, right, left, step)
    if np.any(mass < 0):
        j = _minorant(right.tolist(), left.tolist(), step)
        mass = np.maximum(_slope_changes(j, right, left, step), 0)
    low, high = -(left.size - 1), right.size - 1
    fade = np.exp(-np.abs(j) * step)
    forward, backward = np.zeros(high - low + 1), np.zeros(high - low + 1)
    forward[j - low] = np.where(j > 0, mass, mass * fade)
    backward[high - j] = np.where(j > 0, mass * fade, mass)
    for probs, infinite in ((forward, right[-1]), (backward, left[-1])):
        if not abs(float(probs.sum()) + float(infinite) - 1) < 1e-6:
            raise PrivacyRefused("A privacy loss does not sum to one; no price is given.")
    return BothRoles(
        Losses(step, low, forward, float(right[-1])), Losses(step, -high, backward, float(left[-1]))
    )


def _slope_changes(j: npt.NDArray[np.int64], right: Array, left: Array, step: float) -> Array:
    """Q's mass at the vertices j <= 0, and P's mass (x_j times it) at the vertices j > 0.

    Legend as in `_masses`, b and a the vertices before and after; x = 0 comes before all of them,
    x = infinity after. To stay exact at both ends, slopes are kept plus one where j <= 0 and times
    x_j where j > 0; nothing larger than 1 is ever exponentiated.
    """
    b = np.concatenate([[-np.inf], j[:-1].astype(np.float64)])
    a = np.concatenate([j[1:].astype(np.float64), [np.inf]])
    h_j, h_b, h_a = _at(right, j), _at(right, b), _at(right, a)
    r_j, r_b, r_a = _at(left, -j), _at(left, -b), _at(left, -a)
    x_b, y_a, x_j = (
        np.exp(np.minimum(b, 0) * step),
        np.exp(-np.maximum(a, 0) * step),
        np.exp(np.minimum(j, 0) * step),
    )
    h_a, h_b = np.where(np.isinf(a), h_j, h_a), np.where(b < 0, 1 - x_b + x_b * r_b, h_b)
    near_b, near_a = np.exp((b - j) * step), np.exp((j - a) * step)
    rest_b, rest_a = -np.expm1((b - j) * step), -np.expm1((j - a) * step)
    after_scaled = near_a * (h_a - h_j) / rest_a
    before_scaled = (h_j - h_b) / rest_b
    before_plus_one = (r_j - near_b * r_b) / rest_b
    after_left = (r_a - near_a * r_j) / rest_a
    after_across = (h_a * y_a - np.expm1(-np.maximum(a, 0) * step) - x_j * r_j * y_a) / rest_a
    after_plus_one = np.where(np.isinf(a), 1.0, np.where(a <= 0, after_left, after_across))
    change: Array = np.where(j > 0, after_scaled - before_scaled, after_plus_one - before_plus_one)
    return change


def _minorant(right: list[float], left: list[float], step: float) -> npt.NDArray[np.int64]:
    """The vertices of the greatest convex minorant, by one sweep with a stack.

    Legend as in `_masses`; lines are compared through the value they take at the middle point,
    plus x - 1 where that point is left of 1, so that neither end loses digits.
    """

    def dent(b: int | None, j: int, a: int) -> bool:
        """Whether the point j is on or above the line from b (x = 0 if None) to a."""
        share = 1.0 if b is None else -math.expm1((b - j) * step)  # (x_j - x_b) / x_j
        whole = 1.0 if b is None else -math.expm1((b - a) * step)
        t = share * math.exp((j - a) * step) / whole  # where x_j is between x_b and x_a
        if j > 0:
            if b is None:
                start = 1.0
            elif b < 0:
                start = math.exp(b * step) * (left[-b] - 1) + 1
            else:
                start = right[b]
            return right[j] >= start + t * (right[a] - start)
        # H - (1 - x) divided by x_j: left[-j] at j itself; at a it is formed times t, since it
        # may be too large by itself
        before = 0.0 if b is None else left[-b] * math.exp((b - j) * step)
        after = left[-a] if a <= 0 else right[a] * math.exp(-a * step) - math.expm1(-a * step)
        return left[-j] >= before * (1 - t) + share / whole * after

    hull: list[int] = []
    for vertex in range(-(len(left) - 1), len(right)):
        while hull and dent(hull[-2] if len(hull) > 1 else None, hull[-1], vertex):
            hull.pop()
        hull.append(vertex)
    return np.array(hull, dtype=np.int64)


def _at(values: Array, index: npt.NDArray[Any]) -> Array:
    """values[index] where the index is one, 0 elsewhere."""
    inside = (index >= 0) & (index < values.size)
    found: Array = np.where(inside, values[np.where(inside, index, 0).astype(np.int64)], 0.0)
    return found


# --- lower bounds from explicit instances -------------------------------------------------------


def lower_loss(instance: Instance, step: float) -> BothRoles:
    """A discrete pair on multiples of `step` that an adversary who sees this instance has.

    The output is put into bins and bins are pooled until their likelihood ratio is exactly on the
    grid; both only lose information, so no valid epsilon is below what comes out.
    """
    log_p, log_q = _binned(instance, step)
    return BothRoles(
        _best_pooled(log_p, log_q, step, instance.coin),
        _best_pooled(log_q, log_p, step, instance.coin),
    )


def strongest(pair: Pair, step: float) -> Instance:
    """The instance with the largest Kullback-Leibler divergence, in either role."""

    def divergence(instance: Instance) -> float:
        log_p, log_q = _binned(instance, step, most=2_000)
        gap = log_p - log_q
        return float(np.exp(log_p) @ gap - np.exp(log_q) @ gap)

    return max(pair.instances(), key=divergence)


def _binned(instance: Instance, step: float, most: int = MAX_BINS) -> tuple[Array, Array]:
    """Log probabilities of P and Q in small bins of the output."""
    shifts = np.array(instance.p_shifts + instance.q_shifts)
    width = max(float(np.ptp(shifts)), 1e-300)
    low, high = float(shifts.min()) - 9.0, float(shifts.max()) + 9.0
    most = min(most, max(1_000, 2_000_000 // shifts.size))
    bins = int(min(most, max(64, math.ceil((high - low) * 4 * width / step))))
    edges = np.concatenate([[-np.inf], np.linspace(low, high, bins), [np.inf]])
    log_p = _log_masses(edges, instance.p_shifts, instance.p_weights)
    log_q = _log_masses(edges, instance.q_shifts, instance.q_weights)
    both = np.isfinite(log_p) & np.isfinite(log_q)
    return log_p[both], log_q[both]


def _log_masses(edges: Array, shifts: tuple[float, ...], weights: tuple[float, ...]) -> Array:
    total = np.full(edges.size - 1, -np.inf)
    for shift, weight in zip(shifts, weights, strict=True):
        if weight > 0:
            z = edges - shift
            upper = z[:-1] > 0  # look from the far side of 0, where tails are exact
            low, high = np.where(upper, -z[1:], z[:-1]), np.where(upper, -z[:-1], z[1:])
            top = log_ndtr(high)
            inside = top + _log_one_minus_exp(np.minimum(log_ndtr(low) - top, 0))
            total = np.logaddexp(total, math.log(weight) + inside)
    return total


def _best_pooled(log_p: Array, log_q: Array, step: float, coin: float) -> Losses:
    """Of several ways to pool, the one that keeps most of the mean loss."""
    ways = [_pooled(log_p, log_q, step, coin, within) for within in (1.0, 10.0, math.inf)]

    def mean(losses: Losses) -> float:
        return float(losses.probs @ (losses.start + np.arange(losses.probs.size)))

    return max(ways, key=mean)


def _pooled(log_p: Array, log_q: Array, step: float, coin: float, within: float) -> Losses:
    """Pool outcomes so that each pool's log ratio is a multiple of `step`, rounding only down.

    Sweeping upwards, outcomes below a grid point are pooled with just enough of those up to
    `within` steps above it; where these do not suffice, the pool is rounded down.
    """
    order = np.argsort(log_p - log_q, kind="stable")
    loss = ((log_p - log_q)[order] / step).tolist()
    mass = np.exp(log_p)[order].tolist()
    pools: dict[int, float] = {}
    i, count = 0, len(loss)
    while i < count:
        goal = math.ceil(loss[i])
        pool, need = 0.0, 0.0
        while i < count and loss[i] <= goal:
            pool += mass[i]
            need += mass[i] * math.expm1((goal - loss[i]) * step)
            i += 1
        filled, end = need, i
        while end < count and filled > 0 and loss[end] <= goal + within:
            filled += mass[end] * math.expm1((goal - loss[end]) * step)
            end += 1
        if filled > 0:
            goal -= 1
        while need > 0 and filled <= 0:
            gain = -math.expm1((goal - loss[i]) * step)
            part = min(mass[i], need / gain)
            pool += part
            need -= part * gain
            mass[i] -= part
            if i + 1 >= end:
                break
            i += need > 0
        pools[goal] = pools.get(goal, 0.0) + pool
    first, last = min(pools), max(pools)
    probs = np.zeros(last - first + 1)
    for goal, pool in pools.items():
        probs[goal - first] = pool * coin
    losses = Losses(step, first, probs, 0.0)
    return losses if coin == 1 else _with_nothing(losses, 1 - coin)


def _with_nothing(losses: Losses, weight: float) -> Losses:
    """The same losses with `weight` more at a loss of 0."""
    first, last = min(losses.start, 0), max(losses.start + losses.probs.size - 1, 0)
    probs = np.zeros(last - first + 1)
    probs[losses.start - first : losses.start - first + losses.probs.size] = losses.probs
    probs[-first] += weight
    return Losses(losses.step, first, probs, losses.infinite)
