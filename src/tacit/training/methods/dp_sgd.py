"""Clipped sums of gradients with noise: for records, users, or users and their entities."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from tacit.errors import UsageError
from tacit.planning.plan import Plan
from tacit.privacy.ledger import Ledger
from tacit.training.data.training_data import Rows, TrainingData, batches, units_together
from tacit.training.dp.gradients import BoundedSum, ClippedSums
from tacit.training.dp.random_source import RandomSource
from tacit.training.dp.sampling import Drawn, PoissonRecords, PoissonUsers
from tacit.training.methods.independence import Totals, UnitCheck
from tacit.training.methods.noisy_sums import Losses, LossMeter, NoisySums


def make_dp_sgd(
    model: nn.Module,
    losses: Losses,
    training_data: TrainingData,
    randomness: RandomSource,
    ledger: Ledger,
    plan: Plan,
    *,
    token_budget: int,
    phase: str = "train",
) -> NoisySums[Drawn]:
    """Sums of clipped gradients: for records, for users, or for users and the entities they name.

    *Guarantee*: the plan's, see docs/explanations/guarantees.md sections 3 to 5.
    """
    meter = LossMeter(model, losses)
    sums = user_sums if plan.user_rate is not None else record_sums
    return NoisySums(
        poisson(plan, training_data),
        plan.event(),
        sums(model, meter, training_data, randomness, plan, token_budget),
        denominator(plan, training_data),
        meter,
        ledger,
        randomness,
        check=private_check(model, losses, training_data, plan, token_budget),
        phase=phase,
    )


def private_check(
    model: nn.Module, losses: Losses, training_data: TrainingData, plan: Plan, token_budget: int
) -> UnitCheck:
    """Whether users (records) give in a sum what they give alone, as do their records."""
    sums = user_sums if plan.user_rate is not None else record_sums
    return UnitCheck(
        model,
        training_data,
        lambda some, randomness: sums(
            model, LossMeter(model, losses), some, randomness, plan, token_budget
        ),
        losses=losses,
        of_records=plan.user_rate is None,
        token_budget=token_budget,
    )


def user_sums(
    model: nn.Module,
    meter: LossMeter,
    training_data: TrainingData,
    randomness: RandomSource,
    plan: Plan,
    token_budget: int,
) -> Totals:
    """Sums over drawn users of their clipped gradients, wherever their records are."""
    sums = ClippedSums(model)
    together = units_together(sum(p.numel() for p in model.parameters()))

    def total(step: int, drawn: Drawn) -> BoundedSum:
        units = contributions(plan, training_data, randomness, step, drawn)
        weights = user_weights(plan, training_data)
        return sums.users(
            meter,
            batches(training_data.examples, units, token_budget, together=together),
            clip_norm=plan.clip_norm,
            record_clip=plan.record_clip,
            weights=weights[drawn] if weights is not None else None,
            units=len(units),
        )

    return total


def record_sums(
    model: nn.Module,
    meter: LossMeter,
    training_data: TrainingData,
    randomness: RandomSource,
    plan: Plan,
    token_budget: int,
) -> Totals:
    """Sums over drawn records of their clipped gradients."""
    sums = ClippedSums(model)

    def total(_: int, drawn: Drawn) -> BoundedSum:
        units = [np.asarray([row]) for row in training_data.rows[drawn]]
        return sums.records(
            meter,
            # A record is never spread over batches, so all of them may be sorted.
            batches(training_data.examples, units, token_budget, together=max(1, len(units))),
            clip_norm=plan.clip_norm,
            units=len(units),
        )

    return total


def poisson(plan: Plan, training_data: TrainingData) -> PoissonUsers | PoissonRecords:
    """The sampler that a plan asks for."""
    if plan.entity_rate < 1:
        raise UsageError("entity_rate below 1 is priced but not trained; leave it at 1.")
    if plan.user_rate is not None:
        return PoissonUsers(training_data.users, plan.user_rate)
    return PoissonRecords(len(training_data.rows), float(plan.record_rate or 0))


def denominator(plan: Plan, training_data: TrainingData) -> float:
    """A public constant: what the plan says, or a count of the graph where that is held fixed."""
    fixed = "entities" in plan.protect and plan.adjacency == "fixed-graph"
    fixed = fixed or plan.protect == "tokens"  # replacing tokens, neighbours have as many records
    if plan.user_rate is not None:
        units, name = plan.users, "users"
        counted = training_data.users
    else:
        units, name = plan.records, "records"
        counted = len(training_data.rows)
    if units is None:
        if not fixed:
            raise UsageError(
                f"protect={plan.protect} needs {name}, the public denominator: how many there are "
                "may not be counted from the data. Give a round number that you knew before."
            )
        units = counted
    rate = plan.user_rate if plan.user_rate is not None else plan.record_rate
    return expected(name, float(rate or 0), units)


def expected(name: str, rate: float, units: int) -> float:
    """How many take part in a step; less than one is refused, since noise alone teaches nothing."""
    drawn = rate * units
    if drawn < 1:
        raise UsageError(
            f"{name[:-1]}_rate={rate:g} of {units:,} {name} draws {drawn:.2g} in a step, hence "
            f"nobody in most of them; give {1 / units:.2g} or more."
        )
    return drawn


def user_weights(plan: Plan, training_data: TrainingData) -> Tensor | None:
    """Users with few records weigh less, if the plan says so; nobody weighs more than 1."""
    if plan.user_weight_cap is None:
        return None
    counts = torch.tensor([len(rows) for rows in training_data.rows_of_user], dtype=torch.float32)
    return torch.clamp(counts / plan.user_weight_cap, max=1.0)


def contributions(
    plan: Plan, training_data: TrainingData, randomness: RandomSource, step: int, drawn: Drawn
) -> Sequence[Rows]:
    """The records of each drawn user: all, or as many as the plan allows in one step.

    *Guarantee*: which ones is decided by fresh coins that look at nobody else's records and at no
    text, so what a user gives is still a function of that user's own records.
    """
    most = plan.records_per_step
    rows = [training_data.rows_of_user[user] for user in drawn]
    if most is None or all(len(own) <= most for own in rows):
        return rows
    streams = randomness.of_users("subset", step, training_data.users)
    return [
        own if len(own) <= most else np.sort(streams(int(user)).choice(own, most, replace=False))
        for user, own in zip(drawn, rows, strict=True)
    ]
