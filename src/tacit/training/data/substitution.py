"""Mention substitution: texts with invented names, and which real names are shown in a step.

The argument is in docs/explanations/guarantees.md, section 12. What it rests on, and where it is:

    a record's base text knows its template, its id and the key, and no name    `Marked.base`
    a text that shows one name knows that name's places, and no other name      `Marked.showing`
    places are nominated by ids alone; a reserved name wastes its place         `Marked.shown`
    users are ranked for each name by the name itself, over all users           `Marked.shown`

A record's id is its user and its number among that user's own records, so that it stays the same
when other users come or go, and does not look at any text.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.corpus import Corpus
from tacit.detection.kinds import kind_of, known_kinds, matches
from tacit.detection.mentions import Entity, Mention, fold
from tacit.detection.surrogates import keyed_number, reserved, surrogate
from tacit.errors import DataError, UsageError
from tacit.planning.plan import Plan

Keys = NDArray[np.uint64]


class Name(NamedTuple):
    """What is protected: a kind and a folded spelling, aliases joined."""

    kind: str
    folded: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a name stands in a record; `name` is None where it is reserved, hence never shown."""

    start: int
    end: int
    kind: str
    name: Name | None


@dataclass(frozen=True, slots=True)
class MarkedRecord:
    """A record with the places of its names; `number` counts the records of its user."""

    user: str
    number: int
    text: str
    places: tuple[Place, ...]

    def rendered(self, key: bytes, show: Name | None = None) -> str:
        """The text with the shown name as written, and an invented one at every other place."""
        parts, at = [], 0
        for number, place in enumerate(self.places):
            kept = show is not None and place.name == show
            written = self.text[place.start : place.end]
            own = written if kept else surrogate(place.kind, key, self.user, self.number, number)
            parts += [self.text[at : place.start], own]
            at = place.end
        return "".join([*parts, self.text[at:]])


class Shown(NamedTuple):
    """A name that a user shows in a step, and the rows of the corpus that nominated it."""

    user: str
    name: Name
    rows: tuple[int, ...]


class Marked:
    """The records of a corpus, row by row, and the rule by which names are replaced and shown."""

    def __init__(self, records: Sequence[MarkedRecord], key: bytes) -> None:
        self.records, self.key = tuple(records), key
        places = [
            (row, place.name, keyed_number(key, "place", r.user, r.number, i))
            for row, r in enumerate(self.records)
            for i, place in enumerate(r.places)
        ]
        users = sorted({r.user for r in self.records})
        number = {user: n for n, user in enumerate(users)}
        self._users = users
        self._row = np.array([row for row, *_ in places], dtype=np.int64)
        self._owner = np.array(
            [number[self.records[row].user] for row in self._row], dtype=np.int64
        )
        self._names = [name for _, name, _ in places]
        self._key = np.array([own for *_, own in places], dtype=np.uint64)

    def base(self, row: int) -> str:
        """A record with invented names at all its places."""
        return self.records[row].rendered(self.key)

    def showing(self, row: int, name: Name) -> str:
        """The base text with one name as it was written."""
        return self.records[row].rendered(self.key, name)

    def base_corpus(self, part: Corpus) -> Corpus:
        """The corpus with base texts; what belongs to the words of the old ones is left out."""
        return rewritten(part, [self.base(row) for row in range(len(self.records))])

    def shown(self, step: int, *, users_per_name: int, names_per_user: int) -> list[Shown]:
        """Which names are shown in a step, and by whom: a function of all users' records.

        Every user's first places in a keyed order are nominated, whatever stands there; every
        name's first nominators in a keyed order show it. Ties go by place and by user.
        """
        order = _mixed(self._key, keyed_number(self.key, "nominate", step))
        by_user = np.lexsort((np.arange(len(order)), order, self._owner))
        owner = self._owner[by_user]
        first = np.searchsorted(owner, owner, side="left")
        nominated = by_user[np.arange(len(owner)) - first < names_per_user]
        rows: dict[Name, dict[int, list[int]]] = {}
        for at in nominated.tolist():
            name = self._names[at]
            if name is not None:  # a reserved one keeps its place, and wastes it
                rows.setdefault(name, {}).setdefault(int(self._owner[at]), []).append(at)
        found = []
        for name, holders in rows.items():
            ranked = sorted(holders, key=lambda user: (self._rank(name, user, step), user))
            for user in ranked[:users_per_name]:
                own = sorted({int(self._row[at]) for at in holders[user]})
                found.append(Shown(self._users[user], name, tuple(own)))
        return found

    def _rank(self, name: Name, user: int, step: int) -> int:
        return keyed_number(self.key, "rank", step, name.kind, name.folded, self._users[user])


def _mixed(keys: Keys, step_key: int) -> Keys:
    """Keys of places mixed with that of a step: the finalizer of SplitMix64."""
    with np.errstate(over="ignore"):
        z = keys ^ np.uint64(step_key)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: Keys = z ^ (z >> np.uint64(31))
    return mixed


def marked(
    plan: Plan, part: Corpus, mentions: Sequence[Mention], entities: Sequence[Entity]
) -> Marked:
    """The records of a corpus with the names that a plan protects; public names stay as they are.

    The key comes from the plan's public seed, never from a text.
    """
    if "pair" in part.columns:
        raise UsageError(
            f"protect={plan.protect} replaces marked names in a record's text, and detectors do "
            "not read the second texts (`pair`) of this corpus; protect users."
        )
    wanted = known_kinds() if plan.kinds is None else [kind_of(kind) for kind in plan.kinds]
    public = public_names(plan.public_entities)
    known = {entity.id: entity.name for entity in entities}
    by_record: dict[str, list[Mention]] = {}
    for mention in mentions:
        if mention.kind not in known_kinds():  # it has no invented names, and would stay
            raise DataError(
                "A mention is of a kind that is not known, so its name would not be replaced; "
                "accepted are the kinds that `tacit detect list` shows."
            )
        if matches(mention.kind, wanted):
            by_record.setdefault(mention.record, []).append(mention)
    seen: Counter[str] = Counter()
    records = []
    columns = (part.column("id"), part.require_users(), part.column("text"))
    for record, user, text in zip(*(column.to_pylist() for column in columns), strict=True):
        places = [
            place
            for start, end, mention in _joined(by_record.get(record, ()))
            if (place := _place(text, start, end, mention, known, public)) is not None
        ]
        records.append(MarkedRecord(str(user), seen[user], text, tuple(places)))
        seen[user] += 1
    return Marked(records, b"tacit names %d" % plan.seed)


def public_names(given: Sequence[str]) -> dict[str, frozenset[str]]:
    """Names that are always shown, folded for each kind; refused if an invented one is among them.

    Else a neighbour's base text could differ: what is reserved must be replaced everywhere.
    """
    made = {kind: frozenset(fold(name, kind) for name in given) for kind in known_kinds()}
    for kind, names in made.items():
        if both := names & reserved(kind):
            raise UsageError(
                f"public_entities has {sorted(both)[0]!r}, which is one of the invented names "
                f"for {kind}; leave it out."
            )
    return made


def _joined(mentions: Sequence[Mention]) -> list[tuple[int, int, Mention]]:
    """Spans in the order of their places; those that overlap are one, of the first one's kind."""
    made: list[tuple[int, int, Mention]] = []
    for m in sorted(mentions, key=lambda m: (m.start, -m.end)):
        if made and m.start < made[-1][1]:
            start, end, first = made[-1]
            made[-1] = (start, max(end, m.end), first)
        else:
            made.append((m.start, m.end, m))
    return made


def _place(
    text: str,
    start: int,
    end: int,
    mention: Mention,
    known: Mapping[str, str],
    public: Mapping[str, frozenset[str]],
) -> Place | None:
    """A place with its name; None where the name is public, so that it is part of the template.

    What is reserved is asked of the spelling itself before aliases are: an invented name is never
    shown, whatever an alias makes of it. A name is its spelling, never the number of its entity,
    which counts first appearances.
    """
    kind, spelled = mention.kind, fold(text[start:end], mention.kind)
    whole = (start, end) == (mention.start, mention.end)
    name = known.get(mention.entity, spelled) if whole else spelled
    if spelled in reserved(kind) or name in reserved(kind):
        return Place(start, end, kind, None)
    if name in public[kind]:
        return None
    return Place(start, end, kind, Name(kind, name))


def rewritten(part: Corpus, texts: Sequence[str], rows: Sequence[int] | None = None) -> Corpus:
    """The corpus with other texts; tokens, tags and spans, which belong to the old ones, go.

    With `rows` these alone, each as often as it stands there, under ids that are numbers.
    """
    gone = ("text", "tokens", "tags", "pos", "spans", *(("id",) if rows is not None else ()))
    table = part.table.select([name for name in part.columns if name not in gone])
    if rows is not None:
        numbers = [str(number) for number in range(len(rows))]
        table = table.take(rows).append_column("id", pa.array(numbers, pa.string()))
    return Corpus(table.append_column("text", pa.array(texts, pa.string())), name=part.name)
