"""What to expect of a run before anything is spent: ranges from simulations on public corpora.

A forecast knows what a recipe knows: declared numbers, the plan and its noise. It says how much a
classifier loses to noise, as error above that of the same classifier without protection, and how
much of the way from its public start to unprotected training a model of next words goes. Neither
needs a look at private text; `forecasts.json` has the fitted curves, which `tools/forecasts.py`
makes.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tacit.errors import UsageError
from tacit.planning.plan import Plan
from tacit.planning.recipes import (
    Facts,
    Fields,
    Machine,
    facts_of,
    family_of,
    noise_to_signal,
    resolve,
)
from tacit.privacy.rounding import up

_HARDLY = 0.1
"""Going less of the way than this is hardly better than a public start."""
EPSILONS = (1.0, 2.0, 4.0, 8.0)
"""For which a forecast is made."""


@dataclass(frozen=True)
class Expected:
    """A figure that eight of ten simulated runs had between `low` and `high`."""

    epsilon: float
    low: float
    likely: float
    high: float


@dataclass(frozen=True)
class Forecast:
    """What is to be expected for each epsilon, and in a sentence for the plan's own."""

    task: str
    users: int
    rows: Sequence[Expected]
    own: Expected
    sentence: str

    @property
    def beside(self) -> str:
        """What the figures come from, and what they stand beside."""
        if self.task != "classification":
            return "From simulations on public corpora."
        easy, hard = curves()["minilm"]["unprotected"]
        return (
            f"From simulations on public corpora, where unprotected classifiers had errors from "
            f"{easy:.2f} (topics of news) to {hard:.2f} (twenty newsgroups)."
        )

    def as_json(self) -> Fields:
        """The figures and the sentence."""
        rows = [{name: _shown(value) for name, value in vars(row).items()} for row in self.rows]
        return {"task": self.task, "users": self.users, "measure": MEASURES[self.task],
                "rows": rows, "sentence": self.sentence, "beside": self.beside}  # fmt: skip


MEASURES = {
    "classification": "error above the same classifier without protection",
    "next-word": "share of the way from public start to unprotected training, in log perplexity",
}


@cache
def curves() -> Fields:
    """What `forecasts.json` holds."""
    found: Fields = json.loads(Path(__file__).with_name("forecasts.json").read_text("utf-8"))
    return found


def forecast(run: Mapping[str, Any]) -> Forecast | None:
    """What to expect of a run's settings, for each epsilon in `EPSILONS` and for its own.

    None where nothing was simulated: another model, another task, numbers that are not declared.
    """
    family = family_of(run.get("task", "next-word"), run.get("model") or {})
    if family is None or family["name"] not in curves():
        return None
    try:
        facts = facts_of(run, Machine(1, frozenset()))
    except UsageError:
        return None
    # The share of a comparison at the end is too small to be forecast.
    plan = Plan(**{name: v for name, v in run["plan"].items() if name != "selection_noise"})
    expect = _classifier if facts.task == "classification" else _next_words

    def at(epsilon: float) -> Expected:
        fields = plan.model_dump(exclude={"noise_multiplier", "targets", "epsilon"})
        noise = noise_to_signal(Plan(**fields, epsilon=epsilon), facts, family)
        return Expected(epsilon, *expect(noise, facts, curves()[family["name"]]))

    rows, own = [at(epsilon) for epsilon in EPSILONS], at(plan.epsilon)
    sentence = _sentence(own, facts)
    if facts.task == "next-word" and own.likely < _HARDLY:
        sentence += _instead(plan)
    return Forecast(facts.task, facts.users, rows, own, sentence)


def _instead(plan: Plan) -> str:
    """What a classifier of two classes would lose, with the same users and the same promise."""
    declared = ("protect", "epsilon", "delta", "users", "records")
    asked = {
        "recipe": "auto", "task": "classification", "labels": ["one", "two"],
        "plan": {name: getattr(plan, name) for name in declared if getattr(plan, name) is not None},
    }  # fmt: skip
    found = forecast(resolve(asked, Machine(1, frozenset({"wordllama"}))).fields)
    if found is None:
        return ""
    own = found.own
    return (
        f" A classifier of two classes would have about {own.likely:.2f} more error than without "
        f"protection ({own.low:.2f} to {own.high:.2f})."
    )


def _classifier(noise: float, facts: Facts, curve: Fields) -> tuple[float, float, float]:
    """Error above unprotected: the share of what could be learned that is lost, of what there is.

    How well the labels can be told apart without protection is not known, so the range covers
    tasks as easy as the easiest public corpus and as hard as the hardest.
    """
    guessing = 1 - 1 / facts.labels
    easy, hard = curve["unprotected"]
    lost = {}
    for name, quiet in zip(("low", "likely", "high"), curve["quiet"], strict=True):
        # Clipping and few steps take their part of it, noise its part of the rest.
        lost[name] = quiet + (1 - quiet) * _share(noise, curve, curve[name])
    room = {"low": guessing - min(hard, guessing), "high": guessing - min(easy, guessing)}
    room["likely"] = (room["low"] + room["high"]) / 2
    low, likely, high = (lost[name] * room[name] for name in ("low", "likely", "high"))
    return low, likely, high


def _next_words(noise: float, facts: Facts, curve: Fields) -> tuple[float, float, float]:
    """The share of the gap that is closed: what is closed without noise, less what noise takes."""
    low, likely, high = (
        curve["most"] * (1 - _share(noise, curve, curve[name]))
        for name in ("high", "likely", "low")
    )
    return low, likely, high


def _share(noise: float, curve: Fields, shift: float) -> float:
    """A logistic curve of the logarithm of the noise; rising, from 0 to 1."""
    if noise <= 0:
        return 0.0
    return 1 / (1 + math.exp(-(curve["slope"] * math.log(noise) + curve["intercept"] + shift)))


# --- words --------------------------------------------------------------------------------------


def _sentence(row: Expected, facts: Facts) -> str:
    """What a row means, for somebody who has to decide."""
    about = f"With {facts.users:,} users and epsilon {up(row.epsilon)}"
    if facts.task == "classification":
        guessing = 1 - 1 / facts.labels
        spread = f"{row.low:.2f} to {row.high:.2f} above its unprotected error"
        if row.likely > 0.5 * guessing:
            return f"{about} a classifier will do little better than guessing ({spread})."
        if row.likely <= 0.02:
            return f"{about} protection costs a classifier next to nothing ({spread})."
        return f"{about} a classifier will have about {row.likely:.2f} more error ({spread})."
    if row.likely < _HARDLY:
        return (
            f"{about} a model of next words will hardly beat its public start (at most "
            f"{row.high:.0%} of the way to unprotected training)."
        )
    return (
        f"{about} a model of next words will go about {row.likely:.0%} of the way from its public "
        f"start to unprotected training ({row.low:.0%} to {row.high:.0%})."
    )


def _shown(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value
