"""From one release to a dominating pair.

A *dominating pair* is two distributions P, Q that are at least as easy to tell apart as the
outputs of the mechanism on any two neighbours, at every epsilon. It is known here through its two
hockey-stick curves for epsilon >= 0, always in units of the noise:

    forward(eps)  >= H_eps(P || Q) = sup_S P(S) - e^eps Q(S)
    backward(eps) >= H_eps(Q || P)

Three kinds of pairs are enough for every event we price:

    ShiftMixture   sum_i p_i N(s_i, 1) against N(0, 1)
    OwnerMixture   a user and an entity with k holders under per-user clipping
    VisibleCoin    with a public coin of probability q, N(mu, 1) against N(0, 1)

`tacit.privacy.accounting.pld_grid` turns the curves into losses on a grid. The proofs are in
docs/explanations/guarantees.md.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from tacit.privacy.accounting.divergences import (
    Array,
    gaussian_over_mixture,
    log_one_minus_exp,
    mixture_over_gaussian,
)
from tacit.privacy.accounting.drawn_counts import drawn, every_count
from tacit.privacy.accounting.owner_bounds import (
    Bound,
    EntityRevealed,
    HoldersRevealed,
    NothingRevealed,
    Owners,
    smallest,
)


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
        counts, weights, _ = drawn(self.units, self.rate)
        return mixture_over_gaussian(eps, counts * self.shift, np.log(weights))

    def backward(self, eps: Array) -> Array:
        counts, weights, log_none = drawn(self.units, self.rate)
        rows = np.repeat(np.log(weights)[:, None], eps.size, axis=1)
        gap = log_one_minus_exp(eps + log_none)
        return gaussian_over_mixture(eps, counts * self.shift, rows, gap)

    @property
    def revealed_shift(self) -> float:
        return self.units * self.shift

    def instances(self) -> list[Instance]:
        counts, weights = every_count(self.units, self.rate)
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
class OwnerMixture(Owners):
    """One user and one entity with k holders, under per-user clipping.

    At every eps the smallest of three bounds: all coins hidden, the drawn holders revealed, the
    entity's coin revealed. The curves need not be convex; connecting the dots makes them so.

    Guarantee: dominates user clipping for neighbours in which the records of the user (if
    `with_user`) and of the entity contribute zero, the graph fixed, users drawn independently.
    With holders = 1, no user and share = 2 it is tight for replacing one unit.
    """

    @property
    def revealed_shift(self) -> float:
        return (self.with_user + min(self.share, 2.0) * self.holders) * self.scale

    def forward(self, eps: Array) -> Array:
        return smallest(bound.forward(eps) for bound in self.bounds())

    def backward(self, eps: Array) -> Array:
        return smallest(bound.backward(eps) for bound in self.bounds())

    def bounds(self) -> list[Bound]:
        """Every bound that may be the smallest; a coin that is no coin need not be revealed."""
        found: list[Bound] = [NothingRevealed(self), HoldersRevealed(self)]
        return found if self.entity_rate == 1 else [*found, EntityRevealed(self)]

    def instances(self) -> list[Instance]:
        """Holders whose clipped update is `start` without the entity, `start + share` with it."""
        starts = {-1.0, -self.share / 2, min(0.0, 1 - self.share), 1 - self.share}
        return [self._instance(start) for start in sorted(starts)]

    def _instance(self, start: float) -> Instance:
        counts, weights = every_count(self.holders, self.user_rate)
        p: dict[float, float] = {}
        for count, weight in zip(counts, weights, strict=True):
            for a, p_a in self.user_coin():
                for b, p_b in self.entity_coin():
                    where = (start * count + a + self.share * b * count) * self.scale
                    p[where] = p.get(where, 0.0) + weight * p_a * p_b
        return Instance(
            tuple(p),
            tuple(p.values()),
            tuple(start * counts * self.scale),
            tuple(weights),
        )
