"""The answers: a price in epsilon at delta, and what it means for somebody who guesses."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from tacit.privacy.events import Adjacency, Unit
from tacit.privacy.rounding import up

Accountant: TypeAlias = Literal["pld", "rdp", "gdp", "none"]


@dataclass(frozen=True)
class Price:
    """An epsilon at a delta for one unit, and how sure it is.

    `lower` is attained by two real neighbours: no accountant can certify less. `accountant` names
    the upper bound that is shown, the smallest of those computed. `opinions` are that one and what
    confirms it, a finer grid; bounds above it are valid too, but confirm nothing that is claimed,
    and are kept apart as `looser_bounds`.
    """

    unit: Unit
    epsilon: float
    delta: float
    lower: float
    accountant: Accountant
    adjacency: Adjacency | None
    opinions: tuple[tuple[str, float], ...] = ()
    looser_bounds: tuple[tuple[str, float], ...] = ()
    standing: str = "proved"

    @property
    def second_opinion(self) -> tuple[str, float] | None:
        """Another computation that confirms the price, hence at most what is shown."""
        others = [item for item in self.opinions if item[0] != self.accountant]
        return min(others, key=lambda item: item[1], default=None)

    @property
    def beside(self) -> str:
        """What other computations say, in words: a second opinion, else bounds that are looser."""
        if self.second_opinion is not None:
            name, value = self.second_opinion
            return f"second opinion ({name}) {up(value)}"
        looser = [f"{up(value)} ({name})" for name, value in self.looser_bounds]
        return f"looser bounds {', '.join(looser)}" if looser else ""

    def as_json(self) -> dict[str, Any]:
        """A JSON object; an infinite epsilon is the text "infinity"."""
        values = asdict(self)
        values["opinions"] = {name: _finite(value) for name, value in self.opinions}
        values["looser_bounds"] = {name: _finite(value) for name, value in self.looser_bounds}
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
