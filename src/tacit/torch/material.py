"""Whose records a dataset holds, as the engine sees it: numbers of rows, and of their users."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import UsageError
from tacit.owners import Owners
from tacit.planning.plan import Plan
from tacit.training.data.training_data import TrainingData, bounded_rows, rows_by_user
from tacit.training.dp.dropout import RECORD

Whose = Sequence[Any] | NDArray[Any] | Owners | str | Path | None
"""The user of each record, in the order of the dataset; or the graph of users and entities."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Records as their numbers: what they hold is looked up where losses are asked for.

    Every record counts as `LENGTH` tokens, so that so many of them are a batch.
    """

    user: NDArray[np.int32]

    LENGTH = 64

    def __len__(self) -> int:
        return len(self.user)

    @property
    def record(self) -> NDArray[np.int32]:
        """Every record is an example."""
        return np.arange(len(self), dtype=np.int32)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """All records are alike."""
        return np.full(len(self), self.LENGTH, dtype=np.int64)

    def batch(self, rows: NDArray[Any]) -> dict[str, Tensor]:
        """The numbers of these records."""
        return {RECORD: torch.from_numpy(np.asarray(rows, dtype=np.int64))}


@dataclass(frozen=True)
class Ownership:
    """The users of all records by number, their names, and the graph where entities are protected.

    Users are numbered as they first appear, as `tacit train` does.
    """

    codes: NDArray[np.int32]
    names: tuple[str, ...]
    graph: Owners | None = None

    @classmethod
    def of(cls, plan: Plan, owners: Whose) -> "Ownership":
        """Who owns what, as far as the plan asks for it."""
        if isinstance(owners, str | Path):
            owners = Owners.load(Path(owners))
        if owners is None:
            _require_none_needed(plan)
            return cls(np.empty(0, np.int32), ())
        if isinstance(owners, Owners):
            graph = owners.of_kinds(plan.kinds) if "entities" in plan.protect else None
            return cls(owners.record_user, owners.users, graph)
        if "entities" in plan.protect:
            raise UsageError(
                f"protect={plan.protect} needs the graph of users and entities: "
                "owners=tacit.owners(corpus, found), whose records are those of the dataset."
            )
        if not isinstance(owners, Iterable):
            raise UsageError(
                f"owners is a {type(owners).__name__}; give the user of each record, in the order "
                'of the dataset, such as owners=frame["From"].'
            )
        return cls(*_numbered(owners))

    def rows(self, records: int) -> Rows:
        """The records of a dataset, if these are theirs."""
        if not len(self.codes):
            return Rows(np.full(records, -1, dtype=np.int32))
        if len(self.codes) != records:
            raise UsageError(
                f"owners names the users of {len(self.codes):,} records, and the dataset has "
                f"{records:,}; give one user for each record, in its order."
            )
        return Rows(self.codes)

    def training_data(self, plan: Plan, rows: Rows) -> TrainingData:
        """What each user may contribute, after the plan's caps."""
        everything = np.arange(len(rows))
        if self.graph is None:
            return TrainingData(rows, everything, rows_by_user(rows, everything), None, None)
        bounded, kept = bounded_rows(plan, self.graph, rows)
        return TrainingData(rows, kept, rows_by_user(rows, kept), self.graph, bounded)


def _require_none_needed(plan: Plan) -> None:
    if plan.protect != "records":
        raise UsageError(
            f"protect={plan.protect} needs owners: the user of each record, in the order of the "
            'dataset, such as owners=frame["From"].'
        )


def _numbered(owners: Iterable[Any]) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Names by number, in the order of their first appearance."""
    numbers: defaultdict[str, int] = defaultdict(lambda: len(numbers))
    codes: list[int] = []
    for at, owner in enumerate(owners):
        if owner is None or owner != owner or str(owner) == "":
            raise UsageError(f"Record {at:,} has no owner; leave it out, or say whose it is.")
        codes.append(numbers[str(owner)])
    if not codes:
        raise UsageError("owners is empty; give the user of each record.")
    return np.array(codes, dtype=np.int32), tuple(numbers)
