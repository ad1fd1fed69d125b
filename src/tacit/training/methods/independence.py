"""One unit alone and among others: the same clipped vector, or nothing is released.

Every guarantee rests on it that a unit's vector is a function of the weights, of the unit's own
records and of coins that look at nobody else. No rule can see that from inside a model, so it is
tried on a few training records, in the mode of training: each unit's vector by itself, added up,
must be the sum over all of them together, whatever stands beside them, in which order, and however
far they are padded. Batch statistics, masks drawn for a batch, packed records, counters of calls
and random numbers of a module's own are found in this way, and so is what nobody has thought of.
"""

import math
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacit.errors import PrivacyRefused
from tacit.training.data.training_data import Rows, TrainingData
from tacit.training.dp import dropout
from tacit.training.dp.grad_norms import sum_of_squares
from tacit.training.dp.gradients import BoundedSum, ClippedSums
from tacit.training.dp.random_source import RandomSource

Totals = Callable[[int, Any], BoundedSum]
"""From a step and those who were drawn for it to the sum over them."""
Losses = Callable[[nn.Module, dict[str, Tensor]], Tensor]
"""From a model and a batch to one loss for each of its records."""

TOLERANCE, EXACT = 1e-5, 1e-7
"""How far vectors may differ, over their length, in single and in double precision."""
_RECORDS, _UNITS, _AMONG = 6, 3, 48
_AWAY = 0.02
"""How far weights are moved to look elsewhere than where they begin."""


class UnitCheck:
    """Whether the sums of a method are sums of what each unit gives by itself.

    `totals` makes the method's sum over those who are drawn, for a few of the material's records
    and for coins of its own; `drawn` puts numbers of units as the method's sampler does. With
    `losses`, records may not see each other either, as where each is clipped by itself.
    """

    def __init__(
        self,
        model: nn.Module,
        training_data: TrainingData,
        totals: Callable[[TrainingData, RandomSource], Totals],
        *,
        losses: Losses | None,
        of_records: bool = False,
        drawn: Callable[[Rows], Any] = lambda units: units,
        rows: Rows | None = None,
        token_budget: int = 4096,
    ) -> None:
        self._model, self._material, self._totals = model, training_data, totals
        self._losses, self._of_records, self._drawn = losses, of_records, drawn
        self._rows = training_data.rows if rows is None else rows
        self._token_budget = token_budget

    def need(self, *, first: bool = False) -> None:
        """Refuse a model in which units depend on each other.

        The `first` time, rules of layers are compared with autograd, and all of it is looked at
        once more with all trained weights moved a little: where a head or an adapter begins at
        zero, gradients that would show it are zero, too.
        """
        if len(self._rows) < 2:  # nobody to be among
            return
        with (
            torch.random.fork_rng(devices=[]),
            _in_training(self._model),
            _keeping_statistics_out(self._model),
        ):
            self._look(thoroughly=first)
            if first:
                with _moved_away(self._model):
                    self._look(thoroughly=True)

    def due(self, step: int) -> None:
        """Look again before steps 1, 2, 4, 8, ...: what a model does may change as it learns."""
        if step & (step - 1) == 0:
            self.need()

    def _look(self, *, thoroughly: bool) -> None:
        rng = np.random.default_rng()
        some, seed = self._some(rng), int(rng.integers(2**31))
        worst = self._apart(some, seed, TOLERANCE, thoroughly)
        if worst is not None:
            # It may be rounding: then it is gone where numbers have twice as many digits.
            with suppress(RuntimeError), _in_double(self._model):  # who cannot do that is refused
                worst = self._apart(some, seed, EXACT, thoroughly)
        if worst is not None:
            raise PrivacyRefused(worst)

    def _some(self, rng: np.random.Generator) -> TrainingData:
        """A few records, short and long ones, as units of one, two and three records."""
        lengths = self._material.examples.lengths
        among = rng.choice(self._rows, min(_AMONG, len(self._rows)), replace=False)
        among = among[np.argsort(lengths[among], kind="stable")]
        room = self._token_budget // max(1, int(lengths[among[-1]]))
        count = min(len(among), max(2, min(_RECORDS, room)))
        rows = among[np.linspace(0, len(among) - 1, count).round().astype(np.int64)]
        cuts = [1, 3] if count > 3 else list(range(1, count))
        return replace(self._material, rows=rows, rows_of_user=tuple(np.split(rows, cuts)))

    def _apart(
        self, some: TrainingData, seed: int, tolerance: float, thoroughly: bool
    ) -> str | None:
        """What differs by more than the tolerance, as a sentence; None if nothing does."""
        drew: list[bool] = []
        with dropout.step(seed):
            found = self._units_apart(some, seed, tolerance, drew)
            if found is None and self._losses is not None:
                found = self._records_apart(some, tolerance, thoroughly)
        if all(drew):
            raise PrivacyRefused(dropout.DRAWS)
        return found

    def _units_apart(
        self, some: TrainingData, seed: int, tolerance: float, drew: list[bool]
    ) -> str | None:
        total = self._totals(some, RandomSource(seed))
        count = len(some.rows) if self._of_records else len(some.rows_of_user)
        everybody = np.arange(count)

        def over(units: Rows) -> dict[str, Tensor]:
            before = _drawn_elsewhere()
            made = total(1, self._drawn(units)).tensors
            drew.append(_drawn_elsewhere() != before)
            return made

        added = over(everybody[:1])
        length = _norm(added)
        for unit in everybody[1:]:
            if unit == count - 1:  # without the longest, the others backwards
                gap = _minus(over(everybody[-2::-1].copy()), added)
                if not _norm(gap) <= tolerance * length:
                    return _coupled(gap)
            alone = over(everybody[unit : unit + 1])
            length += _norm(alone)
            for name, tensor in alone.items():
                added[name] += tensor
        gap = _minus(over(everybody), added)
        return None if _norm(gap) <= tolerance * length else _coupled(gap)

    def _records_apart(self, some: TrainingData, tolerance: float, thoroughly: bool) -> str | None:
        assert self._losses is not None
        batch, losses = some.examples.batch(some.rows), self._losses

        def keyed(given: dict[str, Tensor]) -> Tensor:
            with dropout.keyed(self._model, given):
                return losses(self._model, given)

        found = None
        if thoroughly:
            few = np.unique([0, len(some.rows) // 2, len(some.rows) - 1])
            part = {name: value[few] for name, value in batch.items()}
            found = ClippedSums(self._model).apart(keyed, part, tolerance)
        return found if found is not None else _spoilt(self._model, keyed, batch)


def _spoilt(
    model: nn.Module, losses: Callable[[dict[str, Tensor]], Tensor], batch: dict[str, Tensor]
) -> str | None:
    """Whether a record that is not a number makes others so: then they see it, however little."""
    size = len(next(iter(batch.values())))

    def left_out(spoilt: Tensor) -> int:
        given = [(batch, torch.arange(size))]
        with _spoiling(model, spoilt):
            total = ClippedSums(model).records(
                lambda own: losses(own) * (1 + spoilt.to(next(model.parameters()))),
                given,
                clip_norm=1.0,
            )
        return total.not_finite

    for first in (0, 1):
        spoilt = torch.zeros(size)
        spoilt[first::2] = math.nan
        more = left_out(spoilt) > int(spoilt.isnan().sum())
        if more and left_out(torch.zeros(size)) == 0:
            return (
                "A record's gradient changes with the records beside it in the batch, so who else "
                "is drawn would move it and clipping bounds nothing; replace or freeze the layer "
                "that mixes records."
            )
    return None


@contextmanager
def _spoiling(model: Any, by: Tensor) -> Iterator[None]:
    """Add these numbers to what records begin with, if the model says where that is."""

    def spoil(_: nn.Module, given: Any, out: Tensor) -> Tensor | None:
        if len(out) != len(by):
            return None
        return out + by.to(out).view(-1, *[1] * (out.dim() - 1))

    try:
        hook = model.get_input_embeddings().register_forward_hook(spoil, prepend=True)
    except (AttributeError, NotImplementedError):
        hook = None
    try:
        yield
    finally:
        if hook is not None:
            hook.remove()


def _norm(tensors: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float(sum_of_squares(tensor)) for tensor in tensors.values()))


def _minus(tensors: dict[str, Tensor], others: dict[str, Tensor]) -> dict[str, Tensor]:
    """The difference, in the place of the first."""
    for name, tensor in tensors.items():
        tensor.sub_(others[name])
    return tensors


def _coupled(gap: dict[str, Tensor]) -> str:
    most = max(gap, key=lambda name: float(gap[name].norm()))
    return (
        f"One unit's clipped vector is another one among others than by itself, as '{most}' shows, "
        "so who else is drawn would move it and clipping bounds nothing; replace or freeze the "
        "layer that mixes the records of a batch, packs them, counts its calls or draws one mask "
        "for all of them."
    )


def _drawn_elsewhere() -> tuple[Any, bytes, int]:
    """Where the generators of Python and numpy stand, from which a module might draw."""
    numpy: Any = np.random.get_state(legacy=True)  # noqa: NPY002
    return random.getstate(), numpy[1].tobytes(), int(numpy[2])


# --- the model meanwhile ----------------------------------------------------------------------


@contextmanager
def _in_training(model: nn.Module) -> Iterator[None]:
    """Everything as in training, such as dropout and layers that are frozen until then."""
    before = [(module, module.training) for module in model.modules()]
    model.train()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


@contextmanager
def _keeping_statistics_out(model: nn.Module) -> Iterator[None]:
    """Refuse a model that writes what it sees into itself: that would leave without any noise."""
    saved = model.state_dict().keys()
    kept = [(name, now, now.clone()) for name, now in model.named_buffers()]
    changed: list[str] = []
    try:
        yield
    finally:
        for name, now, before in kept:
            if not torch.allclose(now, before, rtol=0, atol=0, equal_nan=True):
                changed.append(name)
                now.copy_(before)
    if lost := [name for name in changed if name in saved]:
        raise PrivacyRefused(
            f"'{lost[0]}' changes with what the model sees, and would be saved without noise; "
            "replace the layer that keeps statistics or counts (BatchNorm by LayerNorm), or "
            "freeze it."
        )


@contextmanager
def _moved_away(model: nn.Module) -> Iterator[None]:
    """All trained weights a little elsewhere; afterwards as before."""
    with ExitStack() as back, torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                back.callback(parameter.data.copy_, parameter.detach().clone())
                generator = torch.Generator(parameter.device)
                generator.seed()
                noise = torch.empty_like(parameter).normal_(generator=generator)
                parameter.add_(noise, alpha=_AWAY)
        with torch.enable_grad():
            yield


@contextmanager
def _in_double(model: nn.Module) -> Iterator[None]:
    """All weights in double precision; afterwards the very same tensors as before."""
    data = [(parameter, parameter.data) for parameter in model.parameters()]
    buffers = [(module._buffers, dict(module._buffers)) for module in model.modules()]
    model.double()
    try:
        yield
    finally:
        for parameter, before in data:
            parameter.data = before
        for now, own in buffers:
            now.update(own)
