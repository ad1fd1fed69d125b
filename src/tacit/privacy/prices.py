"""The answers: a price in epsilon at delta, and what it means for somebody who guesses."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from tacit.privacy.events import Adjacency, Unit

Accountant: TypeAlias = Literal["pld", "rdp", "gdp", "none"]


@dataclass(frozen=True)
class Price:
    """An epsilon at a delta for one unit, and how sure it is.

    `lower` is attained by two real neighbours: no accountant can certify less. `opinions` holds
    every valid upper bound that was computed; `accountant` names the one that is shown.
    """

    unit: Unit
    epsilon: float
    delta: float
    lower: float
    accountant: Accountant
    adjacency: Adjacency | None
    opinions: tuple[tuple[str, float], ...] = ()
    standing: str = "proved"

    @property
    def second_opinion(self) -> tuple[str, float] | None:
        """The finer grid if there is one, else the next best bound by another accountant."""
        named = dict(self.opinions)
        if self.accountant == "pld" and "pld, finer grid" in named:
            return "pld, finer grid", named["pld, finer grid"]
        others = [item for item in self.opinions if item[0] != self.accountant]
        return min(others, key=lambda item: item[1], default=None)

    def as_json(self) -> dict[str, Any]:
        """A JSON object; an infinite epsilon is the text "infinity"."""
        values = asdict(self)
        values["opinions"] = {name: _finite(value) for name, value in self.opinions}
        values["epsilon"], values["lower"] = _finite(self.epsilon), _finite(self.lower)
        return values


@dataclass(frozen=True)
class Gain:
    """The most often an adversary can be right about a unit (`tpr`) if wrong at most `fpr`."""

    fpr: float
    tpr: float
    basis: Literal["trade-off curve", "gaussian curve", "epsilon and delta", "nothing released"]


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else "infinity"
