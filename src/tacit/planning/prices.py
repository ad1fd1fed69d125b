"""What would this cost? Everything that `tacit price` shows, as values."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tacit.privacy.accounting.pricing import (
    Gain,
    Price,
    adversary_gain,
    best_accuracy,
    curve_over_degree,
    curve_over_steps,
    price_all,
)
from tacit.privacy.certificates.attacker_gain import Gained
from tacit.privacy.certificates.wording import guarantee
from tacit.privacy.events import AnyEvent, Flat, Unit, UserClip, write_event


@dataclass(frozen=True)
class Quote:
    """Prices of one event repeated, curves, and what they mean for an adversary."""

    event: AnyEvent
    steps: int
    delta: float
    protect: Unit
    prices: Mapping[Unit, Price]
    gains: Mapping[Unit, Sequence[Gain]]
    accuracy: Mapping[Unit, float]
    """How often a guess between two neighbours is right at most, at even odds."""
    over_steps: Sequence[tuple[int, Price]] = ()
    over_degree: Sequence[tuple[int, Price]] = ()

    def as_json(self) -> dict[str, Any]:
        """A JSON object whose `epsilon` holds one figure for each unit."""
        found = {unit: cost.as_json() for unit, cost in self.prices.items()}
        return {
            "epsilon": {unit: values["epsilon"] for unit, values in found.items()},
            "standing": self.prices[self.protect].standing,
            "delta": self.delta,
            "steps": self.steps,
            "protect": self.protect,
            "at_least": {unit: values["lower"] for unit, values in found.items()},
            "accountant": {unit: values["accountant"] for unit, values in found.items()},
            "opinions": {unit: values["opinions"] for unit, values in found.items()},
            "looser_bounds": {unit: values["looser_bounds"] for unit, values in found.items()},
            "adversary": {
                unit: [{"fpr": g.fpr, "tpr": g.tpr, "basis": g.basis} for g in gains]
                for unit, gains in self.gains.items()
            },
            "protection": self.left().grade,
            "gain": f"{self.left().verdict} {self.left().figures}",
            "sentence": self.sentence(),
            "event": write_event(self.event),
            **({"over_steps": _points("steps", self.over_steps)} if self.over_steps else {}),
            **({"over_degree": _points("degree", self.over_degree)} if self.over_degree else {}),
        }

    def sentence(self) -> str:
        """The promise that these figures would make."""
        cost = self.prices[self.protect]
        return guarantee(self.protect, cost.adjacency, cost.epsilon, self.delta)

    def left(self) -> Gained:
        """What an attacker is left with, for what is protected."""
        caught = next(gain.tpr for gain in self.gains[self.protect] if gain.fpr == 0.01)
        return Gained(self.accuracy[self.protect], caught, self.protect)


def _points(name: str, curve: Sequence[tuple[int, Price]]) -> list[dict[str, Any]]:
    return [{name: at, "epsilon": cost.as_json()["epsilon"]} for at, cost in curve]


def quote(
    event: AnyEvent,
    steps: int,
    delta: float,
    protect: Unit,
    *,
    over_steps: bool = False,
    degrees: Sequence[int] = (),
    advance: Callable[[int], None] = lambda _: None,
) -> Quote:
    """Price an event repeated `steps` times, for every unit that it bounds."""
    releases = {event: steps}
    prices = price_all(releases, delta)
    unit: Unit = protect if "entities" in protect else "entities"
    curves: list[list[tuple[int, Price]]] = [[], []]
    for count in _step_counts(steps) if over_steps else ():
        curves[0] += curve_over_steps(event, [count], protect, delta)
        advance(1)
    for degree in degrees if isinstance(event, UserClip | Flat) else ():
        curves[1] += curve_over_degree(event, [degree], unit, delta, steps)  # type: ignore[arg-type]
        advance(1)
    return Quote(
        event=event,
        steps=steps,
        delta=delta,
        protect=protect,
        prices=prices,
        gains={unit: adversary_gain(releases, unit, delta) for unit in prices},
        accuracy={unit: best_accuracy(releases, unit, delta) for unit in prices},
        over_steps=curves[0],
        over_degree=curves[1],
    )


def _step_counts(steps: int) -> list[int]:
    """About eight numbers of steps up to the given one.

    >>> _step_counts(500)
    [5, 10, 25, 50, 100, 200, 350, 500]
    """
    shares = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1)
    return sorted({max(1, round(steps * share)) for share in shares})
