"""Where chance comes from.

For a model that is to leave the house, chance comes from the operating system, and no state of a
generator is ever stored: whoever has it could subtract the noise. In experiment mode it comes from
a fixed seed; every step then has streams of its own, so that a run that was killed and resumed
equals one that was not, and the certificate says "not for release".
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

Purpose = Literal["coins", "noise", "dropout", "order", "init", "subset"]
_PURPOSES: tuple[Purpose, ...] = ("coins", "noise", "dropout", "order", "init", "subset")


@dataclass(frozen=True)
class Chance:
    """The source of all random draws of a run; `seed=None` is the operating system."""

    seed: int | None = None

    @property
    def name(self) -> Literal["system", "fixed seed"]:
        """What a certificate says about it."""
        return "system" if self.seed is None else "fixed seed"

    def streams(
        self, purpose: Purpose, step: int, count: int, *, part: int = 0
    ) -> list[np.random.Generator]:
        """Independent generators for one purpose in one step, or in one part of it.

        >>> one, other = (Chance(1).streams("noise", 3, 2)[i].random() for i in (0, 1))
        >>> one != other
        True
        """
        if self.seed is None:
            entropy: int | list[int] = secrets.randbits(256)
        else:
            entropy = [self.seed, _PURPOSES.index(purpose), step, *([part] if part else [])]
        parts = np.random.SeedSequence(entropy).spawn(count)
        return [np.random.Generator(np.random.PCG64DXSM(part)) for part in parts]

    def stream(self, purpose: Purpose, step: int) -> np.random.Generator:
        """One generator for one purpose in one step."""
        return self.streams(purpose, step, 1)[0]

    def of_users(
        self, purpose: Purpose, step: int, users: int
    ) -> Callable[[int], np.random.Generator]:
        """A generator for each user, which does not depend on who else is drawn.

        >>> Chance(1).of_users("order", 3, 9)(8).random() == (
        ...     Chance(1).of_users("order", 3, 9)(8).random())
        True
        """
        seeds = self.stream(purpose, step).integers(2**63, size=users)
        return lambda user: np.random.Generator(np.random.PCG64DXSM(int(seeds[user])))

    def torch_seed(self, purpose: Purpose, step: int) -> int:
        """A seed for torch's own generator, which serves what needs no secrecy (dropout)."""
        return int(self.stream(purpose, step).integers(2**63))
