"""What audits share: their settings, and the training methods as they meet them."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tacit.attacks.running import Watch, unwatched
from tacit.audits.canary_guesses import MOST, OnProgress
from tacit.errors import UsageError
from tacit.planning.plan import Plan
from tacit.privacy.ledger import Ledger
from tacit.training.dp.gradients import BoundedSum
from tacit.training.dp.random_source import RandomSource
from tacit.training.methods.method import MethodInputs
from tacit.training.methods.noisy_sums import NoisySums
from tacit.training.settings import Run

Totals = Callable[[int, Any], BoundedSum]
"""From a step and those who were drawn for it to the sum over them."""


@dataclass(frozen=True)
class Auditing:
    """A run that is audited, and how: by so many canaries, in so many steps."""

    run: Run
    plan: Plan | None = None
    canaries: int | None = None
    steps: int | None = None
    confidence: float = 0.95
    slow: int = 1
    watch: Watch = unwatched
    on_progress: OnProgress = lambda _: None
    rng: np.random.Generator = field(default_factory=np.random.default_rng)
    randomness: RandomSource = field(default_factory=lambda: RandomSource(None))

    @property
    def total(self) -> int:
        """How many steps are audited."""
        return min(self.steps or self.run.total_steps, self.run.total_steps)

    @property
    def of_canaries(self) -> Run:
        """The run for canaries: these are short, and few tokens would take them one by one."""
        return self.run.model_copy(update={"token_budget": max(64, self.run.token_budget)})

    @property
    def most(self) -> int:
        """How many canaries at most, if nobody says otherwise."""
        return MOST // self.slow

    @property
    def noise(self) -> float:
        """The declared noise over the clip norm."""
        return float(self.require_plan().noise_multiplier or 0)

    def require_plan(self) -> Plan:
        """The plan of a run that keeps one, whose noise promises something."""
        if self.plan is None or self.plan.noise_multiplier is None:
            raise UsageError("The plan has no noise_multiplier yet; calibrate it first.")
        if self.plan.noise_multiplier == 0:
            raise UsageError("noise_multiplier=0 promises nothing, so there is nothing to audit.")
        return self.plan


@contextmanager
def passing_ledger() -> Iterator[Ledger]:
    """A ledger that nobody keeps: what an audit releases is about nobody."""
    with tempfile.TemporaryDirectory() as folder, Ledger(Path(folder) / "l.jsonl", {}) as ledger:
        yield ledger


# ---- methods -------------------------------------------------------------------------------------


def sums_of(inputs: MethodInputs) -> NoisySums[Any]:
    """The step of a run's method, on any model and any records."""
    if inputs.plan is not None and inputs.plan.clip_quantile is not None:
        raise UsageError("Audits know fixed clip norms only, and this plan has a clip_quantile.")
    if inputs.plan is not None and inputs.plan.precondition:
        raise UsageError("Audits know gradients as they are, and this plan scales them.")
    if getattr(inputs.run.spec, "one_process", False):
        raise UsageError(
            f"Audits know sums of gradients, and method={inputs.run.method} sums counts; it cannot "
            "be audited. Attack the model instead."
        )
    method = inputs.run.spec.step(inputs)
    if not isinstance(method, NoisySums):
        raise UsageError(
            f"method={inputs.run.method} does not release noisy sums; it cannot be audited."
        )
    return method


def totals_of(method: NoisySums[Any]) -> Totals:
    """The bounded sum of a method's step, before any noise."""
    found: list[Totals] = []

    def take(total: Totals) -> Totals:
        found.append(total)
        return total

    method.spread(take)
    return found[0]
