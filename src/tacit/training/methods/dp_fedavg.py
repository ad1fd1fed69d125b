"""User-level privacy with several local steps.

Source: McMahan, Ramage, Talwar and Zhang 2018 (the estimator with a fixed denominator).
"""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from tacit.planning.plan import Plan
from tacit.privacy.ledger import Ledger
from tacit.training.data.training_data import Rows, TrainingData
from tacit.training.dp import dropout
from tacit.training.dp.gradients import BoundedSum
from tacit.training.dp.random_source import RandomSource
from tacit.training.dp.sampling import Drawn
from tacit.training.dp.updates import ClippedUpdates
from tacit.training.methods.dp_sgd import contributions, denominator, poisson, user_weights
from tacit.training.methods.independence import Totals, UnitCheck
from tacit.training.methods.noisy_sums import Losses, LossMeter, NoisySums, finite_losses
from tacit.training.settings import LocalSettings


def make_dp_fedavg(
    model: nn.Module,
    losses: Losses,
    training_data: TrainingData,
    randomness: RandomSource,
    ledger: Ledger,
    plan: Plan,
    local: LocalSettings,
    *,
    phase: str = "train",
) -> NoisySums[Drawn]:
    """Sums of clipped updates: each drawn user trains for itself, and the whole change is clipped.

    *Guarantee*: as `private` for users; where entities are protected too, only for
    `entity_share` 2, because local steps mix a user's records before anything is clipped.
    """
    meter = LossMeter(model, losses)
    return NoisySums(
        poisson(plan, training_data),
        plan.event(),
        user_updates(model, meter, training_data, randomness, plan, local),
        denominator(plan, training_data),
        meter,
        ledger,
        randomness,
        check=fedavg_check(model, losses, training_data, plan, local),
        phase=phase,
    )


def fedavg_check(
    model: nn.Module, losses: Losses, training_data: TrainingData, plan: Plan, local: LocalSettings
) -> UnitCheck:
    """Whether users' updates are the same after others' as first; a user's own records may mix."""
    return UnitCheck(
        model,
        training_data,
        lambda some, randomness: user_updates(
            model, LossMeter(model, losses), some, randomness, plan, local
        ),
        losses=None,
    )


def user_updates(
    model: nn.Module,
    meter: LossMeter,
    training_data: TrainingData,
    randomness: RandomSource,
    plan: Plan,
    local: LocalSettings,
) -> Totals:
    """Sums over drawn users of their clipped updates, wherever their records are."""
    updates = ClippedUpdates(model)

    def total(step: int, drawn: Drawn) -> BoundedSum:
        units = contributions(plan, training_data, randomness, step, drawn)
        streams = randomness.of_users("order", step, training_data.users)
        weights = user_weights(plan, training_data)

        def train(unit: int) -> int:
            rng = streams(int(drawn[unit]))
            return train_locally(model, meter, training_data, units[unit], local, rng)

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
