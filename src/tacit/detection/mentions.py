"""Mentions: where something sensitive stands; and the entity table, kept apart.

A mention holds offsets and an entity id, never the words. The entity table knows the names,
so the two files can be guarded differently.
"""

import hashlib
import json
import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from tacit.corpus import Corpus
from tacit.detection.detector import Finding
from tacit.detection.kinds import kind_of
from tacit.errors import DataError
from tacit.files import require_file, whole_file


@dataclass(frozen=True, slots=True)
class Mention:
    """A place in a record where an entity is named, how sure that is, and why."""

    record: str
    start: int
    end: int
    kind: str
    entity: str
    score: float
    why: str


@dataclass(frozen=True, slots=True)
class Entity:
    """One row of the entity table: this is the only place that holds a name."""

    id: str
    kind: str
    name: str
    mentions: int
    records: int


def resolve(findings: Sequence[Finding], text: str) -> list[Finding]:
    """Findings without overlaps, such that every marked character stays marked.

    The rule: the longer span wins, then the higher score, then the detector named first. A
    loser inside a winner disappears into its `why`; a loser that sticks out keeps only the
    part that sticks out, if a letter or digit is left in it.

    >>> a = Finding(0, 10, "PERSON", 0.9, "tagger")
    >>> b = Finding(6, 16, "ORG", 0.5, "lists")
    >>> [(f.start, f.end, f.kind) for f in resolve([b, a], "Anna Maria Ltd. x")]
    [(0, 10, 'PERSON'), (11, 15, 'ORG')]
    """
    ranked = sorted(enumerate(findings), key=lambda p: (p[1].start - p[1].end, -p[1].score, p[0]))
    # The winners so far, in order of place: their starts, and each with its reasons.
    starts: list[int] = []
    winners: list[tuple[Finding, dict[str, None]]] = []
    for _, finding in ranked:
        cursor = finding.start
        for winner, reasons in _overlapping(starts, winners, finding):
            if winner.start <= finding.start and finding.end <= winner.end:
                reasons[finding.why] = None
            _insert(starts, winners, finding, cursor, min(winner.start, finding.end), text)
            cursor = max(cursor, winner.end)
        _insert(starts, winners, finding, cursor, finding.end, text)
    return [replace(winner, why="; ".join(reasons)) for winner, reasons in winners]


_Winners = list[tuple[Finding, dict[str, None]]]


def _overlapping(starts: list[int], winners: _Winners, finding: Finding) -> _Winners:
    first = bisect_right(starts, finding.start) - 1
    if first < 0 or winners[first][0].end <= finding.start:
        first += 1
    return winners[first : bisect_left(starts, finding.end)]


def _insert(
    starts: list[int], winners: _Winners, finding: Finding, start: int, end: int, text: str
) -> None:
    """Add the part of a finding that no winner covers, if a letter or digit is in it."""
    start, end = _trim(text, start, end)
    if any(c.isalnum() for c in text[start:end]):
        place = bisect_left(starts, start)
        starts.insert(place, start)
        piece = replace(finding, start=start, end=end)
        winners.insert(place, (piece, {finding.why: None}))


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end


def lowered(text: str) -> str:
    """The text in lower case, no longer and no shorter, so that offsets stay true."""
    low = text.lower()
    # Some letters grow when lowered (İ becomes two): those keep their first character only.
    return low if len(low) == len(text) else "".join(c.lower()[0] for c in text)


_POSSESSIVE = re.compile(r"(?:['’]s|(?<=s)['’])$")
_NUMBER_KINDS = frozenset({"PII/PHONE", "PII/SSN", "PII/CARD", "PII/IBAN"})


def fold(name: str, kind: str) -> str:
    """The form under which two mentions are the same entity.

    Case, width, white space, a possessive and surrounding punctuation are folded away; numbers
    that people group at will (telephones, cards, accounts) keep their digits and letters only.

    >>> fold("  The  BANK's ", "ORG"), fold("+1 (555) 010-9999", "PII/PHONE")
    ('the bank', '15550109999')
    """
    folded = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
    if kind in _NUMBER_KINDS:
        return "".join(c for c in folded if c.isalnum()) or folded
    bare = _POSSESSIVE.sub("", folded).strip(" \"'.,;:!?()[]{}“”‘’«»")
    return bare or folded


class Aliases:
    """Names that mean the same entity, from a rule file.

    The file is YAML: a kind, or `any`, then the name to use with its other names::

        PERSON:
          angela merkel: [merkel, chancellor merkel]
        any:
          united states: [u.s., usa, america]
    """

    def __init__(self, rules: Mapping[str, Mapping[str, Sequence[str]]]) -> None:
        self._to: dict[tuple[str, str], str] = {}
        for kind, names in rules.items():
            kind = "any" if kind.lower() == "any" else kind_of(kind)
            for name, others in names.items():
                for other in others:
                    self._to[kind, fold(other, kind)] = fold(name, kind)

    @property
    def digest(self) -> str:
        """A SHA-256 of the rules; private, like the names in them."""
        return hashlib.sha256(repr(sorted(self._to.items())).encode()).hexdigest()

    @classmethod
    def read(cls, path: Path) -> "Aliases":
        """The rules of a YAML file."""
        try:
            rules = yaml.safe_load(require_file(path).read_text(encoding="utf-8"))
            return cls(rules or {})
        except (yaml.YAMLError, UnicodeDecodeError, AttributeError, TypeError):
            raise DataError(
                f"{path} is not an alias file; accepted is YAML of the form "
                "KIND (or any): {name: [other name, ...]}."
            ) from None

    def name(self, kind: str, folded: str) -> str:
        """The name to use for a folded name."""
        return self._to.get((kind, folded)) or self._to.get(("any", folded)) or folded


class Grouping:
    """Gives each mention its entity: same kind and same folded name (or an alias of it).

    Ids count up in order of first appearance and say nothing about the name.
    """

    def __init__(self, aliases: Aliases | None = None) -> None:
        self._aliases = aliases or Aliases({})
        self._ids: dict[tuple[str, str], str] = {}
        self._mentions: Counter[str] = Counter()
        self._records: Counter[str] = Counter()
        self._last: dict[str, str] = {}

    def mentions(self, record: str, text: str, findings: Iterable[Finding]) -> list[Mention]:
        """The findings of one record as mentions of entities."""
        found = []
        for f in findings:
            name = self._aliases.name(f.kind, fold(text[f.start : f.end], f.kind))
            entity = self._ids.setdefault((f.kind, name), f"e{len(self._ids) + 1}")
            self._mentions[entity] += 1
            if self._last.get(entity) != record:
                self._records[entity] += 1
                self._last[entity] = record
            found.append(Mention(record, f.start, f.end, f.kind, entity, f.score, f.why))
        return found

    def entities(self) -> list[Entity]:
        """The entity table so far."""
        return [
            Entity(id_, kind, name, self._mentions[id_], self._records[id_])
            for (kind, name), id_ in self._ids.items()
        ]


def write_lines(path: Path, rows: Iterable[Any]) -> None:
    """Write dataclasses as JSON lines, whole or not at all."""
    with whole_file(path) as draft, draft.open("w", encoding="utf-8") as out:
        for row in rows:
            out.write(json.dumps(asdict(row), ensure_ascii=False, allow_nan=False) + "\n")


def read_mentions(path: Path, corpus: Corpus) -> list[Mention]:
    """The mentions of a file, each checked to lie inside a record of the corpus."""
    lengths = dict(
        zip(
            corpus.column("id").to_pylist(),
            (len(t) for t in corpus.column("text").to_pylist()),
            strict=True,
        )
    )
    mentions = []
    for number, row in _json_lines(path):
        try:
            mention = Mention(**row)
            room = lengths.get(mention.record)
            inside = room is not None and 0 <= mention.start < mention.end <= room
        except TypeError:
            raise DataError(
                f"{path}, line {number}, is not a mention; accepted are the files that "
                "`tacit detect` writes."
            ) from None
        if room is None:
            raise DataError(
                f"{path}, line {number}, names a record that {corpus.name} does not have; "
                "give the corpus (and split) that was searched."
            )
        if not inside:
            raise DataError(
                f"{path}, line {number}: the span {mention.start}:{mention.end} is outside its "
                f"text of {room} characters; run `tacit detect` again on this corpus."
            )
        mentions.append(mention)
    return mentions


def read_entities(path: Path) -> list[Entity]:
    """The entity table of a file."""
    try:
        return [Entity(**row) for _, row in _json_lines(path)]
    except TypeError:
        raise DataError(
            f"{path} is not an entity table; accepted are the files that `tacit detect` writes."
        ) from None


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with require_file(path).open(encoding="utf-8") as lines:
        try:
            for number, line in enumerate(lines, 1):
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError
                yield number, row
        except (ValueError, RecursionError):
            raise DataError(
                f"{path} is not a file of JSON lines; accepted are the files that "
                "`tacit detect` writes."
            ) from None
