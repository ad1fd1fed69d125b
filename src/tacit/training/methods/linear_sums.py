"""Bounded sums of vectors that are not gradients: of what compared models gain, of votes."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.planning.plan import Plan
from tacit.training.data.training_data import batches
from tacit.training.dp.gradients import BoundedSum, ClippedSums
from tacit.training.tasks.examples import Batched

VECTORS = "vectors"
"""Under this name a batch holds one vector for each record."""
_TOGETHER = 512
Rows = NDArray[np.int64]


class Vectors(Batched, Protocol):
    """Vectors in place of examples; each counts as one token."""

    @property
    def width(self) -> int: ...


def summed(
    plan: Plan, vectors: Vectors, rows: Rows, rows_of_user: Sequence[Rows], clip_norm: float
) -> BoundedSum:
    """The sum over units of their records' vectors, clipped as the plan clips gradients.

    The gradient of a linear map of one output is its input: so whatever bounds gradients bounds
    these, each record's at an entity's share where the plan has one, each unit's at `clip_norm`.
    """
    linear = nn.Linear(vectors.width, 1, bias=False)
    sums = ClippedSums(linear)

    def losses(batch: dict[str, Tensor]) -> Tensor:
        said: Tensor = linear(batch[VECTORS])
        return said.squeeze(-1)

    def parts(units: list[Rows]) -> Iterator[tuple[dict[str, Tensor], Tensor, set[int]]]:
        return batches(vectors, units, _TOGETHER, together=_TOGETHER)

    if plan.sampled == "records":
        single = [np.asarray([row]) for row in rows]
        return sums.records(losses, parts(single), clip_norm=clip_norm, units=len(single))
    share = None if plan.record_clip is None else clip_norm * plan.record_clip / plan.clip_norm
    units = list(rows_of_user)
    return sums.users(
        losses, parts(units), clip_norm=clip_norm, record_clip=share, units=len(units)
    )
