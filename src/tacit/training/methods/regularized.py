"""What the privacy regularizers share: a loss on last hidden states beside that of the task.

Source: Mireshghallah et al. 2021, Equation 1: the model minimizes L_CE + privacy_weight * L_P.
Guarantee: none. A sensitive attribute, by default who wrote a record, becomes harder to tell from
the last hidden state; nothing follows for what a released model gives away otherwise.
"""

from abc import ABC, abstractmethod
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from tacit.training.data.training_data import Rows
from tacit.training.dp.sampling import Grouped
from tacit.training.methods.method import MethodInputs, MethodSpec, S, StepStats
from tacit.training.methods.noisy_sums import finite_losses
from tacit.training.methods.plain import PlainStep, mean_loss, stats_of, unprotected
from tacit.training.models.last_states import LastStates
from tacit.training.settings import MethodSettings, Run

_ROW = "row"


class RegularizerSettings(MethodSettings):
    """What the privacy regularizers share."""

    privacy_weight: Annotated[
        float, Field(ge=0, le=1e6, description="The privacy loss over that of the task.")
    ] = 1.0
    attribute: Annotated[
        str,
        Field(
            min_length=1,
            description="What is to be hidden: user, label, or a column of the corpus's file.",
        ),
    ] = "user"
    batches: Annotated[
        Literal["grouped", "mixed"],
        Field(description="Grouped: records of a user (of a value) stand together in a batch."),
    ] = "mixed"


class RegularizedStep(PlainStep, ABC):
    """Plain training with a further term; with `privacy_weight` 0 and mixed batches, just that."""

    def __init__(self, inputs: MethodInputs, settings: RegularizerSettings) -> None:
        run, training_data, attribute = inputs.run, inputs.training_data, inputs.attribute
        assert attribute is not None
        self._codes = attribute.codes[training_data.examples.record]
        grouped = Grouped(self._codes[training_data.rows], run.batch)
        super().__init__(
            inputs.model, inputs.losses, training_data, inputs.randomness, inputs.ledger,
            batch=run.batch, what=unprotected(run.method),
            sampler=grouped if settings.batches == "grouped" else None,
        )  # fmt: skip
        self._weight = settings.privacy_weight
        self._states = LastStates(inputs.model, next_words=run.task == "next-word")

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

        batch = self._training_data.examples.batch(rows) | {_ROW: torch.from_numpy(rows)}
        values, bad = finite_losses(losses, batch)
        loss, stats = mean_loss(values), stats_of(values, len(rows), bad)
        states, kept = read[-1]
        if len(values) and bool(torch.isfinite(states).all()):
            penalty = self._penalty(step, states, np.asarray(kept))
            if bool(torch.isfinite(penalty)):
                loss = loss + self._weight * penalty
        return loss, stats


class RegularizedTraining(MethodSpec[S]):
    """A method that hides an attribute from last hidden states, and promises nothing."""

    def hidden_attribute(self, run: Run) -> str | None:
        """What its settings name."""
        assert isinstance(run.options, RegularizerSettings)
        return run.options.attribute

    def facts(self, run: Run) -> dict[str, Any]:
        """That it is heuristic, and its settings."""
        return {
            "regularizer": "makes an attribute harder to tell from the last hidden state, and "
            "promises nothing: what leaks is measured by `tacit attack`, which puts its figures "
            "here",
            "settings of the regularizer": run.options.model_dump(mode="json"),
        }
