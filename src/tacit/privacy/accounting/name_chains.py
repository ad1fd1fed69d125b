"""One user who leaves and names that come and go, one after the other: chains of dominating pairs.

Mention substitution changes, between two neighbours, the vector of one user and at most n shown
names of other users. Taken one by one these changes are a chain of releases, and each of its links
has a closed curve (docs/explanations/guarantees.md, section 12), in units of the noise:

    User   (1-q) N(0) + q N(s)    against   N(0)
    Move   (1-q) N(0) + q N(s)    against   (1-q) N(0) + q N(s - tau s), where losses are positive;
           symmetric

If P(S) <= e^x R(S) + h for all S, and R(S) <= e^y Q(S) + g, then P(S) <= e^(x+y) Q(S) + h + e^x g.
So *every* choice of one loss for each link gives a point that is on or above the chain's curve.
Good choices are the thresholds at which the power of one link is the level of the next; they need
not be exact, and are looked up in tables.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import erf, log_ndtr, ndtr, ndtri, ndtri_exp

from tacit.privacy.accounting.divergences import Array
from tacit.privacy.accounting.dominating_curves import Instance
from tacit.privacy.accounting.drawn_counts import every_count

_FAR = 37.0  # the normal tail beyond it is below 1e-299
_ROUNDING = 1e-13  # of a divergence, for the error of log_ndtr and of differences of logarithms


class Tangents(NamedTuple):
    """Lines above a curve: P(S) <= e^loss Q(S) + e^log_height, and the power at each level."""

    loss: Array
    log_height: Array
    power: Array
    """As a normal quantile: the probability that a standard normal number is larger."""


Link = Callable[[Array], Tangents]
"""From levels, as normal quantiles, to the tangents of a pair's trade-off curve there."""


@dataclass(frozen=True)
class NameChain:
    """One user (if `with_user`) and `holders + promotions` names that other users show.

    Guarantee: dominates mention substitution for neighbours in which the user's vector is absent
    and so many shown names of other users come or go, each moving one user's vector, of norm at
    most `scale`, by at most `share` of that; users drawn independently at `rate`, below 1. It does
    not matter how these names are spread over users.
    """

    rate: float
    holders: int
    promotions: int
    share: float
    with_user: bool
    scale: float

    @property
    def moves(self) -> int:
        """How many names come or go."""
        return self.holders + self.promotions

    @property
    def revealed_shift(self) -> float:
        return (self.with_user + self.moves * min(self.share, 2.0)) * self.scale

    def forward(self, eps: Array) -> Array:
        return _read(_curve(self, reverse=False), eps)

    def backward(self, eps: Array) -> Array:
        return _read(_curve(self, reverse=True), eps)

    def instances(self) -> list[Instance]:
        """Neighbours on a line: holders lose the name, one user gains what `promotions` free."""
        middle = min(self.share, 2.0) / 2
        return [self._instance(start) for start in (1.0, middle, min(self.share, 2.0) - 1)]

    def _instance(self, start: float) -> Instance:
        """A holder goes from `start` to `start - share`, the promoted user as far down from 1."""
        lost = min(self.share, 2.0)
        gained = min(self.promotions * lost, 2.0)
        counts, weights = every_count(self.holders, self.rate)
        p: dict[float, float] = {}
        q: dict[float, float] = {}
        for count, weight in zip(counts, weights, strict=True):
            for promoted, p_b in ((0, 1 - self.rate), (1, self.rate)):
                after = (count * (start - lost) + promoted * (1 - gained)) * self.scale
                q[after] = q.get(after, 0.0) + weight * p_b
                for user, p_a in ((0, 1 - self.rate), (1, self.rate)):
                    own = user * self.with_user
                    before = (count * start + promoted + own) * self.scale
                    p[before] = p.get(before, 0.0) + weight * p_b * p_a
        return Instance(tuple(p), tuple(p.values()), tuple(q), tuple(q.values()))


# --- the chain ----------------------------------------------------------------------------------


@lru_cache(maxsize=32)
def _curve(chain: NameChain, *, reverse: bool) -> tuple[Array, Array]:
    """Losses in rising order, and the logarithm of a bound on the divergence at each.

    P is the release with the user and all names, Q the one without. Levels are probabilities under
    the last distribution of the chain, so links are walked from there: moves and then the user in
    one role, the user and then moves in the other.
    """
    move = [move_link(chain.rate, chain.share * chain.scale, chain.scale)] * chain.moves
    user = [user_link(chain.rate, chain.scale, reverse=reverse)] * chain.with_user
    level = np.concatenate([np.arange(-9.0, 12.0, 0.002), np.arange(12.0, _FAR, 0.02)])
    loss, log_height = np.zeros_like(level), np.full_like(level, -np.inf)
    for link in (user + move) if reverse else (move + user):
        here = link(level)
        log_height = np.logaddexp(here.log_height, here.loss + log_height)
        loss = loss + here.loss
        level = here.power
    order = np.argsort(loss, kind="stable")
    # a hockey stick never rises, so a bound at a smaller loss is one here too
    falling = np.minimum.accumulate(np.minimum(log_height[order], 0.0))
    return loss[order], falling + _ROUNDING


def _read(curve: tuple[Array, Array], eps: Array) -> Array:
    """Bounds at these losses: the true curve is convex in e^eps, so chords are above it."""
    losses, logs = curve
    after = np.clip(np.searchsorted(losses, eps, side="right"), 1, losses.size - 1)
    low, high = losses[after - 1], losses[after]
    gap = np.minimum(np.maximum(high - low, 1e-300), 700.0)
    along = np.expm1(np.clip(eps - low, 0.0, gap)) / np.expm1(gap)
    start, end = np.exp(logs[after - 1]), np.exp(logs[after])
    inside: Array = start + np.minimum(along, 1.0) * (end - start)
    return np.where(eps < losses[0], 1.0, inside)


# --- the links ----------------------------------------------------------------------------------


def user_link(rate: float, scale: float, *, reverse: bool) -> Link:
    """The user's pair: present against absent, or (`reverse`) absent against present.

    The best test between the two is a threshold t: outputs above it (below it) speak for presence
    (absence).
    """
    t = np.linspace(-_FAR, _FAR + scale, 40_001)

    def sides(t: Array) -> tuple[Array, Array, Array]:
        """Log level, log power and loss of the test with this threshold."""
        if reverse:
            return _present(-t, rate, -scale), log_ndtr(t), -_ratio(t, rate, scale)
        return log_ndtr(-t), _present(t, rate, scale), _ratio(t, rate, scale)

    levels = _quantile(sides(t)[0])

    def link(level: Array) -> Tangents:
        chosen = np.interp(level, levels[::-1], t[::-1]) if reverse else np.interp(level, levels, t)
        log_level, log_power, loss = sides(chosen)
        return Tangents(loss, _log_height(log_level, log_power, loss), _quantile(log_power))

    return link


def move_link(rate: float, move: float, scale: float) -> Link:
    """The pair of one move: a user is drawn or not, and contributes w before and w' after.

    With |w|, |w'| <= scale and |w - w'| <= move nobody is easier to tell apart than w = scale and
    w' = scale - move where losses are positive; then follows a stretch without loss, then the
    mirror image of the first.
    """
    move = min(move, 2 * scale)
    first = scale - move / 2  # where the loss is zero
    t = np.linspace(first, max(_FAR, first) + scale, 40_001)

    def sides(t: Array) -> tuple[Array, Array, Array]:
        before, after = _present(t, rate, scale), _present(t, rate, scale - move)
        loss = _ratio(t, rate, scale) - _ratio(t, rate, scale - move)
        return after, before, np.maximum(loss, 0.0)

    levels, powers, _ = sides(t)
    levels, powers = _quantile(levels), _quantile(powers)
    apart = rate * float(erf(move / math.sqrt(8)))  # the total variation distance of the pair

    def link(level: Array) -> Tangents:
        mirrored = level < -powers[0]
        chosen = np.where(mirrored, np.interp(-level, powers, t), np.interp(level, levels, t))
        log_level, log_power, loss = sides(chosen)
        height = _log_height(log_level, log_power, loss)
        turned = np.logaddexp(np.log(np.maximum(-np.expm1(-loss), 1e-300)), height - loss)
        high = np.where(mirrored, turned, height)
        power = np.where(mirrored, -_quantile(log_level), _quantile(log_power))
        loss = np.where(mirrored, -loss, loss)
        flat = ~mirrored & (level < levels[0])
        higher = -ndtri(np.minimum(ndtr(-level) + apart, 1.0))
        return Tangents(
            np.where(flat, 0.0, loss),
            np.where(flat, math.log(apart), high),
            np.clip(np.where(flat, higher, power), -_FAR, _FAR),
        )

    return link


def _present(t: Array, rate: float, shift: float) -> Array:
    """The logarithm of the probability that (1-q) N(0) + q N(shift) is above t."""
    return np.logaddexp(math.log1p(-rate) + log_ndtr(-t), math.log(rate) + log_ndtr(shift - t))


def _ratio(t: Array, rate: float, shift: float) -> Array:
    """log of ((1-q) phi(t) + q phi(t - shift)) / phi(t)."""
    return np.logaddexp(math.log1p(-rate), math.log(rate) + shift * t - shift * shift / 2)


def _quantile(log_probability: Array) -> Array:
    """How far out the upper tail of the normal distribution has this probability."""
    bounded = np.clip(log_probability, -690.0, -1e-300)
    return np.clip(-ndtri_exp(bounded), -_FAR, _FAR)


def _log_height(log_level: Array, log_power: Array, loss: Array) -> Array:
    """log of power - e^loss level, rounded up: what is left of a power after its tangent's rise."""
    rest = -np.expm1(np.minimum(loss + log_level - log_power, 0.0))
    error = 4e-16 * (2.0 + np.abs(log_power) + np.abs(log_level))
    found: Array = log_power + np.log(np.maximum(rest, 0.0) + error)
    return found
