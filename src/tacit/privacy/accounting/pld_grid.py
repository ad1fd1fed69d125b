"""From a dominating pair to a privacy loss distribution on a grid.

`upper_loss` turns a pair's curves into a distribution of losses that is never optimistic (dots
connected on the safe side); `lower_loss` turns an explicit instance into one that is never
pessimistic. Composition is left to dp-accounting. The proofs are in
docs/explanations/guarantees.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr

from tacit.errors import PrivacyRefused
from tacit.privacy.accounting.divergences import Array, log_one_minus_exp
from tacit.privacy.accounting.dominating_curves import Instance, Pair

MAX_CELLS = 60_000  # grid points of one step
MAX_BINS = 30_000  # bins of the explicit instance behind a lower bound


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


class GridTooLarge(Exception):
    """The loss cannot be put on a grid this fine; a looser bound is used. Never leaves privacy."""


# --- upper bounds from curves --------------------------------------------------------------------


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
            inside = top + log_one_minus_exp(np.minimum(log_ndtr(low) - top, 0))
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
