"""Who wrote what: `Record` and the Arrow-backed `Corpus`.

A corpus is a table of records. `id` and `text` are always there; the other columns exist
where something was given for them. A `user` is whoever a guarantee is about on the writing
side: a person, a group or an organisation.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tacit.corpus.splitting import splits_by
from tacit.errors import DataError, UsageError
from tacit.notebook import facts_html
from tacit.registry import did_you_mean

SPAN = pa.struct({"start": pa.int32(), "end": pa.int32(), "kind": pa.string()})
SCHEMA = pa.schema(
    {
        **dict.fromkeys(("id", "user", "text", "pair", "label"), pa.string()),
        **dict.fromkeys(("tokens", "tags", "pos"), pa.list_(pa.string())),
        "spans": pa.list_(SPAN),
        "split": pa.string(),
    }
)
COLUMNS = tuple(SCHEMA.names)


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch `text[start:end]` that somebody marked, and the kind of thing it is."""

    start: int
    end: int
    kind: str


@dataclass(frozen=True, slots=True)
class Record:
    """One piece of text with its writer and whatever else was given.

    `pair` is the second sentence of two-sentence tasks; `tokens`, `tags` and `pos` come from
    tagged corpora; `spans` are given (gold) marks.
    """

    id: str
    text: str
    user: str | None = None
    pair: str | None = None
    label: str | None = None
    tokens: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None
    pos: tuple[str, ...] | None = None
    spans: tuple[Span, ...] | None = None
    split: str | None = None

    def row(self) -> dict[str, Any]:
        """The record as a plain dictionary, without what was not given."""
        row = {name: getattr(self, name) for name in COLUMNS}
        if self.spans is not None:
            row["spans"] = [{"start": s.start, "end": s.end, "kind": s.kind} for s in self.spans]
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in row.items()
            if value is not None
        }


def record_from_row(row: Mapping[str, Any]) -> Record:
    """The record that a dictionary with our column names stands for."""
    known: dict[str, Any] = {f.name: row[f.name] for f in fields(Record) if f.name in row}
    for name in ("tokens", "tags", "pos"):
        if known.get(name) is not None:
            known[name] = tuple(known[name])
    if known.get("spans") is not None:
        known["spans"] = tuple(
            s if isinstance(s, Span) else Span(s["start"], s["end"], s["kind"])
            for s in known["spans"]
        )
    return Record(**known)


class Corpus:
    """A frozen table of records; every view of it shares the same Arrow memory.

    >>> corpus = Corpus.from_records([{"id": "1", "user": "ann", "text": "hello there"}])
    >>> len(corpus), corpus.users()
    (1, ['ann'])
    """

    def __init__(self, table: pa.Table, *, name: str = "corpus") -> None:
        """Check the table against the schema; what is wrong is named by record number."""
        kept = [f for f in SCHEMA if f.name in table.column_names]
        for needed in ("id", "text"):
            if needed not in table.column_names:
                raise DataError(f"{name} has no column {needed!r}; every record needs one.")
        table = table.select([f.name for f in kept]).cast(pa.schema(kept))
        self.table = table
        self.name = name
        if table.num_rows == 0:
            raise DataError(f"{name} is empty; give at least one record.")
        seen = 0
        for batch in table.to_batches():
            _check_batch(batch, name, seen)
            seen += batch.num_rows
        _check_ids(table.column("id"), name)

    @classmethod
    def from_records(
        cls, records: Iterable[Record | Mapping[str, Any]], *, name: str = "corpus"
    ) -> Self:
        """A corpus from records or dictionaries, in their order."""
        rows = [r.row() if isinstance(r, Record) else dict(r) for r in records]
        present = [f for f in SCHEMA if f.name in ("id", "text") or any(f.name in r for r in rows)]
        try:
            table = pa.Table.from_pylist(rows, schema=pa.schema(present))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError):
            # Arrow's own message quotes the value, which may be somebody's text.
            raise DataError(
                f"{name} has a value of a type that its column does not take; "
                "texts, ids, users and labels are strings."
            ) from None
        return cls(table, name=name)

    @classmethod
    def from_pandas(
        cls,
        frame: Any,
        *,
        text: str = "text",
        user: str | None = None,
        name: str = "corpus",
        **columns: str,
    ) -> Self:
        """A corpus from a data frame, whose columns are named: `text="Body", user="From"`.

        Further columns by our names: `label="List"`, `id=...`, `pair=...`, `split=...`. Without an
        `id`, records are numbered. Polars will do, too.
        """
        if not hasattr(frame, "columns"):
            raise UsageError(
                f"A {type(frame).__name__} has no columns; give a data frame, or use "
                "tacit.Corpus.from_records."
            )
        named = {"text": text} | ({"user": user} if user is not None else {}) | columns
        _require_columns(named, [str(one) for one in frame.columns], name)
        made = {ours: _strings(frame[theirs], ours, name) for ours, theirs in named.items()}
        if "id" not in made:
            made["id"] = pa.array([f"{n}" for n in range(1, len(frame) + 1)], pa.string())
        return cls(pa.table(made), name=name)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __repr__(self) -> str:
        return f"Corpus({self.name!r}, {len(self):,} records, columns {', '.join(self.columns)})"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that this corpus has, in schema order."""
        return tuple(self.table.column_names)

    def records(self) -> Iterator[Record]:
        """Every record, in order, a batch at a time in memory."""
        for batch in self.table.to_batches(max_chunksize=4096):
            for row in batch.to_pylist():
                yield record_from_row(row)

    def batches(self, size: int) -> Iterator[list[Record]]:
        """The records in lists of at most `size`."""
        for start in range(0, len(self), size):
            yield [record_from_row(row) for row in self.table.slice(start, size).to_pylist()]

    def column(self, name: str) -> pa.ChunkedArray:
        """One column, refused with a clear sentence where the corpus lacks it."""
        if name not in self.columns:
            raise DataError(
                f"{self.name} has no column {name!r}; name the source column that holds it "
                f"(tacit corpus convert FILE --{name} NAME -o NEW.parquet)."
            )
        return self.table.column(name)

    def require_users(self) -> pa.ChunkedArray:
        """The user of every record; a record without one is an error here."""
        users = self.column("user")
        if users.null_count:
            first = _first(pc.is_null(users)) or 0
            raise DataError(
                f"{self.name}, record {first + 1}, has no user, and {users.null_count:,} "
                "record(s) in all; protection is about users, so give each record one."
            )
        return users

    def users(self) -> list[str]:
        """The distinct users, in order of first appearance."""
        return pc.unique(self.require_users()).to_pylist()

    def splits(self) -> list[str]:
        """The names of the splits, in order of first appearance."""
        if "split" not in self.columns:
            return []
        return [s for s in pc.unique(self.table.column("split")).to_pylist() if s is not None]

    def take(self, rows: Sequence[int] | np.ndarray) -> "Corpus":
        """The corpus of the given row numbers."""
        return self._view(self.table.take(pa.array(np.asarray(rows, dtype=np.int64))))

    def only(self, split: str) -> "Corpus":
        """The records of one split."""
        if split not in self.splits():
            known = ", ".join(self.splits()) or "none"
            raise DataError(
                f"{self.name} has no split {split!r}; it has: {known}. Make one before training "
                "(tacit corpus split), or score another file (tacit evaluate RUN --test FILE)."
            )
        return self._view(self.table.filter(pc.equal(self.table.column("split"), split)))

    def with_splits(self, splits: Sequence[str]) -> "Corpus":
        """The same records, each in the split that is named for it."""
        rest = self.table.drop_columns(["split"]) if "split" in self.columns else self.table
        made = rest.append_column(SCHEMA.field("split"), pa.array(splits, pa.string()))
        return self._view(made.select([f.name for f in SCHEMA if f.name in made.column_names]))

    def split(
        self, *, test: float = 0.1, valid: float = 0.0, by: str = "user", seed: int = 0
    ) -> tuple["Corpus", ...]:
        """The part to train on and the part to test on; with `valid`, that part between them.

        Who goes where is decided by a hash of the seed and their own name.
        """
        found = np.array(splits_by(self, by, test=test, valid=valid, seed=seed))
        named = ("train", *(("valid",) if valid else ()), "test")
        parts = {one: np.flatnonzero(found == one) for one in named}
        for one, rows in parts.items():
            if not len(rows):
                raise UsageError(
                    f"{self.name} is too small for such a split: {one} would be empty; give other "
                    "shares, or another seed."
                )
        return tuple(self.take(rows) for rows in parts.values())

    def _repr_html_(self) -> str:
        """What a notebook shows: counts, and no text."""
        facts = {"records": len(self), "columns": ", ".join(self.columns)}
        if "user" in self.columns:
            facts["users"] = int(pc.count_distinct(self.table.column("user")).as_py())
        if splits := self.splits():
            facts["splits"] = ", ".join(splits)
        return facts_html(f"Corpus {self.name}", facts, "Exact counts over private text.")

    def digest(self) -> str:
        """A SHA-256 of every value, whatever the chunking: two equal corpora share it."""
        sha = hashlib.sha256()
        sha.update(" ".join(self.columns).encode())
        # Windows of fixed size: how the table happens to be chunked must not matter.
        for start in range(0, len(self), 65536):
            window = self.table.slice(start, 65536)
            for name in self.columns:
                _update_digest(sha, pa.concat_arrays(window.column(name).chunks))
        return sha.hexdigest()

    def _view(self, table: pa.Table) -> "Corpus":
        # A part of a checked table needs no second check.
        part = object.__new__(type(self))
        part.table, part.name = table, self.name
        return part


def _require_columns(named: Mapping[str, str], given: list[str], name: str) -> None:
    """Refuse columns that we do not know, or that a frame does not have; it says which it has."""
    for ours, theirs in named.items():
        if ours not in COLUMNS:
            raise UsageError(f"{ours!r} is no column of a corpus; accepted: {', '.join(COLUMNS)}.")
        if theirs not in given:
            raise DataError(
                f"{name} has no column {theirs!r} for {ours}.{did_you_mean(theirs, given)} It has: "
                f"{', '.join(given[:20])}{', ...' if len(given) > 20 else ''}."
            )


def _strings(series: Any, ours: str, name: str) -> pa.Array:
    """A column of a frame as Arrow; numbers become text, what is missing stays so."""
    try:
        polars = hasattr(series, "to_arrow")
        made = series.to_arrow() if polars else pa.array(series, from_pandas=True)
        return made if pa.types.is_nested(made.type) else made.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        # Arrow's own message quotes the value, which may be somebody's text.
        raise DataError(
            f"{name}: the column for {ours} mixes types or holds no text; make it one of strings "
            "first (frame[column].astype(str))."
        ) from None


def _update_digest(sha: Any, array: pa.Array) -> None:
    """Feed an array's values, independent of offsets and padding in its buffers."""
    if pa.types.is_struct(array.type):
        for part in array.flatten():
            _update_digest(sha, part)
    elif pa.types.is_list(array.type):
        _update_with_numbers(sha, pc.list_value_length(array))
        _update_digest(sha, array.flatten())
    elif pa.types.is_string(array.type):
        _update_with_numbers(sha, pc.binary_length(array))
        values = pc.fill_null(array, "")
        offsets = np.frombuffer(values.buffers()[1], dtype=np.int32)
        first, last = offsets[values.offset], offsets[values.offset + len(values)]
        sha.update(memoryview(values.buffers()[2] or b"")[first:last])
    else:
        _update_with_numbers(sha, array)


def _update_with_numbers(sha: Any, array: pa.Array) -> None:
    numbers = pc.fill_null(array, -1).to_numpy(zero_copy_only=False)
    sha.update(np.ascontiguousarray(numbers, dtype=np.int64).tobytes())


def _check_batch(batch: pa.RecordBatch, name: str, seen: int) -> None:
    given = batch.schema.names
    for column in ("id", "text"):
        if (row := _first(pc.is_null(batch.column(column)))) is not None:
            raise DataError(
                f"{name}, record {seen + row + 1}, has no {column}; every record needs one."
            )
    for column in {"id", "user", "text", "pair"} & set(given):
        if (row := _first(pc.match_substring(batch.column(column), "\0"))) is not None:
            raise DataError(
                f"{name}, record {seen + row + 1}, has a NUL character in {column}; "
                "text holds none: remove it, or check how the data were made."
            )
    if "spans" in given:
        _check_spans(batch, name, seen)
    for tags in ("tags", "pos"):
        if "tokens" in given and tags in given:
            sizes = pc.list_value_length(batch.column("tokens"))
            other = pc.list_value_length(batch.column(tags))
            if (row := _first(pc.not_equal(sizes, other))) is not None:
                raise DataError(
                    f"{name}, record {seen + row + 1}, has {sizes[row]} tokens but "
                    f"{other[row]} {tags}; give one for each token."
                )


def _first(found: pa.Array) -> int | None:
    """The index of the first true value."""
    row = int(pc.index(found, True).as_py())
    return row if row >= 0 else None


def _check_ids(ids: pa.ChunkedArray, name: str) -> None:
    if pc.count_distinct(ids).as_py() == len(ids):
        return
    seen: dict[str, int] = {}
    for row, value in enumerate(ids.to_pylist()):
        if value in seen:
            raise DataError(
                f"{name}, records {seen[value] + 1} and {row + 1}, share one id; ids must be "
                "unique: repair them, or leave the id column out and records are numbered."
            )
        seen[value] = row


def _check_spans(batch: pa.RecordBatch, name: str, seen: int) -> None:
    spans = batch.column("spans")
    flat, parents = spans.flatten(), pc.list_parent_indices(spans)
    start, end, kind = (flat.field(n) for n in ("start", "end", "kind"))
    room = pc.take(pc.utf8_length(batch.column("text")), parents)
    inside = pc.and_(
        pc.and_(pc.greater_equal(start, 0), pc.less(start, end)),
        pc.and_(pc.less_equal(end, room), pc.is_valid(kind)),
    )
    if (row := _first(pc.invert(pc.fill_null(inside, False)))) is not None:
        raise DataError(
            f"{name}, record {seen + parents[row].as_py() + 1}, has a span "
            f"{start[row]}:{end[row]} in a text of {room[row]} characters; a span needs "
            "0 <= start < end <= length, and a kind."
        )
