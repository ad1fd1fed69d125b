"""The worst neighbours there are: canaries that fill the bounds of a plan, for audits of the step.

A canary is a user (a record, an entity with its holders) whose gradient fills the bound that it is
clipped to, in a direction of its own that all tensors of a small linear model share. `design` says
of which records it is made under a plan, and what a step then adds along its direction.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import hadamard
from scipy.stats import binom
from torch import Tensor, nn

from tacit.errors import UsageError
from tacit.owners import Owners
from tacit.planning.dry_run import apply_caps
from tacit.planning.plan import Plan
from tacit.privacy.events import Unit
from tacit.training.data.residuals import Redacted
from tacit.training.data.shown_names import Copies, ShownNames
from tacit.training.data.substitution import Name
from tacit.training.data.training_data import TrainingData

TENSORS = 16
"""A canary's gradient is spread over so many tensors: clipping each by itself would show."""
_LARGE = 1e3
"""So far beyond any clip norm is a canary's gradient."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Row:
    """One record: who wrote it, what it names, whose direction it has, and what it weighs.

    `when_in` and `when_out` are the multiples of the direction in either world.
    """

    user: str
    entities: tuple[str, ...]
    canary: int
    when_in: float
    when_out: float


@dataclass(frozen=True)
class Draw:
    """What a step may add along a canary's direction, in units of the clip norm: one mixture."""

    weight: Array
    when_in: Array
    when_out: Array


class Directions(nn.Module):
    """Linear maps of one input: the gradient of a record is its sign in each, times its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        made = [nn.Linear(width, 1, bias=False) for _ in range(TENSORS)]
        for part in made:
            nn.init.zeros_(part.weight)
        self.maps = nn.ModuleList(made)

    def forward(self, x: Tensor, signs: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self.maps], dim=1).mul(signs).sum(1)


def losses(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The loss of each record, whose gradient is the record's direction."""
    values: Tensor = model(batch["x"], batch["signs"])
    return values


class Canaries:
    """Records as examples: a canary's direction is a row of signs and a place in the input."""

    def __init__(self, rows: list[Row], count: int, inside: NDArray[np.bool_]) -> None:
        self.width = -(-count // TENSORS)
        code = {name: number for number, name in enumerate(dict.fromkeys(r.user for r in rows))}
        self.rows, self.inside = rows, inside
        self.user = np.array([code[row.user] for row in rows], dtype=np.int32)
        self.record = np.arange(len(rows), dtype=np.int32)
        self.lengths = np.ones(len(rows), dtype=np.int64)
        self._canary = np.array([row.canary for row in rows])
        self._value = np.array(
            [row.when_in if inside[row.canary] else row.when_out for row in rows]
        )
        self._signs = torch.tensor(hadamard(TENSORS), dtype=torch.float32)

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, rows: NDArray[Any]) -> dict[str, Tensor]:
        """These records as tensors."""
        canary = torch.from_numpy(self._canary[rows])
        x = torch.zeros(len(rows), self.width)
        value = torch.tensor(self._value[rows] * _LARGE, dtype=torch.float32)
        x[torch.arange(len(rows)), canary % self.width] = value
        return {"x": x, "signs": self._signs[canary // self.width]}

    def silent(self) -> "Canaries":
        """The same records without what is sensitive in them: their gradients are zero."""
        nothing = [replace(row, when_in=0.0, when_out=0.0) for row in self.rows]
        count = TENSORS * self.width
        return Canaries(nothing, count, np.ones(count, dtype=bool))

    def owners(self) -> Owners:
        """The graph, in which canaries that are out stand, too."""
        return Owners.from_rows(
            [(f"r{i}", row.user, list(row.entities)) for i, row in enumerate(self.rows)]
        )

    def along(self, release: dict[str, Tensor], count: int) -> Array:
        """How far a release goes along each of so many canaries' directions."""
        return self.along_flat(torch.cat([tensor.reshape(-1) for tensor in release.values()]))[
            :count
        ]

    def along_flat(self, values: Tensor) -> Array:
        """The same of all coordinates in one row, those of one tensor after those of another."""
        parts = values.double().reshape(TENSORS, self.width)
        return (self._signs.double() @ parts / math.sqrt(TENSORS)).reshape(-1).numpy()


Build = Callable[[int], Iterator[Row]]


def design(plan: Plan, unit: Unit) -> tuple[Build, Draw]:
    """The worst canary for a unit under a plan: its records, and what a step adds."""
    if unit not in plan.units:
        raise UsageError(f"unit={unit} is not promised by this plan; it has {plan.units}.")
    if plan.mechanism == "selective":
        raise UsageError("mechanism=selective has canaries of its own; see token_cases.")
    if plan.about_names and plan.name_share > 0:
        return _of_names(plan, unit)
    return _of_records(plan, unit) if plan.user_rate is None else _of_users(plan, unit)


def _of_users(plan: Plan, unit: Unit) -> tuple[Build, Draw]:
    rate = float(plan.user_rate or 0)
    share = plan.entity_share if "entities" in plan.protect else 0.0
    flips = share >= 2
    holders = plan.users_per_entity if "entities" in unit else 0
    # A user needs several records to fill the bound where each is clipped by itself first.
    own = 1 if plan.record_clip is None else math.ceil(plan.clip_norm / plan.record_clip - 1e-9)
    own = max(own, plan.user_weight_cap or 1) if "users" in unit else 0
    each = plan.records_per_user_entity if plan.record_clip is not None else 1

    def build(number: int) -> Iterator[Row]:
        for _ in range(own):
            yield Row(f"u{number}", (), number, 1.0, 0.0)
        for holder in range(holders):
            who, name = f"h{number}-{holder}", f"e{number}"
            if flips:
                yield Row(who, (), number, -1.0, -1.0)
            for _ in range(each):
                yield Row(who, (name,), number, 2.0 if flips else 1.0, 0.0)

    drawn = np.arange(holders + 1.0)
    weight = binom.pmf(drawn, holders, rate)
    up, down = (drawn, -drawn) if flips else (drawn * share, drawn * 0)
    if own:
        weight = np.concatenate([weight * (1 - rate), weight * rate])
        up, down = np.concatenate([up, up + 1]), np.concatenate([down, down])
    return build, Draw(weight, up, down)


def _of_names(plan: Plan, unit: Unit) -> tuple[Build, Draw]:
    """A name that as many users show as may, against the base of each, which has the clip norm.

    Nothing within the bounds is easier to tell apart than this move from 1 to 1 - tau
    (guarantees.md, section 12). Places that a user who leaves frees for others are not tried: a
    bound from below needs no worst case.
    """
    rate, tau = float(plan.user_rate or 0), plan.name_share
    holders = plan.users_per_name if "names" in unit else 0
    own = plan.user_weight_cap or 1

    def build(number: int) -> Iterator[Row]:
        for _ in range(own if "users" in unit else 0):
            yield Row(f"u{number}", (), number, 1.0, 0.0)
        for holder in range(holders):
            for record in range(own):
                names = (f"n{number}",) if record == 0 else ()
                yield Row(f"h{number}-{holder}", names, number, -1.0, -1.0)

    drawn = np.arange(holders + 1.0)
    weight, when_in, when_out = binom.pmf(drawn, holders, rate), drawn * (tau - 1), -drawn
    if "users" in unit:
        weight = np.concatenate([weight * (1 - rate), weight * rate])
        when_in, when_out = np.concatenate([when_in, when_in + 1]), np.tile(when_out, 2)
    return build, Draw(weight, when_in, when_out)


class CanaryNames(ShownNames):
    """Which canaries are shown: those that are in, by everybody who holds them, in every step."""

    def __init__(self, examples: Canaries) -> None:
        rows = [replace(row, when_in=1.0) for row in examples.rows]
        self._large = Canaries(rows, TENSORS * examples.width, examples.inside)

    def copies(self, step: int, examples: Any, units: Sequence[NDArray[np.int64]]) -> Copies:
        """The records of these users, and a copy of each that shows a name."""
        rows = [int(row) for own in units for row in own]
        wanted = [
            (row, Name("PERSON", name))
            for row in rows
            for name in examples.rows[row].entities
            if examples.inside[examples.rows[row].canary]
        ]
        made: dict[tuple[int, Name], Any] = {
            (int(examples.record[row]), name): (self._large, row) for row, name in wanted
        }
        return Copies(examples, units, wanted, made)


def _of_records(plan: Plan, unit: Unit) -> tuple[Build, Draw]:
    of_user = int(plan.records_per_user or 1) if "users" in unit else 0
    of_entity = int(plan.records_per_entity or 1) if "entities" in unit else 0
    if unit in ("records", "tokens"):
        of_user = 1
    # Sensitive tokens, replaced, turn their record's gradient around. Before that, neighbours
    # are trained on the same masked text.
    out = -1.0 if unit == "tokens" else 0.0

    def build(number: int) -> Iterator[Row]:
        for _ in range(of_user):
            yield Row(f"u{number}", (), number, 1.0, out)
        for place in range(of_entity):
            yield Row(f"h{number}-{place}", (f"e{number}",), number, 1.0, out)

    drawn = np.arange(of_user + of_entity + 1.0)
    weight = binom.pmf(drawn, of_user + of_entity, float(plan.record_rate or 0))
    return build, Draw(weight, drawn, drawn * out)


def canary_data(examples: Canaries, plan: Plan | None) -> TrainingData:
    """The canaries as training data, under the plan's caps, which must keep them all."""
    owners, bounded = None, None
    if plan is None or "entities" in plan.protect:
        owners = examples.owners()
    if plan is not None and owners is not None:
        bounded = apply_caps(plan, owners)
        if not bounded.kept.all():
            raise UsageError("The plan's caps drop canaries; the audit cannot fill its bounds.")
    order = np.argsort(examples.user, kind="stable")
    by_user = tuple(np.split(order, np.cumsum(np.bincount(examples.user))[:-1]))
    shows = plan is not None and plan.about_names and plan.name_share > 0
    names = CanaryNames(examples) if shows else None
    everybody = np.arange(len(examples))
    redacted = Redacted(examples.silent(), np.ones(len(examples), dtype=bool))
    return TrainingData(examples, everybody, by_user, owners, bounded, names, redacted)
