"""Clipped sums of updates: what users' own training does to the weights, one user at a time.

The other maker of a `BoundedSum`, beside `ClippedSums`, for users who take several steps.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from tacit.errors import UsageError
from tacit.training.dp.dropout import refuse_torch_draws
from tacit.training.dp.gradients import _MADE_HERE, BoundedSum, require_positive


class ClippedUpdates:
    """Sums over users of the clipped difference that each one's own training makes.

    *Guarantee*: with everything else the same, taking away a user changes the result by at most
    `clip_norm`, up to rounding, whatever that user's training does to the weights: every user
    starts from the same weights, and the whole difference is clipped, not each tensor of it.
    """

    def __init__(self, model: nn.Module) -> None:
        for name, module in model.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                raise UsageError(
                    f"Layer '{name}' keeps statistics of what it sees, which no clipping reaches; "
                    "use LayerNorm or GroupNorm instead."
                )
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}

    def users(
        self,
        train: Callable[[int], int],
        units: int,
        *,
        clip_norm: float,
        weights: Tensor | None = None,
    ) -> BoundedSum:
        """The sum of (weights before - weights after), clipped, over units 0, 1, ...

        `train(unit)` trains the model in place on that unit's records, and gives the number of
        records that it left out because their loss is not finite. Weights are at most 1.
        """
        require_positive("clip_norm", clip_norm)
        if weights is not None and not bool(((weights >= 0) & (weights <= 1)).all()):
            raise UsageError("A weight is not between 0 and 1.")
        start = {name: p.detach().clone() for name, p in self._parameters.items()}
        total = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
        clipped = not_finite = 0
        for unit in range(units):
            try:
                with refuse_torch_draws():
                    not_finite += train(unit)
                update = {n: start[n] - p.detach() for n, p in self._parameters.items()}
            finally:
                self._restore(start)
            norm = math.sqrt(sum(float(t.double().square().sum()) for t in update.values()))
            if not math.isfinite(norm):
                not_finite += 1
                continue
            factor = min(1.0, clip_norm / norm) if norm > 0 else 1.0
            clipped += factor < 1
            if weights is not None:
                factor *= float(weights[unit])
            for name, tensor in update.items():
                total[name].add_(tensor, alpha=factor)
        return BoundedSum(
            total, clip_norm, "users", None, units, clipped, not_finite, made=_MADE_HERE
        )

    @torch.no_grad()
    def _restore(self, start: dict[str, Tensor]) -> None:
        for name, parameter in self._parameters.items():
            parameter.copy_(start[name])
