"""A one-dimensional instance on which the published user-entity epsilon is too small.

The instance obeys every rule of the published method (Lai et al. 2022, Algorithm 1). `holders`
users each have one plain record with gradient -1 and one record naming the protected entity with
gradient +2, in units of the clip norm; all other users, the added one included, have gradient 0.
The loss is linear, so nothing depends on the model. Without the entity a drawn holder sends -1,
with it clip(-1 + 2) = +1. One step therefore releases, with K holders drawn out of `holders`,

    without the entity:  -K + noise
    with the entity:     +K + noise if the entity is drawn too, else -K + noise,

and the published noise has standard deviation noise_multiplier * (users per step + 1).

`lower_bound` composes the exact distributions and rounds only downwards, so that no accountant can
prove less. It says nothing about the sound prices, which must lie above it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from dp_accounting.pld import privacy_loss_distribution
from scipy import special, stats

from tacit.errors import UsageError
from tacit.privacy.accounting.divergences import Array
from tacit.privacy.arguments import (
    check_one_of,
    check_positive,
    check_probability,
    check_user_rate,
    check_whole,
    require_delta,
)
from tacit.replication import published

# The setting of the published CoNLL-2003 figures.
PAPER: Mapping[str, Any] = MappingProxyType(
    {
        "users": 946,
        "users_per_step": 50,
        "entity_rate": 0.5,
        "noise_multiplier": 2.0,
        "delta": 1e-5,
    }
)
HOLDERS: tuple[int, ...] = (1, 8, 16, 32, 64, 112, 250, 500, 946)

# The grid to which the losses of one step are rounded down.
_GRID = 5e-4
# Sizes that keep a composition within seconds; a coarser grid is used rather than exceed them.
_MOST_POINTS_PER_STEP = 2**18
_MOST_POINTS = 2_000_000
# Added to delta: more than the tail that the composition cuts off plus its rounding errors.
_DELTA_SLACK = 1e-9
# Above this exp(-loss) underflows in the library; a larger bound is reported as this one.
LARGEST_EPSILON = 700.0

# Cells into which one step's output is cut.
_CELLS = 4_000
# More than the relative error of a cumulative probability in double precision.
_RELATIVE_ERROR = 1e-12
# Numbers of drawn holders less likely than this are left out, and their mass counted as error.
_LEAST_PROBABILITY = 1e-100


@dataclass(frozen=True)
class Instance:
    """One step in which `holders` of the users name the entity, in units of the clip norm.

    `sign_flip=False` leaves out the plain records, so that an entity moves a holder by one clip
    norm instead of two. `rule="any"` uses a record as soon as any of its entities is drawn, in
    the limit of many of them: the protected record is then used in every step. `noise="patent"`
    takes the patent's noise, noise_multiplier * (users + 1).

    Legend: K holders drawn ~ Binomial(holders, users per step / users); s noise std; Q output
    without the entity, E_K N(-K, s^2) (with sign flip) or N(0, s^2); A = E_K N(K, s^2);
    P = (1 - rate) Q + rate A output with the entity. p/q increases in x in both cases.
    """

    users: int
    users_per_step: float
    entity_rate: float
    noise_multiplier: float
    holders: int
    sign_flip: bool = True
    rule: Literal["drawn", "any"] = "drawn"
    noise: Literal["lemma", "patent"] = "lemma"

    def __post_init__(self) -> None:
        check_user_rate(self.users, self.users_per_step)
        check_probability("entity_rate", self.entity_rate)
        check_positive("noise_multiplier", self.noise_multiplier)
        check_whole("holders", self.holders, least=1)
        if self.holders > self.users:
            raise UsageError(
                f"holders={self.holders} is larger than users={self.users}; "
                f"give a count between 1 and {self.users}."
            )
        check_one_of("rule", self.rule, ("drawn", "any"))
        check_one_of("noise", self.noise, ("lemma", "patent"))

    @property
    def user_rate(self) -> float:
        """The sampling rate of users."""
        return self.users_per_step / self.users

    @property
    def rate(self) -> float:
        """How often the record that names the entity is used."""
        return self.entity_rate if self.rule == "drawn" else 1.0

    @property
    def noise_std(self) -> float:
        """The published noise, as a standard deviation."""
        units = self.users_per_step if self.noise == "lemma" else self.users
        return self.noise_multiplier * (units + 1)

    @property
    def drawn(self) -> tuple[Array, Array]:
        """The values of K with their probabilities; absurdly unlikely ones are left out."""
        count = np.arange(self.holders + 1, dtype=np.float64)
        probability = stats.binom.pmf(count, self.holders, self.user_rate)
        keep = probability > _LEAST_PROBABILITY
        return count[keep], np.asarray(probability[keep], dtype=np.float64)

    @property
    def reach(self) -> float:
        """Outputs beyond this, on either side, have no mass worth a cell of their own."""
        mean = self.holders * self.user_rate
        most = mean + 10 * math.sqrt(mean) + 10
        return min(most, float(self.holders)) + 10 * self.noise_std

    def _centres(self, count: Array, sign: int) -> Array:
        return sign * count if sign > 0 or self.sign_flip else np.zeros_like(count)

    def cells(self) -> tuple[Array, Array, Array, Array]:
        """Lowest and highest probability of each output cell, with and then without the entity.

        The two differ by numerical errors only; taking the unfavourable one keeps bounds certified.
        """
        edges = np.linspace(-self.reach, self.reach, _CELLS)
        absent, absent_error = self._cell_mass(edges, -1)
        moved, moved_error = self._cell_mass(edges, +1)
        present = (1 - self.rate) * absent + self.rate * moved
        present_error = absent_error + moved_error
        return (
            np.maximum(present - present_error, 0.0),
            present + present_error,
            np.maximum(absent - absent_error, 0.0),
            absent + absent_error,
        )

    def _cell_mass(self, edges: Array, sign: int) -> tuple[Array, Array]:
        """Mass of A or Q between consecutive edges, and more than its error.

        Each difference is taken on the side where the cumulative probability is small.
        """
        count, probability = self.drawn
        scaled = (edges[:, None] - self._centres(count, sign)) / self.noise_std
        below = np.concatenate(([0.0], special.ndtr(scaled) @ probability, [1.0]))
        above = np.concatenate(([1.0], special.ndtr(-scaled) @ probability, [0.0]))
        low_side = below[1:] < 0.5
        mass = np.where(low_side, np.diff(below), -np.diff(above))
        rounding = _RELATIVE_ERROR * np.where(low_side, below[1:], above[:-1])
        return np.maximum(mass, 0.0), rounding + self.holders * _LEAST_PROBABILITY


@dataclass(frozen=True)
class CounterexampleRow:
    """One degree of the protected entity: what was claimed, and what is certainly lost."""

    holders: int
    steps: int
    claimed: float
    at_least: float

    @property
    def contradicts(self) -> bool:
        """True when the lower bound exceeds the published epsilon."""
        return self.at_least > self.claimed


def lower_bound(instance: Instance, steps: int, delta: float = 1e-5, grid: float = _GRID) -> float:
    """A certified lower bound on the user-entity epsilon of the published method at `delta`.

    Guarantee: no accountant can prove less for this method, up to floating-point slack that is
    taken off on the safe side. Each step's output is cut into cells (which cannot create privacy
    loss), each cell's loss is rounded down to a multiple of `grid`, and the library composes the
    result. Rounding gives away about steps * grid / 2, which is why a rare entity gets 0; a finer
    grid is tighter and slower.
    """
    check_whole("steps", steps, least=1)
    require_delta(delta)
    check_positive("grid", grid)
    present_low, present_high, absent_low, absent_high = instance.cells()
    return max(
        _composed_epsilon(present_low, absent_high, steps, delta, grid),
        _composed_epsilon(absent_low, present_high, steps, delta, grid),
    )


def counterexample_table(
    *, steps: Sequence[int] = (50, 500), holders: Sequence[int] = HOLDERS
) -> list[CounterexampleRow]:
    """Claimed epsilon beside the lower bound, over the entity's degree, in the paper's setting.

    The claim is that of `f_E`; those of `f_E+` are smaller still. An entity in few users is
    protected better than claimed, one in many users far worse: the noise has the wrong scale.
    """
    setting = {name: value for name, value in PAPER.items() if name != "delta"}
    rows = []
    for number in steps:
        claim = published.uedp(estimator="f_E", steps=number, **PAPER).epsilon["users+entities"]
        for count in holders:
            at_least = lower_bound(Instance(holders=count, **setting), number, PAPER["delta"])
            rows.append(CounterexampleRow(count, number, claim, at_least))
    return rows


def _composed_epsilon(upper: Array, lower: Array, steps: int, delta: float, grid: float) -> float:
    """Epsilon at delta of `steps` draws of `upper` against `lower`, rounded down throughout.

    Losses above the largest that can be handled are lowered to it, and cells far below zero are
    left out: to count only part of `upper` rounds down as well.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        loss = np.minimum(np.log(upper) - np.log(lower), LARGEST_EPSILON)
    keep = (upper > 0) & (loss > -LARGEST_EPSILON)
    mass, loss = upper[keep], loss[keep]
    if mass.sum() <= delta:
        return 0.0
    width = max(grid, float(np.ptp(loss)) / _MOST_POINTS_PER_STEP)
    mean = float(np.average(loss, weights=mass))
    spread = math.sqrt(float(np.average((loss - mean) ** 2, weights=mass)))
    width = max(width, 20 * math.sqrt(steps) * spread / _MOST_POINTS)
    index = np.floor(loss / width).astype(np.int64)
    first = int(index.min())
    rounded = np.bincount(index - first, weights=mass)
    one = privacy_loss_distribution.PrivacyLossDistribution.create_from_rounded_probability(
        {first + j: float(p) for j, p in enumerate(rounded)},
        0.0,
        width,
        pessimistic_estimate=False,
    )
    epsilon = one.self_compose(steps).get_epsilon_for_delta(delta + _DELTA_SLACK)
    return min(float(epsilon), LARGEST_EPSILON)
