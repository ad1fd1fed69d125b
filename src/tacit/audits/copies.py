"""A copy of a run that is trained once more, and all that can be heard of it meanwhile.

The copy is the run itself: its model as at the start, its text, method, sampler, loop and
optimizer. Training knows nothing of it: what is heard comes through what a method lets others do
with its sum (`NoisySums.spread`), and from what leaves a step.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tacit.attacks.attack import Progress
from tacit.audits.direct_checks import (
    Coins,
    Noise,
    Parts,
    Replayed,
    caps_checks,
    ledger_checks,
)
from tacit.audits.epsilon_bounds import Check
from tacit.errors import OverBudget, PrivacyRefused
from tacit.planning.plan import Plan
from tacit.privacy.events import AnyEvent, UserClip, part_of
from tacit.privacy.ledger import Ledger, LedgerContents
from tacit.training.data.training_data import TrainingData
from tacit.training.dp.gradients import BoundedSum
from tacit.training.dp.sampling import Drawn, PoissonRecords, UserEntityDraw
from tacit.training.methods import Method, NoisySums, SelectiveTraining, SequentialMethod
from tacit.training.methods.noisy_sums import LossMeter, StepStats
from tacit.training.methods.uedp import Weights, event_of, require_entities, weighted_sums
from tacit.training.models.optimizers import make_optimizer
from tacit.training.phases.checkpoints import load_weights
from tacit.training.phases.loop import Loop
from tacit.training.phases.public_start import NAME as PUBLIC_START
from tacit.training.phases.redacted_start import NAME as REDACTED_START
from tacit.training.phases.run_context import RunContext, open_run
from tacit.training.phases.session import method_of
from tacit.training.settings import Run, UedpSettings

_PROBED = 6
"""Real units whose parts are looked at one by one."""

Totals = Callable[[int, Any], BoundedSum]
"""From a step and those who were drawn for it to the sum over them."""


def open_at_start(run: Run, folder: Path) -> RunContext:
    """The run as it was before its private steps: after its phases on public or masked text."""
    ctx = open_run(run)
    for name in (REDACTED_START, PUBLIC_START):
        if (folder / name).exists() and load_weights(ctx.model, folder / name):
            break
    return ctx


class Copy:
    """A training under way: the noise, the coins, the entries and the updates of every step."""

    def __init__(
        self,
        ctx: RunContext,
        training_data: TrainingData,
        plan: Plan | None,
        ledger: Ledger,
        steps: int,
        rng: np.random.Generator,
    ) -> None:
        self.ctx, self.training_data, self.plan, self.ledger = ctx, training_data, plan, ledger
        self.steps, self.rng, self.done = steps, rng, 0
        self.noise = Noise()
        self.coins: dict[str, Coins] = {}
        self.executed: list[AnyEvent] = []
        self.updates: int | None = 0
        self._replayed: Replayed | None = None
        self._parts: Parts | None = None

    def train(self, progress: Progress | None) -> str | None:
        """Take the steps; why the training itself refused them, if it did."""
        run, model = self.ctx.run, self.ctx.model
        optimizer = make_optimizer(model, run.optimizer)
        optimizer.register_step_post_hook(self._updated)
        method = self.listening(progress)
        loop = Loop(
            model, method, optimizer, run.optimizer, run.total_steps, self.ctx.randomness,
            ledger=self.ledger,
        )  # fmt: skip
        try:
            loop.run()
        except PrivacyRefused as refusal:
            return str(refusal)
        return None

    def listening(self, progress: Progress | None) -> Method | SequentialMethod:
        """The run's own method, overheard."""
        raise NotImplementedError

    def checks(self, books: LedgerContents, own: LedgerContents | None) -> list[Check]:
        """Everything that was looked at directly; `books` are the copy's, `own` the run's."""
        found = self.noise.checks()
        for coins in self.coins.values():
            found += coins.checks()
        if self.plan is not None:
            found += caps_checks(self.training_data, self.plan)
        found += ledger_checks(books, self.executed, self.updates, own)
        if self._replayed is not None:
            found.append(self._replayed.check(self.ctx.model))
        return found + (self._parts.checks() if self._parts is not None else [])

    def require_more(self, step: int) -> None:
        """End the training as the loop ends one whose budget is spent.

        The loop has all steps of the run, because rates of learning go by them.
        """
        if step > self.steps:
            raise OverBudget(f"{self.steps:,} steps are enough for this audit.")

    def replay(self, step: int, released: Mapping[str, Tensor]) -> None:
        """Do with a release what the optimizer should do with it."""
        if self._replayed is None:
            run = self.ctx.run
            self._replayed = Replayed(self.ctx.model, run.optimizer, run.total_steps)
        self._replayed.update(released, step)

    def look_at_parts(
        self, step: int, total: Totals, drawn: Callable[[Drawn], Any], people: int, norm: float
    ) -> None:
        """Some real units alone, and in the company of the others; at the start and at the end."""
        if step not in (1, self.steps):
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

    def __init__(
        self,
        method: NoisySums[Any],
        copy: Copy,
        heard: Callable[[int, Mapping[str, Tensor]], None],
        progress: Progress | None,
    ) -> None:
        self._method, self._copy, self._heard = method, copy, heard
        self._progress = progress

    def gradient(self, step: int) -> tuple[dict[str, Tensor], StepStats]:
        """What the run's own method releases."""
        self._copy.require_more(step)
        released, seen = self._method.gradient(step)
        self._copy.replay(step, released)
        self._heard(step, released)
        self._copy.done = step
        if self._progress:
            self._progress(1)
        return released, seen


class CopyOfUedp(Copy):
    """The published algorithm."""

    def listening(self, progress: Progress | None) -> Method:
        """The run's own method, and the coins of users, entities and plain records."""
        settings = self.ctx.run.uedp or UedpSettings()
        owners = require_entities(self.training_data)
        method = method_of(self.ctx, self.training_data, self.ledger, None)
        assert isinstance(method, NoisySums)
        self.coins = {
            "users": Coins("users", self.training_data.users, settings.user_rate, self.rng),
            "entities": Coins("entities", len(owners.entities), settings.entity_rate, self.rng),
            "plain": Coins("plain records", len(owners), settings.plain_rate, self.rng),
        }
        self._event = event_of(self.training_data, settings)
        weights = Weights.count(self.training_data, owners, settings)
        self._clip_norm = (
            settings.clip_norm / settings.local_learning_rate * float(weights.users.max())
        )
        self._scale = weights.denominator(settings) / settings.local_learning_rate
        self._everything = (np.ones(len(owners.entities), dtype=bool),
                            np.ones(len(owners), dtype=bool))  # fmt: skip
        meter = LossMeter(self.ctx.model, self.ctx.task.losses)
        budget = self.ctx.run.token_budget
        self._probe = weighted_sums(self.ctx.model, meter, self.training_data, settings, budget)
        method.spread(self._over)
        return Heard(method, self, self._heard, progress)

    def _over(self, total: Totals) -> Totals:
        def heard(step: int, drawn: UserEntityDraw) -> BoundedSum:
            self.coins["users"].note(drawn.users)
            self.coins["entities"].note(np.flatnonzero(drawn.entities))
            self.coins["plain"].note(np.flatnonzero(drawn.plain))
            self.look_at_parts(
                step, self._probe, lambda units: UserEntityDraw(units, *self._everything),
                self.training_data.users, self._clip_norm,
            )  # fmt: skip
            made = total(step, drawn)
            self._before = made.tensors
            return made

        return heard

    def _heard(self, step: int, released: Mapping[str, Tensor]) -> None:
        assert isinstance(self._event, UserClip)
        std = self._event.noise_multiplier * self._clip_norm
        self.executed.append(self._event)
        if std:
            self.noise.hear(self._before, released, std, scale=self._scale)


class CopyOfSelective(Copy):
    """Selective training, whose steps release gradients and states, and plain updates between."""

    def listening(self, progress: Progress | None) -> SequentialMethod:
        """The run's own method, and the coins of records."""
        run, plan = self.ctx.run, self.plan
        assert plan is not None
        rate = float(plan.record_rate or 0)
        self.updates = None  # plain updates are made between what is released
        self.coins = {"records": Coins("records", len(self.training_data.rows), rate, self.rng)}
        return _HeardSelective(
            self, progress, self.ctx.model, self.training_data, self.ctx.randomness, self.ledger,
            plan, token_budget=run.token_budget,
            **(run.selective.model_dump() if run.selective else {}),
        )  # fmt: skip


class _HeardSelective(SelectiveTraining):
    """Selective training as it is, with everything that it releases."""

    def __init__(
        self, copy: CopyOfSelective, progress: Progress | None, *given: Any, **named: Any
    ) -> None:
        super().__init__(*given, **named)
        self._copy, self._progress = copy, progress
        self._sampler = _Drawing(self._sampler, copy.coins["records"])

    def gradients(self, step: int) -> Iterator[tuple[dict[str, Tensor], StepStats]]:
        """The updates of a step."""
        self._copy.require_more(step)
        yield from super().gradients(step)
        self._copy.done = step
        if self._progress:
            self._progress(1)

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

    def __init__(self, sampler: PoissonRecords, coins: Coins) -> None:
        super().__init__(sampler.records, sampler.rate)
        object.__setattr__(self, "_noted", (sampler, coins))

    def draw(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """Who takes part."""
        sampler, coins = self._noted  # type: ignore[attr-defined]
        drawn = sampler.draw(rng)
        coins.note(drawn)
        return np.asarray(drawn)
