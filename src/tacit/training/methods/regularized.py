"""What the privacy regularizers share: a loss on last hidden states beside that of the task.

Source: Mireshghallah et al. 2021, Equation 1: the model minimizes L_CE + privacy_weight * L_P.
Guarantee: none. A sensitive attribute, by default who wrote a record, becomes harder to tell from
the last hidden state; nothing follows for what a released model gives away otherwise.
"""

from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor, nn

from tacit.privacy.ledger import Ledger
from tacit.training.data.attributes import Attribute
from tacit.training.data.training_data import Rows, TrainingData
from tacit.training.dp.random_source import RandomSource
from tacit.training.dp.sampling import Grouped
from tacit.training.methods.noisy_sums import Losses, StepStats, finite_losses
from tacit.training.methods.plain import Plain, mean_loss, seen_of
from tacit.training.models.last_states import LastStates
from tacit.training.settings import RegularizerSettings

_ROW = "row"


class Regularized(Plain, ABC):
    """Plain training with a further term; with `privacy_weight` 0 and mixed batches, just that."""

    def __init__(
        self,
        model: nn.Module,
        losses: Losses,
        training_data: TrainingData,
        randomness: RandomSource,
        ledger: Ledger | None,
        attribute: Attribute,
        states: LastStates,
        settings: RegularizerSettings,
        *,
        batch: int,
        what: str,
    ) -> None:
        self._codes = attribute.codes[training_data.examples.record]
        grouped = Grouped(self._codes[training_data.rows], batch)
        super().__init__(
            model, losses, training_data, randomness, ledger, batch=batch, what=what,
            sampler=grouped if settings.batches == "grouped" else None,
        )  # fmt: skip
        self._weight, self._states = settings.privacy_weight, states

    @abstractmethod
    def _penalty(self, step: int, states: Tensor, rows: Rows) -> Tensor:
        """The privacy loss L_P of these records, from their last hidden states."""

    def _loss(self, step: int, rows: Rows) -> tuple[Tensor, StepStats]:
        if self._weight == 0:
            return super()._loss(step, rows)
        read: list[tuple[Tensor, Tensor]] = []

        def losses(part: dict[str, Tensor]) -> Tensor:
            own = {name: tensor for name, tensor in part.items() if name != _ROW}
            with self._states.reading(own) as states:
                values = self._keyed_losses(own)
            read.append((states[-1], part[_ROW]))
            return values

        batch = self._material.examples.batch(rows) | {_ROW: torch.from_numpy(rows)}
        values, bad = finite_losses(losses, batch)
        loss, seen = mean_loss(values), seen_of(values, len(rows), bad)
        states, kept = read[-1]
        if len(values) and bool(torch.isfinite(states).all()):
            penalty = self._penalty(step, states, np.asarray(kept))
            if bool(torch.isfinite(penalty)):
                loss = loss + self._weight * penalty
        return loss, seen
