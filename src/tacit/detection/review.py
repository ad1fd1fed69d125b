"""How often is a detector right? A page on which a person checks a sample of records, and a count.

The page holds the text of the sample. What the person answers is saved as offsets and kinds, so the
file of answers holds no text; `agreement_in` counts it.
"""

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from jinja2 import Environment, StrictUndefined
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from scipy.special import betaincinv

from tacit.corpus import Corpus, Record
from tacit.detection.kinds import known_kinds
from tacit.detection.mentions import Mention
from tacit.detection.mentions_page import as_script_json, hue
from tacit.errors import DataError, UsageError
from tacit.files import whole_file

VERSION = 1
_TAIL = 0.025

Place = tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=1)], str]
"""Where a span starts and ends, and its kind."""


def write_review(
    path: Path,
    corpus: Corpus,
    mentions: Iterable[Mention],
    *,
    detectors: str,
    sample: int = 100,
    seed: int = 0,
) -> int:
    """Write the page for so many records, drawn alike from all; how many there are on it.

    Records without mentions are drawn, too: what was overlooked counts.
    """
    if sample < 1:
        raise UsageError(f"sample={sample} reviews nothing; give 1 or more.")
    count = min(sample, len(corpus))
    rows = sorted(random.Random(seed).sample(range(len(corpus)), count))
    by_record: dict[str, list[Mention]] = defaultdict(list)
    for mention in mentions:
        by_record[mention.record].append(mention)
    kinds = list(known_kinds())
    kinds += sorted({m.kind for marks in by_record.values() for m in marks} - set(kinds))
    records = [
        {"id": r.id, "pieces": list(_pieces(r, by_record.get(r.id, ()), kinds))}
        for r in corpus.take(rows).records()
    ]
    about = {"review": VERSION, "detectors": detectors, "seed": seed, "records": len(corpus),
             "sample": count}  # fmt: skip
    legend = [{"name": kind, "hue": hue(kind)} for kind in kinds]
    source = (files("tacit.detection") / "review.html.jinja").read_text(encoding="utf-8")
    page = Environment(autoescape=True, undefined=StrictUndefined).from_string(source)
    html = page.render(
        title=f"What was found in {corpus.name}: a check of {count:,} records",
        data=as_script_json({"about": about, "kinds": legend, "records": records}),
    )
    with whole_file(Path(path)) as draft:
        draft.write_text(html, encoding="utf-8")
    return count


def _pieces(record: Record, mentions: Sequence[Mention], kinds: list[str]) -> Iterator[Any]:
    """The whole text: a string where nothing is marked, else the words, place and kind of a mark.

    Of marks that overlap the first and longest is shown.
    """
    at = 0
    for mention in sorted(mentions, key=lambda m: (m.start, -m.end)):
        if mention.start < at:
            continue
        if mention.start > at:
            yield record.text[at : mention.start]
        words = record.text[mention.start : mention.end]
        yield [words, mention.start, mention.end, kinds.index(mention.kind)]
        at = mention.end
    if at < len(record.text):
        yield record.text[at:]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Answer(_Strict):
    """What a person says of one record."""

    id: str
    right: list[Place]
    wrong: list[Place]
    missed: list[Place]


class Answers(_Strict):
    """A file of answers, as the page saves it."""

    review: Literal[1]
    detectors: str
    seed: int
    records: int = Field(ge=1)
    sample: int = Field(ge=1)
    answers: list[Answer]


@dataclass(frozen=True)
class Agreement:
    """How far a person and the detectors agree, on records drawn alike from all."""

    detectors: str
    sample: int
    checked: int
    alike: int
    """Records in which nothing was wrong or missed."""
    kinds: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    """By kind: marks that are right, wrong, missed."""

    @property
    def share(self) -> tuple[float, float, float]:
        """The share of such records, with its exact interval of 95 %."""
        return _share(self.alike, self.checked)

    def rows(self) -> list[tuple[str, int, int, int, float | None, float | None]]:
        """By kind and in all: right, wrong, missed, precision, recall."""
        totals = tuple(sum(part) for part in zip(*self.kinds.values(), strict=True)) or (0, 0, 0)
        return [
            (kind, right, wrong, missed, _part(right, wrong), _part(right, missed))
            for kind, (right, wrong, missed) in [*self.kinds.items(), ("all", totals)]
        ]

    def as_json(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        share, low, high = self.share
        names = ("kind", "right", "wrong", "missed", "precision", "recall")
        return {
            "detectors": self.detectors, "sample": self.sample, "checked": self.checked,
            "agreement": share, "agreement_interval": [low, high],
            "kinds": [dict(zip(names, row, strict=True)) for row in self.rows()],
        }  # fmt: skip


def agreement_in(path: Path) -> Agreement:
    """What a file of answers says."""
    try:
        found = Answers.model_validate(json.loads(Path(path).read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; the page's button Save writes it.") from None
    except (OSError, UnicodeDecodeError, ValueError, ValidationError):
        raise DataError(
            f"{path} is no file of answers; it is what the button Save of the page writes."
        ) from None
    if not found.answers:
        raise DataError(f"{path} holds no record that was checked; check some on the page.")
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for answer in found.answers:
        for what in ("right", "wrong", "missed"):
            for _, _, kind in getattr(answer, what):
                counts[kind][what] += 1
    alike = sum(not answer.wrong and not answer.missed for answer in found.answers)
    return Agreement(
        found.detectors, found.sample, len(found.answers), alike,
        {k: (c["right"], c["wrong"], c["missed"]) for k, c in sorted(counts.items())},
    )  # fmt: skip


def _part(right: int, other: int) -> float | None:
    return right / (right + other) if right + other else None


def _share(hits: int, trials: int) -> tuple[float, float, float]:
    """A share with its interval (Clopper and Pearson 1934)."""
    low = float(betaincinv(hits, trials - hits + 1, _TAIL)) if hits else 0.0
    high = float(betaincinv(hits + 1, trials - hits, 1 - _TAIL)) if hits < trials else 1.0
    return hits / trials, low, high
