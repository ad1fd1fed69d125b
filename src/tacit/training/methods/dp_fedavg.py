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
from tacit.training.data.training_data import Material, Rows
from tacit.training.dp import dropout
from tacit.training.dp.gradients import BoundedSum
from tacit.training.dp.independence import Totals, UnitCheck
from tacit.training.dp.random_source import Chance
from tacit.training.dp.sampling import Drawn
from tacit.training.dp.updates import ClippedUpdates
from tacit.training.methods.dp_sgd import contributions, denominator, poisson, user_weights
from tacit.training.methods.noisy_sums import Losses, NoisySums, Watched, finite_losses
from tacit.training.settings import LocalSettings


def make_dp_fedavg(
    model: nn.Module,
    losses: Losses,
    material: Material,
    chance: Chance,
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
    watched = Watched(model, losses)
    return NoisySums(
        poisson(plan, material),
        plan.event(),
        user_updates(model, watched, material, chance, plan, local),
        denominator(plan, material),
        watched,
        ledger,
        chance,
        check=fedavg_check(model, losses, material, plan, local),
        phase=phase,
    )


def fedavg_check(
    model: nn.Module, losses: Losses, material: Material, plan: Plan, local: LocalSettings
) -> UnitCheck:
    """Whether users' updates are the same after others' as first; a user's own records may mix."""
    return UnitCheck(
        model,
        material,
        lambda some, chance: user_updates(model, Watched(model, losses), some, chance, plan, local),
        losses=None,
    )


def user_updates(
    model: nn.Module,
    watched: Watched,
    material: Material,
    chance: Chance,
    plan: Plan,
    local: LocalSettings,
) -> Totals:
    """Sums over drawn users of their clipped updates, wherever their records are."""
    updates = ClippedUpdates(model)

    def total(step: int, drawn: Drawn) -> BoundedSum:
        units = contributions(plan, material, chance, step, drawn)
        streams = chance.of_users("order", step, material.users)
        weights = user_weights(plan, material)

        def train(unit: int) -> int:
            rng = streams(int(drawn[unit]))
            return train_locally(model, watched, material, units[unit], local, rng)

        return updates.users(
            train,
            len(units),
            clip_norm=plan.clip_norm,
            weights=weights[drawn] if weights is not None else None,
        )

    return total


def train_locally(
    model: nn.Module,
    watched: Watched,
    material: Material,
    rows: Rows,
    local: LocalSettings,
    rng: np.random.Generator,
) -> int:
    """Change the trainable weights by SGD on some records; how many of them were not finite."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    bad = 0
    for number, chosen in enumerate(local_batches(rows, local, rng)):
        with dropout.part(number):
            values, left_out = finite_losses(watched, material.examples.batch(chosen))
        bad += left_out
        if not len(values):
            continue
        gradients = torch.autograd.grad(values.mean(), parameters, allow_unused=True)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.sub_(gradient, alpha=local.local_rate)
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
