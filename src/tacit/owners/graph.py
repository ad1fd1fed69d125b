"""Who is protected: `Owners`, the graph record - user - entities.

The graph knows ids and nothing else: no text, and no entity's name (the entity table, kept
apart, has those). Every cap, every guarantee about users or entities, and every picture of
"who shares what" is a statement about this graph.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tacit.corpus import Corpus
from tacit.corpus.description import spread
from tacit.detection.kinds import kind_of, matches
from tacit.detection.mentions import Mention
from tacit.detection.provenance import UNKNOWN, Provenance, read_provenance
from tacit.errors import DataError, UsageError
from tacit.saved_json import read_fields, whole_numbers, write_fields

FORMAT = "tacit owners"
VERSION = 2

Ints = NDArray[np.int32]
Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Origin:
    """What a graph was made from: whose marks, and of which kinds (None: of every kind)."""

    provenance: Provenance = UNKNOWN
    kinds: tuple[str, ...] | None = None


@dataclass(frozen=True, eq=False)
class Owners:
    """The owners of each record: the user who wrote it and the entities it names.

    Users and entities are numbered; `record_user[i]` is the user of record `i`, and
    `indices[indptr[i]:indptr[i + 1]]` are its entities, ascending and each once. The arrays
    are read-only. Two graphs are equal if their digests are, wherever they come from (`origin`).

    >>> owners = Owners.from_rows([("r1", "ann", ["e1", "e2"]), ("r2", "bob", ["e1"])])
    >>> owners.users_per_entity.tolist(), owners.records_per_user.tolist()
    ([2, 1], [1, 1])
    """

    record_ids: tuple[str, ...]
    users: tuple[str, ...]
    entities: tuple[str, ...]
    kinds: tuple[str, ...]
    record_user: Ints
    indptr: Counts
    indices: Ints
    origin: Origin = Origin()

    def __post_init__(self) -> None:
        for name in ("record_ids", "users", "entities", "kinds"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name, dtype in (("record_user", np.int32), ("indptr", np.int64), ("indices", np.int32)):
            array = whole_numbers(getattr(self, name), name).astype(dtype)
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        _check(self)

    @classmethod
    def from_mentions(
        cls,
        corpus: Corpus,
        mentions: Iterable[Mention],
        *,
        kinds: Collection[str] | None = None,
        entities: Collection[str] | None = None,
        minimum_score: float = 0.0,
        provenance: Provenance = UNKNOWN,
    ) -> Self:
        """The graph of a corpus and its mentions; `provenance` says who made these.

        `kinds` keeps the entities of some kinds (`PII` wants all its refinements), `entities`
        those of the given ids, and mentions that score below `minimum_score` do not count.
        The result does not depend on the order of the mentions.
        """
        users = corpus.require_users().combine_chunks().dictionary_encode()
        row_of = {id_: row for row, id_ in enumerate(corpus.column("id").to_pylist())}
        rows, codes, kind_of_entity = _edges(mentions, row_of, kinds, entities, minimum_score)
        names = list(kind_of_entity)
        # "e2" before "e10": numbering by id makes the graph independent of mention order.
        order = sorted(range(len(names)), key=lambda i: (len(names[i]), names[i]))
        rank = np.argsort(np.array(order, dtype=np.int64))
        ranks = rank[np.array(codes, dtype=np.int64)]
        # The distinct (row, rank), as the start of each row and its entities in order.
        width = max(1, len(names))
        distinct = np.unique(np.array(rows, dtype=np.int64) * width + ranks)
        counts = np.bincount(distinct // width, minlength=len(row_of))
        return cls(
            record_ids=tuple(row_of),
            users=tuple(users.dictionary.to_pylist()),
            entities=tuple(names[i] for i in order),
            kinds=tuple(kind_of_entity[names[i]] for i in order),
            record_user=users.indices.to_numpy(),
            indptr=np.concatenate([[0], np.cumsum(counts)]),
            indices=(distinct % width).astype(np.int32),
            origin=Origin(provenance, None if kinds is None else tuple(kinds)),
        )

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[tuple[str, str, Iterable[str]]],
        kinds: Mapping[str, str] | None = None,
    ) -> Self:
        """The graph of (record id, user, entity ids) rows; an entity of no given kind is MISC."""
        users: dict[str, int] = {}
        entities: dict[str, int] = {}
        ids, record_user, lists = [], [], []
        for id_, user, named in rows:
            ids.append(id_)
            record_user.append(users.setdefault(user, len(users)))
            lists.append(sorted({entities.setdefault(e, len(entities)) for e in named}))
        given = kinds or {}
        return cls(
            record_ids=tuple(ids),
            users=tuple(users),
            entities=tuple(entities),
            kinds=tuple(given.get(e, "MISC") for e in entities),
            record_user=np.array(record_user, dtype=np.int32),
            indptr=np.concatenate([[0], np.cumsum([len(x) for x in lists], dtype=np.int64)]),
            indices=np.array([e for x in lists for e in x], dtype=np.int32),
        )

    def __len__(self) -> int:
        return len(self.record_ids)

    def __repr__(self) -> str:
        return (
            f"Owners({len(self):,} records, {len(self.users):,} users, "
            f"{len(self.entities):,} entities)"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Owners) and self.digest() == other.digest()

    def __hash__(self) -> int:
        return hash(self.digest())

    def entities_of(self, record: int) -> Ints:
        """The numbers of the entities that a record names."""
        return self.indices[self.indptr[record] : self.indptr[record + 1]]

    @cached_property
    def entities_per_record(self) -> Counts:
        """How many entities each record names."""
        return np.diff(self.indptr)

    @property
    def sensitive(self) -> Mask:
        """Which records name an entity."""
        return self.entities_per_record > 0

    @cached_property
    def records_per_user(self) -> Counts:
        """How many records each user wrote."""
        return np.bincount(self.record_user, minlength=len(self.users))

    @cached_property
    def records_per_entity(self) -> Counts:
        """How many records name each entity."""
        return np.bincount(self.indices, minlength=len(self.entities))

    @cached_property
    def users_per_entity(self) -> Counts:
        """How many users name each entity: its degree, which the cap k limits."""
        return np.bincount(self.pairs[0], minlength=len(self.entities))

    @property
    def records_per_user_entity(self) -> Counts:
        """For each pair of `pairs`, how many records of that user name that entity."""
        return self.pairs[2]

    @property
    def pairs(self) -> tuple[Counts, Counts, Counts]:
        """Every (entity, user) that share a record, and the number of records they share."""
        distinct, _, counts = self.numbered_pairs
        width = max(1, len(self.users))
        return distinct // width, distinct % width, counts

    @cached_property
    def numbered_pairs(self) -> tuple[Counts, Counts, Counts]:
        """The distinct `incidence_pairs`, which of them each entry is, and how many of each."""
        return np.unique(self.incidence_pairs, return_inverse=True, return_counts=True)

    @cached_property
    def record_of_entry(self) -> Counts:
        """For each entry of `indices`, the record that it belongs to."""
        return np.repeat(np.arange(len(self)), self.entities_per_record)

    @cached_property
    def incidence_pairs(self) -> Counts:
        """For each entry of `indices`, one number for its (entity, user)."""
        users = np.repeat(self.record_user, self.entities_per_record).astype(np.int64)
        return self.indices.astype(np.int64) * max(1, len(self.users)) + users

    def subset(self, mask: NDArray[np.bool_]) -> "Owners":
        """The graph of some records, with only the users and entities they still have."""
        kept = np.asarray(mask)
        if kept.dtype != np.bool_ or kept.shape != (len(self),):
            raise UsageError(
                f"mask has shape {kept.shape} and type {kept.dtype}; give one truth value for "
                f"each of the {len(self):,} records."
            )
        of_entry = np.repeat(kept, self.entities_per_record)
        users, record_user = np.unique(self.record_user[kept], return_inverse=True)
        entities, indices = np.unique(self.indices[of_entry], return_inverse=True)
        return replace(
            self,
            record_ids=tuple(self.record_ids[i] for i in np.flatnonzero(kept)),
            users=tuple(self.users[i] for i in users),
            entities=tuple(self.entities[i] for i in entities),
            kinds=tuple(self.kinds[i] for i in entities),
            record_user=record_user.astype(np.int32),
            indptr=np.concatenate([[0], np.cumsum(self.entities_per_record[kept])]),
            indices=indices.astype(np.int32),
        )

    def of_kinds(self, kinds: Collection[str] | None) -> "Owners":
        """The same records with only the entities of some kinds (`PII` wants its refinements)."""
        if kinds is None:
            return self
        asked = [kind_of(kind) for kind in kinds]
        return self._of_entities([matches(kind, asked) for kind in self.kinds])

    def of_entities(self, ids: Collection[str]) -> "Owners":
        """The same records with only the entities of these ids."""
        return self._of_entities([entity in ids for entity in self.entities])

    def _of_entities(self, which: Sequence[bool]) -> "Owners":
        wanted = np.array(which, dtype=np.bool_)
        kept = wanted[self.indices]
        counts = np.bincount(self.record_of_entry[kept], minlength=len(self))
        return replace(
            self,
            entities=tuple(self.entities[i] for i in np.flatnonzero(wanted)),
            kinds=tuple(self.kinds[i] for i in np.flatnonzero(wanted)),
            indptr=np.concatenate([[0], np.cumsum(counts)]),
            indices=(np.cumsum(wanted) - 1)[self.indices[kept]],
        )

    def digest(self) -> str:
        """A SHA-256 of every id and every edge; where they come from is no part of it."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        sha = hashlib.sha256(f"{FORMAT} {VERSION}".encode())
        for names in (self.record_ids, self.users, self.entities, self.kinds):
            sha.update(json.dumps(names, separators=(",", ":"), allow_nan=False).encode())
        for array in (self.record_user, self.indptr, self.indices):
            sha.update(array.astype("<i8").tobytes())
        return sha.hexdigest()

    def save(self, path: Path) -> None:
        """Write the graph as JSON, one field a line; gzipped if the name ends in .gz."""
        ends = self.indptr.tolist()
        flat = self.indices.tolist()
        fields: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "digest": self.digest(),
            "origin": asdict(self.origin),
            "users": self.users,
            "entities": self.entities,
            "kinds": self.kinds,
            "records": self.record_ids,
            "user_of_record": self.record_user.tolist(),
            "entities_of_record": [flat[a:b] for a, b in pairwise(ends)],
        }
        write_fields(Path(path), fields)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a graph back; a file that is not whole and consistent is refused."""
        fields = read_fields(Path(path), FORMAT, VERSION)
        try:
            lists, origin = fields["entities_of_record"], fields["origin"]
            owners = cls(
                record_ids=_strings(fields["records"]),
                users=_strings(fields["users"]),
                entities=_strings(fields["entities"]),
                kinds=_strings(fields["kinds"]),
                record_user=fields["user_of_record"],
                indptr=np.concatenate([[0], np.cumsum([len(x) for x in lists], dtype=np.int64)]),
                indices=whole_numbers([e for x in lists for e in x], "indices").astype(np.int32),
                origin=Origin(
                    read_provenance(origin["provenance"]),
                    None if origin["kinds"] is None else _strings(origin["kinds"]),
                ),
            )
        except (KeyError, TypeError):
            raise DataError(
                f"{path} lacks a field of an owners graph, or has one of another type; "
                "write it again with `tacit owners`."
            ) from None
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
        if owners.digest() != fields.get("digest"):
            raise DataError(
                f"{path} was changed after it was written (its digest does not fit); "
                "write it again with `tacit owners`."
            )
        return owners


def describe(owners: Owners, *, shared: int = 20) -> dict[str, Any]:
    """Counts, degree distributions and the entities that most users share, ready for JSON.

    Entities come as ids; whoever may see the entity table joins the names.
    """
    counted = ("records_per_user", "users_per_entity", "records_per_entity",
               "records_per_user_entity", "entities_per_record")  # fmt: skip
    kinds = sorted(Counter(owners.kinds).items(), key=lambda item: (-item[1], item[0]))
    return {
        "records": len(owners),
        "sensitive_records": int(owners.sensitive.sum()),
        "users": len(owners.users),
        "entities": len(owners.entities),
        "kinds": dict(kinds),
        "shared_entities": int((owners.users_per_entity > 1).sum()),
        **{name: spread(getattr(owners, name)) for name in counted},
        "most_shared": [
            {
                "entity": owners.entities[i],
                "kind": owners.kinds[i],
                "users": int(owners.users_per_entity[i]),
                "records": int(owners.records_per_entity[i]),
            }
            for i in most_shared(owners, shared)
        ],
    }


def most_shared(owners: Owners, count: int) -> list[int]:
    """The numbers of the entities that most users name, ties by records and then by number."""
    order = np.lexsort((-owners.records_per_entity, -owners.users_per_entity))
    return [int(i) for i in order[:count]]


def _row(row_of: Mapping[str, int], mention: Mention, number: int) -> int:
    row = row_of.get(mention.record)
    if row is None:
        raise DataError(
            f"mention {number} names a record that the corpus does not have; give the corpus (and "
            "split) that was searched."
        )
    return row


def graph_of(
    part: Corpus,
    mentions: Sequence[Mention],
    provenance: Provenance,
    kinds: Collection[str] | None = None,
) -> Owners:
    """The owner graph of one part of a corpus, from the mentions of the whole."""
    own = set(part.column("id").to_pylist())
    here = [m for m in mentions if m.record in own]
    return Owners.from_mentions(part, here, kinds=kinds, provenance=provenance)


def _edges(
    mentions: Iterable[Mention],
    row_of: Mapping[str, int],
    kinds: Collection[str] | None,
    entities: Collection[str] | None,
    minimum_score: float,
) -> tuple[list[int], list[int], dict[str, str]]:
    """The (row, entity) of each mention that counts, and the kind of each entity."""
    if not 0.0 <= minimum_score <= 1.0:
        raise UsageError(f"minimum_score={minimum_score} is not a score; give 0 to 1.")
    asked = None if kinds is None else {kind_of(k) for k in kinds}
    wanted_kind = cache(lambda kind: asked is None or matches(kind, asked))
    missing = set(entities or ())
    protected = None if entities is None else frozenset(entities)
    code_of: dict[str, int] = {}
    first_kind: dict[str, str] = {}
    rows, codes = [], []
    for number, mention in enumerate(mentions, 1):
        entity, kind = mention.entity, mention.kind
        if first_kind.setdefault(entity, kind) != kind:
            raise DataError(
                f"mention {number}: its entity has kind {kind!r} here and "
                f"{first_kind[entity]!r} before; an entity has one kind: detect again."
            )
        row = _row(row_of, mention, number)
        if protected is not None:
            if entity not in protected:
                continue
            missing.discard(entity)
        if not wanted_kind(kind) or mention.score < minimum_score:
            continue
        rows.append(row)
        codes.append(code_of.setdefault(entity, len(code_of)))
    if missing:
        raise UsageError(
            f"entity {min(missing)!r} is to be protected but no mention names it "
            f"({len(missing):,} such in all); give ids of the entity table of these mentions."
        )
    return rows, codes, {entity: first_kind[entity] for entity in code_of}


def _strings(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
        raise TypeError
    return tuple(values)


def _check(owners: Owners) -> None:
    """Refuse a graph whose parts do not fit together."""
    records, entries = len(owners.record_ids), len(owners.indices)
    for ids, what in (
        (owners.record_ids, "record"), (owners.users, "user"), (owners.entities, "entity")
    ):  # fmt: skip
        if len(set(ids)) != len(ids):
            raise DataError(f"two {what} ids are the same; each {what} has its own id.")
    if len(owners.kinds) != len(owners.entities):
        raise DataError(
            f"there are {len(owners.kinds):,} kinds for {len(owners.entities):,} entities; "
            "each entity has one."
        )
    if len(owners.record_user) != records:
        raise DataError(
            f"there are {len(owners.record_user):,} users of records for {records:,} records; "
            "each record has one."
        )
    ends = owners.indptr
    if len(ends) != records + 1 or ends[0] != 0 or ends[-1] != entries or (np.diff(ends) < 0).any():
        raise DataError(f"the entity lists do not fit {records:,} records and {entries:,} entries.")
    if records and owners.record_user.max() >= len(owners.users):
        raise DataError(f"a record has a user beyond the {len(owners.users):,} users.")
    if entries == 0:
        return
    if owners.indices.max() >= len(owners.entities):
        raise DataError(f"a record has an entity beyond the {len(owners.entities):,} entities.")
    first = np.zeros(entries, dtype=np.bool_)
    first[ends[:-1][ends[:-1] < entries]] = True
    if (~first[1:] & (np.diff(owners.indices) <= 0)).any():
        raise DataError("the entities of a record are ascending and each once; these are not.")
