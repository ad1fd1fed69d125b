"""What an attack is: it says what it needs, is given a target, and returns scores."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from tacit.errors import DataError, UsageError
from tacit.privacy.certificates.certificate import Finding, amend, read_certificate, today
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


@dataclass(frozen=True)
class Verdict:
    """Whether a leak shows beyond chance and controls, and the sentence that says by what."""

    leak: Leak
    words: str

    def __str__(self) -> str:
        return f"{_BEGINNINGS[self.leak]}: {self.words}"


_BEGINNINGS: dict[Leak, str] = {
    "shown": "a leak shows",
    "not shown": "no leak shows",
    "cannot tell": "this cannot tell",
}


@dataclass(frozen=True)
class Scores:
    """What an attack achieved; exact figures over private text, hence not private.

    `figures` are the headline numbers, `intervals` their 95 % confidence intervals, `rows` a table
    (one row for each number of repetitions, for example), `curves` lists of points to draw, and
    `verdict` says whether they differ from chance. Nothing in it quotes a text.
    """

    attack: str
    figures: dict[str, float]
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    curves: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    perplexity: float | None = None
    verdict: Verdict | None = None

    def as_dict(self) -> dict[str, Any]:
        """Fields for JSON; a number that is not finite is null."""
        return {
            "attack": self.attack,
            "privacy": "not private: exact figures over private text",
            "perplexity": _finite(self.perplexity),
            "verdict": asdict(self.verdict) if self.verdict is not None else None,
            "figures": _finite(self.figures),
            "intervals": _finite(self.intervals),
            "rows": _finite(self.rows),
            "curves": _finite(self.curves),
            "notes": self.notes,
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Scores":
        """The scores that `as_dict` gave."""
        return cls(
            attack=str(fields["attack"]),
            figures={n: _number(v) for n, v in fields["figures"].items()},
            intervals={n: (_number(a), _number(b)) for n, (a, b) in fields["intervals"].items()},
            rows=[dict(row) for row in fields["rows"]],
            curves={
                n: [(_number(x), _number(y)) for x, y in c] for n, c in fields["curves"].items()
            },
            notes=[str(note) for note in fields["notes"]],
            perplexity=fields["perplexity"],
            verdict=_verdict(fields.get("verdict")),
        )


def _finite(value: Any) -> Any:
    """The value with null for every number that is not finite."""
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _verdict(fields: Mapping[str, Any] | None) -> Verdict | None:
    if fields is None:
        return None
    if fields["leak"] not in _BEGINNINGS:
        raise ValueError
    return Verdict(fields["leak"], str(fields["words"]))


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


class Attack(Protocol):
    """One way to learn what a model was trained on."""

    name: str
    says: str
    needs: tuple[Need, ...]

    def run(
        self, target: "Target", *, progress: Progress | None = None, rng: np.random.Generator
    ) -> Scores:
        """Attack the target; the needs are there."""
        ...


_KNOWN: dict[str, str] = {
    "exposure": "tacit.attacks.exposure",
    "membership": "tacit.attacks.membership",
    "secrets": "tacit.attacks.secrets",
    "tab": "tacit.attacks.tab",
    "extraction": "tacit.attacks.extraction",
    "linkage": "tacit.attacks.linkage",
    "masks": "tacit.attacks.masks",
}
_ADDED: dict[str, Attack] = {}


def register(attack: Attack) -> None:
    """Make an attack known by its name; a name is taken once."""
    if attack.name in _KNOWN or attack.name in _ADDED:
        raise UsageError(f"An attack named {attack.name!r} is known already; name it otherwise.")
    _ADDED[attack.name] = attack


def known() -> list[str]:
    """The names of all attacks."""
    return [*_KNOWN, *_ADDED]


def attack_named(name: str) -> Attack:
    """An attack by name; its module, and torch with it, is loaded only now."""
    if name in _ADDED:
        return _ADDED[name]
    if name not in _KNOWN:
        raise UsageError(f"using={name!r} is no attack; accepted: {', '.join(known())}.")
    from importlib import import_module

    made: Attack = import_module(_KNOWN[name]).ATTACK
    return made


def chosen(names: str) -> list[Attack]:
    """The attacks of `exposure,membership`."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        raise UsageError(f"using={names!r} names no attack; accepted: {', '.join(known())}.")
    return [attack_named(name) for name in dict.fromkeys(wanted)]


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


FORMAT, VERSION = "tacit-attacks", 1
OVER_STEPS = "tacit-attacks-over-steps"


def write_scores(path: Path, scores: Iterable[Scores]) -> None:
    """All scores of a model as one JSON file; those of other attacks that it holds stay."""
    kept = {one.attack: one for one in (read_scores(path) if path.exists() else [])}
    kept |= {one.attack: one for one in scores}
    fields = {"format": FORMAT, "version": VERSION}
    write_fields(path, fields | {name: one.as_dict() for name, one in kept.items()})


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


Series = dict[int, dict[str, Scores]]
"""Scores of the models of one run, by step and by attack."""


def write_series(path: Path, found: Series) -> None:
    """Scores over the steps of a run as one JSON file; those of other attacks in it stay."""
    kept = read_series(path) if path.exists() else {}
    models = [
        {
            "step": step,
            "scores": [s.as_dict() for s in (kept.get(step, {}) | found[step]).values()],
        }
        for step in sorted(found)
    ]
    write_fields(path, {"format": OVER_STEPS, "version": VERSION, "models": models})


def read_series(path: Path) -> Series:
    """The scores of a file that `write_series` wrote."""
    fields = read_fields(path, OVER_STEPS, VERSION)
    try:
        return {
            int(model["step"]): {
                one.attack: one for one in (Scores.from_dict(s) for s in model["scores"])
            }
            for model in fields["models"]
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DataError(f"{path} does not hold attacks over steps; attack again.") from None


def read_scores(path: Path) -> list[Scores]:
    """The scores of a file that `write_scores` wrote."""
    fields = read_fields(path, FORMAT, VERSION)
    try:
        return [
            Scores.from_dict(value)
            for name, value in fields.items()
            if name not in ("format", "version")
        ]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DataError(f"{path} does not hold the scores of attacks; attack again.") from None
