"""What every private method shares: draw, sum with a bound, release, divide."""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from tacit.privacy.events import AnyEvent
from tacit.privacy.ledger import Ledger
from tacit.training.data.training_data import TrainingData
from tacit.training.dp import dropout
from tacit.training.dp.gradients import COUNT, BoundedSum, ClippedSums, with_count
from tacit.training.dp.noise import noise_std_of, release
from tacit.training.dp.random_source import RandomSource
from tacit.training.dp.sampling import Sampler, require_match
from tacit.training.methods.independence import Losses, Totals, UnitCheck
from tacit.training.methods.method import Method, MethodInputs, MethodSpec, S, StepStats

Drawn_co = TypeVar("Drawn_co", covariant=True)


class LossMeter:
    """Losses of a model that remember their mean and number, for what is shown of training."""

    def __init__(self, model: nn.Module, losses: Losses) -> None:
        self._model, self._losses = model, losses
        self._sum, self._count, self._records = 0.0, 0, 0

    def __call__(self, batch: dict[str, Tensor]) -> Tensor:
        """One loss for each record."""
        with dropout.keyed(self._model, batch):
            values = self._losses(self._model, batch)
        kept = values.detach()[torch.isfinite(values.detach())]
        self._sum += float(kept.sum())
        self._count += len(kept)
        self._records += len(values)
        return values

    def since(self) -> tuple[float, int]:
        """The mean since it was last asked for, finite losses only, and of how many records."""
        since = self._sum / max(1, self._count), self._records
        self._sum, self._count, self._records = 0.0, 0, 0
        return since


def finite_losses(
    losses: Callable[[dict[str, Tensor]], Tensor], batch: dict[str, Tensor]
) -> tuple[Tensor, int]:
    """The losses of the records whose loss is finite, and how many others were left out.

    The others are left out of the pass, too: even with weight zero they would spread NaN.
    """
    values = losses(batch)
    finite = torch.isfinite(values.detach()).cpu()
    bad = int((~finite).sum())
    if bad == 0:
        return values, 0
    if bad == len(values):
        return values[:0], bad
    return losses({name: tensor[finite] for name, tensor in batch.items()}), bad


class NoisySums(Generic[Drawn_co]):
    """A sampler, a bounded sum over those it draws, and noise: one step of a private method.

    *Guarantee*: what leaves `gradient` is the release of one event, which the ledger holds
    already, divided by the public constant `denominator`. Units are looked at by `check` before
    the first release and some later ones; it is None only where those who hold the records look.
    """

    def __init__(
        self,
        sampler: Sampler[Drawn_co],
        event: AnyEvent,
        total: Callable[[int, Drawn_co], BoundedSum],
        denominator: float,
        meter: LossMeter,
        ledger: Ledger,
        randomness: RandomSource,
        *,
        check: UnitCheck | None,
    ) -> None:
        require_match(sampler, event)
        self._sampler, self._event, self._total = sampler, event, total
        self.denominator, self._meter = denominator, meter
        self._ledger, self._randomness, self._check = ledger, randomness, check

    def spread(self, over: Callable[[Totals], Totals]) -> None:
        """Let several processes compute the sum; sampling, ledger and noise stay here."""
        self._total = over(self._total)

    def depends_on(self) -> list[Tensor]:
        """What the sum of the next step depends on beside the weights, as others must know it.

        Made of releases alone, and of the same shapes in every step; `following` takes it.
        """
        return []

    def gradient(self, step: int) -> tuple[dict[str, Tensor], StepStats]:
        """The direction that is made of a release."""
        return self.direction(step, *self.noisy(step))

    def direction(
        self, step: int, released: dict[str, Tensor], stats: StepStats
    ) -> tuple[dict[str, Tensor], StepStats]:
        """What is made of a release: itself, unless a method adds what reads nothing protected."""
        return released, stats

    def noisy(self, step: int) -> tuple[dict[str, Tensor], StepStats]:
        """The release of a step: the noisy sum over its public denominator."""
        if self._check is not None:
            self._check.due(step)
        drawn = self._sampler.draw(self._randomness.stream("coins", step))
        with dropout.step(self._randomness.torch_seed("dropout", step)):
            total = self._total(step, drawn)
        noisy = release(
            total, self._event, self._ledger, self._randomness, phase="train", step=step
        )
        for tensor in noisy.values():
            tensor.div_(self.denominator)
        loss, records = self._meter.since()
        noise_std = noise_std_of(total, self._event) / self.denominator
        return noisy, StepStats(
            total.units, total.clipped, total.not_finite, loss, records, noise_std
        )


COUNT_SHARE = 0.1
"""How much of a unit's norm says whether it was within the clip norm: a two-hundredth of its square
is lost to the gradient."""
CLIP_RATE = 0.2
"""How fast the clip norm follows: Andrew et al.'s learning rate."""


class AdaptiveSums(NoisySums[Drawn_co]):
    """Noisy sums whose clip norm follows a quantile of the norms of units.

    Whether a unit was within the clip norm is one more coordinate of its vector, and the vector is
    as long as before (`with_count`); so a step is the release of the same event. The next clip norm
    is post-processing of what was released.

    Source: Andrew et al. 2021. Departs: their count has noise of its own, which comes to the same.
    """

    def __init__(
        self, of_clip: Callable[[float], Totals], clip_norm: float, quantile: float, *given: Any,
        **named: Any,
    ) -> None:  # fmt: skip
        sampler, event, *rest = given
        super().__init__(sampler, event, self._counted, *rest, **named)
        self._of_clip, self._clip_norm, self._quantile = of_clip, clip_norm, quantile

        self._clipped: Totals = lambda step, drawn: self._of_clip(self._clip_norm)(step, drawn)

    def _counted(self, step: int, drawn: Any) -> BoundedSum:
        return with_count(self._clipped(step, drawn), COUNT_SHARE)

    def gradient(self, step: int) -> tuple[dict[str, Tensor], StepStats]:
        """The noisy sum, clipped by what the steps before said of norms."""
        noisy, stats = super().gradient(step)
        within = float(noisy.pop(COUNT)) / (COUNT_SHARE * self._clip_norm)
        share = min(1.0, max(0.0, (1 + within) / 2))
        self._clip_norm *= math.exp(-CLIP_RATE * (share - self._quantile))
        return noisy, stats

    def extra_state(self) -> dict[str, Tensor]:
        """The clip norm of the next step."""
        return {"clip_norm": torch.tensor([self._clip_norm], dtype=torch.float64)}

    def load_extra_state(self, tensors: dict[str, Tensor]) -> None:
        """Go on with it."""
        self._clip_norm = float(tensors["clip_norm"])

    def spread(self, over: Callable[[Totals], Totals]) -> None:
        """Units are clipped in several processes, joined, and counted here."""
        self._clipped = over(self._clipped)

    def depends_on(self) -> list[Tensor]:
        """The clip norm."""
        return [torch.tensor([self._clip_norm], dtype=torch.float64)]


class NoisySumMethod(MethodSpec[S]):
    """A method whose step is a `NoisySums`: who is drawn, what is summed, over what it is divided.

    Several processes, the clients of a federation and audits compute `totals` as a local run does;
    sampling, ledger and noise are the same in all of them.
    """

    tells_noise = True
    clips_records = True
    """Whether each record's gradient is clipped by itself, hence must not see other records."""
    one_process = False
    """Whether its sums are made where its releases are kept, and nowhere else."""
    draw_arrays = 1
    """Of how many arrays a draw consists, for processes that share it."""

    @abstractmethod
    def sampler(self, inputs: MethodInputs) -> Sampler[Any]:
        """Who takes part in a step."""

    @abstractmethod
    def totals(self, inputs: MethodInputs, meter: LossMeter) -> Totals:
        """The bounded sum over those who were drawn."""

    def following(self, inputs: MethodInputs, meter: LossMeter) -> tuple[list[Tensor], Totals]:
        """The sum of a process that helps, and room for what it depends on beside the weights.

        Rank 0 writes what `NoisySums.depends_on` gives into that room before every step.
        """
        return [], self.totals(inputs, meter)

    @abstractmethod
    def denominator(self, inputs: MethodInputs) -> float:
        """The public constant that the noisy sum is divided by."""

    def require_model(self, model: nn.Module) -> None:
        """Every trainable layer needs a rule for its per-record gradients."""
        if self.clips_records:
            ClippedSums(model)

    def step(self, inputs: MethodInputs) -> Method:
        """Sums over units that are drawn, with noise."""
        meter = LossMeter(inputs.model, inputs.losses)
        return self.released(inputs, self.totals(inputs, meter), meter, self.unit_check(inputs))

    def released(
        self, inputs: MethodInputs, totals: Totals, meter: LossMeter, check: UnitCheck | None
    ) -> "NoisySums[Any]":
        """The step, with sums wherever they are computed; noise and ledger are here."""
        event = self.event(inputs)
        assert event is not None
        return NoisySums(
            self.sampler(inputs), event, totals, self.denominator(inputs), meter,
            inputs.need_ledger(), inputs.randomness, check=check,
        )  # fmt: skip

    def unit_check(self, inputs: MethodInputs) -> UnitCheck | None:
        """Whether units give in a sum what they give alone, as do their records."""
        of_records = inputs.plan is not None and inputs.plan.user_rate is None
        return self.check_of(inputs, of_records=of_records)

    def check_of(self, inputs: MethodInputs, **how: Any) -> UnitCheck:
        """A check of the method's own sums over a few of the records."""

        def some(part: TrainingData, randomness: RandomSource) -> Totals:
            of_part = replace(inputs, training_data=part, randomness=randomness)
            return self.totals(of_part, LossMeter(inputs.model, inputs.losses))

        losses = inputs.losses if self.clips_records else None
        budget = inputs.run.token_budget
        return UnitCheck(
            inputs.model, inputs.training_data, some, losses=losses, token_budget=budget, **how
        )
