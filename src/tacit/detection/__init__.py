"""Find what is sensitive in text: detectors, their findings, and the entities behind them."""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import tee
from pathlib import Path
from typing import Any

from tacit.corpus import Corpus, Record
from tacit.corpus.reading import opened
from tacit.detection.detector import DETECTORS, Detector, Finding, open_detectors
from tacit.detection.kinds import kind_of, matches
from tacit.detection.mentions import Aliases, Entity, Grouping, Mention, resolve
from tacit.detection.provenance import Provenance, provenance_of
from tacit.errors import DataError
from tacit.files import refuse_overwrite
from tacit.notebook import rows_html
from tacit.workers import Workers

_BATCH = 1024

DEFAULT = "patterns,lists,names"
"""The detectors that are used where none are named."""

DEFAULT_KINDS = ("PERSON", "ORG", "PII")
"""What the default detectors look for: dates, amounts and countries are nobody's secret."""


def wanted_kinds(using: Any, kinds: Iterable[str] | None) -> list[str] | None:
    """The kinds to look for, None for all that the detectors know.

    >>> wanted_kinds("patterns,lists,names=de", None), wanted_kinds("gold", None)
    (['PERSON', 'ORG', 'PII'], None)
    """
    if kinds is None:
        usual = isinstance(using, str) and re.sub(r"\bnames=\w+", "names", using) == DEFAULT
        return list(DEFAULT_KINDS) if usual else None
    named = list(kinds)
    return None if named == ["all"] else [kind_of(k) for k in named]


@dataclass(frozen=True)
class Detection:
    """What a run of detectors found: mentions without names, and the entity table apart."""

    mentions: list[Mention]
    entities: list[Entity]
    detectors: tuple[str, ...]
    records: int
    seconds: float
    corpus_digest: str
    provenance: Provenance

    def summary(self) -> dict[str, Any]:
        """Counts and provenance, ready for JSON; no names and no text."""
        return {
            "corpus": self.corpus_digest,
            "detectors": list(self.detectors),
            "provenance": self.provenance.as_json(),
            "records": self.records,
            "sensitive_records": len({m.record for m in self.mentions}),
            "mentions": len(self.mentions),
            "entities": len(self.entities),
            "mentions_by_kind": dict(Counter(m.kind for m in self.mentions).most_common()),
            "entities_by_kind": dict(Counter(e.kind for e in self.entities).most_common()),
            "seconds": round(self.seconds, 2),
            "records_per_second": round(self.records / max(self.seconds, 1e-9)),
        }

    def save(self, mentions: str | Path, *, overwrite: bool = False) -> Path:
        """Write the mentions, and beside them the entity table (names: guard it) and a summary."""
        from tacit.detection.saving import mention_files, save_detection

        path = Path(mentions)
        refuse_overwrite(*mention_files(path, page=False).values(), overwrite=overwrite)
        save_detection(path, self, self.summary())
        return path

    def __repr__(self) -> str:
        return f"Detection({len(self.mentions):,} mentions in {self.records:,} records)"

    def _repr_html_(self) -> str:
        """What a notebook shows: counts by kind, and no text."""
        found = self.summary()
        rows = [
            (kind, count, found["entities_by_kind"].get(kind, 0))
            for kind, count in found["mentions_by_kind"].items()
        ]
        note = f"{found['sensitive_records']:,} of {self.records:,} records; exact counts."
        title = f"Found by {', '.join(self.detectors)}"
        return rows_html(title, ("kind", "mentions", "entities"), rows, note)


def detect(
    corpus: Corpus | str | Path,
    using: str | Sequence[str] | Sequence[Detector] = DEFAULT,
    *,
    kinds: Iterable[str] | None = None,
    minimum_score: float = 0.0,
    aliases: Aliases | None = None,
    progress: Callable[[int], None] | None = None,
    workers: Workers | None = None,
) -> Detection:
    """Run detectors over a corpus, or a file of one, and group what they find into entities.

    The default detectors look for `DEFAULT_KINDS` unless `kinds` says otherwise (`["all"]`: for
    everything that they know); others look for all their kinds. `workers` share the records; what
    is found is the same, in the same order.

    >>> corpus = Corpus.from_records([{"id": "1", "text": "write to ann@example.org"}])
    >>> [(m.start, m.end, m.kind) for m in detect(corpus, "patterns").mentions]
    [(9, 24, 'PII/EMAIL')]
    """
    corpus = opened(corpus)
    detectors = open_detectors(using)
    _require_gold(corpus, detectors)
    wanted = wanted_kinds(using, kinds)
    find = Find(using, wanted, minimum_score, detectors=detectors)
    grouping = Grouping(aliases)
    mentions: list[Mention] = []
    start = time.perf_counter()
    for record, findings in _searched(corpus, detectors, find, workers or Workers(), progress):
        mentions.extend(grouping.mentions(record.id, record.text, findings))
    provenance = provenance_of(
        detectors, using, kinds=wanted, minimum_score=minimum_score,
        aliases=aliases.digest if aliases is not None else None,
    )  # fmt: skip
    provenance = replace(provenance, learned=_learned_from(corpus, detectors))
    return Detection(
        mentions, grouping.entities(), tuple(d.name for d in detectors), len(corpus),
        time.perf_counter() - start, corpus.digest(), provenance,
    )  # fmt: skip


def _searched(
    corpus: Corpus,
    detectors: Sequence[Detector],
    find: "Find",
    workers: Workers,
    progress: Callable[[int], None] | None,
) -> Iterator[tuple[Record, list[Finding]]]:
    """Every record in its order, with what was found in it.

    *Guarantee*: what is found in a record depends on records of its own user alone. Where a
    detector looks at several of them, users come whole, so that it does not matter who else is in
    the corpus.
    """
    if not any(getattr(detector, "reads_users", False) for detector in detectors):
        ours, theirs = tee(corpus.batches(_BATCH))
        for batch, resolved in zip(ours, workers.map(find, theirs), strict=True):
            yield from zip(batch, resolved, strict=True)
            if progress:
                progress(len(batch))
        return
    parts = list(_whole_users(corpus))
    found: list[list[Finding]] = [[] for _ in range(len(corpus))]
    batches = (list(corpus.take(rows).records()) for rows in parts)
    for rows, resolved in zip(parts, workers.map(find, batches), strict=True):
        for row, findings in zip(rows, resolved, strict=True):
            found[row] = findings
        if progress:
            progress(len(rows))
    yield from zip(corpus.records(), found, strict=True)


def _whole_users(corpus: Corpus) -> Iterator[list[int]]:
    """The rows of a corpus in batches of whole users; a record without one stands alone."""
    users = corpus.column("user").to_pylist() if "user" in corpus.columns else [None] * len(corpus)
    own: dict[str | int, list[int]] = {}
    for row, user in enumerate(users):
        own.setdefault(row if user is None else user, []).append(row)
    batch: list[int] = []
    for rows in own.values():
        batch += rows
        if len(batch) >= _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _learned_from(corpus: Corpus, detectors: Iterable[Detector]) -> tuple[str, ...]:
    """The detectors that were trained on this corpus, or on a split of it."""
    trained = {d.name: getattr(d, "learned_from", None) for d in detectors}
    if not any(trained.values()):
        return ()
    parts = [corpus, *(corpus.only(split) for split in corpus.splits())]
    here = {part.digest() for part in parts}
    return tuple(name for name, source in trained.items() if source in here)


def _require_gold(corpus: Corpus, detectors: Iterable[Detector]) -> None:
    if any(d.name == "gold" for d in detectors) and not {"spans", "tags"} & set(corpus.columns):
        raise DataError(
            f"{corpus.name} has no gold labels; the detector `gold` needs a column of spans or "
            "of tokens and tags."
        )


class Find:
    """What detectors see in a batch of records, overlaps resolved.

    Copied to another process, it opens its detectors there, by their names.
    """

    def __init__(
        self,
        using: str | Sequence[str] | Sequence[Detector],
        kinds: Sequence[str] | None = None,
        minimum_score: float = 0.0,
        *,
        detectors: list[Detector] | None = None,
    ) -> None:
        self._using, self._kinds, self._minimum = using, kinds, minimum_score
        self._detectors = open_detectors(using) if detectors is None else detectors

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_detectors"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _detectors=open_detectors(state["_using"]))

    def __call__(self, batch: Sequence[Record]) -> list[list[Finding]]:
        """The findings of each record that are of the wanted kinds and sure enough."""
        found: list[list[Finding]] = [[] for _ in batch]
        for detector in self._detectors:
            for place, findings in enumerate(detector.find(batch)):
                found[place].extend(findings)
        return [self._kept(f, record) for f, record in zip(found, batch, strict=True)]

    def _kept(self, findings: Sequence[Finding], record: Record) -> list[Finding]:
        kept = [
            f
            for f in findings
            if f.score >= self._minimum and (self._kinds is None or matches(f.kind, self._kinds))
        ]
        for f in kept:
            if not 0 <= f.start < f.end <= len(record.text):
                raise DataError(
                    f"record {record.id}: a detector marked {f.start}:{f.end} in a text of "
                    f"{len(record.text)} characters; that detector is broken, leave it out."
                )
        return resolve(kept, record.text)


__all__ = [
    "DEFAULT",
    "DEFAULT_KINDS",
    "DETECTORS",
    "Detection",
    "Detector",
    "Find",
    "Finding",
    "detect",
    "open_detectors",
    "wanted_kinds",
]
