"""Selective training of an LSTM: plain tokens as they are, sensitive ones with clipping and noise.

Source: Shi et al. 2022, Algorithm 1 (Selective-DPSGD).
Guarantee: for neighbours that replace the sensitive tokens of one record, with the same marks and
the same plain tokens; see docs/explanations/guarantees.md, section 7.

Departs: batches are drawn by coins, and the sum over sensitive segments is divided by the number
of them that is expected, which is the same in every step (the listing divides by how many came).
A record has at most so many sensitive segments, which is what its price depends on; the listing
has no such cap. The norm of states may be set apart from that of gradients, and plain updates may
be scaled down to a norm.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from tacit.errors import UsageError
from tacit.planning.plan import Plan, require_sample
from tacit.privacy.accounting.claims import PublishedPrice
from tacit.privacy.events import Selective, part_of
from tacit.privacy.ledger import Releases
from tacit.replication.published import selective_claim
from tacit.training.data.training_data import TrainingData, batches
from tacit.training.dp import dropout
from tacit.training.dp.gradients import BoundedSum, ClippedSums
from tacit.training.dp.noise import release
from tacit.training.dp.random_source import RandomSource
from tacit.training.dp.sampling import PoissonRecords, require_match
from tacit.training.methods.independence import Totals, UnitCheck
from tacit.training.methods.method import MethodInputs, MethodSpec, SequentialMethod, StepStats
from tacit.training.methods.noisy_sums import LossMeter, finite_losses
from tacit.training.methods.segments import Rounds, rounds_of
from tacit.training.methods.states import clipped_rows, states_after
from tacit.training.models.devices import placed
from tacit.training.models.recurrent import LSTMForCausalLM, State
from tacit.training.settings import MethodSettings, Run
from tacit.training.tasks.examples import IGNORED, Examples, require_sensitive
from tacit.training.tasks.measuring import mean_of_row, token_losses

Gradient = dict[str, Tensor]


class SelectiveStep:
    """Several updates a step: for each round a plain one, then a private one."""

    def __init__(self, inputs: MethodInputs, settings: "SelectiveSettings") -> None:
        plan, training_data = inputs.need_plan(), inputs.training_data
        self._model = require_lstm(inputs.model, plan)
        self._training_data, self._randomness = training_data, inputs.randomness
        self._ledger, self._token_budget = inputs.need_ledger(), inputs.run.token_budget
        self._clip, self._state_clip = plan.clip_norm, settings.state_clip or plan.clip_norm
        self._plain_norm = settings.plain_norm
        event = plan.event()
        assert isinstance(event, Selective)
        self._event = event
        self._sampler = PoissonRecords(len(training_data.rows), event.rate)
        require_match(self._sampler, event)
        require_sample("records", event.rate, len(training_data.rows))
        examples = training_data.examples
        assert isinstance(examples, Examples)
        self._examples = examples
        self._rounds = _rounds(examples, training_data.rows, plan)
        counts = [int((r[:, 1] < r[:, 2]).sum()) for r in self._rounds]
        require_sensitive(any(counts))
        self._expected = [
            max(1.0, event.rate * sum(count > number for count in counts))
            for number in range(event.segments)
        ]
        self._sums, self._meter = ClippedSums(self._model), LossMeter(self._model, _losses)
        self._plain_meter = LossMeter(self._model, _packed_losses)
        self._check = selective_check(inputs)

    def gradients(self, step: int) -> Iterator[tuple[Gradient, StepStats]]:
        """The updates of a step, one by one; each is to be carried out before the next is asked.

        Every step has a first private update, also where nobody came: see docs/explanations,
        guarantees, section 7.
        """
        self._check.due(step)
        drawn = self._sampler.draw(self._randomness.stream("coins", step))
        records = _readings(self._examples, self._training_data.rows[drawn], self._rounds, drawn)
        state = _Carried(self._model, len(records))
        seed = self._randomness.torch_seed("dropout", step)
        tally = _Tally(len(records))
        part = 0
        for number in range(max([1, *(len(r.rounds) for r in records)])):
            plain = _Cut.of(records, number, state, sensitive=False)
            if len(plain):
                with dropout.step(seed):
                    gradient = self._plain(plain, tally)
                state.put(plain, plain.after(self._model))
                yield gradient, tally.stats(self._plain_meter)
            private = _Cut.of(records, number, state, sensitive=True)
            if len(private) or number == 0:
                with dropout.step(seed):
                    gradient = self._private(private, number, step, part, tally)
                part += 1
                self._pass_on(private, number, step, part, state)
                part += self._event.states
                yield gradient, tally.stats(self._meter)

    def _plain(self, cut: "_Cut", tally: "_Tally") -> Gradient:
        """The mean gradient over plain segments, scaled down where it is too long.

        It is made of plain tokens and of states that were released: scaling it costs nothing.
        """
        self._model.zero_grad(set_to_none=True)
        for rows in cut.within(self._token_budget):
            values, bad = finite_losses(self._plain_meter, cut.batch(rows))
            tally.not_finite += bad
            if len(values):
                (values.sum() / len(cut)).backward()
        named = self._model.named_parameters()
        gradient = {name: p.grad.detach() for name, p in named if p.grad is not None}
        if self._plain_norm is not None:
            clip_grad_norm_(self._model.parameters(), self._plain_norm)
        self._model.zero_grad(set_to_none=True)
        return gradient

    def _private(self, cut: "_Cut", number: int, step: int, part: int, tally: "_Tally") -> Gradient:
        """The noisy sum over sensitive segments, clipped record by record."""
        total = self._sums.records(
            self._meter,
            batches(cut, cut.units, self._token_budget, together=max(1, len(cut))),
            clip_norm=self._clip,
            units=len(cut),
        )
        tally.clipped = max(tally.clipped, total.clipped)  # a record has a segment in each round
        tally.not_finite += total.not_finite
        noisy = self._release(total, number, 0, step, part)
        for tensor in noisy.values():
            tensor.div_(self._expected[number])
        return noisy

    def _pass_on(self, cut: "_Cut", number: int, step: int, part: int, state: "_Carried") -> None:
        """Clipped and noised states after sensitive segments, for the records that go on."""
        goes_on = cut.going_on(number)
        if not len(goes_on):
            return
        noisy: list[Tensor] = []
        after = goes_on.after(self._model)
        for at, rows in enumerate(one[0] for layer in after for one in layer):
            bounded = clipped_rows(rows, self._state_clip)
            noisy.append(self._release(bounded, number, at + 1, step, part + at)["state"])
        pairs = zip(noisy[::2], noisy[1::2], strict=True)
        state.put(goes_on, tuple((h.unsqueeze(0), c.unsqueeze(0)) for h, c in pairs))

    def _release(
        self, total: Any, number: int, which: int, step: int, part: int
    ) -> dict[str, Tensor]:
        event = part_of(self._event, number + 1, which)
        return release(
            total, event, self._ledger, self._randomness, phase="train", step=step, part=part
        )


def selective_check(inputs: MethodInputs) -> UnitCheck:
    """Whether first sensitive segments give in a sum what each gives alone."""
    plan, training_data = inputs.need_plan(), inputs.training_data
    token_budget = inputs.run.token_budget
    lstm, examples = require_lstm(inputs.model, plan), training_data.examples
    assert isinstance(examples, Examples)

    def totals(some: TrainingData, _: RandomSource) -> Totals:
        sums, meter = ClippedSums(lstm), LossMeter(lstm, _losses)
        rounds = _rounds(examples, some.rows, plan)

        def total(_: int, drawn: NDArray[np.int64]) -> BoundedSum:
            records = _readings(examples, some.rows[drawn], rounds, drawn)
            cut = _Cut.of(records, 0, _Carried(lstm, len(records)), sensitive=True)
            parts = batches(cut, cut.units, token_budget, together=max(1, len(cut)))
            return sums.records(meter, parts, clip_norm=plan.clip_norm, units=len(cut))

        return total

    begins = [len(r) and r[0, 1] < r[0, 2] for r in _rounds(examples, training_data.rows, plan)]
    return UnitCheck(
        lstm,
        training_data,
        totals,
        losses=None,
        of_records=True,
        rows=training_data.rows[np.asarray(begins, dtype=bool)],
        token_budget=token_budget,
    )


def require_lstm(model: nn.Module, plan: Plan) -> LSTMForCausalLM:
    """The model, if it is one whose states are all known and all priced."""
    if not isinstance(model, LSTMForCausalLM):
        raise UsageError(
            "method=selective is for LSTMs that predict the next token; give model.kind=lstm, or "
            "method=dp-sgd."
        )
    states = 2 * len(model.body.layers)
    if plan.states != states:
        raise UsageError(
            f"states={plan.states}, but {len(model.body.layers)} layer(s) pass on {states} states "
            f"(hidden and cell); give plan.states={states}."
        )
    return model


def _rounds(examples: Examples, rows: NDArray[np.int64], plan: Plan) -> list[Rounds]:
    return [rounds_of(_marks(examples, row), plan.segments) for row in rows]


def _readings(
    examples: Examples, rows: NDArray[np.int64], rounds: list[Rounds], at: NDArray[np.int64]
) -> list["_Reading"]:
    """The drawn records; `at` is where their rounds stand."""
    return [
        _Reading(int(row), examples.ids[row], rounds[place])
        for row, place in zip(rows, at, strict=True)
    ]


def _marks(examples: Examples, row: int) -> NDArray[np.bool_]:
    if examples.sensitive is None:
        return np.zeros(len(examples.ids[row]), dtype=bool)
    return examples.sensitive[row]


def _losses(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The mean over a segment's positions of their loss, from the state it begins with."""
    assert isinstance(model, LSTMForCausalLM)
    batch = placed(model, batch)
    targets = batch["labels"]
    logits = model(batch["input_ids"], state=_state_of(model, batch)).logits
    return mean_of_row(token_losses(logits, targets), targets >= 0)


def _packed_losses(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The same, where nobody asks for gradients record by record: the head reads no padding.

    Segments differ much in length, and the head is most of a step; so one pass is enough.
    """
    assert isinstance(model, LSTMForCausalLM)
    batch = placed(model, batch)
    targets = batch["labels"]
    known = targets >= 0
    outputs, _ = model.body(batch["input_ids"], _state_of(model, batch))
    lost = token_losses(model.head(outputs[known]), targets[known])
    return mean_of_row(lost.new_zeros(targets.shape).masked_scatter(known, lost), known)


def _state_of(model: LSTMForCausalLM, batch: dict[str, Tensor]) -> State:
    layers = range(len(model.body.layers))
    return tuple(
        (batch[f"hidden {n}"].unsqueeze(0), batch[f"cell {n}"].unsqueeze(0)) for n in layers
    )


@dataclass(frozen=True, eq=False)
class _Reading:
    """A drawn record: its number, its tokens, and its rounds."""

    number: int
    ids: NDArray[np.int32]
    rounds: Rounds


class _Carried:
    """The state of every drawn record, between segments; zero at first."""

    def __init__(self, model: LSTMForCausalLM, records: int) -> None:
        like = next(model.parameters()).detach()
        sizes = model.config.sizes
        self._layers = [(like.new_zeros(records, n), like.new_zeros(records, n)) for n in sizes]

    def of(self, rows: Tensor) -> State:
        """The states of some records."""
        return tuple((h[rows].unsqueeze(0), c[rows].unsqueeze(0)) for h, c in self._layers)

    def put(self, cut: "_Cut", after: State) -> None:
        """What the records of a cut go on with; nothing of how it came about goes with it."""
        for (h, c), (new_h, new_c) in zip(self._layers, after, strict=True):
            h[cut.rows] = new_h[0].detach()
            c[cut.rows] = new_c[0].detach()


@dataclass(frozen=True, eq=False)
class _Cut:
    """The plain, or the sensitive, segments of one round, with the states they begin with."""

    records: list[_Reading]
    rows: Tensor
    places: NDArray[np.int64]
    lengths: NDArray[np.int64]
    state: State

    @classmethod
    def of(
        cls, records: list[_Reading], number: int, carried: _Carried, *, sensitive: bool
    ) -> "_Cut":
        first = 1 if sensitive else 0
        own = [
            (row, record.rounds[number, first], record.rounds[number, first + 1])
            for row, record in enumerate(records)
            if number < len(record.rounds)
            and record.rounds[number, first] < record.rounds[number, first + 1]
        ]
        table = np.asarray(own, dtype=np.int64).reshape(-1, 3)
        rows = torch.from_numpy(table[:, 0].copy())
        return cls(records, rows, table[:, 1], table[:, 2] - table[:, 1], carried.of(rows))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def units(self) -> list[NDArray[np.int64]]:
        """Each record by itself."""
        return [np.asarray([at]) for at in range(len(self))]

    def within(self, token_budget: int) -> Iterator[NDArray[np.int64]]:
        """All segments, in as few parts as have room for their longest one's width."""
        order = np.argsort(self.lengths, kind="stable")
        each = max(1, token_budget // max(1, int(self.lengths.max())))
        for start in range(0, len(order), each):
            yield order[start : start + each]

    def batch(self, rows: NDArray[Any]) -> dict[str, Tensor]:
        """Some of the segments as tensors, padded on the right."""
        width = int(self.lengths[rows].max())
        ids = np.zeros((len(rows), width), dtype=np.int64)
        targets = np.full((len(rows), width), IGNORED, dtype=np.int64)
        for line, at in enumerate(rows):
            start, length = self.places[at], self.lengths[at]
            own = self.records[int(self.rows[at])].ids[start : start + length + 1]
            ids[line, :length], targets[line, :length] = own[:-1], own[1:]
        made = {"input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(targets)}
        # The masks of a record are kept over all its segments.
        numbers = [self.records[int(self.rows[at])].number for at in rows]
        made[dropout.RECORD] = torch.tensor(numbers, dtype=torch.int64)
        for number, (h, c) in enumerate(self.state):
            made |= {f"hidden {number}": h[0][rows], f"cell {number}": c[0][rows]}
        return made

    def after(self, model: LSTMForCausalLM) -> State:
        """The states with which the segments end."""
        batch = placed(model, self.batch(np.arange(len(self))))
        lengths = torch.from_numpy(self.lengths)
        return states_after(model.body, batch["input_ids"], lengths, self.state)

    def going_on(self, number: int) -> "_Cut":
        """Those whose record has a further round."""
        kept = np.asarray(
            [len(self.records[int(row)].rounds) > number + 1 for row in self.rows], dtype=bool
        )
        chosen = torch.from_numpy(np.flatnonzero(kept))
        state = tuple((h[:, chosen], c[:, chosen]) for h, c in self.state)
        return _Cut(self.records, self.rows[chosen], self.places[kept], self.lengths[kept], state)


@dataclass
class _Tally:
    """What the updates of a step saw so far; clipped is that of the round with most."""

    units: int
    clipped: int = 0
    not_finite: int = 0
    updates: int = 0
    losses: float = 0.0

    def stats(self, meter: LossMeter) -> StepStats:
        """As the line that is shown has it; the loss is the mean over updates."""
        self.updates += 1
        self.losses += meter.since()[0]
        loss = self.losses / self.updates
        return StepStats(self.units, self.clipped, self.not_finite, loss, records=self.units)


class SelectiveSettings(MethodSettings):
    """What selective training has beside its plan."""

    state_clip: Annotated[
        float | None,
        Field(
            gt=0, description="Norm of a hidden or cell state; the plan's clip_norm if not given."
        ),
    ] = None
    plain_norm: Annotated[
        float | None,
        Field(
            gt=0,
            description="Norm to which a plain update is scaled down, so that training stays "
            "stable; no part of the promise. Not scaled if not given.",
        ),
    ] = None


class SelectiveDp(MethodSpec[SelectiveSettings]):
    """Selective DP (S-DPSGD): only the tokens that a policy marks are protected."""

    name = "selective"
    title = "Selective: only words that a rule marks are protected"
    summary = (
        "Selective DP: plain tokens as they are, sensitive ones clipped and noised; the plan "
        "protects the tokens that a policy marks (LSTM)"
    )
    standing = "proved"
    protects = ("tokens",)
    plan_fields = {"protect": "tokens", "mechanism": "selective"}  # noqa: RUF012
    settings = SelectiveSettings
    tasks = ("next-word",)

    def problems(self, run: Run, plan: Plan | None) -> Iterator[str]:
        """Sensitive tokens must be known, and so must all states."""
        yield from run.policy_problems()
        if run.model.lora_rank or run.model.kind not in ("lstm", "awd-lstm", "folder"):
            yield (
                f"method=selective is for LSTMs, whose states are known; model.kind="
                f"{run.model.kind} with a lora_rank of {run.model.lora_rank} is not one. Give "
                "model.kind=lstm."
            )

    def require_model(self, model: nn.Module) -> None:
        """Every trainable layer needs a rule for its per-record gradients."""
        ClippedSums(model)

    def step(self, inputs: MethodInputs) -> SequentialMethod:
        """Rounds of plain and private updates."""
        return SelectiveStep(inputs, self.options(inputs.run))

    def unit_check(self, inputs: MethodInputs) -> UnitCheck:
        """First sensitive segments, alone and among others."""
        return selective_check(inputs)

    def claim(self, inputs: MethodInputs, releases: Releases) -> PublishedPrice | None:
        """The paper's figure."""
        return selective_claim(releases, inputs.need_plan().delta)

    def facts(self, run: Run) -> dict[str, Any]:
        """The norm of states, where it is apart from that of gradients."""
        own = self.options(run).state_clip
        return {} if own is None else {"norm of states": own}


SELECTIVE = SelectiveDp()
