"""What reports are made of: the facts of runs, what attacks found of them, parts of a page."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tacit.attacks.attack import Headline, Scores, Series, read_scores, read_series
from tacit.audits.epsilon_bounds import Audit, read_audit
from tacit.errors import DataError
from tacit.privacy.certificates.certificate import Certificate, read_certificate
from tacit.privacy.rounding import up
from tacit.training.evaluation.groups import Groups, read_groups
from tacit.training.evaluation.verdicts import Verdict, verdict_of


@dataclass(frozen=True)
class Section:
    """A part of a page: figures (numbers with names), prose in Markdown, a table, a drawing."""

    title: str
    prose: str = ""
    figures: Sequence[tuple[str, str]] = ()
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    drawing: str = ""
    folded: bool = False
    """Whether a page shows its title only, until somebody opens it."""


MEASURES = {
    "perplexity": ("perplexity", "lower"),
    "bits_per_character": ("bits of a character", "lower"),
    "masked_perplexity": ("perplexity of masked words", "lower"),
    "error_rate": ("error rate", "lower"),
    "pearson": ("correlation", "higher"),
    "accuracy": ("right tags", "higher"),
}
"""How tasks are scored: what a score is called, and which is better."""


@dataclass(frozen=True)
class Leakage:
    """The headline of an attack on one model: its value, interval and upper limit."""

    headline: Headline
    value: float | None
    interval: tuple[float, float] | None
    most: float | None

    @property
    def share(self) -> float | None:
        """How far it got from what guessing gets to all that there is."""
        if self.value is None:
            return None
        nothing, everything = self.headline.chance or 0.0, self.most or 1.0
        return min(1.0, max(0.0, (self.value - nothing) / (everything - nothing)))

    def __str__(self) -> str:
        said = fixed(self.value, self.headline.format)
        if self.value is not None and self.interval is not None:
            said += f" ({spread(*self.interval)})"
        return said if self.most is None else f"{said} of {fixed(self.most, '.4g')}"


def leakage_of(scores: Iterable[Scores], *, first: bool = False) -> dict[str, Leakage]:
    """The headlines of attacks by `attack.name`, in order; the `first` one of each if wanted."""
    found = {}
    for one in scores:
        for headline in one.presentation.headlines[: 1 if first else None]:
            key = one.key(headline)
            if key is not None:
                found[f"{one.attack}.{headline.name}"] = Leakage(
                    headline, finite(one.figures[key]), one.intervals.get(key),
                    finite(one.figures.get(headline.most)),
                )  # fmt: skip
    return found


def headlines_of(found: Iterable[Mapping[str, Leakage]]) -> dict[str, Headline]:
    """The headlines that any of several models has."""
    return {key: one.headline for leakage in found for key, one in leakage.items()}


@dataclass(frozen=True)
class Model:
    """A model that a run kept: its perplexity, and what attacks got of it."""

    step: int
    perplexity: float | None
    leakage: Mapping[str, Leakage] = field(default_factory=dict)

    def value(self, key: str) -> float | None:
        """A headline's value; None where it was not attacked so."""
        return self.leakage[key].value if key in self.leakage else None


@dataclass(frozen=True)
class RunFacts:
    """What a run's folder says: read from its files, nothing computed from text."""

    name: str
    folder: Path
    method: str
    certificate: Certificate
    metrics: dict[str, Any]
    scores: dict[str, Scores] = field(default_factory=dict)
    audits: tuple[Audit, ...] = ()
    series: Series = field(default_factory=dict)
    groups: Groups | None = None
    ends: Groups | None = None

    @property
    def epsilon(self) -> float:
        """Epsilon for what is protected."""
        return self.certificate.epsilon

    @property
    def promise(self) -> float:
        """Epsilon as a reader may take it: infinite where nothing is promised."""
        void = self.certificate.standing in ("heuristic", "broken")
        return math.inf if void else self.epsilon

    @property
    def measure(self) -> str | None:
        """By what the task of this run is scored; None before it was evaluated."""
        return next((name for name in MEASURES if self.utility(name) is not None), None)

    def utility(self, measure: str) -> float | None:
        """The score by a measure; the perplexity that stands beside attacks before any other."""
        beside = (s.perplexity for s in self.scores.values() if s.perplexity)
        found = next(beside, None) if measure == "perplexity" else None
        return self.score(measure) if found is None else found

    def score(self, name: str) -> float | None:
        """A score on test if the run was evaluated there, else on the validation split."""
        for split in ("test", "valid"):
            value = self.metrics.get(split, {}).get(name)
            if isinstance(value, float) and not math.isnan(value):
                return value
        return None

    @property
    def verdict(self) -> Verdict:
        """Whether the model is any good, from its scores."""
        return verdict_of(self.metrics)

    @property
    def tokenizer(self) -> str:
        """What tells its tokens from those of other runs: perplexities of one are comparable."""
        return self.certificate.files.get("tokenizer.json", "")

    @cached_property
    def models(self) -> list[Model]:
        """The models that were attacked on the way, in the order of their steps."""
        return [model_of(step, self.series[step]) for step in sorted(self.series)]


def model_of(step: int, scores: Mapping[str, Scores]) -> Model:
    """One model by the scores of its attacks."""
    perplexity = next((s.perplexity for s in scores.values() if s.perplexity is not None), None)
    return Model(step, perplexity, leakage_of(scores.values()))


def read_facts(folder: Path) -> RunFacts:
    """The facts of a run; attacks and audits where they were made."""
    folder = Path(folder)
    if not (folder / "certificate.json").exists():
        raise DataError(f"{folder} has no certificate.json; give the folder of a finished run.")
    certificate = read_certificate(folder / "certificate.json")

    def there(name: str, reads: Any, otherwise: Any) -> Any:
        return reads(folder / name) if (folder / name).exists() else otherwise

    return RunFacts(
        folder.resolve().name,
        folder,
        str(certificate.context.get("method", "")) or "unknown",
        certificate,
        there("metrics.json", _json, {}),
        {s.attack: s for s in there("attacks.json", read_scores, [])},
        tuple(there("audit.json", read_audit, ())),
        there("attacks-over-steps.json", read_series, {}),
        there("groups.json", read_groups, None),
        there("ends.json", read_groups, None),
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise DataError(f"{path} is not a JSON object; train the run again.")
    return found


def read_all(folders: Sequence[Path]) -> list[RunFacts]:
    """The facts of several runs, under names that differ."""
    found = [read_facts(folder) for folder in folders]
    names = short_names([folder.resolve() for folder in folders])
    return [replace(one, name=name) for one, name in zip(found, names, strict=True)]


def short_names(folders: Sequence[Path]) -> list[str]:
    """As much of the end of each as tells them apart; a whole path would name this machine's.

    >>> short_names([Path("/home/a/run"), Path("/home/b/run"), Path("/home/c")])
    ['a/run', 'b/run', 'c']
    """
    ends = [folder.parts[-1:] for folder in folders]
    for length in range(2, max((len(folder.parts) for folder in folders), default=0)):
        ends = [
            folder.parts[-length:] if ends.count(end) > 1 else end
            for folder, end in zip(folders, ends, strict=True)
        ]
    return ["/".join(end) for end in ends]


def differ_in_tokens(runs: Iterable[RunFacts]) -> bool:
    """Whether perplexities of these runs are over different tokens, hence not comparable."""
    return len({run.tokenizer for run in runs if run.measure == "perplexity"}) > 1


def finite(value: float | None) -> float | None:
    """The number, where it is one: a score that could not be had is null in a file."""
    return None if value is None or not math.isfinite(value) else float(value)


def fixed(value: float | None, digits: str = ".4g") -> str:
    """A number for people; a dash where there is none."""
    if value is None or math.isnan(value):
        return "-"
    return format(value, digits) if math.isfinite(value) else "infinite"


def spread(low: float | None, high: float | None, digits: str = ".2f") -> str:
    """An interval for people."""
    known = finite(low) is not None and finite(high) is not None
    return f"{fixed(low, digits)} to {fixed(high, digits)}" if known else "-"


def promised(epsilon: float) -> str:
    """An epsilon as it is written everywhere; one that does not exist is said in a word."""
    return "none" if math.isinf(epsilon) else up(epsilon)
