"""One step of the counter-example: what it releases with the protected entity and without it."""

import math
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from tacit.errors import UsageError
from tacit.privacy.accounting.divergences import Array
from tacit.privacy.arguments import (
    check_one_of,
    check_positive,
    check_probability,
    check_user_rate,
    check_whole,
)

# Above this exp(-loss) underflows in the library; a larger bound is reported as this one.
LARGEST_EPSILON = 700.0

# Cells into which one step's output is cut.
_CELLS = 4_000
# More than the relative error of a cumulative probability in double precision.
_RELATIVE_ERROR = 1e-12
# Numbers of drawn holders less likely than this are left out, and their mass counted as error.
_LEAST_PROBABILITY = 1e-100


@dataclass(frozen=True)
class OneStep:
    """The two output distributions of one step, in units of the clip norm.

    Legend: K holders drawn ~ Binomial(holders, users per step / users); s noise std; Q output
    without the entity, E_K N(-K, s^2) (with sign flip) or N(0, s^2); A = E_K N(K, s^2);
    P = (1 - rate) Q + rate A output with the entity. p/q increases in x in both cases.
    """

    rate: float
    noise_std: float
    user_rate: float
    holders: int
    sign_flip: bool

    @classmethod
    def build(
        cls,
        *,
        users: int,
        users_per_step: float,
        entity_rate: float,
        noise_multiplier: float,
        holders: int,
        sign_flip: bool,
        rule: str,
        noise: str,
    ) -> "OneStep":
        """Check the arguments and lay out the step."""
        user_rate = check_user_rate(users, users_per_step)
        check_probability("entity_rate", entity_rate)
        check_positive("noise_multiplier", noise_multiplier)
        check_whole("holders", holders, least=1)
        if holders > users:
            raise UsageError(
                f"holders={holders} is larger than users={users}; "
                f"give a count between 1 and {users}."
            )
        check_one_of("rule", rule, ("drawn", "any"))
        check_one_of("noise", noise, ("lemma", "patent"))
        units = users_per_step + 1 if noise == "lemma" else users + 1
        return cls(
            rate=entity_rate if rule == "drawn" else 1.0,
            noise_std=noise_multiplier * units,
            user_rate=user_rate,
            holders=holders,
            sign_flip=sign_flip,
        )

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

    def loss(self, x: Array) -> Array:
        """ln p(x)/q(x), the privacy loss at x."""
        with np.errstate(divide="ignore"):
            ratio = self._log_density(x, +1) - self._log_density(x, -1)
            mixed = np.logaddexp(np.log1p(-self.rate), np.log(self.rate) + ratio)
        return np.asarray(mixed, dtype=np.float64)

    def _log_density(self, x: Array, sign: int) -> Array:
        """ln of the density of A (sign +1) or Q (sign -1), without the common constant."""
        count, probability = self.drawn
        exponent = -0.5 * ((x[:, None] - self._centres(count, sign)) / self.noise_std) ** 2
        return np.asarray(special.logsumexp(exponent + np.log(probability), axis=1))

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

    def score_table(self) -> Array:
        """The loss at evenly spaced outputs; the attack looks up the nearest one."""
        x = np.linspace(-self.reach, self.reach, _CELLS)
        return np.clip(self.loss(x), -LARGEST_EPSILON, LARGEST_EPSILON)

    def play(
        self,
        scores: Array,
        steps: int,
        runs: int,
        present: bool,
        rng: np.random.Generator,
    ) -> Array:
        """Total score of each of `runs` trainings, with or without the entity."""
        total = np.zeros(runs)
        per_cell = (len(scores) - 1) / (2 * self.reach)
        for _ in range(steps):
            count = rng.binomial(self.holders, self.user_rate, size=runs)
            output = self.noise_std * rng.standard_normal(runs)
            if present:
                drawn = rng.random(runs) < self.rate
                output += np.where(drawn, count, -count if self.sign_flip else 0)
            elif self.sign_flip:
                output -= count
            cell = ((output + self.reach) * per_cell + 0.5).astype(np.int64)
            total += scores[np.clip(cell, 0, len(scores) - 1, out=cell)]
        return total
