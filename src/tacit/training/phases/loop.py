"""The one training loop: gradient, update, checkpoint; it stops before a budget is exceeded."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tacit.errors import OverBudget
from tacit.privacy.ledger import Ledger
from tacit.training.dp.random_source import RandomSource
from tacit.training.methods.method import (
    Method,
    ReadingMethod,
    SequentialMethod,
    StatefulMethod,
    StepStats,
)
from tacit.training.models.optimizers import make_optimizer, make_schedule, tell_noise
from tacit.training.models.weights import trainable, widened
from tacit.training.phases.checkpoints import (
    Place,
    forget_after,
    load_checkpoint,
    read_place,
    save_checkpoint,
)
from tacit.training.phases.divergence import Watch
from tacit.training.phases.selecting import LAST, START, UNASKED, put
from tacit.training.settings import OptimizerSettings


@dataclass(frozen=True)
class Progress:
    """What is told after a step; everything in `stats` is exact and must stay inside.

    `public` and `private` have the same figures by name, for whoever keeps them apart.
    """

    phase: str
    step: int
    steps: int
    stats: StepStats
    spent: str = ""
    uniform: float | None = None
    """The loss of a uniform guess, to be held against that of `stats`: a public constant."""
    began: float | None = None
    """The loss of the first step, where this process saw it: exact, as `stats` are."""
    epsilon: float | None = None
    """What was spent so far, where something is promised."""
    learning_rate: float = 0.0

    @property
    def public(self) -> dict[str, float]:
        """What may be shown to anybody: known beforehand, or made of releases."""
        made = {"step": float(self.step), "learning_rate": self.learning_rate}
        if self.stats.noise_std:
            made["noise_std"] = self.stats.noise_std
        return made | ({} if self.epsilon is None else {"epsilon": self.epsilon})

    @property
    def private(self) -> dict[str, float]:
        """What must stay inside: exact figures over private records."""
        stats = self.stats
        return {
            "loss": stats.loss, "units": stats.units, "clipped": stats.clipped,
            "records": stats.records, "not_finite": stats.not_finite,
        }  # fmt: skip


OnProgress = Callable[[Progress], None]


class Schedule(Protocol):
    """Sets the learning rates of the next step."""

    def step(self) -> Any:
        """Go on to it."""
        ...


@dataclass
class Timed:
    """What the steps of this process took: gradients, noise, ledger, updates, nothing else.

    `not_finite` counts what was left out of sums because its loss or gradient was no number.
    """

    steps: int = 0
    records: int = 0
    seconds: float = 0.0
    not_finite: int = 0

    def add(self, seconds: float, stats: StepStats) -> None:
        """One more step, and what took part in it."""
        self.steps, self.records = self.steps + 1, self.records + stats.records
        self.seconds += seconds
        self.not_finite += stats.not_finite

    def summary(self) -> dict[str, Any]:
        """As the metrics show it: processor time, and how many records passed the model."""
        made: dict[str, Any] = {"steps": self.steps, "cpu_seconds": round(self.seconds, 3)}
        return made | ({"records": self.records} if self.records else {})


@dataclass
class Loop:
    """A phase of training under way."""

    model: nn.Module
    method: Method | SequentialMethod
    optimizer: torch.optim.Optimizer
    settings: OptimizerSettings
    steps: int
    randomness: RandomSource
    phase: str = "train"
    folder: Path | None = None
    ledger: Ledger | None = None
    checkpoint_every: int = 1
    keep: Callable[[int], None] | None = None
    kept: frozenset[int] = frozenset()
    before: int = 0
    """Steps of an earlier phase of the run: kept models are counted from the first of those."""
    average: dict[str, Tensor] = field(default_factory=dict)
    averaged: int = 0
    done: int = 0
    timed: Timed = field(default_factory=Timed)
    watch: Watch | None = None
    schedule: Schedule | None = None
    """Who sets the learning rates; made from the settings if not given."""
    diverged: str = ""
    """Why no step may follow."""
    chosen: str = ""
    """Which weights are kept, once that is decided."""

    def resume(self) -> None:
        """Go on where the last checkpoint is; charged steps after it are done again."""
        saved = read_place(self.folder) if self.folder is not None else None
        if saved is not None and self.ledger is not None:
            self.ledger.require_entries(saved.entries, saved.ledger)
        if self.folder is not None and saved is not None and saved.phase == self.phase:
            keeper = self._keeper(saved.step)
            place, self.average = load_checkpoint(
                self.folder, self.model, self.optimizer, keeper.load_extra_state if keeper else None
            )
            self.done, self.averaged = place.step, place.averaged
            self.diverged, self.chosen = place.diverged, place.chosen
            forget_after(self.folder, self.before + self.done)

    def _keeper(self, step: int) -> StatefulMethod | None:
        """Who keeps something beside the model; after the last step nobody needs it any more."""
        return (
            self.method
            if isinstance(self.method, ReadingMethod)
            or (isinstance(self.method, StatefulMethod) and step < self.steps)
            else None
        )

    def behind(self) -> bool:
        """Whether the checkpoint is of another, hence of a later, phase."""
        return self._saved_phase() not in (None, self.phase)

    def _saved_phase(self) -> str | None:
        place = read_place(self.folder) if self.folder is not None else None
        return place.phase if place is not None else None

    def run(self, on_progress: OnProgress | None = None) -> str | None:
        """Train to the end; if the budget ends first, or it diverges, the reason."""
        self.model.train()
        schedule = self.schedule or make_schedule(
            self.optimizer, self.settings, self.steps, self.done
        )
        while self.done < self.steps and not self.diverged:
            step = self.done + 1
            # Processor time: what else the machine does is no part of it.
            began = time.process_time()
            try:
                stats = self._step(step)
            except OverBudget as spent:
                self._read_on(on_progress)
                self.save()
                return str(spent)
            self.timed.add(time.process_time() - began, stats)
            self.done = step
            schedule.step()
            # Before the checkpoint: whoever stops in between does the step, and this, again.
            if self.keep is not None and self.before + step in self.kept:
                self.keep(self.before + step)
            self._look(step)
            if step % self.checkpoint_every == 0 or step == self.steps or self.diverged:
                self.save()
            if on_progress:
                rate = float(self.optimizer.param_groups[0]["lr"])
                on_progress(Progress(self.phase, step, self.steps, stats, learning_rate=rate))
        if self._read_on(on_progress):
            self._look(self.done)
            self.save()
        return self.diverged or None

    def _read_on(self, on_progress: OnProgress | None) -> bool:
        """Steps that read releases alone, where a method has such; a crash in them repeats them."""
        found = self.method.afterwards() if isinstance(self.method, ReadingMethod) else None
        if found is None:
            return False
        method, steps = found
        optimizer = make_optimizer(self.model, self.settings)
        reading = Loop(
            self.model, method, optimizer, self.settings, steps, self.randomness, phase="sampled"
        )
        reading.run(on_progress)
        self.timed.seconds += reading.timed.seconds
        return True

    def _look(self, step: int) -> None:
        """Whether the weights, which are made of releases, show that nothing good can follow."""
        why = self.watch.diverged(trainable(self.model)) if self.watch is not None else None
        if why is not None:
            self.diverged = (
                f"Training diverged at step {step} of {self.steps} and was stopped: {why}."
            )

    def _step(self, step: int) -> StepStats:
        """The updates of a step: one, or, of some methods, several in turn."""
        if not isinstance(self.method, SequentialMethod):
            gradient, stats = self.method.gradient(step)
            tell_noise(self.optimizer, stats.noise_std)
            if self.watch is not None:
                self.watch.saw(gradient, stats.noise_std)
            self._update(gradient, step)
            return stats
        stats = StepStats(0, 0, 0, 0.0)
        for gradient, stats in self.method.gradients(step):  # noqa: B007
            self._update(gradient, step)
        return stats

    def finish(self, start: Mapping[str, Tensor] | None = None) -> None:
        """Put in place what was chosen; else the averaged weights, where there are some."""
        if self.chosen in (START, UNASKED) and start is not None:
            put(self.model, start)
        elif self.averaged and self.chosen != LAST:
            put(self.model, self.average)

    def _update(self, gradient: dict[str, Tensor], step: int) -> None:
        gradient = widened(gradient, self.model)
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                parameter.grad = gradient.get(name)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        # torch's AveragedModel divides where this multiplies by 1/n, and copies frozen weights too:
        # results would differ in their last bits, and checkpoints would grow.
        if self.settings.average and step > self.steps * (1 - self.settings.average):
            self.averaged += 1
            for name, tensor in trainable(self.model).items():
                mean = self.average.setdefault(name, torch.zeros_like(tensor))
                mean.add_(tensor - mean, alpha=1 / self.averaged)

    def save(self) -> None:
        """Write a checkpoint of where it stands."""
        if self.folder is not None:
            place = Place(
                self.phase, self.done, 0, self.averaged, diverged=self.diverged, chosen=self.chosen
            )
            if self.ledger is not None:
                place = replace(place, entries=len(self.ledger), ledger=self.ledger.digest)
            keeper = self._keeper(self.done)
            extra_state = keeper.extra_state() if keeper else None
            save_checkpoint(
                self.folder, self.model, self.optimizer, self.average, place, extra_state
            )
