"""An audit of a run in its own place: its model, text, method, sampler, optimizer and noise.

A copy of the run is trained again, in a folder and with a ledger that nobody keeps, and
hypothetical users and entities (records, tokens) take part in it. They have numbers after those of
the real ones, so the run's own sampler draws them; the sums of its method clip them, on a linear
model; and what they add goes along directions of their own among the run's own weights, before its
own noise. Each is in or out by a fair coin. The adversary sees every noisy sum, knows what
everybody else added, and scores each canary by the log-likelihood ratio of all steps under what is
declared. All of them are guessed at in the one training: Steinke, Nasr and Jagielski 2023, whose
bound assumes nothing but the coins.

Training knows nothing of it: what is heard comes through what a method lets others do with its sum
(`NoisySums.spread`), and from what leaves a step. What no lower bound shows is looked at directly
while the copy trains; see `direct_checks`.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.attacks.attack import Progress
from tacit.audits.auditing import (
    Auditing,
    Totals,
    sums_of,
    totals_of,
)
from tacit.audits.canary_guesses import Reach, declared, evidence_of, log_ratio, reach_of
from tacit.audits.direct_checks import (
    Noise,
    Parts,
    PoissonDraws,
    Replayed,
    caps_checks,
    ledger_checks,
)
from tacit.audits.epsilon_bounds import Check, Evidence
from tacit.audits.worst_cases import (
    TENSORS,
    Build,
    Canaries,
    Directions,
    Draw,
    canary_data,
    design,
    losses,
)
from tacit.errors import OverBudget, PrivacyRefused, UsageError
from tacit.privacy.events import AnyEvent, Unit, UserClip, part_of
from tacit.privacy.ledger import Ledger, LedgerContents, read_ledger
from tacit.training.data.training_data import TrainingData, prepare
from tacit.training.dp.gradients import BoundedSum, joined
from tacit.training.dp.random_source import RandomSource
from tacit.training.dp.sampling import Drawn, PoissonRecords, UserEntityDraw
from tacit.training.methods.method import (
    Method,
    MethodInputs,
    SequentialMethod,
    StepStats,
)
from tacit.training.methods.noisy_sums import NoisySums
from tacit.training.methods.selective import SELECTIVE, SelectiveStep
from tacit.training.methods.uedp import UEDP, Weights, require_entities
from tacit.training.models.optimizers import make_optimizer
from tacit.training.models.weights import summed
from tacit.training.phases.checkpoints import load_weights
from tacit.training.phases.loop import Loop
from tacit.training.phases.public_start import NAME as PUBLIC_START
from tacit.training.phases.redacted_start import NAME as REDACTED_START
from tacit.training.phases.redacted_start import redacted_beside
from tacit.training.phases.run_context import RunContext, encode, names_to_show, open_run

_MOST_ROWS = 1 << 17
"""Records of hypothetical users, of all canaries of a unit together."""
_PROBED = 6
"""Real units whose parts are looked at one by one."""
_HOW = (
    "in situ: a copy of the run trained once more, with hypothetical units that fill its bounds, "
    "in or out by fair coins"
)


@dataclass(frozen=True)
class Found:
    """What an audit in situ found: a bound for each unit that has canaries, and its checks."""

    evidence: dict[Unit, Evidence]
    checks: tuple[Check, ...]


def audit_in_situ(
    auditing: Auditing, units: Mapping[Unit, float], folder: Path, copying: "type[Copy]"
) -> Found:
    """Train a copy of a run with hypothetical units, and look at all that it does.

    `units` are those to be audited, with what is certified for each. Methods whose canaries cannot
    share a training (`selective`, `uedp`) are only checked: what they release would show who takes
    part, or their noise depends on how many users there are.
    """
    run = auditing.run
    ctx = open_run(run)
    # As it was before its private steps: after its phases on public or masked text.
    for name in (REDACTED_START, PUBLIC_START):
        if (folder / name).exists() and load_weights(ctx.model, folder / name):
            break
    examples = encode(ctx, ctx.part)
    data = prepare(examples, ctx.part, ctx.mentions, auditing.plan, ctx.protected)
    shown, redacted = names_to_show(ctx, auditing.plan), redacted_beside(ctx, examples)
    data = replace(data, names=shown, redacted=redacted)
    with tempfile.TemporaryDirectory() as place:
        # Its first line tells it from the ledger of any run.
        about = {"audit": "a copy of a run, trained to be audited", "config": run.digest()}
        with Ledger(Path(place) / "ledger.jsonl", about) as ledger:
            copy = copying(auditing, ctx, data, ledger)
            copy.invite(units)
            with auditing.watch("Auditing in situ", auditing.total) as advance:
                refused = copy.train(advance)
        books = read_ledger(Path(place) / "ledger.jsonl")
    checks = copy.checks(books, read_ledger(folder / "ledger.jsonl"))
    if refused is not None:
        checks.insert(0, Check("training refuses nothing of what the run does", False, refused))
    return Found(copy.evidence(), tuple(checks))


class Copy:
    """A training under way: the noise, the sampling, the entries and the updates of every step."""

    def __init__(
        self, auditing: Auditing, ctx: RunContext, training_data: TrainingData, ledger: Ledger
    ) -> None:
        self.auditing, self.ctx, self.ledger = auditing, ctx, ledger
        self.training_data, self.rng, self.done = training_data, auditing.rng, 0
        self.noise, self.draws = Noise(), list[PoissonDraws]()
        self.executed: list[AnyEvent] = []
        self.updates: int | None = 0
        self.replayed = Replayed(ctx.model, ctx.run.optimizer, ctx.run.total_steps)
        self._parts: Parts | None = None
        self.advance: Progress = lambda _: None

    def invite(self, units: Mapping[Unit, float]) -> None:
        """Make the canaries of every unit, where they can share the training."""

    def evidence(self) -> dict[Unit, Evidence]:
        """A bound for every unit that has canaries."""
        return {}

    def inputs(self, training_data: TrainingData) -> MethodInputs:
        """What the run's own method works on."""
        ctx = self.ctx
        return MethodInputs(
            ctx.run, ctx.model, ctx.run.spec.losses(ctx.task), training_data, ctx.randomness,
            self.auditing.plan, self.ledger, ctx.attribute,
        )  # fmt: skip

    def listening(self) -> Method | SequentialMethod:
        """The run's own method, overheard."""
        raise NotImplementedError

    def train(self, advance: Progress) -> str | None:
        """Take the steps; why the training itself refused them, if it did."""
        run, model, self.advance = self.ctx.run, self.ctx.model, advance
        optimizer = make_optimizer(model, run.optimizer)
        optimizer.register_step_post_hook(self._updated)
        loop = Loop(
            model, self.listening(), optimizer, run.optimizer, run.total_steps,
            self.ctx.randomness, ledger=self.ledger,
        )  # fmt: skip
        try:
            loop.run()
        except PrivacyRefused as refusal:
            return str(refusal)
        return None

    def checks(self, books: LedgerContents, own: LedgerContents | None) -> list[Check]:
        """Everything that was looked at directly; `books` are the copy's, `own` the run's."""
        found = self.noise.checks()
        for draws in self.draws:
            found += draws.checks()
        if self.auditing.plan is not None:
            found += caps_checks(self.training_data, self.auditing.plan)
        found += ledger_checks(books, self.executed, self.updates, own)
        if self.replayed.steps:
            found.append(self.replayed.check(self.ctx.model))
        return found + (self._parts.checks() if self._parts is not None else [])

    def begins(self, step: int) -> None:
        """End the training as the loop ends one whose budget is spent.

        The loop has all steps of the run, because learning rates go by them.
        """
        if step > self.auditing.total:
            raise OverBudget(f"{self.auditing.total:,} steps are enough for this audit.")

    def ends(self, step: int) -> None:
        """One more step was taken."""
        self.done = step
        self.advance(1)

    def released(self, step: int, released: Mapping[str, Tensor]) -> None:
        """What leaves a step."""

    def look_at_parts(
        self, step: int, total: Totals, drawn: Callable[[Drawn], Any], people: int, norm: float
    ) -> None:
        """Some real units alone, and in the company of the others; at the start and at the end."""
        if step not in (1, self.auditing.total):
            return
        self._parts = self._parts or Parts(norm)
        company = np.sort(self.rng.choice(people, size=min(people, _PROBED), replace=False))
        together = total(step, drawn(company))
        for unit in range(len(company)):
            alone = total(step, drawn(company[unit : unit + 1]))
            others = total(step, drawn(np.delete(company, unit)))
            self._parts.measure(alone, together, others)

    def _updated(self, *_: object) -> None:
        if self.updates is not None:
            self.updates += 1


class Heard:
    """A method whose releases are heard, until so many steps are taken."""

    def __init__(self, method: NoisySums[Any], copy: Copy) -> None:
        self._method, self._copy = method, copy

    def gradient(self, step: int) -> tuple[dict[str, Tensor], StepStats]:
        """What the run's own method releases, and makes of it."""
        self._copy.begins(step)
        released, stats = self._method.noisy(step)
        self._copy.replayed.noise_std = stats.noise_std
        self._copy.released(step, released)
        made, stats = self._method.direction(step, released, stats)
        self._copy.replayed.update(made, step)
        self._copy.ends(step)
        return made, stats


class CopyOfUedp(Copy):
    """The published algorithm."""

    def listening(self) -> Method:
        """The run's own method, and the sampling of users, entities and plain records."""
        settings, data = UEDP.options(self.ctx.run), self.training_data
        owners = require_entities(data)
        self.draws = [
            PoissonDraws("users", data.users, settings.user_rate, self.rng),
            PoissonDraws("entities", len(owners.entities), settings.entity_rate, self.rng),
            PoissonDraws("plain records", len(owners), settings.plain_rate, self.rng),
        ]
        inputs = self.inputs(data)
        self._event = UEDP.event(inputs)
        weight = float(Weights.count(data, owners, settings).users.max())
        self._clip_norm = settings.clip_norm / settings.local_learning_rate * weight
        self._all = (np.ones(len(owners.entities), dtype=bool), np.ones(len(owners), dtype=bool))
        self._probe = totals_of(sums_of(inputs))
        method = sums_of(inputs)
        self._scale = method.denominator
        method.spread(self._over)
        return Heard(method, self)

    def _over(self, total: Totals) -> Totals:
        def heard(step: int, drawn: UserEntityDraw) -> BoundedSum:
            came = (drawn.users, np.flatnonzero(drawn.entities), np.flatnonzero(drawn.plain))
            for draws, who in zip(self.draws, came, strict=True):
                draws.note(who)
            self.look_at_parts(
                step, self._probe, lambda units: UserEntityDraw(units, *self._all),
                self.training_data.users, self._clip_norm,
            )  # fmt: skip
            made = total(step, drawn)
            self._before = made.tensors
            return made

        return heard

    def released(self, step: int, released: Mapping[str, Tensor]) -> None:
        """A release of the published algorithm."""
        assert isinstance(self._event, UserClip)
        std = self._event.noise_multiplier * self._clip_norm
        self.executed.append(self._event)
        if std:
            self.noise.hear(self._before, released, std, scale=self._scale)


class CopyOfSelective(Copy):
    """Selective training, whose steps release gradients and states, and plain updates between."""

    def listening(self) -> SequentialMethod:
        """The run's own method, and the sampling of records."""
        run, plan = self.ctx.run, self.auditing.require_plan()
        rate = float(plan.record_rate or 0)
        self.updates = None  # plain updates are made between what is released
        self.draws = [PoissonDraws("records", len(self.training_data.rows), rate, self.rng)]
        return _HeardSelective(self, self.inputs(self.training_data), SELECTIVE.options(run))


class _HeardSelective(SelectiveStep):
    """Selective training as it is, with everything that it releases."""

    def __init__(self, copy: CopyOfSelective, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._copy = copy
        self._sampler = _Drawing(self._sampler, copy.draws[0])

    def gradients(self, step: int) -> Iterator[tuple[dict[str, Tensor], StepStats]]:
        """The updates of a step."""
        self._copy.begins(step)
        yield from super().gradients(step)
        self._copy.ends(step)

    def _release(
        self, total: Any, number: int, which: int, step: int, part: int
    ) -> dict[str, Tensor]:
        released = super()._release(total, number, which, step, part)
        event = part_of(self._event, number + 1, which)
        noise = event.state_noise_multiplier if which else event.noise_multiplier
        self._copy.executed.append(event)
        if noise:
            norm = self._state_clip if which else self._clip
            self._copy.noise.hear(total.tensors, released, noise * norm)
        return released


class _Drawing(PoissonRecords):
    """A sampler whose draws are noted."""

    def __init__(self, sampler: PoissonRecords, draws: PoissonDraws) -> None:
        super().__init__(sampler.records, sampler.rate)
        object.__setattr__(self, "_noted", (sampler, draws))

    def draw(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """Who takes part."""
        sampler, draws = self._noted  # type: ignore[attr-defined]
        drawn = sampler.draw(rng)
        draws.note(drawn)
        return np.asarray(drawn)


@dataclass(frozen=True, eq=False)
class Guests:
    """The canaries of one unit: hypothetical units that the run's sampler draws.

    `first` is the number of the first of them for the sampler, `place` where the directions of
    all of them lie among the coordinates of the audit.
    """

    unit: Unit
    reach: Reach
    draw: Draw
    inside: NDArray[np.bool_]
    examples: Canaries
    total: Totals
    first: int
    units: int
    place: slice

    def among(self, drawn: Drawn) -> Drawn:
        """Those who were drawn, as numbers of this group."""
        here = (drawn >= self.first) & (drawn < self.first + self.units)
        return np.asarray(drawn[here] - self.first)


class Places:
    """Coordinates of a model's trainable weights, drawn at random, no two alike."""

    def __init__(self, like: Mapping[str, Tensor], count: int, rng: np.random.Generator) -> None:
        sizes = {name: tensor.numel() for name, tensor in like.items()}
        chosen = rng.choice(sum(sizes.values()), size=count, replace=False)
        self.count = count
        self._at: dict[str, tuple[Tensor, Tensor]] = {}
        start = 0
        for name, size in sizes.items():
            here = np.flatnonzero((chosen >= start) & (chosen < start + size))
            own = torch.from_numpy(chosen[here] - start)
            self._at[name] = (torch.from_numpy(here), own.to(like[name].device))
            start += size

    def read(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The values that stand there."""
        values = torch.zeros(self.count, dtype=torch.float64)
        for name, (here, own) in self._at.items():
            values[here] = tensors[name].reshape(-1)[own].double().cpu()
        return values

    def add(self, tensors: Mapping[str, Tensor], values: Tensor) -> None:
        """Add values there, in place."""
        for name, (here, own) in self._at.items():
            tensors[name].view(-1).index_add_(0, own, values[here].to(tensors[name]))


class CopyWithGuests(Copy):
    """A copy of a run in which hypothetical units take part."""

    def invite(self, units: Mapping[Unit, float]) -> None:
        """Make the canaries of every unit, and say what they can show."""
        auditing, self.plan = self.auditing, self.auditing.require_plan()
        self._by_user = self.plan.user_rate is not None
        own = self.training_data
        self._people = own.users if self._by_user else len(own.rows)
        # The public denominator stays that of the run.
        counted = {"users": self.plan.users or own.users} if self._by_user else {
            "records": self.plan.records or len(own.rows)
        }  # fmt: skip
        self.plan = self.plan.model_copy(update=counted)
        weights = summed(self.ctx.model)
        room = sum(t.numel() for t in weights.values()) // len(units) // TENSORS * TENSORS
        wanted = auditing.canaries or TENSORS
        if wanted > room:
            raise UsageError(
                f"{wanted:,} canaries for each of {len(units)} unit(s) are more than "
                f"the model has trainable weights for; give --canaries {room} or fewer, or audit "
                "the step: --using white-box."
            )
        self.guests: list[Guests] = []
        for unit, epsilon in units.items():
            build, draw = design(self.plan, unit)
            # As many canaries as there are coordinates, and hands to compute them.
            most = min(auditing.most, _MOST_ROWS // len(list(build(0))), room)
            reach = reach_of(
                declared(draw, auditing.noise, auditing.total), self.plan.delta,
                auditing.confidence, epsilon, canaries=auditing.canaries,
                most=max(TENSORS, most // TENSORS * TENSORS),
            )  # fmt: skip
            auditing.on_progress(f"In situ: {reach.sentence(unit)}")
            self.guests.append(self._made(unit, reach, build, draw))
        self._places = Places(weights, self.guests[-1].place.stop, self.rng)
        self._scores = [np.zeros(len(made.inside)) for made in self.guests]

    def _made(self, unit: Unit, reach: Reach, build: Build, draw: Draw) -> Guests:
        inside = self.rng.random(reach.canaries) < 0.5
        rows = [row for number in range(reach.canaries) for row in build(number)]
        examples = Canaries(rows, reach.canaries, inside)
        data = canary_data(examples, self.plan)
        model, randomness = Directions(examples.width), self.ctx.randomness
        run = self.auditing.of_canaries
        inputs = MethodInputs(run, model, losses, data, randomness, self.plan, self.ledger)
        units = data.users if self._by_user else len(data.rows)
        start = self.guests[-1].place.stop if self.guests else 0
        place = slice(start, start + TENSORS * examples.width)
        first = self._population
        return Guests(
            unit, reach, draw, inside, examples, totals_of(sums_of(inputs)), first, units, place
        )

    @property
    def _population(self) -> int:
        """How many units the sampler draws from: real ones and guests."""
        return self._people + sum(guests.units for guests in self.guests)

    def listening(self) -> Method:
        """The run's own method, whose sampler draws guests, too."""
        data, plan = self._extended(), self.plan
        what, rate = ("users", plan.user_rate) if self._by_user else ("records", plan.record_rate)
        self.draws = [PoissonDraws(what, self._population, float(rate or 0), self.rng)]
        # Random numbers of its own, which are the same whenever it is asked.
        fixed = RandomSource(int(self.rng.integers(2**31)))
        self._probe = totals_of(sums_of(replace(self.inputs(data), randomness=fixed)))
        method = sums_of(self.inputs(data))
        self._scale = method.denominator
        method.spread(self._over)
        return Heard(method, self)

    def _extended(self) -> TrainingData:
        """The run's records with numbers for the guests."""
        more, own = self._population - self._people, self.training_data
        if self._by_user:
            nothing = (np.zeros(0, dtype=np.int64),) * more
            return replace(own, rows_of_user=own.rows_of_user + nothing)
        return replace(own, rows=np.concatenate([own.rows, np.repeat(own.rows[:1], more)]))

    def _over(self, total: Totals) -> Totals:
        """The run's own sum over real units, and what the guests who were drawn add to it."""

        def shared(step: int, drawn: Drawn) -> BoundedSum:
            self.draws[0].note(drawn)
            norm = self.plan.clip_norm
            self.look_at_parts(step, self._probe, lambda units: units, self._people, norm)
            own = total(step, drawn[drawn < self._people])
            self._known = self._places.read(own.tensors)
            made = joined(own, lambda tensors: self._add(list(tensors), own, step, drawn))
            self._before = made.tensors
            return made

        return shared

    def _add(self, tensors: Sequence[Tensor], own: BoundedSum, step: int, drawn: Drawn) -> None:
        *sums, counts = tensors
        values = torch.zeros(self._places.count, dtype=torch.float64)
        for guests in self.guests:
            with _one_thread():  # many small sums: threads would only wait for each other
                part = guests.total(step, guests.among(drawn))
            flat = torch.cat([t.reshape(-1) for t in part.tensors.values()])
            values[guests.place] = flat.double()
            counts += torch.tensor([part.units, part.clipped, part.not_finite])
        self._places.add(dict(zip(own.tensors, sums, strict=True)), values)

    def released(self, step: int, released: Mapping[str, Tensor]) -> None:
        """A release, and what it says of every guest."""
        noise, norm = self.auditing.noise, self.plan.clip_norm
        self.executed.append(self.plan.event())
        self.noise.hear(self._before, released, noise * norm, scale=self._scale)
        values = self._places.read(released) * self._scale - self._known
        for guests, scores in zip(self.guests, self._scores, strict=True):
            along = guests.examples.along_flat(values[guests.place]) / norm
            scores += log_ratio(along[: len(scores)], guests.draw, noise)

    def evidence(self) -> dict[Unit, Evidence]:
        """A bound for every unit that has guests."""
        delta, confidence = self.plan.delta, self.auditing.confidence
        return {
            own.unit: evidence_of(_HOW, scores, own.inside, own.reach, delta, confidence, self.done)
            for own, scores in zip(self.guests, self._scores, strict=True)
        }


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
