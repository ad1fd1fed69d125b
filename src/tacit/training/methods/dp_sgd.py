"""DP-SGD: per-example or per-user clipped sums of gradients with noise.

Source: Abadi et al. 2016 (records); McMahan et al. 2018 (users). Entities that users name are
bounded through them; see docs/explanations/guarantees.md, sections 3 to 5. Names are in section 12.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from tacit.planning.plan import Plan, public_denominator
from tacit.training.data.training_data import Rows, TrainingData, batches, units_together
from tacit.training.dp.gradients import BoundedSum, ClippedSums
from tacit.training.dp.random_source import RandomSource
from tacit.training.dp.sampling import Drawn, PoissonRecords, PoissonUsers
from tacit.training.methods.independence import Totals
from tacit.training.methods.method import Method, MethodInputs, S
from tacit.training.methods.noisy_sums import AdaptiveSums, LossMeter, NoisySumMethod
from tacit.training.methods.scaled_sums import ScaledSums, Sizes
from tacit.training.models.weights import summed
from tacit.training.settings import MethodSettings


class PlannedSums(NoisySumMethod[S]):
    """Poisson sampling, events and denominators as the plan has them."""

    standing = "proved"
    protects: ClassVar[tuple[str, ...]] = (
        "users", "entities", "users+entities", "names", "users+names",
    )  # fmt: skip

    def sampler(self, inputs: MethodInputs) -> PoissonUsers | PoissonRecords:
        """Poisson sampling of users or records."""
        plan, training_data = inputs.need_plan(), inputs.training_data
        if plan.user_rate is not None:
            return PoissonUsers(training_data.users, plan.user_rate)
        return PoissonRecords(len(training_data.rows), float(plan.record_rate or 0))

    def denominator(self, inputs: MethodInputs) -> float:
        """The expected number of units: what the plan says, or a count of a graph held fixed."""
        return denominator(inputs.need_plan(), inputs.training_data)


class DpSgd(PlannedSums[MethodSettings]):
    """DP-SGD for records, for users, or for users and the entities they name.

    *Guarantee*: the plan's, see docs/explanations/guarantees.md, sections 3 to 5.
    """

    name = "dp-sgd"
    title = "DP-SGD: every step is clipped and noised (recommended)"
    summary = (
        "DP-SGD: clipped sums of gradients with noise; the plan protects records, users, entities, "
        "users+entities, names or users+names"
    )
    protects: ClassVar[tuple[str, ...]] = ("records", *PlannedSums.protects)
    federated = True
    adapts_clip = True
    shows_names = True
    """Whether names can be shown: what each changes is a gradient that is clipped by itself."""

    def step(self, inputs: MethodInputs) -> Method:
        """Sums over units that are drawn, with noise; the clip norm as the plan has it, or asks."""
        plan, event = inputs.need_plan(), self.event(inputs)
        if plan.clip_quantile is None and not plan.precondition:
            return super().step(inputs)
        assert event is not None
        meter = LossMeter(inputs.model, inputs.losses)
        given = (
            self.sampler(inputs), event, self.denominator(inputs), meter, inputs.need_ledger(),
            inputs.randomness,
        )  # fmt: skip
        check = self.unit_check(inputs)
        if plan.clip_quantile is None:
            how = inputs.run.optimizer
            sizes = Sizes(how.beta2, how.noise_floor)
            return ScaledSums(
                lambda scales: self._with_scales(inputs, meter, scales), sizes,
                summed(inputs.model), *given, check=check,
            )  # fmt: skip
        return AdaptiveSums(
            lambda norm: self._with_clip(inputs, meter, norm), plan.clip_norm, plan.clip_quantile,
            *given, check=check,
        )  # fmt: skip

    def following(self, inputs: MethodInputs, meter: LossMeter) -> tuple[list[Tensor], Totals]:
        """The sum with the clip norm, or the scales, that rank 0 says."""
        plan = inputs.need_plan()
        if plan.clip_quantile is not None:
            norm = torch.tensor([plan.clip_norm], dtype=torch.float64)
            return [norm], lambda step, drawn: self._with_clip(inputs, meter, float(norm))(
                step, drawn
            )
        if plan.precondition:
            scales = {name: torch.ones_like(t) for name, t in summed(inputs.model).items()}
            return [*scales.values()], self._with_scales(inputs, meter, scales)
        return super().following(inputs, meter)

    def _with_scales(
        self, inputs: MethodInputs, meter: LossMeter, scales: Mapping[str, Tensor]
    ) -> Totals:
        return self.totals(replace(inputs, scales=scales), meter)

    def _with_clip(self, inputs: MethodInputs, meter: LossMeter, norm: float) -> Totals:
        clipped = inputs.need_plan().model_copy(update={"clip_norm": norm})
        return self.totals(replace(inputs, plan=clipped), meter)

    def totals(self, inputs: MethodInputs, meter: LossMeter) -> Totals:
        """Sums of clipped gradients over drawn users, or over drawn records."""
        if inputs.training_data.names is not None:
            return _showing_sums(inputs, meter)
        of_users = inputs.need_plan().user_rate is not None
        return user_sums(inputs, meter) if of_users else _record_sums(inputs, meter)


def user_sums(inputs: MethodInputs, meter: LossMeter) -> Totals:
    """Sums over drawn users of their clipped gradients, as the plan says."""
    plan, training_data = inputs.need_plan(), inputs.training_data
    sums = ClippedSums(inputs.model, inputs.scales)
    together = units_together(inputs.model)

    def total(step: int, drawn: Drawn) -> BoundedSum:
        units = contributions(plan, training_data, inputs.randomness, step, drawn)
        weights = user_weights(plan, training_data)
        return sums.users(
            meter,
            batches(training_data.examples, units, inputs.run.token_budget, together=together),
            clip_norm=plan.clip_norm,
            record_clip=plan.record_clip,
            weights=weights[drawn] if weights is not None else None,
            units=len(units),
        )

    return total


def _showing_sums(inputs: MethodInputs, meter: LossMeter) -> Totals:
    """Sums over drawn users of their base gradients and of what their shown names change.

    Which names are shown is a matter of the step and of all users, whoever is drawn.
    """
    plan, training_data = inputs.need_plan(), inputs.training_data
    names, sums = training_data.names, ClippedSums(inputs.model)
    assert names is not None
    together = units_together(inputs.model)

    def total(step: int, drawn: Drawn) -> BoundedSum:
        units = contributions(plan, training_data, inputs.randomness, step, drawn)
        weights = user_weights(plan, training_data)
        copies = names.copies(step, training_data.examples, units)
        parts = batches(copies, copies.units, inputs.run.token_budget, together=together)
        return sums.users_showing_names(
            meter,
            ((batch, copies.accounts(batch, owner), later) for batch, owner, later in parts),
            clip_norm=plan.clip_norm,
            name_clip=plan.name_share * plan.clip_norm,
            weights=weights[drawn] if weights is not None else None,
            units=len(units),
        )

    return total


def _record_sums(inputs: MethodInputs, meter: LossMeter) -> Totals:
    plan, training_data = inputs.need_plan(), inputs.training_data
    sums = ClippedSums(inputs.model, inputs.scales)

    def total(_: int, drawn: Drawn) -> BoundedSum:
        units = [np.asarray([row]) for row in training_data.rows[drawn]]
        # A record is never spread over batches, so all of them may be sorted.
        parts = batches(
            training_data.examples, units, inputs.run.token_budget, together=max(1, len(units))
        )
        return sums.records(meter, parts, clip_norm=plan.clip_norm, units=len(units))

    return total


def denominator(plan: Plan, training_data: TrainingData) -> float:
    """A public constant: what the plan says, or a count of the graph where that is held fixed."""
    counted = training_data.users if plan.sampled == "users" else len(training_data.rows)
    return public_denominator(plan, counted)


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

    *Guarantee*: which ones is decided by fresh draws that look at nobody else's records and at no
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


DP_SGD = DpSgd()
