"""The methods: each says who is drawn, what is summed and bounded, and what is released."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from tacit.errors import UsageError
from tacit.plan import Plan
from tacit.privacy.events import AnyEvent, NotPrivate
from tacit.privacy.ledger import Ledger
from tacit.training.gradients import BoundedSum, ClippedSums
from tacit.training.material import Material, Rows, batches
from tacit.training.noise import release
from tacit.training.randomness import Chance
from tacit.training.sampling import (
    PoissonRecords,
    PoissonUsers,
    Sampler,
    Shuffled,
    need_match,
)

Losses = Callable[[nn.Module, dict[str, Tensor]], Tensor]


@dataclass(frozen=True)
class Seen:
    """What a step saw of the data: exact, hence not private."""

    units: int
    clipped: int
    not_finite: int
    loss: float


class Method(Protocol):
    """One step of training: a gradient for every trainable parameter."""

    def gradient(self, step: int) -> tuple[dict[str, Tensor], Seen]:
        """The direction of the step, and what it saw."""
        ...


class Plain:
    """Training without protection; the ledger says so once, before the first step."""

    def __init__(
        self,
        model: nn.Module,
        losses: Losses,
        material: Material,
        chance: Chance,
        ledger: Ledger | None,
        *,
        batch: int,
        what: str,
    ) -> None:
        self._model, self._losses, self._material, self._chance = model, losses, material, chance
        self._sampler = Shuffled(len(material.rows), batch)
        if ledger is not None:
            event = NotPrivate(what=what)
            need_match(self._sampler, event)
            if event not in ledger.releases:
                ledger.charge(event)

    def gradient(self, step: int) -> tuple[dict[str, Tensor], Seen]:
        """The mean gradient of a batch."""
        drawn = self._sampler.draw(self._chance.stream("coins", step))
        batch = self._material.examples.batch(self._material.rows[drawn])
        self._model.zero_grad(set_to_none=True)
        loss = self._losses(self._model, batch).mean()
        loss.backward()
        gradient = {
            name: p.grad.detach()
            for name, p in self._model.named_parameters()
            if p.requires_grad and p.grad is not None
        }
        return gradient, Seen(len(drawn), 0, 0, float(loss.detach()))


class Private:
    """Clipped sums with noise: for records, for users, or for users and the entities they name."""

    def __init__(
        self,
        model: nn.Module,
        losses: Losses,
        material: Material,
        chance: Chance,
        ledger: Ledger,
        plan: Plan,
        *,
        token_budget: int,
        phase: str = "train",
    ) -> None:
        self._material, self._chance, self._ledger = material, chance, ledger
        self._plan, self._phase, self._token_budget = plan, phase, token_budget
        self._sums = ClippedSums(model)
        self._event: AnyEvent = plan.event()
        self._sampler = _sampler(plan, material)
        need_match(self._sampler, self._event)
        self._denominator = _denominator(plan, material)
        self._weights = _weights(plan, material)
        self._seen_loss = [0.0, 0]

        def counted(batch: dict[str, Tensor]) -> Tensor:
            values = losses(model, batch)
            kept = values.detach()[torch.isfinite(values.detach())]
            self._seen_loss[0] += float(kept.sum())
            self._seen_loss[1] += len(kept)
            return values

        self._losses = counted

    def gradient(self, step: int) -> tuple[dict[str, Tensor], Seen]:
        """The noisy sum over its public denominator."""
        self._seen_loss[:] = [0.0, 0]
        drawn = self._sampler.draw(self._chance.stream("coins", step))
        total = self._sum(drawn)
        noisy = release(
            total, self._event, self._ledger, self._chance, phase=self._phase, step=step
        )
        for tensor in noisy.values():
            tensor.div_(self._denominator)
        mean = self._seen_loss[0] / max(1, self._seen_loss[1])
        return noisy, Seen(total.units, total.clipped, total.not_finite, mean)

    def _sum(self, drawn: np.ndarray) -> BoundedSum:
        plan, examples = self._plan, self._material.examples
        if isinstance(self._sampler, PoissonUsers):
            units: Sequence[Rows] = [self._material.rows_of_user[u] for u in drawn]
            weights = self._weights[drawn] if self._weights is not None else None
            return self._sums.users(
                self._losses,
                batches(examples, units, self._token_budget),
                clip_norm=plan.clip_norm,
                record_clip=plan.record_clip,
                weights=weights,
                units=len(units),
            )
        units = [np.asarray([row]) for row in self._material.rows[drawn]]
        return self._sums.records(
            self._losses,
            batches(examples, units, self._token_budget),
            clip_norm=plan.clip_norm,
            units=len(units),
        )


def _sampler(plan: Plan, material: Material) -> Sampler:
    if plan.entity_rate < 1:
        raise UsageError("entity_rate below 1 is priced but not trained; leave it at 1.")
    if plan.user_rate is not None:
        return PoissonUsers(material.users, plan.user_rate)
    return PoissonRecords(len(material.rows), float(plan.record_rate or 0))


def _denominator(plan: Plan, material: Material) -> float:
    """A public constant: what the plan says, or a count of the graph where that is held fixed."""
    fixed = "entities" in plan.protect and plan.adjacency == "fixed-graph"
    if plan.user_rate is not None:
        units, name = plan.users, "users"
        counted = material.users
    else:
        units, name = plan.records, "records"
        counted = len(material.rows)
    if units is None:
        if not fixed:
            raise UsageError(
                f"protect={plan.protect} needs {name}, the public denominator: how many there are "
                "may not be counted from the data. Give a round number that you knew before."
            )
        units = counted
    rate = plan.user_rate if plan.user_rate is not None else plan.record_rate
    return float(rate or 0) * units


def _weights(plan: Plan, material: Material) -> Tensor | None:
    """Users with few records weigh less, if the plan says so; nobody weighs more than 1."""
    if plan.user_weight_cap is None:
        return None
    counts = torch.tensor([len(rows) for rows in material.rows_of_user], dtype=torch.float32)
    return torch.clamp(counts / plan.user_weight_cap, max=1.0)
