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
from tacit.detection.provenance import UNKNOWN, Provenance
from tacit.detection.surrogates import keyed_number, public_names, reserved, surrogate
from tacit.errors import DataError, UsageError
from tacit.planning.plan import Plan
from tacit.training.data.known_names import KnownNames
from tacit.training.data.tagged_words import Replaced, TaggedWords, filled, retagged

Keys = NDArray[np.uint64]
Spans = tuple[tuple[int, int], ...]
_ONE_IN = 4
"""One invented name in so many is a target of next words, which ones a key and the place decide.

All of them took part of the clip norm from the words around; without any, a model would not learn
that a name comes next.
"""


class Name(NamedTuple):
    """What is protected: a kind and a folded spelling, aliases joined."""

    kind: str
    folded: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a name stands in a record; `name` is None where it is never shown, as if reserved."""

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
    tagged: TaggedWords | None = None
    """The words of the text with their tags, where these are learnt."""

    def rendered(self, key: bytes, show: Name | None = None) -> str:
        """The text with the shown name as written, and an invented one at every other place."""
        return filled(self.text, self.replaced(key, show))

    def rendered_words(self, key: bytes, show: Name | None = None) -> TaggedWords | None:
        """The words of that text with their tags, which know no more of names than it does."""
        if self.tagged is None:
            return None
        return retagged(self.text, self.tagged, self.replaced(key, show))

    def replaced(self, key: bytes, show: Name | None = None) -> list[Replaced]:
        """What stands at each place."""
        made = []
        for number, place in enumerate(self.places):
            kept = show is not None and place.name == show
            written = self.text[place.start : place.end]
            own = written if kept else surrogate(place.kind, key, self.user, self.number, number)
            made.append(Replaced(place.start, place.end, own, kept))
        return made

    def unlearnt(self, key: bytes, show: Name | None = None) -> Spans:
        """Where that text has invented names that are read and never a target of next words."""
        found, longer = [], 0
        for number, one in enumerate(self.replaced(key, show)):
            start = one.start + longer
            longer += len(one.text) - (one.end - one.start)
            learnt = keyed_number(key, "learnt", self.user, self.number, number) % _ONE_IN == 0
            if not (one.kept or learnt):
                found.append((start, start + len(one.text)))
        return tuple(found)


class Shown(NamedTuple):
    """A name that a user shows in a step, and the rows of the corpus that nominated it."""

    user: str
    name: Name
    rows: tuple[int, ...]


class Marked:
    """The records of a corpus, row by row, and the rule by which names are replaced and shown."""

    def __init__(
        self, records: Sequence[MarkedRecord], key: bytes, shown_kinds: Sequence[str] | None = None
    ) -> None:
        self.records, self.key = tuple(records), key
        # A kind is part of the template, so it may decide which places can be nominated at all.
        places = [
            (row, place.name, keyed_number(key, "place", r.user, r.number, i))
            for row, r in enumerate(self.records)
            for i, place in enumerate(r.places)
            if shown_kinds is None or matches(place.kind, shown_kinds)
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

    def unlearnt(self, row: int, shown: Name | None = None) -> Spans:
        """Which invented names of the base text, or of one that shows a name, are no targets."""
        return self.records[row].unlearnt(self.key, shown)

    def base_corpus(self, part: Corpus) -> Corpus:
        """The corpus with base texts, and their words and tags where these are learnt."""
        texts = [record.rendered(self.key) for record in self.records]
        words = [record.rendered_words(self.key) for record in self.records]
        return rewritten(part, texts, words=words)

    def copies(self, part: Corpus, shown: Sequence[tuple[int, Name]]) -> Corpus:
        """Records that each show one name, under ids that are numbers."""
        rows = [row for row, _ in shown]
        texts = [self.showing(row, name) for row, name in shown]
        words = [self.records[row].rendered_words(self.key, name) for row, name in shown]
        return rewritten(part, texts, rows, words)

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
    plan: Plan,
    part: Corpus,
    mentions: Sequence[Mention],
    entities: Sequence[Entity],
    *,
    provenance: Provenance = UNKNOWN,
    tagged: bool = False,
) -> Marked:
    """The records of a corpus with the names that a plan protects; public names stay as they are.

    The key comes from the plan's public seed, never from a text. `provenance` says whether an alias
    file joins names. Where parts of speech are learnt, records are `tagged`.
    """
    if "pair" in part.columns:
        raise UsageError(
            f"protect={plan.protect} replaces marked names in a record's text, and detectors do "
            "not read the second texts (`pair`) of this corpus; protect users."
        )
    wanted = known_kinds() if plan.kinds is None else [kind_of(kind) for kind in plan.kinds]
    public = public_names(plan.public_entities)
    known = KnownNames(entities, provenance)
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
    words = _tagged(part) if tagged else [None] * len(part)
    rows = zip(*(column.to_pylist() for column in columns), words, strict=True)
    for record, user, text, own in rows:
        places = [
            place
            for start, end, mention in _joined(by_record.get(record, ()))
            if (place := _place(text, start, end, mention, known, public)) is not None
        ]
        records.append(MarkedRecord(str(user), seen[user], text, tuple(places), own))
        seen[user] += 1
    may = None if plan.shown_kinds is None else [kind_of(kind) for kind in plan.shown_kinds]
    return Marked(records, b"tacit names %d" % plan.seed, may)


def as_learnt(
    plan: Plan,
    part: Corpus,
    mentions: Sequence[Mention],
    entities: Sequence[Entity],
    provenance: Provenance = UNKNOWN,
) -> dict[tuple[str, int], tuple[str, bool]]:
    """By record id and place: the invented name there, and whether the first step shows the own."""
    own = marked(plan, part, mentions, entities, provenance=provenance)
    most = {"users_per_name": plan.users_per_name, "names_per_user": plan.names_per_user}
    shown = {(row, one.name) for one in own.shown(1, **most) for row in one.rows}
    ids = part.column("id").to_pylist()
    return {
        (ids[row], place.start): (instead.text, (row, place.name) in shown)
        for row, record in enumerate(own.records)
        for place, instead in zip(record.places, record.replaced(own.key), strict=True)
    }


def _tagged(part: Corpus) -> list[TaggedWords | None]:
    """The words of each record with their parts of speech; None where it has none."""
    rows = zip(part.column("tokens").to_pylist(), part.column("pos").to_pylist(), strict=True)
    return [
        None if words is None or tags is None else TaggedWords(tuple(words), tuple(tags))
        for words, tags in rows
    ]


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
    known: KnownNames,
    public: Mapping[str, frozenset[str]],
) -> Place | None:
    """A place with its name; None where the name is public, so that it is part of the template.

    What is reserved is asked of the spelling itself before aliases are: an invented name is never
    shown, whatever an alias makes of it. Nor is what several marks make up, which is none of their
    names. A name is its spelling, never the number of its entity, which counts first appearances.
    """
    kind, spelled = mention.kind, fold(text[start:end], mention.kind)
    whole = (start, end) == (mention.start, mention.end)
    if spelled in reserved(kind) or not whole:
        return Place(start, end, kind, None)
    name = known.name(mention, spelled)
    if name in reserved(kind):
        return Place(start, end, kind, None)
    if name in public[kind]:
        return None
    return Place(start, end, kind, Name(kind, name))


def rewritten(
    part: Corpus,
    texts: Sequence[str],
    rows: Sequence[int] | None = None,
    words: Sequence[TaggedWords | None] = (),
) -> Corpus:
    """The corpus with other texts; tokens, tags and spans, which belong to the old ones, go.

    With `words`, tokens and parts of speech are those. With `rows` these alone, each as often as
    it stands there, under ids that are numbers.
    """
    gone = ("text", "tokens", "tags", "pos", "spans", *(("id",) if rows is not None else ()))
    table = part.table.select([name for name in part.columns if name not in gone])
    if rows is not None:
        numbers = [str(number) for number in range(len(rows))]
        table = table.take(rows).append_column("id", pa.array(numbers, pa.string()))
    table = table.append_column("text", pa.array(texts, pa.string()))
    if any(own is not None for own in words):
        for name, field in (("tokens", "words"), ("pos", "tags")):
            lists = [None if own is None else list(getattr(own, field)) for own in words]
            table = table.append_column(name, pa.array(lists, pa.list_(pa.string())))
    return Corpus(table, name=part.name)
