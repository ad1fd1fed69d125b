"""Find what is sensitive in text: detectors, their findings, and the entities behind them."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tacit.corpus import Corpus
from tacit.detecting.detector import Detector, Finding, open_detectors, registered
from tacit.detecting.kinds import kind_of, matches
from tacit.detecting.mentions import Aliases, Entity, Grouping, Mention, resolve
from tacit.errors import DataError

# The tagger looks at the other records of a user within a batch, so batches are not small.
_BATCH = 1024


@dataclass(frozen=True)
class Detection:
    """What a run of detectors found: mentions without names, and the entity table apart."""

    mentions: list[Mention]
    entities: list[Entity]
    detectors: tuple[str, ...]
    records: int
    seconds: float
    corpus_digest: str

    def summary(self) -> dict[str, Any]:
        """Counts and provenance, ready for JSON; no names and no text."""
        return {
            "corpus": self.corpus_digest,
            "detectors": list(self.detectors),
            "records": self.records,
            "sensitive_records": len({m.record for m in self.mentions}),
            "mentions": len(self.mentions),
            "entities": len(self.entities),
            "mentions_by_kind": dict(Counter(m.kind for m in self.mentions).most_common()),
            "entities_by_kind": dict(Counter(e.kind for e in self.entities).most_common()),
            "seconds": round(self.seconds, 2),
            "records_per_second": round(self.records / max(self.seconds, 1e-9)),
        }


def detect(
    corpus: Corpus,
    using: str | Sequence[str] | Sequence[Detector] = "patterns,lists",
    *,
    kinds: Iterable[str] | None = None,
    minimum_score: float = 0.0,
    aliases: Aliases | None = None,
    progress: Callable[[int], None] | None = None,
) -> Detection:
    """Run detectors over a corpus and group what they find into entities.

    >>> corpus = Corpus.from_records([{"id": "1", "text": "write to ann@example.org"}])
    >>> [(m.start, m.end, m.kind) for m in detect(corpus, "patterns").mentions]
    [(9, 24, 'PII/EMAIL')]
    """
    detectors = _opened(using)
    if any(d.name == "given" for d in detectors) and not {"spans", "tags"} & set(corpus.columns):
        raise DataError(
            f"{corpus.name} has no given marks; the detector `given` needs a column of spans or "
            "of tokens and tags."
        )
    wanted = [kind_of(k) for k in kinds] if kinds is not None else None
    grouping = Grouping(aliases)
    mentions: list[Mention] = []
    start = time.perf_counter()
    for batch in corpus.batches(_BATCH):
        found: list[list[Finding]] = [[] for _ in batch]
        for detector in detectors:
            for place, findings in enumerate(detector.find(batch)):
                found[place].extend(findings)
        for record, findings in zip(batch, found, strict=True):
            kept = [
                f
                for f in findings
                if f.score >= minimum_score and (wanted is None or matches(f.kind, wanted))
            ]
            _check_inside(kept, record.id, len(record.text))
            resolved = resolve(kept, record.text)
            mentions.extend(grouping.mentions(record.id, record.text, resolved))
        if progress:
            progress(len(batch))
    return Detection(
        mentions=mentions,
        entities=grouping.entities(),
        detectors=tuple(d.name for d in detectors),
        records=len(corpus),
        seconds=time.perf_counter() - start,
        corpus_digest=corpus.digest(),
    )


def _opened(using: str | Sequence[str] | Sequence[Detector]) -> list[Detector]:
    if isinstance(using, str):
        return open_detectors(using)
    detectors: list[Detector] = []
    for one in using:
        detectors.extend(open_detectors([one]) if isinstance(one, str) else [one])
    return detectors


def _check_inside(findings: Iterable[Finding], record: str, length: int) -> None:
    for f in findings:
        if not 0 <= f.start < f.end <= length:
            raise DataError(
                f"record {record}: a detector marked {f.start}:{f.end} in a text of {length} "
                "characters; that detector is broken, leave it out."
            )


__all__ = ["Detection", "Detector", "Finding", "detect", "open_detectors", "registered"]
