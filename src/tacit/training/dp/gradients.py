"""Per-owner clipped sums of gradients, at nearly the cost of a plain backward pass.

`ClippedSums` is made once for a model and refuses what it cannot clip. Its answer, a
`BoundedSum`, can be made nowhere else: what adds noise may trust its bound.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import InitVar, dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from tacit.errors import UsageError
from tacit.training.dp.grad_norms import (
    Gradient,
    Grams,
    Squares,
    Units,
    as_run,
    row_norms,
    sum_of_squares,
)
from tacit.training.dp.grad_sample_rules import of_rows, times
from tacit.training.dp.hooks import Parts, find_layers, run
from tacit.training.models.weights import summed, trained_rows

Losses = Callable[[dict[str, Tensor]], Tensor]
"""From a batch to one loss for each of its records."""
Batches = Iterable[tuple[dict[str, Tensor], Tensor] | tuple[dict[str, Tensor], Tensor, set[int]]]
"""Batches, with the number of each record's unit, and, if anybody can tell, the units that have
more records in some later batch; else the next batch is looked at."""

BASE = -1
"""The number of a user's base account; other accounts are those of the names that are shown."""


class Account(NamedTuple):
    """Which records of a batch a user's base gradient, or the change by a name, is made of."""

    unit: int
    name: int
    rows: Tensor
    signs: Tensor
    whole: bool = False
    """Whether all that a name changes is in this batch. A record has one sign for all names."""


NamedBatches = Iterable[tuple[dict[str, Tensor], list[Account], set[int]]]
"""Batches, the accounts of their users, and the users that go on in a later batch."""

_MADE_HERE = object()
_CANCELLED = 1e-4
"""Up to this share of a squared norm, rounding of inner products is let be."""


@dataclass(frozen=True)
class BoundedSum:
    """A sum to which no unit adds more than `clip_norm` in norm.

    `clipped` and `not_finite` are exact counts: not private.
    """

    tensors: dict[str, Tensor]
    clip_norm: float
    unit: Literal["records", "users"]
    record_clip: float | None
    units: int
    clipped: int
    not_finite: int
    name_clip: float = 0.0
    """How far one shown name moves its user, at most; 0 where no name was shown."""
    made: InitVar[object] = None

    def __post_init__(self, made: object) -> None:
        if made is not _MADE_HERE:
            raise TypeError("A BoundedSum comes from ClippedSums, which bounds it.")


def joined(own: BoundedSum, add_up: Callable[[Iterable[Tensor]], None]) -> BoundedSum:
    """The sum over several processes, each of which summed units that no other has.

    `add_up` adds what the others have, in place. *Guarantee*: each unit is clipped where it is
    summed, so the joined sum is bounded as its parts are.
    """
    counts = torch.tensor([own.units, own.clipped, own.not_finite])
    add_up([*own.tensors.values(), counts])
    units, clipped, not_finite = counts.tolist()
    return replace(own, units=units, clipped=clipped, not_finite=not_finite, made=_MADE_HERE)


COUNT = "units within the clip norm"
"""The name of the coordinate that `with_count` adds."""


def with_count(total: BoundedSum, share: float) -> BoundedSum:
    """The sum with a coordinate that says how many units were within the clip norm.

    A unit adds its clipped vector times sqrt(1 - share^2), and share * clip_norm there if it was
    within the clip norm, as much less if it was not. *Guarantee*: both together are no longer than
    `clip_norm`, so one release of the longer sum costs what one of the shorter would.
    """
    kept = math.sqrt(1 - share**2)
    tensors = {name: tensor * kept for name, tensor in total.tensors.items()}
    within = total.units - 2 * total.clipped
    tensors[COUNT] = next(iter(tensors.values())).new_tensor([share * total.clip_norm * within])
    return replace(total, tensors=tensors, made=_MADE_HERE)


class ClippedSums:
    """Sums over units (users, or records) of their clipped gradients.

    *Guarantee*: with everything else the same, taking away all records of a unit changes the
    result of `users` or `records` by at most `clip_norm`, up to rounding, whatever its records
    and losses are, provided that a record's loss depends on no other record. Where only some rows
    of a parameter are trained, norms and sums are of those, and the others are in no sum. `scales`
    multiply gradients entry by entry before anything is clipped: norms and sums are of products.
    """

    def __init__(self, model: nn.Module, scales: Mapping[str, Tensor] | None = None) -> None:
        self._scales = scales or {}
        self._layers, self._rows = find_layers(model), trained_rows(model)
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._summed = summed(model)

    def users(
        self,
        losses: Losses,
        batches: Batches,
        *,
        clip_norm: float,
        record_clip: float | None = None,
        weights: Tensor | None = None,
        weight_cap: float = 1.0,
        units: int | None = None,
    ) -> BoundedSum:
        """The sum over users; a user's records may go on in the next batch.

        A user's gradient is the sum of its records' gradients, each clipped to `record_clip`
        where that is given, then clipped to `clip_norm` and multiplied by the user's weight,
        which is at most `weight_cap`.
        """
        step = _Step(self._summed, clip_norm, record_clip, weights, weight_cap, units)
        return self._sum(step, losses, _looking_ahead(batches), "users")

    def records(
        self,
        losses: Losses,
        batches: Batches,
        *,
        clip_norm: float,
        weights: Tensor | None = None,
        weight_cap: float = 1.0,
        units: int | None = None,
    ) -> BoundedSum:
        """The sum over records: every record is a unit of its own, with a number of its own."""
        step = _Step(self._summed, clip_norm, None, weights, weight_cap, units)
        return self._sum(step, losses, ((b, owner, set()) for b, owner, *_ in batches), "records")

    def texts_of_records(
        self, losses: Losses, batches: Batches, *, clip_norm: float, units: int | None = None
    ) -> BoundedSum:
        """The sum over records that have several texts, such as one whose loss has a minus sign.

        *Guarantee*: that of `users`, of records: all that the texts of one record add up to is
        clipped as a whole.
        """
        total = self.users(losses, batches, clip_norm=clip_norm, units=units)
        return replace(total, unit="records", made=_MADE_HERE)

    def users_showing_names(
        self,
        losses: Losses,
        batches: "NamedBatches",
        *,
        clip_norm: float,
        name_clip: float,
        weights: Tensor | None = None,
        units: int | None = None,
    ) -> BoundedSum:
        """The sum over users whose texts have invented names, and of whom some names are shown.

        A user's base gradient is clipped to `clip_norm`; for each shown name the change that it
        makes, a sum of records with signs, is clipped to `name_clip` and added; then the user's
        vector is clipped to `clip_norm` and multiplied by the user's weight.

        *Guarantee*: besides that of `users`, taking away one shown name of a user changes the
        result by at most `name_clip`: clipping to a ball never lengthens a difference.
        """
        require_positive("name_clip", name_clip)
        step = _NamedStep(self._summed, clip_norm, None, weights, 1.0, units, name_clip)
        for batch, accounts, goes_on in batches:
            size = len(next(iter(batch.values())))
            parts, values = self._run(losses, batch, size)
            step.add_accounts(parts, values, accounts, goes_on)
            del parts
        return replace(step.finish("users"), name_clip=name_clip, made=_MADE_HERE)

    def _sum(
        self,
        step: "_Step",
        losses: Losses,
        batches: Iterable[tuple[dict[str, Tensor], Tensor, set[int]]],
        unit: Literal["records", "users"],
    ) -> BoundedSum:
        for batch, owner, goes_on in batches:
            if unit == "records" and len(torch.unique(owner)) < len(owner):
                raise UsageError("Two records of a batch have the same number; number each one.")
            if len(owner):
                parts, values = self._run(losses, batch, len(owner))
                step.add(parts, values, owner, goes_on)
                del parts
        return step.finish(unit)

    def _run(self, losses: Losses, batch: dict[str, Tensor], size: int) -> tuple[Parts, Tensor]:
        """What each record adds to each parameter, or to those rows of it that are trained."""
        parts, values = run(self._layers, losses, batch, size)
        for name, rows in self._rows.items():
            whole = len(self._parameters[name])
            parts[name] = [of_rows(part, rows, whole) for part in parts[name]]
        for name, factor in self._scales.items():
            parts[name] = [times(part, factor) for part in parts[name]]
        return parts, values

    def apart(
        self, losses: Losses, batch: dict[str, Tensor], tolerance: float = 1e-4
    ) -> str | None:
        """Compare the gradients of a few records with those that autograd finds for each alone.

        Finds what no rule can see: a weight used outside its layer, records that see each other,
        a dimension that is not the record. A sentence if something is farther apart than the
        tolerance, over the length of what is trained of the record's gradient; None if nothing is.
        """
        size = len(next(iter(batch.values())))
        parts, values = self._run(losses, batch, size)
        together = _join(self._summed, parts)
        for row in torch.isfinite(values).nonzero().view(-1).tolist():
            alone = {name: value[row : row + 1] for name, value in batch.items()}
            with torch.enable_grad():
                truth = torch.autograd.grad(
                    losses(alone).sum(), list(self._parameters.values()), allow_unused=True
                )
            whole = _length(truth)
            if not math.isfinite(whole):  # it would be left out of every sum
                continue
            own = [
                g[self._rows[name]] if g is not None and name in self._rows else g
                for name, g in zip(self._summed, truth, strict=True)
            ]
            # Rows that are not trained may be far longer: they excuse their rounding, no more.
            allowed = tolerance * _length(own) + _rounding(values) * whole
            for (name, like), right in zip(self._summed.items(), own, strict=True):
                out = torch.empty_like(like)
                got = together[name].of(torch.tensor([row]).to(out.device), None, out)
                gap = got if right is None else got - right
                if not float(gap.norm()) <= allowed:
                    return (
                        f"The gradient of '{name}' cannot be split by record: a record by itself "
                        "has another one. Is the weight used outside its layer, or does a record "
                        "see others of its batch? Freeze it, or change the model."
                    )
        return None


def _length(gradients: Iterable[Tensor | None]) -> float:
    return math.sqrt(sum(float(sum_of_squares(g)) for g in gradients if g is not None))


def _rounding(like: Tensor) -> float:
    """What sums over a record may lose, as a share of their length."""
    return 16 * torch.finfo(like.dtype).eps


def _join(parameters: dict[str, Tensor], parts: Parts) -> dict[str, Gradient]:
    return {name: Gradient.join(p.shape, parts[name]) for name, p in parameters.items()}


def _looking_ahead(batches: Batches) -> Iterator[tuple[dict[str, Tensor], Tensor, set[int]]]:
    """Each batch with the units that go on: as the batches say, or as the next one shows."""
    source = iter(batches)
    now = next(source, None)
    while now is not None:
        if len(now) == 3:
            yield now
            now = next(source, None)
            continue
        after = next(source, None)
        own = set(now[1].tolist())
        yield now[0], now[1], own & set(after[1].tolist()) if after is not None else set()
        now = after


class _Step:
    """One step's sum as it grows."""

    def __init__(
        self,
        parameters: dict[str, Tensor],
        clip_norm: float,
        record_clip: float | None,
        weights: Tensor | None,
        weight_cap: float,
        units: int | None,
    ) -> None:
        require_positive("clip_norm", clip_norm)
        require_positive("weight_cap", weight_cap)
        if record_clip is not None:
            require_positive("record_clip", record_clip)
        if weights is not None and not bool(((weights >= 0) & (weights <= weight_cap)).all()):
            raise UsageError(f"A weight is not between 0 and weight_cap={weight_cap:g}.")
        if weights is not None and units not in (None, len(weights)):
            raise UsageError(f"units={units} and {len(weights)} weights do not agree.")
        self._parameters = parameters
        self._clip_norm, self._record_clip = clip_norm, record_clip
        self._weights, self._weight_cap = weights, weight_cap
        self._units = len(weights) if weights is not None else units
        self._total: dict[str, Tensor] = {}
        self._pending: dict[int, dict[str, Tensor]] = {}
        self._closed: set[int] = set()
        self._clipped = self._not_finite = 0

    def finish(self, unit: Literal["records", "users"]) -> BoundedSum:
        """What has been summed."""
        if self._pending:
            raise UsageError("A unit was to go on in a later batch, and none came.")
        seen = max(self._closed, default=-1) + 1
        tensors: dict[str, Tensor] = {}
        for name in self._parameters:  # one goes as the other comes: never two of all
            self._into(name)
            tensors[name] = self._total.pop(name).contiguous()
        return BoundedSum(
            tensors,
            self._clip_norm * self._weight_cap,
            unit,
            self._record_clip,
            self._units if self._units is not None else seen,
            self._clipped,
            self._not_finite,
            made=_MADE_HERE,
        )

    @torch.no_grad()
    def add(self, parts: Parts, values: Tensor, owner: Tensor, goes_on: set[int]) -> None:
        """Add a batch; units in `goes_on` are clipped later."""
        rows = self._rows(owner.to(values.device))
        gradients = _join(self._parameters, parts)
        parts.clear()
        bad = ~torch.isfinite(values)
        if bool(bad.any()):
            gradients = _without(gradients, bad)
        scale: Tensor | None = None
        known: tuple[Tensor, Tensor] | None = None
        if self._record_clip is not None:
            single = torch.arange(len(values), device=values.device).unsqueeze(1)
            squares, cancelled = _squares(gradients, Units(single, everything=True), None)
            overflow = ~torch.isfinite(squares)
            if bool(overflow.any()):
                gradients, bad = _without(gradients, overflow), bad | overflow
                squares = squares.masked_fill(overflow, 0)
            factor = torch.clamp(self._record_clip / squares.sqrt(), max=1.0)
            dtype = next(iter(self._parameters.values())).dtype
            scale, known = factor.to(dtype), (squares * factor.square(), cancelled)
        self._not_finite += int(bad.sum())
        later = {unit: rows[unit] for unit in goes_on | set(self._pending) if unit in rows}
        for unit, own in later.items():
            gradients = self._put_aside(gradients, unit, own, scale)
            if unit not in goes_on:
                self._settle(unit)
        rest = {unit: own for unit, own in rows.items() if unit not in later}
        if rest:
            self._add_whole_units(gradients, rest, scale, known)

    def _rows(self, owner: Tensor) -> dict[int, Tensor]:
        """The records of each unit, units in order of their number."""
        if owner.dim() != 1 or bool((owner < 0).any()):
            raise UsageError("owner has to be one number, 0 or more, for each record.")
        order = torch.argsort(owner, stable=True)
        units, counts = torch.unique_consecutive(owner[order], return_counts=True)
        numbers = units.tolist()
        again = self._closed.intersection(numbers)
        if again:
            raise UsageError(
                f"Unit {min(again)} comes back after it was clipped; the records of a unit have "
                "to stand in batches that follow each other."
            )
        if self._units is not None and numbers[-1] >= self._units:
            raise UsageError(f"Unit {numbers[-1]} is not one of the {self._units} units.")
        return dict(zip(numbers, order.split(counts.tolist()), strict=True))

    def _add_whole_units(
        self,
        gradients: dict[str, Gradient],
        rows: dict[int, Tensor],
        scale: Tensor | None,
        known: tuple[Tensor, Tensor] | None,
    ) -> None:
        """Add units that are complete; `known` is what `_squares` said of their records."""
        groups = _by_size(rows, len(_like(gradients)))
        weights = _Weights(gradients)
        spaces: dict[str, Tensor] = {}
        for units, members in groups:
            if units.size == 1 and known is not None:
                fused: list[str] = []
                squares, cancelled = (x[units.rows[:, 0]] for x in known)
            else:
                fused = [n for n, g in gradients.items() if g.way(units.size) == "fused"]
                rest = {n: g for n, g in gradients.items() if n not in fused}
                squares, cancelled = _squares(rest, units, scale, keep=True)
            # A norm that was written out belongs to the gradient that was: this one is added.
            squares = squares.masked_fill(cancelled, math.nan)
            factors: list[float] = []
            for unit, square in zip(members, squares.tolist(), strict=True):
                own = rows[unit]
                if fused and math.isfinite(square):
                    run, found = as_run(own), []
                    for name in fused:
                        if name not in spaces:
                            spaces[name] = torch.empty_like(self._into(name, fused=True))
                        found.append(row_norms(gradients[name].of(run, scale, spaces[name])))
                    square += float(torch.cat(found).to(torch.float64).square().sum())
                if not math.isfinite(square):
                    gradients = self._put_aside(gradients, unit, own, scale)
                    self._settle(unit)
                    factors.append(0.0)
                    continue
                factors.append(self._factor(unit, square))
                for name in fused:
                    self._into(name).add_(spaces[name], alpha=factors[-1])
            weights.put(units.rows, factors, scale, fused)
        spaces.clear()
        for name in list(gradients):  # what was captured goes as the sum comes
            gradients.pop(name).add_weighted(weights.of(name), self._into(name))
        self._closed.update(rows)

    def _put_aside(
        self, gradients: dict[str, Gradient], unit: int, own: Tensor, scale: Tensor | None
    ) -> dict[str, Gradient]:
        """Add records to the gradient of a unit that is kept aside until it is complete.

        Records that are not finite are left out; the gradients come back, and if there were such
        records, they come back without this unit.
        """
        fresh = _of(gradients, own, scale)
        if not math.isfinite(_norm_square(fresh)):
            bad = torch.zeros(len(_like(gradients)), dtype=torch.bool, device=own.device)
            squares, _ = _squares(gradients, Units(own.unsqueeze(1)), scale)
            bad[own] = ~torch.isfinite(squares)
            self._not_finite += int(bad.sum())
            fresh = _of(_without(gradients, bad), own, scale)
            bad[own] = True
            gradients = _without(gradients, bad)
        _add_to(self._pending.setdefault(unit, {}), fresh)
        return gradients

    def _settle(self, unit: int) -> None:
        """Clip a unit that was kept aside and add it."""
        total = self._pending.pop(unit)
        square = _norm_square(total)
        self._closed.add(unit)
        if not math.isfinite(square):  # finite records whose sum is not: nothing of it can be used
            self._not_finite += 1
            return
        factor = self._factor(unit, square)
        for name, tensor in total.items():
            self._into(name).add_(tensor, alpha=factor)

    def _into(self, name: str, *, fused: bool = False) -> Tensor:
        """The sum of one parameter; made when it is first needed, past the peak of memory.

        Which of its sides is laid out first, `_turned` says.
        """
        if name not in self._total:
            like = self._parameters[name].data
            turned = like.dim() == 2 and _turned(*like.shape, fused=fused)
            self._total[name] = (
                like.new_zeros(like.shape[::-1]).t() if turned else like.new_zeros(like.shape)
            )
        return self._total[name]

    def _factor(self, unit: int, square: float) -> float:
        factor = min(1.0, self._clip_norm / math.sqrt(square)) if square > 0 else 1.0
        self._clipped += factor < 1
        return factor if self._weights is None else factor * float(self._weights[unit])


class _NamedStep(_Step):
    """A sum of users who show names: each user has an account for the base and one for each name.

    What is not finite counts as zero: a record of the base, or all that a name changes.
    """

    def __init__(
        self,
        parameters: dict[str, Tensor],
        clip_norm: float,
        record_clip: float | None,
        weights: Tensor | None,
        weight_cap: float,
        units: int | None,
        name_clip: float,
    ) -> None:
        super().__init__(parameters, clip_norm, record_clip, weights, weight_cap, units)
        self._name_clip = name_clip
        self._changes: dict[int, dict[int, dict[str, Tensor]]] = {}
        self._clipped_changes: dict[int, dict[str, Tensor]] = {}
        self._void: set[tuple[int, int]] = set()

    @torch.no_grad()
    def add_accounts(
        self, parts: Parts, values: Tensor, accounts: list[Account], goes_on: set[int]
    ) -> None:
        """Add a batch; users in `goes_on` are clipped later."""
        gradients = _join(self._parameters, parts)
        parts.clear()
        bad = ~torch.isfinite(values)
        if bool(bad.any()):
            gradients = _without(gradients, bad)
            self._not_finite += int(bad.sum())
        names = [account for account in accounts if account.name != BASE]
        self._add_whole_changes(gradients, [one for one in names if one.whole], bad)
        for account in names:
            if not account.whole:
                self._add_change(gradients, account, bad)
        here: set[int] = set()
        for account in accounts:
            if account.unit in self._closed:
                raise UsageError(f"Unit {account.unit} comes back after it was clipped.")
            here.add(account.unit)
            if account.name == BASE:
                gradients = self._put_aside(gradients, account.unit, account.rows, None)
        for unit in sorted(here - goes_on):
            self._settle(unit)

    def _add_whole_changes(
        self, gradients: dict[str, Gradient], accounts: list[Account], bad: Tensor
    ) -> None:
        """What names change whose records are all here: norms first, then one sum for each user.

        Their gradients are never written out one by one; a norm that is not finite leaves its
        name out.
        """
        accounts = [one for one in accounts if not bool(bad[one.rows].any())]
        if not accounts:
            return
        signs = _like(gradients).new_zeros(len(bad))
        for one in accounts:
            signs[one.rows] = one.signs.to(signs)
        weights, rows_of = torch.zeros_like(signs), dict[int, list[Tensor]]()
        rows = {number: one.rows.to(signs.device) for number, one in enumerate(accounts)}
        for units, members in _by_size(rows, len(bad)):
            squares, _ = _squares(gradients, units, signs)
            for number, square in zip(members, squares.tolist(), strict=True):
                if not math.isfinite(square):
                    continue
                factor = min(1.0, self._name_clip / math.sqrt(square)) if square > 0 else 1.0
                weights.index_add_(0, rows[number], factor * signs[rows[number]])
                rows_of.setdefault(accounts[number].unit, []).append(rows[number])
        for unit, parts in rows_of.items():
            fresh = _of(gradients, torch.cat(parts).unique(), weights)
            _add_to(self._clipped_changes.setdefault(unit, {}), fresh)

    def _add_change(self, gradients: dict[str, Gradient], account: Account, bad: Tensor) -> None:
        place = account.unit, account.name
        scale = _like(gradients).new_zeros(len(bad))
        scale[account.rows] = account.signs.to(scale)
        fresh = _of(gradients, account.rows, scale)
        if bool(bad[account.rows].any()) or not math.isfinite(_norm_square(fresh)):
            self._void.add(place)
            return
        changes = self._changes.setdefault(account.unit, {})
        _add_to(changes.setdefault(account.name, {}), fresh)

    def _settle(self, unit: int) -> None:
        """Base, clipped; what each shown name changes, clipped; then the user's vector."""
        total = self._pending.pop(unit, None)
        if total is None:
            total = {name: torch.zeros_like(p.data) for name, p in self._parameters.items()}
        square = _norm_square(total)
        if not math.isfinite(square):
            self._not_finite += 1
            total, square = {name: torch.zeros_like(t) for name, t in total.items()}, 0.0
        _shorten(total, self._clip_norm, square)
        for name, change in self._changes.pop(unit, {}).items():
            square = _norm_square(change)
            if (unit, name) in self._void or not math.isfinite(square):
                continue
            _shorten(change, self._name_clip, square)
            _add_to(total, change)
        _add_to(total, self._clipped_changes.pop(unit, {}))
        self._pending[unit] = total
        super()._settle(unit)


def _add_to(total: dict[str, Tensor], more: dict[str, Tensor]) -> None:
    """Add in place; what is not there yet is taken as it is."""
    for name, tensor in more.items():
        if name in total:
            total[name].add_(tensor)
        else:
            total[name] = tensor


def _shorten(tensors: dict[str, Tensor], most: float, square: float) -> None:
    """Clip in place, given the squared norm: no longer than `most`."""
    if square > most * most:
        for tensor in tensors.values():
            tensor.mul_(most / math.sqrt(square))


def _turned(rows: int, columns: int, *, fused: bool) -> bool:
    """Whether a sum is faster to add to when its columns, not its rows, follow each other.

    One that grows user by user has its longer side first: threads divide the first side of a
    product, and these products are small. In a large one, what follows each other should be a
    multiple of eight, or every line but the first begins askew (the AWD-LSTM's width is 1150);
    but columns of a multiple of 1024 would meet in the same places of the cache.
    """
    if fused:
        return columns > rows
    return columns % 8 != 0 and rows % 8 == 0 and rows % 1024 != 0


def require_positive(name: str, value: float) -> None:
    """A norm, or a weight, that something can be scaled to."""
    if not value > 0:
        raise UsageError(f"{name}={value} is not a norm; give a number above 0.")


def _like(gradients: dict[str, Gradient]) -> Tensor:
    """What one of them was captured as: as long as the batch has records."""
    return next(iter(gradients.values())).like


def _without(gradients: dict[str, Gradient], records: Tensor) -> dict[str, Gradient]:
    return {name: gradient.without(records) for name, gradient in gradients.items()}


def _of(gradients: dict[str, Gradient], own: Tensor, scale: Tensor | None) -> dict[str, Tensor]:
    run = as_run(own)
    return {name: g.of(run, scale, g.like.new_empty(g.shape)) for name, g in gradients.items()}


def _norm_square(tensors: dict[str, Tensor]) -> float:
    return sum(float(sum_of_squares(tensor)) for tensor in tensors.values())


def _squares(
    gradients: dict[str, Gradient], units: Units, scale: Tensor | None, *, keep: bool = False
) -> tuple[Tensor, Tensor]:
    """The squared norm of each unit's gradient, never too small, and whose tokens cancel.

    Inner products of tokens that cancel leave little but rounding. What rounding may have taken
    away is added back, and where it might be more than a trace, the gradient is written out.
    """
    found = Squares.zeros(units)
    grams: Grams = {}
    for gradient in gradients.values():
        found.add(gradient.squares(units, scale, grams, keep=keep))
    if not gradients:
        return found.total, torch.zeros_like(found.total, dtype=torch.bool)
    rounding = torch.finfo(_like(gradients).dtype).eps
    cancelled = found.ghosts * rounding > _CANCELLED * found.total
    for unit in cancelled.nonzero().view(-1).tolist():
        found.total[unit] = _norm_square(_of(gradients, units.rows[unit], scale))
        found.terms[unit] = found.ghosts[unit] = 0
    norm = found.total.clamp(min=0).sqrt() + rounding * (found.terms + found.ghosts).sqrt()
    return norm.square(), cancelled


def _by_size(rows: dict[int, Tensor], records: int) -> list[tuple[Units, list[int]]]:
    """Units with the same number of records together."""
    sizes: dict[int, list[int]] = {}
    for unit, own in rows.items():
        sizes.setdefault(len(own), []).append(unit)
    groups: list[tuple[Units, list[int]]] = []
    for members in sizes.values():
        table = torch.stack([rows[unit] for unit in members])
        flat = table.view(-1)
        order = torch.arange(records, device=flat.device)
        whole = len(flat) == records and bool((flat == order).all())
        groups.append((Units(table, everything=whole), members))
    return groups


class _Weights:
    """By what each record is multiplied in the final sum; zero where it was added already."""

    def __init__(self, gradients: dict[str, Gradient]) -> None:
        like = _like(gradients)
        self._all = like.new_zeros(len(like))
        self._added: dict[str, list[Tensor]] = {}

    def put(
        self, rows: Tensor, factors: list[float], scale: Tensor | None, fused: list[str]
    ) -> None:
        """Units of the same size; `fused` names what they are already part of."""
        like = self._all
        values = torch.tensor(factors, dtype=like.dtype).to(like.device).unsqueeze(1)
        self._all[rows] = values.expand(rows.shape) if scale is None else values * scale[rows]
        for name in fused:
            self._added.setdefault(name, []).append(rows.view(-1))

    def of(self, name: str) -> Tensor:
        """The weights for one parameter."""
        if name not in self._added:
            return self._all
        own = self._all.clone()
        own[torch.cat(self._added[name])] = 0
        return own
