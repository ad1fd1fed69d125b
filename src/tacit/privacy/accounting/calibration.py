"""The search for the least noise that meets a target; it only trusts a price that was computed."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tacit.errors import PrivacyRefused
from tacit.privacy.rounding import up

Progress: TypeAlias = Callable[[int, float, float], None]
_Point: TypeAlias = tuple[float, float]  # a noise multiplier, and the epsilon it was priced at


def least_noise(
    price_of: Callable[[float], float],
    target: float,
    protected: str,
    progress: Progress | None = None,
) -> float:
    """The least noise multiplier with `price_of(noise) <= target`, at most 0.2 % too large.

    `protected` names the unit in a refusal; `progress(trial, noise_multiplier, epsilon)` is called
    after every price.
    """
    search = _Search(price_of, target, protected, progress)
    if search.epsilon(0.0) <= target:
        return 0.0
    return search.narrow(*search.bracket())


@dataclass
class _Search:
    """Where the search stands; `above` and `below` are points on either side of the target."""

    price_of: Callable[[float], float]
    target: float
    protected: str
    progress: Progress | None
    trials: int = 0

    def epsilon(self, noise_multiplier: float) -> float:
        found = self.price_of(noise_multiplier)
        self.trials += 1
        if self.progress is not None:
            self.progress(self.trials, noise_multiplier, found)
        return found

    def bracket(self) -> tuple[_Point, _Point]:
        """A point with epsilon above the target, and one with epsilon at most the target."""
        noise, found = 1.0, self.epsilon(1.0)
        above = below = (noise, found)
        while found > self.target:
            above = (noise, found)
            if noise >= 1e6 or (math.isinf(found) and noise > 1):
                raise PrivacyRefused(
                    f"target_epsilon={self.target:g} for {self.protected} is not reached by any "
                    f"noise (at {noise:g} epsilon is still {up(found)}); allow a larger epsilon, "
                    "fewer steps, or protect a unit that the method bounds."
                )
            jump = min(max(found / self.target, 2.0), 1e3) if math.isfinite(found) else 4.0
            noise = min(noise * jump, 1e6)
            found = self.epsilon(noise)
            below = (noise, found)
        while above[1] <= self.target:
            noise = below[0] / 4
            if noise < 1e-9:
                return (noise, math.inf), below
            above = (noise, self.epsilon(noise))
            if above[1] <= self.target:
                below = above
        return above, below

    def narrow(self, above: _Point, below: _Point) -> float:
        """Halve the bracket in log noise, guided by the slope between its ends."""
        while below[0] > above[0] * 1.002:
            noise = self._between(above, below)
            found = self.epsilon(noise)
            if found <= self.target:
                below = (noise, found)
            else:
                above = (noise, found)
        return below[0]

    def _between(self, above: _Point, below: _Point) -> float:
        low, high = math.log(above[0]), math.log(below[0])
        share = 0.5
        if math.isfinite(above[1]) and below[1] > 0 and self.trials % 3:
            drop = math.log(above[1] / below[1])
            share = math.log(above[1] / self.target) / drop if drop > 0 else 0.5
        # a little to the safe side, and never so near an end that nothing is learned
        share = min(max(share + 0.0008 / (high - low), 0.05), 0.95)
        return math.exp(low + share * (high - low))
