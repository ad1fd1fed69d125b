"""Text: appended in groups, never lost or doubled, deleted for good.

Callers that append one by one would each wait for a disk. Their records go through one writer that
commits whatever has come together in one transaction, and says so to each of them afterwards.

A record that comes with a key gets its name from that key, its owner and its dataset: sent again,
it has the same name, and is not stored again. A deleted record leaves its name behind and nothing
else, so that a late retry does not bring it back.
"""

import hashlib
import hmac
import json
import queue
import secrets
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, delete, func, or_, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session

from tacit.corpus import Corpus
from tacit.errors import DataError, TacitError, UsageError
from tacit.files import whole_file
from tacit.server import Json
from tacit.server.errors import Busy, Conflict, NotFound, TooLarge
from tacit.server.identity import Caller
from tacit.server.settings import ServerSettings
from tacit.server.storage import DeletedRecord, Fact, Storage, StoredRecord, fields_of, new_id, now

SPLITS = ("train", "valid", "test")
EXTRA = ("pair", "tokens", "tags", "pos", "spans")
UPLOAD_ENDINGS = (".jsonl", ".csv", ".tsv", ".txt")
"""Compressed files and Parquet may unpack to any size, so they are not taken from strangers."""
_GROUP = 512
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
        self._insert = sqlite.insert if storage.sqlite else postgresql.insert
        self._waiting: queue.Queue[_Waiting | None] = queue.Queue()
        self._writer = threading.Thread(target=self._write, name="records", daemon=True)
        self._writer.start()

    def close(self) -> None:
        """Write what waits, and stop."""
        self._waiting.put(None)
        self._writer.join()

    # --- appending ------------------------------------------------------------------------

    def append(
        self, dataset: str, caller: Caller, drafts: Sequence[Draft], key: str | None = None
    ) -> "Future[Appended]":
        """Store records, all of them or none; the answer comes when they are on disk."""
        if self._waiting.qsize() > self.settings.waiting_records:
            raise Busy("Too many records wait to be written; send this again in a second.")
        if len(drafts) > self.settings.upload_records:
            most = self.settings.upload_records
            raise TooLarge(f"{len(drafts):,} records in one request; send at most {most:,}.")
        same = {"dataset_id": dataset, "owner_id": caller.account, "created": now()}
        rows = [
            {"id": self._name(dataset, caller.account, key, place), **same,
             **self._checked(draft, caller, f"Record {place + 1}")}
            for place, draft in enumerate(drafts)
        ]  # fmt: skip
        item = _Waiting(rows, key is not None)
        self._waiting.put(item)
        return item.done

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
            self._settle(group)

    def _settle(self, group: list[_Waiting]) -> None:
        """Commit a group; if that fails, each by itself, so that one does not harm the others."""
        try:
            with self.storage.write() as session:
                results = self._commit(session, group)
        except SQLAlchemyError as error:
            if len(group) > 1:
                for one in group:
                    self._settle([one])
                return
            results = [_stored_nothing(error)]
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
                said = "This idempotency key was used before for another text; nothing was stored."
                results.append(Conflict(said))
                continue
            known |= {row["id"]: row["text"] for row in new} if item.keyed else {}
            fresh += new
            names = tuple(row["id"] for row in item.rows)
            results.append(Appended(names, len(item.rows) - len(new)))
        if fresh:
            session.execute(self._insert(StoredRecord).on_conflict_do_nothing(), fresh)
        return results

    # --- reading --------------------------------------------------------------------------

    def page(
        self, dataset: str, *, owner: Caller | None, user: str | None = None, after: str = "",
        limit: int = 50,
    ) -> list[Json]:  # fmt: skip
        """Records with their text: those of one owner, or, if that is None, anybody's."""
        chosen = _of(dataset, owner, user)
        query = select(StoredRecord).where(*chosen, StoredRecord.id > after)
        rows = self.storage.scalars(query.order_by(StoredRecord.id).limit(limit))
        return [_row(row) | fields_of(row, "created", "owner") for row in rows]

    def counts(self, dataset: str) -> dict[str, int]:
        """How many records and users; exact, so for those inside."""
        users = func.count(func.distinct(StoredRecord.user))
        query = select(func.count(), users).where(StoredRecord.dataset_id == dataset)
        ((records, writers),) = self.storage.rows(query)
        return {"records": int(records), "users": int(writers)}

    def mean_length(self, dataset: str) -> float:
        """Characters of a record in the mean; exact, so for those inside."""
        query = select(func.avg(func.length(StoredRecord.text)))
        (mean,) = self.storage.scalars(query.where(StoredRecord.dataset_id == dataset))
        return float(mean or 0)

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
        return Corpus.from_records(self._rows(dataset), name="the dataset")

    def _rows(self, dataset: str) -> Iterator[Json]:
        query = select(StoredRecord).where(StoredRecord.dataset_id == dataset)
        query = query.order_by(StoredRecord.id).execution_options(yield_per=1000)
        with self.storage.read() as session:
            yield from map(_row, session.scalars(query))

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
            names = list(session.scalars(select(StoredRecord.id).where(*chosen)))
            if record is not None and not names:
                raise NotFound("There is no such record, or it is not yours.")
            for some in _parts(names):
                forgotten = self._insert(DeletedRecord).on_conflict_do_nothing()
                session.execute(forgotten, [{"id": name} for name in some])
                session.execute(delete(StoredRecord).where(StoredRecord.id.in_(some)))
        return names

    def forgotten_among(self, names: Sequence[str]) -> set[str]:
        """Which of these records were deleted."""
        with self.storage.read() as session:
            return {row[0] for row in _found(session, select(DeletedRecord.id), names)}


def drafts_of(corpus: Corpus) -> list[Draft]:
    """The records of a corpus, ready to be sent."""
    drafts = []
    for record in corpus.records():
        row = record.row()
        extra = {name: row[name] for name in EXTRA if name in row} or None
        drafts.append(
            Draft(row["text"], row.get("user"), row.get("label"), row.get("split"), extra)
        )
    return drafts


def _row(row: StoredRecord) -> Json:
    optional = {name: getattr(row, name) for name in ("label", "split")}
    given = {name: value for name, value in optional.items() if value is not None}
    return {"id": row.id, "user": row.user, "text": row.text, **given, **(row.extra or {})}


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


def _found(session: Session, query: Any, names: Sequence[str]) -> Iterator[Any]:
    column = next(iter(query.selected_columns))
    for some in _parts(names):
        yield from session.execute(query.where(column.in_(some)))


def _parts(names: Sequence[str]) -> Iterable[Sequence[str]]:
    return (names[at : at + _IN_ONE_QUERY] for at in range(0, len(names), _IN_ONE_QUERY))


def _stored_nothing(error: SQLAlchemyError) -> TacitError:
    # A driver's own message may quote the row.
    if isinstance(error, IntegrityError):
        return NotFound("The dataset or the account of these records is gone; nothing was stored.")
    return Busy("The database could not store the records; send them again.")


def _secret(storage: Storage) -> bytes:
    """The key from which names of records are made; one for each database."""
    with storage.write() as session:
        found = session.get(Fact, "record-key")
        if found is None:
            found = Fact(name="record-key", value=secrets.token_hex(32))
            session.add(found)
        return bytes.fromhex(found.value)
