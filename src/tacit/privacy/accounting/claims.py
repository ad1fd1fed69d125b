"""A published figure: what was claimed, and whether it is a bound."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal


@dataclass(frozen=True)
class PublishedPrice:
    """Epsilon as a paper claims it, with what kind of claim it is.

    `epsilon` maps what is protected (`users`, `users+entities`, `records`, `tokens`) to the
    figure. `is_bound` says whether the figure is an upper bound on the true epsilon under
    `condition`; when it is not, `why_not` is the reason in one line.
    """

    method: str
    epsilon: Mapping[str, float]
    delta: float
    inputs: Mapping[str, Any]
    is_bound: bool
    why_not: str
    source: str
    condition: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    standing: Literal["published"] = "published"

    def __post_init__(self) -> None:
        """Freeze the mappings too."""
        for name in ("epsilon", "inputs", "details"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def as_dict(self) -> dict[str, Any]:
        """A plain dictionary of everything, ready for JSON (an infinite epsilon stays `inf`)."""
        return {
            "method": self.method,
            "epsilon": dict(self.epsilon),
            "delta": self.delta,
            "standing": self.standing,
            "is_bound": self.is_bound,
            "why_not": self.why_not,
            "condition": self.condition,
            "source": self.source,
            "inputs": dict(self.inputs),
            "details": dict(self.details),
        }
