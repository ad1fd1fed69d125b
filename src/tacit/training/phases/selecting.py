"""`select: best`: keep the best of the start, the last and the averaged weights.

Which of them is better is asked of the training text once, as a noisy sum that the ledger holds and
the plan's targets cover; see docs/explanations/guarantees.md, section 9.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.errors import OverBudget
from tacit.planning.plan import Plan
from tacit.training.data.training_data import TrainingData
from tacit.training.dp.gradients import BoundedSum
from tacit.training.dp.noise import release
from tacit.training.methods.linear_sums import VECTORS, summed
from tacit.training.methods.method import MethodInputs
from tacit.training.models.weights import trainable
from tacit.training.tasks.examples import Examples
from tacit.training.tasks.tasks import Task

START, LAST, AVERAGE = "start", "last", "average"
UNASKED = "start, unasked"
"""The start, because the budget had no room to ask."""
CLIP = 0.1
"""The most that a unit says for or against, in units of the loss: a public constant.

Small, so that it is nearly a vote: one who gains much does not outweigh many who lose a little.
"""

Weights = Mapping[str, Tensor]


@torch.no_grad()
def put(model: nn.Module, weights: Weights) -> None:
    """Put weights in place."""
    own = trainable(model)
    for name, tensor in weights.items():
        own[name].copy_(tensor)


def choose(inputs: MethodInputs, task: Task, start: Weights, others: Mapping[str, Weights]) -> str:
    """The name of the best weights: the start, unless others do better by the noisy comparison.

    *Guarantee*: what leaves is one release of the plan's `selection` event, charged before. Where
    the budget has no room for it, as after a crash between the charge and the answer, nobody looks
    again: the start is kept, which is safe.
    """
    plan, model, data = inputs.need_plan(), inputs.model, inputs.training_data
    event = plan.selection()
    assert event is not None
    assert isinstance(data.examples, Examples)
    before = {name: tensor.detach().clone() for name, tensor in trainable(model).items()}
    put(model, start)
    base = task.record_losses(model, data.examples)
    found = []
    for weights in others.values():
        put(model, weights)
        found.append(gain(base, task.record_losses(model, data.examples)))
    put(model, before)
    total = compared(plan, data, np.stack(found, axis=1))
    try:
        noisy = release(
            total, event, inputs.need_ledger(), inputs.randomness, phase="select",
            step=plan.steps + 1,
        )  # fmt: skip
    except OverBudget:
        return UNASKED
    (sums,) = noisy["weight"].tolist()
    most = max(sums)
    return list(others)[sums.index(most)] if most > 0 else START


def gain(before: NDArray[np.float64], after: NDArray[np.float64]) -> NDArray[np.float64]:
    """How much less each record loses; a loss that is no number counts as the largest.

    >>> gain(np.array([1.0, np.inf, np.nan]), np.array([np.nan, 2.0, np.nan])).tolist()
    [-0.1, 0.1, 0.0]
    """
    one, other = (np.nan_to_num(losses, nan=1e300, posinf=1e300) for losses in (before, after))
    return np.clip(one - other, -CLIP, CLIP)


@dataclass(frozen=True, eq=False)
class _Gains:
    """Gains in place of examples: one row for each."""

    values: Tensor

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.ones(len(self.values), dtype=np.int64)

    @property
    def width(self) -> int:
        return int(self.values.shape[1])

    def batch(self, rows: NDArray[np.int64]) -> dict[str, Tensor]:
        return {VECTORS: self.values[torch.from_numpy(np.asarray(rows))]}


def compared(plan: Plan, data: TrainingData, gains: NDArray[np.float64]) -> BoundedSum:
    """The sum over units of their records' gains, clipped as the plan clips gradients."""
    return summed(plan, _Gains(torch.from_numpy(gains).float()), data.rows, data.rows_of_user, CLIP)
