"""What releases say about a run, for nothing: whether it diverged, whether they are noise alone.

Only noisy sums and the weights that were made of them are looked at, so this is post-processing: no
epsilon is spent, and the certificate prices the steps that the ledger holds.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

_GROWTH = 10.0
"""Weights so many times as large as at the start, and 1, are beyond repair.

Clipped steps cannot explode at once: they wander off. Where a model works, the mean square of its
weights is about one or less, whatever it began with, zeros of a new head included.
"""
_SURE = 4.0
"""Standard deviations above what noise alone would give: chance reaches it once in 30,000 runs."""


class Watch:
    """Looks at a run from the start of its private phase."""

    def __init__(self, start: Mapping[str, Tensor]) -> None:
        self._limit = _GROWTH * (1 + _size(start))
        self._sum: dict[str, Tensor] = {}
        self._variance = 0.0

    def saw(self, released: Mapping[str, Tensor], noise_std: float) -> None:
        """Add up what a step released, whose noise has this standard deviation."""
        for name, tensor in released.items():
            if name in self._sum:
                self._sum[name].add_(tensor)
            else:
                self._sum[name] = tensor.detach().clone()
        self._variance += noise_std**2

    def diverged(self, weights: Mapping[str, Tensor]) -> str | None:
        """Why these weights are beyond repair; None where they are not."""
        size = _size(weights)
        if not math.isfinite(size):
            return "a weight is no number any more"
        if size > self._limit:
            return (
                f"the weights are {size:.3g} in the mean, where {self._limit:.3g} is far too much"
            )
        return None

    @property
    def signal(self) -> float | None:
        """How far the sum of all releases is longer than noise, in standard deviations of that.

        The squared length of d noises, over their variance, is chi-squared with d degrees of
        freedom: d in the mean, with variance 2 d. None where nothing was released with noise.
        """
        count = sum(tensor.numel() for tensor in self._sum.values())
        if not (count and self._variance > 0):
            return None
        squared = sum(float(tensor.double().square().sum()) for tensor in self._sum.values())
        return (squared / self._variance - count) / math.sqrt(2 * count)

    @property
    def told(self) -> str | None:
        """A sentence where the releases cannot be told from noise."""
        if self.signal is None or self.signal > _SURE:
            return None
        return (
            "What was released cannot be told from noise alone: a larger learning rate will not "
            "help; more users, a larger epsilon or fewer weights to train will."
        )


def _size(weights: Mapping[str, Tensor]) -> float:
    """The root of the mean square; not finite where a weight is not."""
    count = sum(tensor.numel() for tensor in weights.values())
    with torch.no_grad():
        squared = sum(float(tensor.double().square().sum()) for tensor in weights.values())
    return math.sqrt(squared / max(1, count)) if math.isfinite(squared) else math.inf
