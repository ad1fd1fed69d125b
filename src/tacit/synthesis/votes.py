"""What private records say of candidates: votes and counts, as sums to which nobody adds much.

A record's ballot is a vector of length one, a function of that record alone: it votes for the
candidates nearest to its text, of its own label where labels are declared. A user's ballots are
added and clipped as the plan clips gradients, so that one user, or one entity in few users, moves
the sum by no more than the event says. The sum itself never leaves: `dp/noise.py` has it first.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.planning.plan import Plan
from tacit.synthesis.space import Points, nearest
from tacit.training.dp.gradients import BoundedSum
from tacit.training.methods.linear_sums import VECTORS, summed

Rows = NDArray[np.int64]
COLUMNS = "weight"
"""Under this name a bounded sum has what was said of each column."""


@dataclass(frozen=True, eq=False)
class Voters:
    """The private records: whose they are, which the caps keep, where they lie, their labels.

    `label` is the number of each record's label, 0 throughout where labels were not declared.
    """

    points: Points
    label: Rows
    words: Rows
    rows: Rows
    rows_of_user: Sequence[Rows]


@dataclass(frozen=True, eq=False)
class Ballots:
    """One ballot for each record: its columns, in which it says the same."""

    columns: Rows
    width: int

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def lengths(self) -> Rows:
        """Every ballot counts as one."""
        return np.ones(len(self), dtype=np.int64)

    def batch(self, rows: Rows) -> dict[str, Tensor]:
        """The ballots of these records as vectors of length one."""
        chosen = torch.from_numpy(self.columns[np.asarray(rows)])
        vectors = torch.zeros(len(chosen), self.width)
        vectors.scatter_(1, chosen, 1 / math.sqrt(self.columns.shape[1]))
        return {VECTORS: vectors}


@dataclass(frozen=True, eq=False)
class Columns:
    """What is voted on: a candidate with a label. One without a label stands in every label's.

    `candidate` and `label` say what each column is about.
    """

    candidate: Rows
    label: Rows

    @classmethod
    def of(cls, labels: Sequence[int | None], kinds: int) -> "Columns":
        """The columns of candidates, each of its own label or of all."""
        pairs = [
            (number, kind)
            for number, own in enumerate(labels)
            for kind in (range(kinds) if own is None else (own,))
        ]
        made = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        return cls(made[:, 0], made[:, 1])

    def __len__(self) -> int:
        return len(self.candidate)

    @cached_property
    def of_label(self) -> dict[int, Rows]:
        """The columns of each label."""
        return {int(kind): np.flatnonzero(self.label == kind) for kind in np.unique(self.label)}


def ballots(voters: Voters, candidates: Points, columns: Columns, neighbours: int) -> Ballots:
    """Each record's vote for the nearest candidates of its label."""
    fewest = min(len(own) for own in columns.of_label.values())
    count = min(neighbours, fewest)
    chosen = np.zeros((len(voters.points), count), dtype=np.int64)
    for kind in np.unique(voters.label).tolist():
        own = columns.of_label[kind]
        voting = np.flatnonzero(voters.label == kind)
        places = nearest(voters.points[voting], candidates[columns.candidate[own]], count)
        chosen[voting] = own[places]
    return Ballots(chosen, len(columns))


def counted(voters: Voters, kinds: int, lengths: Sequence[int]) -> Ballots:
    """Each record's count in a histogram of labels and lengths."""
    cells = voters.label * (len(lengths) + 1) + np.searchsorted(lengths, voters.words, "right")
    return Ballots(cells[:, None], kinds * (len(lengths) + 1))


def bounded(plan: Plan, voters: Voters, said: Ballots) -> BoundedSum:
    """The sum over users of their ballots, clipped as the plan clips gradients."""
    return summed(plan, said, voters.rows, voters.rows_of_user, plan.clip_norm)


def heard(noisy: dict[str, Tensor]) -> NDArray[np.float64]:
    """A released sum, a number for each column."""
    found: NDArray[np.float64] = noisy[COLUMNS].double().numpy().reshape(-1)
    return found
