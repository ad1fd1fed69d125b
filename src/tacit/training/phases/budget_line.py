"""Epsilon spent so far, as the live line shows it: priced from the ledger, rounded up."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tacit.planning.plan import Plan
from tacit.privacy.accounting.pricing import price
from tacit.privacy.events import AnyEvent, Unit, whole_passes
from tacit.privacy.ledger import Releases
from tacit.privacy.rounding import up

_POINTS = 25


@dataclass(frozen=True)
class BudgetLine:
    """Prices at some twenty-five numbers of steps; in between, the next one up is shown."""

    event: AnyEvent
    protect: Unit
    delta: float
    steps: int
    target: float | None = None
    claim: Callable[[int], float] | None = None
    """What a paper claims after so many steps, where the method is a paper's."""
    _known: dict[int, float] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, plan: Plan) -> "BudgetLine":
        """For what a plan protects."""
        return cls(plan.event(), plan.protect, plan.delta, plan.steps, plan.epsilon)

    def epsilon(self, releases: Releases) -> float:
        """What was spent at most: the price of the next number of steps that is priced."""
        releases = whole_passes(releases)
        done = releases.get(self.event, 0)
        every = max(1, self.steps // _POINTS)
        shown = -(-done // every) * every
        if shown > self.steps >= done:
            shown = self.steps
        if shown not in self._known:
            counted = dict(releases) | {self.event: shown}
            self._known[shown] = price(counted, self.protect, self.delta, lower=False).epsilon
        return self._known[shown]

    def line(self, releases: Releases) -> str:
        """`epsilon <= 1.23 of 8`."""
        done = whole_passes(releases).get(self.event, 0)
        line = f"epsilon <= {up(self.epsilon(releases))}"
        if self.target is not None:
            line += f" of {self.target:g}"
        if self.claim is not None and done:
            line += f" (published: {up(self.claim(done))}, no bound)"
        return line
