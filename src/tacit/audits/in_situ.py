"""An audit of a run in its own place: its model, text, method, sampler, optimizer and noise.

A copy of the run is trained again, in a folder and with a ledger that nobody keeps, and
hypothetical users and entities (records, tokens) take part in it. They have numbers after those of
the real ones, so the run's own sampler draws them; the sums of its method clip them, on a linear
model; and what they add goes along directions of their own among the run's own weights, before its
own noise. Each is in or out by a fair coin. The adversary sees every noisy sum, knows what
everybody else added, and scores each canary by the log-likelihood ratio of all steps under what is
declared. All of them are guessed at in the one training: Steinke, Nasr and Jagielski 2023, whose
bound assumes nothing but the coins.

What no lower bound shows is looked at directly while the copy trains; see `direct_checks`.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.attacks.attack import Progress
from tacit.audits.canary_guesses import (
    MOST,
    OnProgress,
    Reach,
    declared,
    evidence_of,
    log_ratio,
    reach_of,
)
from tacit.audits.copies import (
    Copy,
    CopyOfSelective,
    CopyOfUedp,
    Heard,
    Totals,
    open_at_start,
)
from tacit.audits.direct_checks import Coins
from tacit.audits.epsilon_bounds import Check, Evidence
from tacit.audits.white_box import noise_of
from tacit.audits.worst_cases import (
    TENSORS,
    Array,
    Build,
    Canaries,
    Directions,
    Draw,
    canary_data,
    design,
    losses,
)
from tacit.errors import UsageError
from tacit.planning.plan import Plan
from tacit.privacy.events import Unit
from tacit.privacy.ledger import Ledger, read_ledger
from tacit.training.data.training_data import TrainingData, prepare
from tacit.training.dp.gradients import BoundedSum, joined
from tacit.training.dp.random_source import RandomSource
from tacit.training.dp.sampling import Drawn
from tacit.training.methods import Losses, Method, NoisySums
from tacit.training.methods.dp_fedavg import user_updates
from tacit.training.methods.dp_sgd import denominator, record_sums, user_sums
from tacit.training.methods.noisy_sums import LossMeter
from tacit.training.models.weights import trainable
from tacit.training.phases.run_context import encode
from tacit.training.phases.session import method_of
from tacit.training.settings import LocalSettings, Run

_MOST_ROWS = 1 << 17
"""Records of hypothetical users, of all canaries of a unit together."""
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
    folder: Path,
    run: Run,
    plan: Plan | None,
    units: Mapping[Unit, float],
    *,
    canaries: int | None = None,
    steps: int | None = None,
    confidence: float = 0.95,
    progress: Progress | None = None,
    on_progress: OnProgress | None = None,
    rng: np.random.Generator,
) -> Found:
    """Train a copy of a run with hypothetical units, and look at all that it does.

    `units` are those to be audited, with what is certified for each. Methods whose canaries cannot
    share a training (`selective`, `uedp`) are only checked: what they release would show who takes
    part, or their noise depends on how many users there are.
    """
    opened = open_at_start(run, folder)
    examples = encode(opened, opened.part)
    training_data = prepare(examples, opened.part, opened.mentions, plan, opened.protected)
    steps = min(steps or run.total_steps, run.total_steps)
    with tempfile.TemporaryDirectory() as place:
        # Its first line tells it from the ledger of any run.
        about = {"audit": "a copy of a run, trained to be audited", "config": run.digest()}
        with Ledger(Path(place) / "ledger.jsonl", about) as ledger:
            given = (opened, training_data, plan, ledger, steps, rng)
            if run.method in _CHECKED:
                copy = _CHECKED[run.method](*given)
            else:
                copy = hosting = CopyWithGuests(*given)
                hosting.invite(units, canaries, confidence, on_progress)
            refused = copy.train(progress)
        books = read_ledger(Path(place) / "ledger.jsonl")
    checks = copy.checks(books, read_ledger(folder / "ledger.jsonl"))
    if refused is not None:
        checks.insert(0, Check("training refuses nothing of what the run does", False, refused))
    evidence = copy.evidence(confidence) if isinstance(copy, CopyWithGuests) else {}
    return Found(evidence, tuple(checks))


_CHECKED: dict[str, type[Copy]] = {"selective": CopyOfSelective, "uedp": CopyOfUedp}


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

    plan: Plan

    def invite(
        self,
        units: Mapping[Unit, float],
        canaries: int | None,
        confidence: float,
        on_progress: OnProgress | None,
    ) -> None:
        """Make the canaries of every unit, and say what they can show."""
        noise = noise_of(self.plan)
        if noise == 0:
            raise UsageError("noise_multiplier=0 promises nothing, so there is nothing to audit.")
        weights = trainable(self.ctx.model)
        room = sum(t.numel() for t in weights.values()) // len(units) // TENSORS * TENSORS
        if (canaries or TENSORS) > room:
            raise UsageError(
                f"{canaries or TENSORS:,} canaries for each of {len(units)} unit(s) are more than "
                f"the model has trainable weights for; give --canaries {room} or fewer, or audit "
                "the step: --using white-box."
            )
        self.guests: list[Guests] = []
        for unit, epsilon in units.items():
            build, draw = design(self.plan, unit)
            reach = reach_of(
                declared(draw, noise, self.steps), self.plan.delta, confidence, epsilon,
                canaries=canaries, most=self._most(build, room),
            )  # fmt: skip
            if on_progress:
                on_progress(f"In situ: {reach.sentence(unit)}")
            self.guests.append(self._made(unit, reach, build, draw))
        self._places = Places(weights, self.guests[-1].place.stop, self.rng)
        self._scores = [np.zeros(len(made.inside)) for made in self.guests]

    def _most(self, build: Build, room: int) -> int:
        """As many canaries as there are coordinates, and hands to compute them."""
        slow = 4 if self.ctx.run.method == "fedavg" else 1
        most = min(MOST // slow, _MOST_ROWS // len(list(build(0))), room)
        return max(TENSORS, most // TENSORS * TENSORS)

    def _made(self, unit: Unit, reach: Reach, build: Build, draw: Draw) -> Guests:
        inside = self.rng.random(reach.canaries) < 0.5
        rows = [row for number in range(reach.canaries) for row in build(number)]
        examples = Canaries(rows, reach.canaries, inside)
        training_data = canary_data(examples, self.plan)
        model = Directions(examples.width)
        total = totals_of(
            self.ctx.run, self.plan, model, losses, training_data, self.ctx.randomness
        )
        units = training_data.users if self._by_user else len(training_data.rows)
        start = self.guests[-1].place.stop if self.guests else 0
        place = slice(start, start + TENSORS * examples.width)
        return Guests(
            unit, reach, draw, inside, examples, total, self._population, units, place
        )  # fmt: skip

    @property
    def _by_user(self) -> bool:
        return self.plan.user_rate is not None

    @property
    def _people(self) -> int:
        """How many real units the sampler draws from."""
        return self.training_data.users if self._by_user else len(self.training_data.rows)

    @property
    def _population(self) -> int:
        """How many units it draws from in all."""
        return self._people + sum(guests.units for guests in self.guests)

    def listening(self, progress: Progress | None) -> Method:
        """The run's own method, whose sampler draws guests, too."""
        run, plan = self.ctx.run, self.plan
        training_data, plan = self._extended()
        method = method_of(self.ctx, training_data, self.ledger, plan)
        assert isinstance(method, NoisySums)
        rate = plan.user_rate if plan.user_rate is not None else plan.record_rate
        what = "users" if self._by_user else "records"
        self.coins = {what: Coins(what, self._population, float(rate or 0), self.rng)}
        self._scale = denominator(plan, training_data)
        # Coins of its own, which are the same whenever it is asked.
        fixed = RandomSource(int(self.rng.integers(2**31)))
        by = self.ctx.task.losses
        self._probe = totals_of(run, plan, self.ctx.model, by, training_data, fixed)
        method.spread(self._over)
        return Heard(method, self, self._heard, progress)

    def _extended(self) -> tuple[TrainingData, Plan]:
        """The run's material with numbers for the guests, and its public denominator as it was."""
        more, plan = self._population - self._people, self.plan
        if self._by_user:
            nothing = (np.zeros(0, dtype=np.int64),) * more
            training_data = replace(
                self.training_data, rows_of_user=self.training_data.rows_of_user + nothing
            )
            return training_data, plan.model_copy(
                update={"users": plan.users or self.training_data.users}
            )
        rows = np.concatenate(
            [self.training_data.rows, np.repeat(self.training_data.rows[:1], more)]
        )
        counted = plan.records or len(self.training_data.rows)
        return replace(self.training_data, rows=rows), plan.model_copy(update={"records": counted})

    def _over(self, total: Totals) -> Totals:
        """The run's own sum over real units, and what the guests who were drawn add to it."""

        def shared(step: int, drawn: Drawn) -> BoundedSum:
            for coins in self.coins.values():
                coins.note(drawn)
            self.look_at_parts(
                step, self._probe, lambda units: units, self._people, self.plan.clip_norm
            )
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
            values[guests.place] = torch.cat(
                [t.reshape(-1) for t in part.tensors.values()]
            ).double()
            counts += torch.tensor([part.units, part.clipped, part.not_finite])
        self._places.add(dict(zip(own.tensors, sums, strict=True)), values)

    def _heard(self, step: int, released: Mapping[str, Tensor]) -> None:
        noise = noise_of(self.plan)
        self.executed.append(self.plan.event())
        self.noise.hear(self._before, released, noise * self.plan.clip_norm, scale=self._scale)
        values = self._places.read(released) * self._scale - self._known
        for guests, scores in zip(self.guests, self._scores, strict=True):
            along = guests.examples.along_flat(values[guests.place]) / self.plan.clip_norm
            scores += log_ratio(along[: len(scores)], guests.draw, noise)

    def evidence(self, confidence: float) -> dict[Unit, Evidence]:
        """A bound for every unit that has guests."""
        pairs: list[tuple[Guests, Array]] = list(zip(self.guests, self._scores, strict=True))
        return {
            own.unit: evidence_of(
                _HOW, scores, own.inside, own.reach, self.plan.delta, confidence, self.done
            )
            for own, scores in pairs
        }


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def totals_of(
    run: Run,
    plan: Plan,
    model: nn.Module,
    by: Losses,
    training_data: TrainingData,
    randomness: RandomSource,
) -> Totals:
    """The sums of a run's method, for any model and any material."""
    meter = LossMeter(model, by)
    if run.method == "fedavg":
        return user_updates(
            model, meter, training_data, randomness, plan, run.fedavg or LocalSettings()
        )
    sums = user_sums if plan.user_rate is not None else record_sums
    return sums(model, meter, training_data, randomness, plan, max(64, run.token_budget))
