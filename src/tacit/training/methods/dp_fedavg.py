"""DP-FedAvg: user-level privacy with several local steps.

Source: McMahan, Ramage, Talwar and Zhang 2018 (the estimator with a fixed denominator).
"""

import math
from collections.abc import Iterator
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import nn

from tacit.planning.plan import Plan
from tacit.training.data.training_data import Rows, TrainingData
from tacit.training.dp import dropout
from tacit.training.dp.gradients import BoundedSum
from tacit.training.dp.sampling import Drawn
from tacit.training.dp.updates import ClippedUpdates
from tacit.training.methods.dp_sgd import PlannedSums, contributions, user_weights
from tacit.training.methods.independence import Totals
from tacit.training.methods.method import MethodInputs
from tacit.training.methods.noisy_sums import LossMeter, finite_losses
from tacit.training.settings import SUM_OF_UPDATES, MethodSettings, Run


class LocalSettings(MethodSettings):
    """What a drawn user does by itself before anything is clipped."""

    local_epochs: Annotated[int, Field(ge=1, description="Passes over a user's records.")] = 1
    local_steps: Annotated[
        int | None, Field(ge=1, description="Batches instead of passes, if given.")
    ] = None
    local_batch: Annotated[int, Field(ge=1, description="Records in a local batch.")] = 8
    local_learning_rate: Annotated[
        float, Field(gt=0, description="Learning rate of the local SGD.")
    ] = 0.5


class DpFedAvg(PlannedSums[LocalSettings]):
    """Sums of clipped updates: each drawn user trains for itself, and the whole change is clipped.

    *Guarantee*: as DP-SGD for users; where entities are protected too, only for `entity_share` 2,
    because local steps mix a user's records before anything is clipped.
    """

    name = "dp-fedavg"
    title = "DP-FedAvg: users train by themselves, their updates are noised"
    summary = (
        "DP-FedAvg: users train for some steps each, their whole update is clipped and noised; the "
        "plan protects users"
    )
    settings = LocalSettings
    optimizer = SUM_OF_UPDATES
    federated = True
    clips_records = False  # a user's own records may mix

    def problems(self, run: Run, plan: Plan | None) -> Iterator[str]:
        """Local steps are a user's, and mix that user's records."""
        assert plan is not None
        if plan.user_rate is None:
            yield f"method={self.name} is about users; protect={plan.protect} draws records."
        if plan.record_clip is not None:
            yield (
                f"entity_share={plan.entity_share:g} needs records clipped one by one, which "
                "several local steps do not do; give entity_share=2, or method=dp-sgd."
            )

    def totals(self, inputs: MethodInputs, meter: LossMeter) -> Totals:
        """Sums over drawn users of their clipped updates."""
        plan, training_data, local = inputs.need_plan(), inputs.training_data, inputs.run.options
        assert isinstance(local, LocalSettings)
        updates = ClippedUpdates(inputs.model)

        def total(step: int, drawn: Drawn) -> BoundedSum:
            units = contributions(plan, training_data, inputs.randomness, step, drawn)
            streams = inputs.randomness.of_users("order", step, training_data.users)
            weights = user_weights(plan, training_data)

            def train(unit: int) -> int:
                rng = streams(int(drawn[unit]))
                return train_locally(inputs.model, meter, training_data, units[unit], local, rng)

            return updates.users(
                train,
                len(units),
                clip_norm=plan.clip_norm,
                weights=weights[drawn] if weights is not None else None,
            )

        return total


def train_locally(
    model: nn.Module,
    meter: LossMeter,
    training_data: TrainingData,
    rows: Rows,
    local: LocalSettings,
    rng: np.random.Generator,
) -> int:
    """Change the trainable weights by SGD on some records; how many of them were not finite."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    bad = 0
    for number, chosen in enumerate(local_batches(rows, local, rng)):
        with dropout.part(number):
            values, left_out = finite_losses(meter, training_data.examples.batch(chosen))
        bad += left_out
        if not len(values):
            continue
        gradients = torch.autograd.grad(values.mean(), parameters, allow_unused=True)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.sub_(gradient, alpha=local.local_learning_rate)
    return bad


def local_batches(rows: Rows, local: LocalSettings, rng: np.random.Generator) -> Iterator[Rows]:
    """A user's own batches: shuffled passes, as many as the epochs or the steps ask for.

    >>> settings = LocalSettings(local_steps=3, local_batch=2)
    >>> [len(b) for b in local_batches(np.arange(3), settings, np.random.default_rng(0))]
    [2, 1, 2]
    """
    if not len(rows):
        return
    each = math.ceil(len(rows) / local.local_batch)
    left = local.local_steps if local.local_steps is not None else each * local.local_epochs
    while left > 0:
        order = rng.permutation(rows)
        for start in range(0, min(each, left) * local.local_batch, local.local_batch):
            yield order[start : start + local.local_batch]
        left -= each


DP_FEDAVG = DpFedAvg()
