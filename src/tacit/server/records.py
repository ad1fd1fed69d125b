"""Text: appended in groups, never lost or doubled, deleted for good.

Callers that append one by one would each wait for a disk. Their records go through one writer that
commits whatever has come together in one transaction, and says so to each of them afterwards.

A record that comes with a key gets its name from that key, its owner and its dataset: sent again,
it has the same name, and is not stored again. A deleted record leaves its name behind and nothing
else, so that a late retry does not bring it back.
"""

import contextlib
import hashlib
import hmac
import json
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from sqlalchemy import ColumnElement, delete, or_, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session

from tacit.corpus import SCHEMA, Corpus
from tacit.corpus.reading.casting import without_empty
from tacit.errors import DataError, TacitError, UsageError
from tacit.files import whole_file
from tacit.server import Json
from tacit.server.errors import Busy, Conflict, NotFound, TooLarge, Unavailable
from tacit.server.identity import Caller
from tacit.server.settings import ServerSettings
from tacit.server.storage import DeletedRecord, Fact, Storage, StoredRecord, new_id, now
from tacit.server.tally import Tallies

SPLITS = ("train", "valid", "test")
EXTRA = ("pair", "tokens", "tags", "pos", "spans")
UPLOAD_ENDINGS = (".jsonl", ".csv", ".tsv", ".txt", ".parquet", ".jsonl.gz", ".csv.gz", ".tsv.gz")
_GROUP = 512
_IN_A_BATCH = 4096
_PART = 256
"""Records of a large upload that are written at once: others come in between."""
_UPLOAD = "upload:"
"""A fact for each upload under way: what a stop leaves half done is taken back."""
_OTHER_TEXT = "This idempotency key was used before for another text; nothing was stored."
_IN_ONE_QUERY = 400
"""Names in one question to the database."""


@dataclass(frozen=True)
class Draft:
    """A record as somebody sends it."""

    text: str
    user: str | None = None
    label: str | None = None
    split: str | None = None
    extra: Json | None = None


@dataclass(frozen=True)
class Appended:
    """What became of records that were sent together."""

    records: tuple[str, ...]
    """Their names; those of a large upload are not told one by one."""
    count: int
    repeated: int = 0
    """How many of them were here already, from the same call made before."""


@dataclass(frozen=True)
class _Waiting:
    rows: list[Json]
    keyed: bool
    done: "Future[Appended]" = field(default_factory=Future)


class Records:
    """The records of all datasets."""

    def __init__(self, storage: Storage, settings: ServerSettings) -> None:
        self.storage, self.settings = storage, settings
        self._key = _secret(storage)
        self.tallies = Tallies(self._stored)
        self._uploading = tuple(threading.Lock() for _ in range(64))
        self._insert = sqlite.insert if storage.sqlite else postgresql.insert
        self._waiting: queue.Queue[_Waiting | None] = queue.Queue()
        self._since: float | None = None
        """Since when the writer has been at what it writes."""
        self._writer = threading.Thread(target=self._write, name="records", daemon=True)
        self._writer.start()
        self._take_back_all()

    def close(self) -> None:
        """Write what waits, and stop."""
        self._waiting.put(None)
        self._writer.join()

    def has_room(self) -> bool:
        """Whether more may be appended now."""
        return self._waiting.qsize() <= self.settings.waiting_records

    def works(self) -> bool:
        """Whether the writer is there, and not stuck."""
        since = self._since
        late = since is not None and time.monotonic() - since > self.settings.writer_seconds
        return self._writer.is_alive() and not late

    # --- appending ------------------------------------------------------------------------

    def append(
        self, dataset: str, caller: Caller, drafts: Sequence[Draft], key: str | None = None
    ) -> "Future[Appended]":
        """Store records, all of them or none; the answer comes when they are on disk."""
        if not self.has_room():
            raise Busy("Too many records wait to be written; send this again in a second.")
        if len(drafts) > self.settings.upload_records:
            most = self.settings.upload_records
            raise TooLarge(f"{len(drafts):,} records in one request; send at most {most:,}.")
        return self._send(self._made(dataset, caller, drafts, key), key is not None)

    def _send(self, rows: list[Json], keyed: bool) -> "Future[Appended]":
        item = _Waiting(rows, keyed)
        self._waiting.put(item)
        return item.done

    def _made(
        self, dataset: str, caller: Caller, drafts: Iterable[Draft], key: str | None, first: int = 0
    ) -> list[Json]:
        same = {"dataset_id": dataset, "owner_id": caller.account, "created": now()}
        return [
            {"id": self._name(dataset, caller.account, key, place), **same,
             **self._checked(draft, caller, f"Record {place + 1}")}
            for place, draft in enumerate(drafts, first)
        ]  # fmt: skip

    # --- large uploads --------------------------------------------------------------------

    def upload(
        self, dataset: str, caller: Caller, drafts: Callable[[], Iterable[Draft]],
        key: str | None = None,
    ) -> Appended:  # fmt: skip
        """Store as many records as there are, a part at a time, so that nobody waits for all.

        All of them are looked at before the first is stored. If it is stopped in the middle, what
        was stored is taken back, at the latest when the server starts again, unless some of them
        were here before: then sending them again completes them. Comes back when all are on disk.
        """
        named = key if key is not None else f"~{secrets.token_hex(16)}"
        place = (dataset, caller.account, named)
        # The same upload, sent twice, is done twice in turn: else one would take back the other's.
        with self._uploading[hash(place) % len(self._uploading)]:
            return self._upload(place, caller, drafts)

    def _upload(
        self, place: tuple[str, str, str], caller: Caller, drafts: Callable[[], Iterable[Draft]]
    ) -> Appended:
        dataset, _, key = place
        count = known = 0
        for rows in self._in_parts(dataset, caller, drafts(), key):
            count, known = count + len(rows), known + self._known(rows)
            if count > self.settings.upload_records:
                most = self.settings.upload_records
                raise TooLarge(f"More than {most:,} records in one request; send fewer at once.")
        fact = Fact(name=_UPLOAD + new_id(), value=json.dumps([*place, count], allow_nan=False))
        if not known:
            self.storage.add(fact)
        try:
            repeated = sum(
                self._send(rows, True).result().repeated
                for rows in self._in_parts(dataset, caller, drafts(), key)
            )
        except TacitError:
            with contextlib.suppress(Unavailable):  # then at the next start
                self._take_back(fact)
            raise
        self._forget_fact(fact)
        return Appended((), count, repeated)

    def _in_parts(
        self, dataset: str, caller: Caller, drafts: Iterable[Draft], key: str
    ) -> Iterator[list[Json]]:
        for number, part in enumerate(_batches(drafts)):
            yield self._made(dataset, caller, part, key, number * _PART)

    def _known(self, rows: Sequence[Json]) -> int:
        """How many of these are here, or were; refused if one is here with another text."""
        names = [row["id"] for row in rows]
        with self.storage.read() as session:
            known = dict(_found(session, select(StoredRecord.id, StoredRecord.text), names))
            gone = sum(1 for _ in _found(session, select(DeletedRecord.id), names))
        if any(known.get(row["id"], row["text"]) != row["text"] for row in rows):
            raise Conflict(_OTHER_TEXT)
        return len(known) + gone

    def _take_back_all(self) -> None:
        """Take back what a server left half done that was stopped; nobody was told of it."""
        under_way = select(Fact).where(Fact.name.startswith(_UPLOAD))
        for fact in self.storage.scalars(under_way):
            self._take_back(fact)

    def _take_back(self, fact: Fact) -> None:
        if self.storage.get(Fact, fact.name) is None:
            return
        dataset, account, key, count = json.loads(fact.value)
        names = [self._name(dataset, account, key, place) for place in range(count)]
        for some in _parts(names):
            with self.storage.write() as session:
                session.execute(delete(StoredRecord).where(StoredRecord.id.in_(some)))
                self.tallies.dropped([dataset])
        self._forget_fact(fact)

    def _forget_fact(self, fact: Fact) -> None:
        with self.storage.write() as session:
            session.execute(delete(Fact).where(Fact.name == fact.name))

    def _name(self, dataset: str, account: str, key: str | None, place: int) -> str:
        if key is None:
            return new_id()
        named = f"{dataset}\n{account}\n{key}\n{place}".encode()
        return hmac.new(self._key, named, hashlib.sha256).hexdigest()[:32]

    def _checked(self, draft: Draft, caller: Caller, which: str) -> Json:
        most = self.settings.text_characters
        if not draft.text.strip():
            raise DataError(f"{which} has no text.")
        if len(draft.text) > most:
            raise TooLarge(f"{which} has {len(draft.text):,} characters; at most {most:,}.")
        if not all(storable(v) for v in (draft.text, draft.user, draft.label) if v is not None):
            raise DataError(f"{which} {NOT_STORABLE}.")
        if draft.split is not None and draft.split not in SPLITS:
            raise UsageError(f"{which}: split is one of {', '.join(SPLITS)}.")
        user = draft.user
        # Whose text it is: a contributor's own, whatever the draft says; else as given.
        if not caller.may("records:any"):
            if user not in (None, caller.name):
                raise UsageError(
                    f"{which} names another user; what you send is yours: leave user out."
                )
            user = caller.name
        if not user:
            raise UsageError(
                f"{which} has no user; protection is about users, so give each record one."
            )
        return asdict(draft) | {"user": user[:200]}

    def _write(self) -> None:
        while (item := self._waiting.get()) is not None:
            group, size = [item], len(item.rows)
            while size < _GROUP:
                try:
                    more = self._waiting.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    self._waiting.put(None)
                    break
                group.append(more)
                size += len(more.rows)
            self._since = time.monotonic()
            self._settle(group)
            self._since = None

    def _settle(self, group: list[_Waiting]) -> None:
        """Commit a group; if that fails, each by itself, so that one does not harm the others."""
        try:
            with self.storage.write() as session:
                results = self._commit(session, group)
        except (SQLAlchemyError, Unavailable) as error:
            self.tallies.dropped({row["dataset_id"] for item in group for row in item.rows})
            if isinstance(error, SQLAlchemyError) and len(group) > 1:
                for one in group:
                    self._settle([one])
                return
            results = [_stored_nothing(error)] * len(group)
        except Exception as error:  # whoever waits must hear of it
            results = [error] * len(group)
        for item, result in zip(group, results, strict=True):
            if isinstance(result, Exception):
                item.done.set_exception(result)
            else:
                item.done.set_result(result)

    def _commit(self, session: Session, group: list[_Waiting]) -> list[Appended | Exception]:
        keyed = [row["id"] for item in group if item.keyed for row in item.rows]
        known = dict(_found(session, select(StoredRecord.id, StoredRecord.text), keyed))
        gone = {row[0] for row in _found(session, select(DeletedRecord.id), keyed)}
        results: list[Appended | Exception] = []
        fresh: list[Json] = []
        for item in group:
            new = [r for r in item.rows if r["id"] not in known and r["id"] not in gone]
            if any(known.get(row["id"], row["text"]) != row["text"] for row in item.rows):
                results.append(Conflict(_OTHER_TEXT))
                continue
            known |= {row["id"]: row["text"] for row in new} if item.keyed else {}
            fresh += new
            names = tuple(row["id"] for row in item.rows)
            results.append(Appended(names, len(names), len(names) - len(new)))
        if fresh:
            session.execute(self._insert(StoredRecord).on_conflict_do_nothing(), fresh)
            self.tallies.added(fresh)
        return results

    # --- reading --------------------------------------------------------------------------

    def page(
        self, dataset: str, *, owner: Caller | None, user: str | None = None, after: str = "",
        limit: int = 50,
    ) -> list[Json]:  # fmt: skip
        """Records with their text: those of one owner, or, if that is None, anybody's."""
        chosen = _of(dataset, owner, user)
        columns = (*_COLUMNS, StoredRecord.created, StoredRecord.owner_id)
        query = select(*columns).where(*chosen, StoredRecord.id > after)
        query = query.order_by(StoredRecord.id).limit(limit)
        rows = [row._mapping for row in self.storage.rows(query)]
        return [
            _row(row) | {"created": row["created"].isoformat(), "owner": row["owner_id"]}
            for row in rows
        ]

    def counts(self, dataset: str) -> dict[str, int]:
        """How many records and users; exact, so for those inside."""
        return self.tallies.get(dataset).counts()

    def mean_length(self, dataset: str) -> float:
        """Characters of a record in the mean; exact, so for those inside."""
        tally = self.tallies.get(dataset)
        return tally.characters / max(tally.records, 1)

    def described(self, dataset: str) -> Json:
        """Counts over a dataset, as `tacit corpus describe` makes them."""
        return self.tallies.get(dataset).described()

    def snapshot(self, dataset: str, path: Path) -> int:
        """All records as a corpus file; how many there are."""
        count = 0
        with whole_file(path) as draft, draft.open("w", encoding="utf-8") as out:
            for row in self._rows(dataset):
                out.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
                count += 1
        return count

    def corpus(self, dataset: str) -> Corpus:
        """All records in memory."""
        rows, batches = self._rows(dataset), []
        while part := list(islice(rows, _IN_A_BATCH)):
            batches.append(pa.RecordBatch.from_pylist(part, SCHEMA))
        table = pa.Table.from_batches(batches, SCHEMA)
        return Corpus(without_empty(table), name="the dataset")

    def _rows(self, dataset: str) -> Iterator[Json]:
        return map(_row, self._stored(dataset))

    def _stored(self, dataset: str) -> Iterator[Any]:
        """The rows as they are, a part in memory at a time."""
        query = select(*_COLUMNS).where(StoredRecord.dataset_id == dataset)
        query = query.order_by(StoredRecord.id).execution_options(yield_per=1000)
        with self.storage.read() as session:
            yield from session.execute(query).mappings()

    # --- forgetting -----------------------------------------------------------------------

    def forget(
        self, dataset: str, *, owner: Caller | None, user: str | None = None,
        record: str | None = None,
    ) -> list[str]:  # fmt: skip
        """Delete records for good: an owner's, a user's, or one; their names."""
        if owner is None and user is None and record is None:
            raise UsageError("Say whose records, or which one, to delete.")
        chosen = _of(dataset, owner, user)
        if record is not None:
            chosen.append(StoredRecord.id == record)
        with self.storage.write() as session:
            rows: list[Any] = list(session.execute(select(*_COLUMNS).where(*chosen)).mappings())
            names = [row["id"] for row in rows]
            if record is not None and not names:
                raise NotFound("There is no such record, or it is not yours.")
            for some in _parts(names):
                forgotten = self._insert(DeletedRecord).on_conflict_do_nothing()
                session.execute(forgotten, [{"id": name} for name in some])
                session.execute(delete(StoredRecord).where(StoredRecord.id.in_(some)))
            self.tallies.removed(dataset, rows)
        return names

    def forgotten_among(self, names: Sequence[str]) -> set[str]:
        """Which of these records were deleted."""
        with self.storage.read() as session:
            return {row[0] for row in _found(session, select(DeletedRecord.id), names)}


def drafts_of(corpus: Corpus, user: str | None = None) -> Iterator[Draft]:
    """The records of a corpus, ready to be sent; all of them a user's, if one is named."""
    return (_draft(record.row(), user) for record in corpus.records())


def drafts_in(lines: Path, user: str | None = None) -> Iterator[Draft]:
    """The same from a file of rows."""
    with lines.open(encoding="utf-8") as file:
        for line in file:
            yield _draft(json.loads(line), user)


def _draft(row: Json, user: str | None) -> Draft:
    extra = {name: row[name] for name in EXTRA if name in row} or None
    whose = user if user is not None else row.get("user")
    return Draft(row["text"], whose, row.get("label"), row.get("split"), extra)


_COLUMNS = (
    StoredRecord.id, StoredRecord.user.label("user"), StoredRecord.text, StoredRecord.label,
    StoredRecord.split, StoredRecord.extra,
)  # fmt: skip


def _row(row: Any) -> Json:
    given = {name: row[name] for name in ("label", "split") if row[name] is not None}
    return {"id": row["id"], "user": row["user"], "text": row["text"], **given,
            **(row["extra"] or {})}  # fmt: skip


def _of(dataset: str, owner: Caller | None, user: str | None) -> list[ColumnElement[bool]]:
    """Which records: of a dataset, of an owner, of a user."""
    chosen: list[ColumnElement[bool]] = [StoredRecord.dataset_id == dataset]
    if owner is not None:
        mine = StoredRecord.user == owner.name
        chosen.append(or_(StoredRecord.owner_id == owner.account, mine))
    if user is not None:
        chosen.append(StoredRecord.user == user)
    return chosen


NOT_STORABLE = "has a character that a database cannot hold (NUL, or an unpaired surrogate)"


def storable(text: str) -> bool:
    """Whether a database can hold it.

    >>> storable("fine"), storable("a" + chr(0)), storable(chr(0xD800))
    (True, False, False)
    """
    return "\0" not in text and not any("\ud800" <= c <= "\udfff" for c in text)


def _batches(drafts: Iterable[Draft]) -> Iterator[list[Draft]]:
    left = iter(drafts)
    while part := list(islice(left, _PART)):
        yield part


def _found(session: Session, query: Any, names: Sequence[str]) -> Iterator[Any]:
    column = next(iter(query.selected_columns))
    for some in _parts(names):
        yield from session.execute(query.where(column.in_(some)))


def _parts(names: Sequence[str]) -> Iterable[Sequence[str]]:
    return (names[at : at + _IN_ONE_QUERY] for at in range(0, len(names), _IN_ONE_QUERY))


def _stored_nothing(error: SQLAlchemyError | Unavailable) -> TacitError:
    if isinstance(error, Unavailable):
        return error
    # A driver's own message may quote the row.
    if isinstance(error, IntegrityError):
        return NotFound("The dataset or the account of these records is gone; nothing was stored.")
    return Unavailable("The database could not store the records; send them again.")


def _secret(storage: Storage) -> bytes:
    """The key from which names of records are made; one for each database."""
    with storage.write() as session:
        found = session.get(Fact, "record-key")
        if found is None:
            found = Fact(name="record-key", value=secrets.token_hex(32))
            session.add(found)
        return bytes.fromhex(found.value)
