"""Who takes part in a step. A sampler says which events it carries out; no others are priced."""

from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PrivacyRefused
from tacit.privacy.events import (
    AnyEvent,
    Flat,
    MentionSubstitution,
    NotPrivate,
    Public,
    ReplaceOne,
    SampledGaussian,
    Selective,
    UserClip,
)

Drawn = NDArray[np.int64]
Drawn_co = TypeVar("Drawn_co", covariant=True)


class Sampler(Protocol[Drawn_co]):
    """Draws, and knows what it carries out."""

    def draw(self, rng: np.random.Generator) -> Drawn_co:
        """Who takes part."""
        ...

    def carries_out(self, event: AnyEvent) -> bool:
        """Whether an event describes this sampling."""
        ...


@dataclass(frozen=True)
class PoissonUsers:
    """Poisson sampling of users: each by itself; nobody may come, and that is a step, too."""

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
            case MentionSubstitution():
                return event.user_rate == self.rate
            case SampledGaussian(unit="users") | ReplaceOne(unit="users"):
                return event.rate == self.rate
        return False


@dataclass(frozen=True)
class PoissonRecords:
    """Poisson sampling of records."""

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
            case Selective():
                return event.rate == self.rate
        return False


class _WithoutPromise:
    """Sampling that no private event describes, so that none can be charged for it."""

    def carries_out(self, event: AnyEvent) -> bool:
        """Only what promises nothing, or reads nothing private."""
        return isinstance(event, NotPrivate | Public)


@dataclass(frozen=True)
class Shuffled(_WithoutPromise):
    """Batches of equal size, drawn without replacement: for training without a promise."""

    records: int
    size: int

    def draw(self, rng: np.random.Generator) -> Drawn:
        """A batch drawn without replacement."""
        return rng.choice(self.records, size=min(self.size, self.records), replace=False)


class Grouped(_WithoutPromise):
    """Batches of whole groups, such as the records of a user, one group after the other.

    A group is drawn as often as it has records. One that is larger than a batch fills it with
    some of its records; after smaller ones the next group follows. Like `Shuffled`, for training
    without a promise.
    """

    def __init__(self, groups: NDArray[np.int64], size: int) -> None:
        self._groups, self._size = groups, size
        order = np.argsort(groups, kind="stable")
        _, starts = np.unique(groups[order], return_index=True)
        self._members = dict(
            zip(groups[order[starts]].tolist(), np.split(order, starts[1:]), strict=True)
        )

    def draw(self, rng: np.random.Generator) -> Drawn:
        """The records of a batch, those of a group side by side."""
        chosen: list[Drawn] = []
        room, taken = self._size, set()
        for record in rng.permutation(len(self._groups)):
            group = int(self._groups[record])
            if group in taken:
                continue
            taken.add(group)
            chosen.append(rng.permutation(self._members[group])[:room])
            room -= len(chosen[-1])
            if room == 0:
                break
        return np.concatenate(chosen)


@dataclass(frozen=True)
class UserEntityDraw:
    """Who and what takes part in a step of `UserEntitySampler`."""

    users: Drawn
    entities: NDArray[np.bool_]
    plain: NDArray[np.bool_]


@dataclass(frozen=True)
class UserEntitySampler:
    """Poisson sampling of users, of entities and of plain records, each by itself in every step.

    With `rule="any"` a record takes part if one of its entities is drawn; another entity of it
    may not have been, so that its sampling hides nothing and only a rate of 1 is carried out.
    """

    users: int
    user_rate: float
    entities: int
    entity_rate: float
    plain: int
    plain_rate: float
    rule: Literal["any", "all"]

    def draw(self, rng: np.random.Generator) -> UserEntityDraw:
        """The users who take part, and which entities and plain records do."""
        return UserEntityDraw(
            np.flatnonzero(rng.random(self.users) < self.user_rate),
            rng.random(self.entities) < self.entity_rate,
            rng.random(self.plain) < self.plain_rate,
        )

    def carries_out(self, event: AnyEvent) -> bool:
        """Whether an event describes this sampling."""
        if not isinstance(event, UserClip) or event.user_rate != self.user_rate:
            return False
        return event.entity_rate == (self.entity_rate if self.rule == "all" else 1.0)


def require_match(sampler: Sampler[object], event: AnyEvent) -> None:
    """Refuse to price a sampling as something that it is not."""
    if not sampler.carries_out(event):
        raise PrivacyRefused(
            f"{type(sampler).__name__} does not carry out the event '{event.event}' with these "
            "rates; a step may only be charged as what it is."
        )
