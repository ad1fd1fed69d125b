"""What every private method shares: draw, sum with a bound, release, divide."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from tacit.privacy.events import AnyEvent
from tacit.privacy.ledger import Ledger
from tacit.training.dp import dropout
from tacit.training.dp.gradients import BoundedSum
from tacit.training.dp.noise import release
from tacit.training.dp.random_source import RandomSource
from tacit.training.dp.sampling import Sampler, require_match
from tacit.training.methods.independence import Losses as Losses
from tacit.training.methods.independence import UnitCheck

Drawn_co = TypeVar("Drawn_co", covariant=True)


@dataclass(frozen=True)
class StepStats:
    """What a step saw of the data: exact, hence not private.

    `records` counts passes through the model here, whoever the units are; 0 where others pass.
    """

    units: int
    clipped: int
    not_finite: int
    loss: float
    records: int = 0


class Method(Protocol):
    """One step of training: a gradient for every trainable parameter."""

    def gradient(self, step: int) -> tuple[dict[str, Tensor], StepStats]:
        """The direction of the step, and what it saw."""
        ...


@runtime_checkable
class SequentialMethod(Protocol):
    """A step of several updates, each of which is carried out before the next is computed."""

    def gradients(self, step: int) -> Iterator[tuple[dict[str, Tensor], StepStats]]:
        """The directions one after the other, and what the step saw so far."""
        ...


@runtime_checkable
class StatefulMethod(Protocol):
    """A method that learns something beside the model, which only a checkpoint holds."""

    def extra_state(self) -> dict[str, Tensor]:
        """All that is needed to go on."""
        ...

    def load_extra_state(self, tensors: dict[str, Tensor]) -> None:
        """Go on with what `aside` gave."""
        ...


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
        phase: str = "train",
    ) -> None:
        require_match(sampler, event)
        self._sampler, self._event, self._total = sampler, event, total
        self.denominator, self._watched = denominator, meter
        self._ledger, self._chance, self._phase = ledger, randomness, phase
        self._check = check

    def spread(
        self,
        over: Callable[
            [Callable[[int, Drawn_co], BoundedSum]], Callable[[int, Drawn_co], BoundedSum]
        ],
    ) -> None:
        """Let several processes compute the sum; coins, ledger and noise stay here."""
        self._total = over(self._total)

    def gradient(self, step: int) -> tuple[dict[str, Tensor], StepStats]:
        """The noisy sum over its public denominator."""
        if self._check is not None:
            self._check.due(step)
        drawn = self._sampler.draw(self._chance.stream("coins", step))
        with dropout.step(self._chance.torch_seed("dropout", step)):
            total = self._total(step, drawn)
        noisy = release(
            total, self._event, self._ledger, self._chance, phase=self._phase, step=step
        )
        for tensor in noisy.values():
            tensor.div_(self.denominator)
        loss, records = self._watched.since()
        return noisy, StepStats(total.units, total.clipped, total.not_finite, loss, records)
