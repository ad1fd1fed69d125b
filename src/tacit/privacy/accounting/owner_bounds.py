"""Three bounds for one user and one entity under per-user clipping, by what is revealed.

In one step K of the entity's k holders are drawn, A = 1 if the user is, B = 1 if the entity is.
Which of these coins an analysis may take to be public decides how tight it is, and none of the
three choices below is the best everywhere:

    NothingRevealed   all coins stay hidden (advanced joint convexity, AJC)
    HoldersRevealed   which holders were drawn is public, A and B stay hidden
    EntityRevealed    B is public; given B, the better of the other two

Each gives two curves, upper bounds on H_eps(P || Q) and H_eps(Q || P) for eps >= 0, and so does
their pointwise minimum. The proofs are in docs/explanations/guarantees.md, section 5.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from tacit.privacy.accounting.divergences import (
    Array,
    gaussian_over_mixture,
    log_one_minus_exp,
    log_or_minus_infinity,
    mixture_over_gaussian,
)
from tacit.privacy.accounting.drawn_counts import drawn, log_miss


@dataclass(frozen=True)
class Owners:
    """One user and one entity with its holders, in one step of user clipping.

    Legend: q = user_rate, k = holders, tau = share, q_e = entity_rate, a = with_user; all shifts
    are times `scale` = 1/z.
    """

    user_rate: float
    holders: int
    share: float
    entity_rate: float
    with_user: bool
    scale: float

    def user_coin(self) -> list[tuple[int, float]]:
        """The law of A."""
        return [(1, self.user_rate), (0, 1 - self.user_rate)] if self.with_user else [(0, 1.0)]

    def entity_coin(self) -> list[tuple[int, float]]:
        """The law of B."""
        return [(1, self.entity_rate), (0, 1 - self.entity_rate)]

    def moves(self, holders: float) -> tuple[Array, Array, float]:
        """The positive values of A + tau B K at this K, their probabilities, and log P[it is 0]."""
        law = [
            (a + self.share * b * holders, p * r)
            for a, p in self.user_coin()
            for b, r in self.entity_coin()
        ]
        felt = [(move, p) for move, p in law if move > 0 and p > 0]
        # a sum of logarithms: as log(1 - ...) it would lose the digits of small rates
        log_still = log_miss(self.user_rate) if self.with_user else 0.0
        if self.share * holders > 0:
            log_still += log_miss(self.entity_rate)
        return np.array([move for move, _ in felt]), np.array([p for _, p in felt]), log_still


class Bound(Protocol):
    """Both curves of an upper bound, for eps >= 0."""

    def forward(self, eps: Array) -> Array:
        """At least H_eps(P || Q)."""
        ...

    def backward(self, eps: Array) -> Array:
        """At least H_eps(Q || P)."""
        ...


def smallest(curves: Iterable[Array]) -> Array:
    """The pointwise minimum of upper bounds on one probability: an upper bound, at most 1."""
    least: Array = np.minimum.reduce(list(curves))
    return np.minimum(least, 1.0)


_USER_ALONE = (np.ones(1), np.ones(1), -math.inf)  # as `Owners.moves`, if the user alone is drawn


@dataclass(frozen=True)
class NothingRevealed:
    """All coins hidden: the AJC bound.

    W is what is drawn of the user and the holders, eta = P[W not empty]; for eps >= 0

        e = log(1 + (e^eps - 1)/eta),   th = e^(eps - e),   p_K = P[K | W not empty]

        H_eps(P||Q) <= eta min(f1, f2)
            f1 = (1-th) F(e; Bin(k+a, q) | >= 1) + th sum_K p_K F(e; A + tau B K)
            f2 = sum_{K,A,B} p R(e; {K+A: 1-th, A + tau B K: th})         (K = 0: F(e; 1))
        H_eps(Q||P) <= eta sum_K p_K R(e; {K: 1-th} + th law(A + tau B K)) (K = 0: {0: 1-th, 1: th})

    K = 0 here means that the user alone was drawn: A = 1.
    """

    owners: Owners

    def forward(self, eps: Array) -> Array:
        o, c = self.owners, self._conditioned(eps)
        counts, weights, _ = drawn(o.holders + o.with_user, o.user_rate)
        near = mixture_over_gaussian(c.e, counts * o.scale, np.log(weights / weights.sum()))
        f1, f2 = c.one_minus_th * near, np.zeros_like(eps)
        for holders, weight in self._holders_given_any():
            shifts, probs, _ = o.moves(holders) if holders else _USER_ALONE
            f1 += c.th * weight * mixture_over_gaussian(c.e, shifts * o.scale, np.log(probs))
            f2 += weight * self._one_revealed(c, holders)
        return np.minimum(c.eta * np.minimum(f1, f2), 1.0)

    def backward(self, eps: Array) -> Array:
        o, c = self.owners, self._conditioned(eps)
        total = np.zeros_like(eps)
        for holders, weight in self._holders_given_any():
            shifts, probs, log_still = o.moves(holders) if holders else _USER_ALONE
            rows = log_or_minus_infinity(probs)[:, None] + log_or_minus_infinity(c.th)
            if holders == 0:
                # 1 - e^e (1-th) = (1 - surv e^eps) / eta, written without the cancellation
                gap = log_one_minus_exp(eps + c.log_none) - math.log(c.eta)
            else:
                shifts = np.append(shifts, holders)
                rows = np.vstack([rows, log_or_minus_infinity(c.one_minus_th)[None]])
                gap = log_one_minus_exp(eps + log_still)  # 1 - e^e th P[no move]
            total += weight * gaussian_over_mixture(c.e, shifts * o.scale, rows, np.minimum(gap, 0))
        return np.minimum(c.eta * total, 1.0)

    def _conditioned(self, eps: Array) -> "_Conditioned":
        return _condition(eps, self.owners.user_rate, self.owners.holders + self.owners.with_user)

    def _holders_given_any(self) -> list[tuple[int, float]]:
        """The law of K given that W is not empty, merged upwards; K = 0 means the user alone."""
        o = self.owners
        counts, weights, log_none = drawn(o.holders, o.user_rate)
        law = [(int(count), float(weight)) for count, weight in zip(counts, weights, strict=True)]
        if o.with_user:
            law.insert(0, (0, o.user_rate * math.exp(log_none)))
        eta = -math.expm1((o.holders + o.with_user) * log_miss(o.user_rate))
        return [(count, min(weight / eta, 1.0)) for count, weight in law if weight > 0]

    def _one_revealed(self, c: "_Conditioned", holders: int) -> Array:
        """The K-th term of f2, everything revealed in the first argument."""
        o = self.owners
        if holders == 0:
            return mixture_over_gaussian(c.e, np.array([o.scale]), np.zeros(1))
        total = np.zeros_like(c.e)
        for a, p_a in o.user_coin():
            for b, p_b in o.entity_coin():
                move = a + o.share * b * holders
                if p_a * p_b == 0 or move == 0:  # e^e th = e^eps >= 1, so nothing is left
                    continue
                shifts = np.array([holders + a, move]) * o.scale
                rows = log_or_minus_infinity(np.vstack([c.one_minus_th, c.th]))
                total += p_a * p_b * gaussian_over_mixture(c.e, shifts, rows, np.zeros_like(c.e))
        return total


@dataclass(frozen=True)
class HoldersRevealed:
    """Which holders were drawn is public on both sides; A and B stay hidden.

        H_eps(P||Q) <= sum_K Bin(k, q)(K) F(eps; A + tau B K)
        H_eps(Q||P) <= sum_K Bin(k, q)(K) R(eps; A + tau B K)

    The holders' coins then hide nothing, but their other text does not count either: this is the
    smaller bound where one entity moves its many holders by little.
    """

    owners: Owners

    def forward(self, eps: Array) -> Array:
        total = np.zeros_like(eps)
        for holders, weight in self._holders():
            shifts, probs, _ = self.owners.moves(holders)
            total += weight * mixture_over_gaussian(eps, shifts * self.owners.scale, np.log(probs))
        return total

    def backward(self, eps: Array) -> Array:
        total = np.zeros_like(eps)
        for holders, weight in self._holders():
            shifts, probs, log_still = self.owners.moves(holders)
            rows = np.repeat(np.log(probs)[:, None], eps.size, axis=1)
            gap = log_one_minus_exp(eps + log_still)
            total += weight * gaussian_over_mixture(eps, shifts * self.owners.scale, rows, gap)
        return total

    def _holders(self) -> list[tuple[float, float]]:
        """The law of K, merged upwards."""
        counts, weights, log_none = drawn(self.owners.holders, self.owners.user_rate)
        law = [(0.0, math.exp(log_none)), *zip(counts.tolist(), weights.tolist(), strict=True)]
        return [(count, weight) for count, weight in law if weight > 0]


@dataclass(frozen=True)
class EntityRevealed:
    """Whether the entity was drawn is public on both sides.

        H_eps(P||Q) <= q_e G_eps + (1 - q_e) F(eps; A),   G the smaller bound above at q_e = 1
        H_eps(Q||P) <= q_e G'_eps + (1 - q_e) R(eps; A)

    While the entity is not drawn only the user is left to be seen, so this is the smaller bound
    where the entity is drawn rarely.
    """

    owners: Owners

    def forward(self, eps: Array) -> Array:
        return self._averaged([b.forward(eps) for b in self._drawn()], self._user().forward(eps))

    def backward(self, eps: Array) -> Array:
        return self._averaged([b.backward(eps) for b in self._drawn()], self._user().backward(eps))

    def _drawn(self) -> list[Bound]:
        """What bounds a step in which the entity is certainly drawn."""
        certain = replace(self.owners, entity_rate=1.0)
        return [NothingRevealed(certain), HoldersRevealed(certain)]

    def _user(self) -> Bound:
        """What bounds a step in which it is not: the sampled Gaussian of the user alone."""
        return HoldersRevealed(replace(self.owners, holders=0))

    def _averaged(self, inside: list[Array], outside: Array) -> Array:
        rate = self.owners.entity_rate
        return rate * smallest(inside) + (1 - rate) * outside


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
    log_none = n * log_miss(q)
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
