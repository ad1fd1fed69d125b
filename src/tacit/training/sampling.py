"""Who takes part in a step. A sampler says which events it carries out; no others are priced."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PrivacyRefused
from tacit.privacy.events import (
    AnyEvent,
    Flat,
    NotPrivate,
    Public,
    ReplaceOne,
    SampledGaussian,
    UserClip,
)

Drawn = NDArray[np.int64]


@dataclass(frozen=True)
class PoissonUsers:
    """Each user by an independent coin; nobody may come, and that is a step, too."""

    users: int
    rate: float

    def draw(self, rng: np.random.Generator) -> Drawn:
        """The numbers of the users who take part."""
        return np.flatnonzero(rng.random(self.users) < self.rate)

    def carries_out(self, event: AnyEvent) -> bool:
        """Whether an event describes this sampling."""
        match event:
            case UserClip():
                return event.user_rate == self.rate and event.entity_rate == 1.0
            case SampledGaussian(unit="users") | ReplaceOne(unit="users"):
                return event.rate == self.rate
        return False


@dataclass(frozen=True)
class PoissonRecords:
    """Each record by an independent coin."""

    records: int
    rate: float

    def draw(self, rng: np.random.Generator) -> Drawn:
        """The numbers of the records that take part."""
        return np.flatnonzero(rng.random(self.records) < self.rate)

    def carries_out(self, event: AnyEvent) -> bool:
        """Whether an event describes this sampling."""
        match event:
            case Flat():
                return event.record_rate == self.rate
            case SampledGaussian(unit="records") | ReplaceOne(unit="records" | "tokens"):
                return event.rate == self.rate
        return False


@dataclass(frozen=True)
class Shuffled:
    """Batches of equal size from a shuffled pass over the records: for training without a promise.

    No private event describes this, so none can be charged for it.
    """

    records: int
    size: int

    def draw(self, rng: np.random.Generator) -> Drawn:
        """A batch drawn without replacement."""
        return rng.choice(self.records, size=min(self.size, self.records), replace=False)

    def carries_out(self, event: AnyEvent) -> bool:
        """Only what promises nothing, or reads nothing private."""
        return isinstance(event, NotPrivate | Public)


Sampler = PoissonUsers | PoissonRecords | Shuffled


def need_match(sampler: Sampler, event: AnyEvent) -> None:
    """Refuse to price a sampling as something that it is not."""
    if not sampler.carries_out(event):
        raise PrivacyRefused(
            f"{type(sampler).__name__} does not carry out the event '{event.event}' with these "
            "rates; a step may only be charged as what it is."
        )
