"""How good detection is, against gold labels.

Two questions, kept apart. *Was each thing named right?* counts a mention as correct when its
start, end and kind equal a gold label's: precision, recall, F1 and F2 as seqeval reports them.
*Did anything sensitive slip through?* counts characters and records, whatever the kind: a mark
is covered when every character of it lies in some mention.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from tacit.corpus import Corpus, Span
from tacit.detection.detector import Finding
from tacit.detection.gold_labels import gold_spans
from tacit.detection.kinds import family
from tacit.detection.mentions import Mention
from tacit.errors import DataError, UsageError


@dataclass(frozen=True, slots=True)
class Score:
    """Exact-match numbers of one kind, or of all: gold labels (`support`), found, correct.

    `characters` is the share of given characters that some mention covers, None if none are
    given.
    """

    precision: float
    recall: float
    f1: float
    f2: float
    support: int
    found: int
    correct: int
    characters: float | None


@dataclass(frozen=True, slots=True)
class Scores:
    """What detection reached on the records that have gold labels.

    `records_all` and `records_any` are the shares of sensitive records (those with a mark) of
    which all marks, or at least one, are covered; None if no record is sensitive.
    """

    kinds: Mapping[str, Score]
    micro: Score
    macro: Score
    records: int
    sensitive_records: int
    records_all: float | None
    records_any: float | None

    def row(self) -> dict[str, Any]:
        """The numbers as a plain dictionary, ready for JSON."""
        row = asdict(self)
        row["kinds"] = {kind: asdict(score) for kind, score in self.kinds.items()}
        return row


Found = Mapping[str, Sequence[Finding | Mention]] | Iterable[Mention]


def score(
    corpus: Corpus,
    found: Found,
    *,
    by: str = "kind",
    kinds: Mapping[str, str] | None = None,
) -> Scores:
    """Compare what was found (mentions, or findings by record id) with the gold labels.

    `by="family"` takes `PII/EMAIL` as `PII`. `kinds` renames on both sides before comparing:
    `{"GPE": "LOC"}` joins two vocabularies. Records without gold labels are left out.
    """
    if by not in ("kind", "family"):
        raise UsageError(f"by={by!r} is unknown; accepted: kind, family.")
    found_in = _by_record(found)
    rename = dict(kinds or {})

    def called(kind: str) -> str:
        kind = rename.get(kind, kind)
        return family(kind) if by == "family" else kind

    tally = Tally()
    for number, record in enumerate(corpus.records(), 1):
        gold = gold_spans(record, number)
        if gold is not None:
            marks = [Span(s.start, s.end, called(s.kind)) for s in gold]
            seen = [Span(f.start, f.end, called(f.kind)) for f in found_in.get(record.id, ())]
            tally.add(marks, seen)
    if not tally.records:
        raise DataError(
            f"{corpus.name} has no gold labels to score against; give a corpus with spans, or "
            "with tokens and tags."
        )
    return tally.scores()


def _by_record(found: Found) -> Mapping[str, Sequence[Finding | Mention]]:
    if isinstance(found, Mapping):
        return found
    grouped: dict[str, list[Finding | Mention]] = defaultdict(list)
    for mention in found:
        grouped[mention.record].append(mention)
    return grouped


class Tally:
    """Counts, added to record by record."""

    def __init__(self) -> None:
        self.support: defaultdict[str, int] = defaultdict(int)
        self.found: defaultdict[str, int] = defaultdict(int)
        self.correct: defaultdict[str, int] = defaultdict(int)
        # Characters given and covered: in all, and for each kind.
        self.given: defaultdict[str | None, int] = defaultdict(int)
        self.covered: defaultdict[str | None, int] = defaultdict(int)
        self.records = self.sensitive = self.all = self.any = 0

    def add(self, gold: Iterable[Span], seen: Iterable[Span]) -> None:
        """Count one record."""
        self.records += 1
        marks, hits = set(gold), set(seen)
        for s in marks:
            self.support[s.kind] += 1
        for s in hits:
            self.found[s.kind] += 1
        for s in marks & hits:
            self.correct[s.kind] += 1
        if not marks:
            return
        cover = _union(hits)
        self._add_characters(None, marks, cover)
        for kind in {s.kind for s in marks}:
            self._add_characters(kind, [s for s in marks if s.kind == kind], cover)
        whole = [_overlap([(s.start, s.end)], cover) == s.end - s.start for s in marks]
        self.sensitive += 1
        self.all += all(whole)
        self.any += any(whole)

    def _add_characters(
        self, kind: str | None, marks: Iterable[Span], cover: list[tuple[int, int]]
    ) -> None:
        stretches = _union(marks)
        self.given[kind] += sum(end - start for start, end in stretches)
        self.covered[kind] += _overlap(stretches, cover)

    def scores(self) -> Scores:
        """What the counts come to."""
        names = sorted({*self.support, *self.found})
        kinds = {
            k: _score(
                self.support[k],
                self.found[k],
                self.correct[k],
                _share(self.covered[k], self.given[k]),
            )
            for k in names
        }
        support, found, correct = (
            sum(counts.values()) for counts in (self.support, self.found, self.correct)
        )
        characters = _share(self.covered[None], self.given[None])
        return Scores(
            kinds=kinds,
            micro=_score(support, found, correct, characters),
            macro=_mean(list(kinds.values())),
            records=self.records,
            sensitive_records=self.sensitive,
            records_all=_share(self.all, self.sensitive),
            records_any=_share(self.any, self.sensitive),
        )


def _union(spans: Iterable[Span]) -> list[tuple[int, int]]:
    """The stretches that spans cover together, in order and apart."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted((s.start, s.end) for s in spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def _overlap(some: list[tuple[int, int]], others: list[tuple[int, int]]) -> int:
    """How many characters two lists of stretches, each in order and apart, have in common."""
    total = i = j = 0
    while i < len(some) and j < len(others):
        total += max(0, min(some[i][1], others[j][1]) - max(some[i][0], others[j][0]))
        if some[i][1] < others[j][1]:
            i += 1
        else:
            j += 1
    return total


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _f(precision: float, recall: float, beta: float) -> float:
    weighted = beta**2 * precision + recall
    return (1 + beta**2) * precision * recall / weighted if weighted else 0.0


def _score(support: int, found: int, correct: int, characters: float | None) -> Score:
    # Nothing found, or nothing to find: zero, as seqeval says.
    precision = correct / found if found else 0.0
    recall = correct / support if support else 0.0
    f1, f2 = _f(precision, recall, 1), _f(precision, recall, 2)
    return Score(precision, recall, f1, f2, support, found, correct, characters)


def _mean(scores: Sequence[Score]) -> Score:
    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values) if values else 0.0

    covered = [s.characters for s in scores if s.characters is not None]
    return Score(
        precision=mean([s.precision for s in scores]),
        recall=mean([s.recall for s in scores]),
        f1=mean([s.f1 for s in scores]),
        f2=mean([s.f2 for s in scores]),
        support=sum(s.support for s in scores),
        found=sum(s.found for s in scores),
        correct=sum(s.correct for s in scores),
        characters=mean(covered) if covered else None,
    )


# --- showing ------------------------------------------------------------------------------

HEADINGS = ("kind", "precision", "recall", "F1", "F2", "characters", "gold", "found")


def rows(scores: Scores) -> list[tuple[str, ...]]:
    """The lines of the table as text, under `HEADINGS`: each kind, then all together."""
    lines = [*scores.kinds.items(), ("all (micro)", scores.micro), ("mean (macro)", scores.macro)]
    return [
        (
            name,
            *(f"{v:.3f}" for v in (s.precision, s.recall, s.f1, s.f2)),
            "-" if s.characters is None else f"{s.characters:.3f}",
            f"{s.support:,}",
            f"{s.found:,}",
        )
        for name, s in lines
    ]


def coverage(scores: Scores) -> str:
    """One sentence on what slipped through."""
    if scores.records_all is None or scores.records_any is None:
        return f"None of {scores.records:,} records has a gold label."
    return (
        f"Of {scores.sensitive_records:,} records with gold labels (of {scores.records:,}), "
        f"{scores.records_all:.1%} have every mark covered and {scores.records_any:.1%} at least "
        f"one; {scores.micro.characters or 0:.1%} of the marked characters are covered."
    )


def table(scores: Scores) -> Table:
    """The scores as a table for the terminal."""
    shown = Table(caption=coverage(scores))
    for heading in HEADINGS:
        shown.add_column(heading, justify="left" if heading == "kind" else "right")
    lines = rows(scores)
    for place, line in enumerate(lines):
        shown.add_row(*line, end_section=place == len(lines) - 3)
    return shown
