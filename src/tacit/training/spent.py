"""Epsilon spent so far, as the live line shows it: priced from the ledger, rounded up."""

from tacit.plan import Plan
from tacit.privacy.accounting import price
from tacit.privacy.ledger import Releases

_POINTS = 25


class Spent:
    """Prices at some twenty-five numbers of steps; in between, the next one up is shown."""

    def __init__(self, plan: Plan | None) -> None:
        self._plan = plan
        self._known: dict[int, float] = {}

    def line(self, releases: Releases) -> str:
        """`epsilon <= 1.23 of 8`, for what the plan protects; nothing where nothing is promised."""
        plan = self._plan
        if plan is None:
            return ""
        event = plan.event()
        done = releases.get(event, 0)
        every = max(1, plan.steps // _POINTS)
        shown = -(-done // every) * every
        if shown > plan.steps >= done:
            shown = plan.steps
        if shown not in self._known:
            counted = dict(releases) | {event: shown}
            self._known[shown] = price(counted, plan.protect, plan.delta, lower=False).epsilon
        return f"epsilon <= {self._known[shown]:.3g} of {plan.epsilon:g}"
