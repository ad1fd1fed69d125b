"""What an attack is: it says what it needs, is given a target, and returns scores.

How its scores are shown is declared, not known elsewhere: reports, comparisons and the command line
take their columns and drawings from the `Presentation` that comes with the scores.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BeforeValidator, TypeAdapter

from tacit.errors import DataError, UsageError
from tacit.privacy.certificates.certificate import Finding, amend, read_certificate, today
from tacit.registry import Registry
from tacit.saved_json import read_fields, write_fields

if TYPE_CHECKING:
    from tacit.attacks.target import Target

Need = Literal["canaries", "members", "non-members", "users", "mentions", "reference", "masked"]
Progress = Callable[[int], None]

NEEDS: dict[Need, str] = {
    "canaries": "canaries planted before training (tacit canaries plant; --canaries FILE)",
    "members": "the text that the model was trained on (a run knows it; else --corpus FILE)",
    "non-members": "text of the same kind that it was not trained on (a split valid or test)",
    "users": "records with users",
    "mentions": "what is sensitive in the text (mentions or detect in the run; --mentions FILE)",
    "reference": "a reference model that saw none of the text (--reference FOLDER)",
    "masked": "a masked-word model and text to sanitize (--corpus FILE --sanitize METHOD)",
}

Leak = Literal["shown", "not shown", "cannot tell"]
_BEGINNINGS: dict[Leak, str] = {
    "shown": "a leak shows",
    "not shown": "no leak shows",
    "cannot tell": "this cannot tell",
}

Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""A number that is null in a file where it could not be computed."""


@dataclass(frozen=True)
class Verdict:
    """Whether a leak shows beyond chance and controls, and the sentence that says by what."""

    leak: Leak
    words: str

    def __str__(self) -> str:
        return f"{_BEGINNINGS[self.leak]}: {self.words}"


@dataclass(frozen=True)
class Headline:
    """A figure that stands for its attack in tables and drawings.

    `keys` are its names among the figures, of which the first that is there counts (`name` if not
    given); `most` names the figure that is its upper limit, `chance` is what guessing gets.
    """

    name: str
    label: str
    keys: tuple[str, ...] = ()
    better: Literal["lower", "higher"] = "lower"
    chance: float | None = None
    most: str = ""
    format: str = ".3f"
    meaning: str = ""


@dataclass(frozen=True)
class Column:
    """A column of an attack's table; `interval` names those that hold its two ends."""

    key: str
    label: str
    format: str = ""
    interval: tuple[str, str] | None = None
    public: bool = False


@dataclass(frozen=True)
class Drawing:
    """A picture of an attack's table (columns x, y, low, high) or of one of its curves."""

    title: str
    x: str
    y: str
    columns: tuple[str, str, str, str] | None = None
    curves: tuple[str, ...] = ()


@dataclass(frozen=True)
class Presentation:
    """How the scores of an attack are shown: its headlines, its table and its drawing."""

    title: str = ""
    headlines: tuple[Headline, ...] = ()
    columns: tuple[Column, ...] = ()
    drawing: Drawing | None = None


@dataclass(frozen=True, repr=False)
class Scores:
    """What an attack achieved; exact figures over private text, hence not private.

    `figures` are numbers by name, `intervals` their 95 % confidence intervals, `rows` a table
    (one row for each number of repetitions, for example), `curves` lists of points to draw, and
    `verdict` says whether they differ from chance. Nothing in it quotes a text.
    """

    attack: str
    figures: dict[str, Number]
    intervals: dict[str, tuple[Number, Number]] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    curves: dict[str, list[tuple[Number, Number]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    perplexity: float | None = None
    verdict: Verdict | None = None
    presentation: Presentation = field(default_factory=Presentation)

    def __repr__(self) -> str:
        return f"Scores({self.attack}: {self.verdict or 'no verdict'})"

    def as_dict(self) -> dict[str, Any]:
        """Fields for JSON; a number that is not finite is null."""
        made: dict[str, Any] = _finite(asdict(self))
        return {"privacy": "not private: exact figures over private text"} | made

    def key(self, headline: Headline) -> str | None:
        """The name of a headline among the figures; None where it was not measured."""
        return next((k for k in headline.keys or (headline.name,) if k in self.figures), None)


def _finite(value: Any) -> Any:
    """The value with null for every number that is not finite."""
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Attack(ABC):
    """One way to learn what a model was trained on.

    It needs all of `needs`; one that needs nothing makes do with any of what it `uses`.
    """

    name: ClassVar[str]
    says: ClassVar[str]
    needs: ClassVar[tuple[Need, ...]] = ()
    uses: ClassVar[tuple[Need, ...]] = ()
    presentation: ClassVar[Presentation] = Presentation()

    @abstractmethod
    def run(
        self, target: "Target", *, progress: Progress | None = None, rng: np.random.Generator
    ) -> Scores:
        """Attack the target; the needs are there."""

    def too_little(self, target: "Target") -> str | None:
        """Why there is too little text for it, in a sentence; None where there is enough."""
        return None

    def scores(self, target: "Target", figures: dict[str, float], **rest: Any) -> Scores:
        """What the attack achieved on a target, to be shown as the attack declares."""
        return Scores(
            self.name, figures, perplexity=target.perplexity, presentation=self.presentation, **rest
        )


ATTACKS: Registry[Attack] = Registry(
    "Attack",
    "tacit.attacks",
    {
        "exposure": "tacit.attacks.exposure:ATTACK",
        "membership": "tacit.attacks.membership:ATTACK",
        "secrets": "tacit.attacks.secrets:ATTACK",
        "tab": "tacit.attacks.tab:ATTACK",
        "extraction": "tacit.attacks.extraction:ATTACK",
        "linkage": "tacit.attacks.linkage:ATTACK",
        "masks": "tacit.attacks.masks:ATTACK",
    },
)


def chosen(names: str) -> list[Attack]:
    """The attacks of `exposure,membership`."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        raise UsageError(f"using={names!r} names no attack; accepted: {', '.join(ATTACKS)}.")
    return [ATTACKS[name] for name in dict.fromkeys(wanted)]


def missing(attack: Attack, has: Iterable[Need]) -> list[Need]:
    """What an attack needs and does not find."""
    there = set(has)
    return [need for need in attack.needs if need not in there]


def require_all(attack: Attack, has: Iterable[Need]) -> None:
    """Refuse an attack whose needs are not met, and say how to meet them."""
    lacking = missing(attack, has)
    if lacking:
        wants = "; ".join(NEEDS[need] for need in lacking)
        raise DataError(f"The attack {attack.name} needs {wants}.")


FORMAT, OVER_STEPS, VERSION = "tacit-attacks", "tacit-attacks-over-steps", 2
_SCORES = TypeAdapter(Scores)

Series = dict[int, dict[str, Scores]]
"""Scores of the models of one run, by step and by attack."""


def write_scores(path: Path, scores: Iterable[Scores]) -> None:
    """All scores of a model as one JSON file; those of other attacks that it holds stay."""
    kept = {one.attack: one for one in (read_scores(path) if path.exists() else [])}
    kept |= {one.attack: one for one in scores}
    fields = {"format": FORMAT, "version": VERSION}
    write_fields(path, fields | {name: one.as_dict() for name, one in kept.items()})


def read_scores(path: Path) -> list[Scores]:
    """The scores of a file that `write_scores` wrote."""
    fields = read_fields(path, FORMAT, VERSION)
    try:
        return [
            _SCORES.validate_python(fields[n]) for n in fields if n not in ("format", "version")
        ]
    except ValueError:
        raise DataError(f"{path} does not hold the scores of attacks; attack again.") from None


def series_fields(series: Series) -> list[dict[str, Any]]:
    """Scores over steps as fields for JSON."""
    return [
        {"step": step, "scores": [one.as_dict() for one in series[step].values()]}
        for step in sorted(series)
    ]


def write_series(path: Path, found: Series) -> None:
    """Scores over the steps of a run as one JSON file; those of other attacks in it stay."""
    kept = read_series(path) if path.exists() else {}
    models = series_fields({step: kept.get(step, {}) | found[step] for step in found})
    write_fields(path, {"format": OVER_STEPS, "version": VERSION, "models": models})


def read_series(path: Path) -> Series:
    """The scores of a file that `write_series` wrote."""
    fields = read_fields(path, OVER_STEPS, VERSION)
    try:
        return {
            int(model["step"]): {
                one.attack: one for one in map(_SCORES.validate_python, model["scores"])
            }
            for model in fields["models"]
        }
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{path} does not hold attacks over steps; attack again.") from None


def keep_scores(folder: Path, scores: Iterable[Scores]) -> None:
    """The scores of a run's model in its folder, and in its certificate that they were taken.

    A regularizer promises nothing: what attacks measured is all that can be said of it, and stands
    in its certificate. Of others it says which attacks were tried; exact figures stay inside.
    """
    tried = list(scores)
    write_scores(folder / "attacks.json", tried)
    path = folder / "certificate.json"
    if not path.exists() or not tried:
        return
    context = None
    if "regularizer" in read_certificate(path).context:
        measured = {one.attack: _in_words(one) for one in read_scores(folder / "attacks.json")}
        context = {"measured by attacks (not private)": measured}
    names = ", ".join(sorted({one.attack for one in tried}))
    said = f"tried: {names}; the figures are exact and stay inside (attacks.json)."
    amend(folder, finding=Finding(kind="attack", outcome=said, date=today()), context=context)


def _in_words(scores: Scores) -> str:
    figures = ", ".join(
        f"{name.replace('_', ' ')} {value:.4g}"
        for name, value in scores.figures.items()
        if math.isfinite(value)
    )
    return f"{figures}; {scores.verdict}" if scores.verdict is not None else figures
