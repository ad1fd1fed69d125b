"""Updates as they arrive: each is looked at by itself before it is added.

The fourth maker of a `BoundedSum`. A client may be broken, or mean ill: what it calls a clipped
update is measured here, user by user, so that no client can move the sum further than the plan
says. A client's sum over its users is not accepted for that reason: of a sum over n users one can
only see that it is below n times the clip norm, and all of that might be one user's.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord
from torch import Tensor

from tacit.training.dp.gradients import _MADE_HERE, BoundedSum

ROUNDING = 1e-4
"""By so much a norm may exceed the clip norm, and is clipped again; by more it is refused."""

_HEADER = 4096
"""Bytes that an array's file may have beside its numbers."""


class Refused(Exception):
    """An update that is not added; the words say why, and quote nothing."""


class Received:
    """A sum of updates that grows as they arrive.

    *Guarantee*: whatever clients send, a user adds at most `clip_norm`, once: what is not finite,
    has another shape, is longer, comes twice or was not asked for is left out.
    """

    def __init__(
        self, like: Mapping[str, Tensor], clip_norm: float, record_clip: float | None = None
    ) -> None:
        self._total = {name: torch.zeros_like(tensor) for name, tensor in like.items()}
        self._clip_norm, self._record_clip = clip_norm, record_clip
        self._seen: set[int] = set()

    def add(self, user: int, record: ArrayRecord, *, weight: float = 1.0) -> None:
        """Add one user's update, or raise `Refused`."""
        if user in self._seen:
            raise Refused("answered twice")
        update = self._checked(record)
        norm = math.sqrt(sum(float(np.square(t, dtype=np.float64).sum()) for t in update.values()))
        if not math.isfinite(norm):
            raise Refused("not finite")
        if norm > self._clip_norm * (1 + ROUNDING):
            raise Refused("not clipped")
        self._seen.add(user)
        factor = min(1.0, self._clip_norm / norm) * weight if norm > 0 else weight
        for name, array in update.items():
            self._total[name].add_(torch.from_numpy(array), alpha=factor)

    def _checked(self, record: ArrayRecord) -> dict[str, Any]:
        """The arrays of a record, if they are what was asked for."""
        if set(record) != set(self._total):
            raise Refused("wrong shape")
        made = {}
        for name, total in self._total.items():
            sent = record[name]
            expected = tuple(total.shape)
            # What it says of itself is looked at before it is unpacked, and again after.
            size = total.numel() * total.element_size() + _HEADER
            if tuple(sent.shape) != expected or len(sent.data) > size:
                raise Refused("wrong shape")
            try:
                array = np.array(sent.numpy())
            except Exception:
                raise Refused("unreadable") from None
            if array.shape != expected or array.dtype != total.numpy().dtype:
                raise Refused("wrong shape")
            made[name] = array
        return made

    def __len__(self) -> int:
        return len(self._seen)

    def tensors(self) -> dict[str, Tensor]:
        """The sum as it is, for averaging without a promise."""
        return self._total

    def bounded(self, units: int) -> BoundedSum:
        """The sum, for whoever adds noise."""
        return BoundedSum(
            self._total,
            self._clip_norm,
            "users",
            self._record_clip,
            units,
            0,
            units - len(self._seen),
            made=_MADE_HERE,
        )
