"""How much may be spent, and the question before every release: does one more still fit?"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tacit.errors import OverBudget, PrivacyRefused, UsageError
from tacit.privacy.accounting.pricing import price, require_delta
from tacit.privacy.events import MOST, AnyEvent, SelectivePart, Unit, require_unit, whole_passes
from tacit.privacy.ledger import Releases
from tacit.privacy.rounding import up


@dataclass(frozen=True)
class Budget:
    """A limit on epsilon for each of some units, at one delta.

    >>> Budget({"users": 3.0}, 1e-5).limits
    {'users': 3.0}
    """

    limits: Mapping[Unit, float]
    delta: float
    steps: int = 0
    """How many releases are planned; a hint that saves pricing, never a permission."""
    _room: dict[tuple[AnyEvent, frozenset[tuple[AnyEvent, int]]], int] = field(
        default_factory=dict, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        require_delta(self.delta)
        object.__setattr__(self, "limits", dict(self.limits))
        if not self.limits:
            raise UsageError("A budget needs a limit; give an epsilon for at least one unit.")
        for unit, limit in self.limits.items():
            require_unit(unit)
            number = isinstance(limit, int | float) and not isinstance(limit, bool)
            if not number or not 0 < limit < math.inf:
                raise UsageError(
                    f"epsilon={limit!r} for {unit} is not a limit; give a number above 0."
                )

    def spent(self, releases: Releases) -> dict[Unit, float]:
        """Epsilon for each limited unit; 0 before anything was released."""
        return {unit: price(releases, unit, self.delta).epsilon for unit in self.limits}

    def allows(self, releases: Releases, event: AnyEvent) -> None:
        """Raise `OverBudget` if `event` after `releases` would exceed a limit.

        The price grows with every release, so the largest number of such events that fits beside
        the others is found once; after that the question costs a comparison. A selective pass
        is asked about as a whole when it begins; its further parts are then covered.
        """
        if isinstance(event, SelectivePart):
            if event != event.first:
                if releases.get(event, 0) < releases.get(event.first, 0):
                    return
                raise PrivacyRefused(
                    f"Segment {event.segment} (state {event.state}) is to be released in a pass "
                    "that did not begin; nothing was released."
                )
            event = event.whole
        releases = whole_passes(releases)
        others = frozenset((e, n) for e, n in releases.items() if e != event)
        key = (event, others)
        if key not in self._room:
            self._room[key] = self._find_room(event, dict(others), releases.get(event, 0) + 1)
        wanted = releases.get(event, 0) + 1
        if wanted > self._room[key]:
            after = dict(others) | {event: wanted}
            unit, epsilon = self._first_exceeded(after)
            raise OverBudget(
                f"Release {sum(releases.values()) + 1} would spend epsilon {up(epsilon)} for "
                f"{unit}, over the budget of {self.limits[unit]:g} at delta {self.delta:g}; "
                "nothing was released. What was released before stands and is certified."
            )

    def _find_room(self, event: AnyEvent, others: Releases, wanted: int) -> int:
        def fits(count: int) -> bool:
            return self._exceeded({**others, event: count}) is None

        if not fits(wanted):
            return wanted - 1
        # First what the plan intends: one price, and usually the answer.
        low = wanted
        if self.steps > low and fits(self.steps):
            low = self.steps
        high = min(low * 2, MOST)
        while high < MOST and fits(high):
            low, high = high, min(high * 2, MOST)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    def _exceeded(self, releases: Releases) -> tuple[Unit, float] | None:
        for unit, limit in self.limits.items():
            epsilon = price(releases, unit, self.delta, lower=False, fresh=True).epsilon
            # Written so that a NaN, which must not be, would refuse as well.
            if not epsilon <= limit:
                return unit, epsilon
        return None

    def _first_exceeded(self, releases: Releases) -> tuple[Unit, float]:
        found = self._exceeded(releases)
        return found if found is not None else (next(iter(self.limits)), float("inf"))
