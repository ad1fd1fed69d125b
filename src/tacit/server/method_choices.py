"""The training methods as the server offers them: the one place that knows their list."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import get_args

from pydantic import BaseModel

from tacit.errors import UsageError
from tacit.registry import did_you_mean
from tacit.training.settings import METHODS, PLANNED, Run

DEFAULT_METHOD = "private"
_TITLES = {
    "private": "Private: every step is clipped and noised (recommended)",
    "fedavg": "Federated averaging: users train by themselves, their updates are noised",
    "selective": "Selective: only words that a rule marks are protected",
    "redact-then-private": "First on masked text, then on all of it with noise",
    "deidentify": "Replace what was found by its kind, then train; proves nothing",
    "uedp": "The user-entity algorithm as published; its claim is not proved here",
    "adversarial": "Hide authors by a discriminator; proves nothing",
    "triplet": "Hide authors by drawing their states together; proves nothing",
    "plain": "Without protection; proves nothing",
}
_PROTECTS = {
    "private": ("records", "users", "entities", "users+entities"),
    "fedavg": ("users",), "selective": ("tokens",), "redact-then-private": ("tokens",),
}  # fmt: skip
_NEEDS_ENTITIES = ("deidentify", "uedp")
_SECTIONS = {"redact-then-private": "redacted"}
"""Methods whose settings have another name in a run."""


@dataclass(frozen=True)
class MethodChoice:
    """A method that a request may name."""

    name: str
    title: str
    """A short label for a form."""
    summary: str
    standing: str
    """`proved`, `published` or `heuristic`."""
    planned: bool
    """Whether it keeps a plan, with a privacy budget."""
    protects: tuple[str, ...]
    """The units that its plan may protect."""
    needs_entities: bool
    """Whether it needs mentions, whatever the plan protects."""
    section: str | None
    """Where its own settings stand in a run; None if it has none."""
    settings: type[BaseModel] | None

    @property
    def protects_tokens(self) -> bool:
        """Whether it protects the tokens that a policy marks, and nothing else."""
        return self.protects == ("tokens",)

    def takes(self, setting: str) -> bool:
        """Whether its own settings have a field of that name."""
        return self.settings is not None and setting in self.settings.model_fields


@cache
def method_choices() -> Mapping[str, MethodChoice]:
    """All methods by name, the recommended one first."""
    return {name: _choice(name) for name in _TITLES}


def _choice(name: str) -> MethodChoice:
    standing, summary = METHODS[name]
    section = _SECTIONS.get(name, name)
    field = Run.model_fields.get(section)
    kinds = (field.annotation, *get_args(field.annotation)) if field else ()
    found = [k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)]
    return MethodChoice(
        name, _TITLES[name], summary, standing, name in PLANNED, _PROTECTS.get(name, ()),
        name in _NEEDS_ENTITIES, section if found else None, found[0] if found else None,
    )  # fmt: skip


def method_choice(name: str) -> MethodChoice:
    """One method; an unknown name is refused with what is accepted."""
    known = method_choices()
    if name not in known:
        raise UsageError(
            f"method={name!r} is not known; accepted: {', '.join(known)}."
            f"{did_you_mean(name, list(known))}"
        )
    return known[name]
