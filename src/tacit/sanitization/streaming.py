"""Corpora through a sanitizer, a window of text in memory at a time."""

import hashlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tacit.corpus import SCHEMA, record_from_row
from tacit.corpus.writing import filled
from tacit.errors import DataError, UsageError
from tacit.sanitization.mechanisms import Progress
from tacit.sanitization.operators import Replacer
from tacit.sanitization.sanitizer import Counted, Sanitizer
from tacit.workers import Workers

PASSED_ON = ("id", "user", "text", "pair", "label", "split")
"""What a sanitized record has; tokens, tags and spans belong to the old text and are left out."""

WINDOW = 6 << 20
"""How many bytes of text are sanitized at once: about a million words."""


class Passing:
    """Batches on their way through a sanitizer, with what was seen of them.

    In experiment mode (a fixed seed) a record's random stream is named by its id, so that neither
    order nor grouping matters; otherwise by its number, so that no two records can share any.
    """

    def __init__(
        self,
        work: Sanitizer | Replacer,
        progress: Progress | None = None,
        workers: Workers | None = None,
    ) -> None:
        # Were the same sanitizer to see two corpora, their records must not share a stream either.
        self._change = _Change(work, secrets.token_hex(16))
        self._progress, self._workers = progress, workers or Workers()
        self.counted = Counted()
        self._sha = hashlib.sha256()
        self._records = 0

    @property
    def digest(self) -> str:
        """A SHA-256 over ids and texts as they came."""
        return self._sha.hexdigest()

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches with their texts replaced."""
        for batch, counted in self._workers.map(self._change, self._numbered(batches)):
            self.counted += counted
            yield batch
            if self._progress:
                self._progress(batch.num_rows)
        if not self._records:
            raise DataError("The corpus is empty; give at least one record.")

    def _numbered(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Windows of records, each with the number of its first, as they are noted."""
        for window in windows(batches):
            _check(window, self._records)
            for column in _texts_of(window):
                self._note(window.column("id"), window.column(column))
            first, self._records = self._records, self._records + window.num_rows
            yield first, window

    def _note(self, ids: pa.Array, texts: pa.Array) -> None:
        for start in range(0, len(ids), 4096):
            some = zip(
                ids.slice(start, 4096).to_pylist(),
                texts.slice(start, 4096).to_pylist(),
                strict=True,
            )
            for id_, text in ((i, t or "") for i, t in some):
                self._sha.update(f"{len(id_)}:{id_}{len(text)}:{text}".encode())


def _texts_of(batch: pa.RecordBatch) -> list[str]:
    """The columns of a batch that hold text: one, or two where records are pairs."""
    return [c for c in ("text", "pair") if c in filled(batch)]


@dataclass(frozen=True)
class _Change:
    """What is done to a window of records, wherever that is: a function of the window alone."""

    work: Sanitizer | Replacer
    own: str

    def __call__(self, numbered: tuple[int, pa.RecordBatch]) -> tuple[pa.RecordBatch, Counted]:
        first, batch = numbered
        counted = Counted()
        if isinstance(self.work, Replacer):
            new = self._replaced(batch, self.work, counted)
        else:
            new = {c: self._drawn(batch, c, first, self.work, counted) for c in _texts_of(batch)}
        columns = [new[name] if name in new else batch.column(name) for name in PASSED_ON]
        return pa.RecordBatch.from_arrays(columns, names=list(PASSED_ON)), counted

    def _drawn(
        self, batch: pa.RecordBatch, column: str, first: int, work: Sanitizer, counted: Counted
    ) -> pa.Array:
        texts, ids = batch.column(column), batch.column("id")
        own = f"{column}\0{self.own}\0"
        system = work.streams.seed is None
        names = _Slices(
            ids, lambda row, id_: f"{own}{first + row}" if system else f"{column}\0{id_}"
        )
        found, seen = work.one_by_one(names, _Slices(texts, lambda _, text: text or ""))
        counted += seen
        made = pa.array(found, pa.string(), size=len(texts))
        return pc.if_else(pc.is_null(texts), pa.scalar(None, pa.string()), made)

    def _replaced(
        self, batch: pa.RecordBatch, work: Replacer, counted: Counted
    ) -> dict[str, pa.Array]:
        if "pair" in _texts_of(batch):
            raise UsageError(
                f"method={work.method} reads one text of a record, and these have two (pair); "
                "sanitize them by santext, or leave one out."
            )
        records = [record_from_row(row) for row in batch.to_pylist()]
        texts: list[str] = []
        for start in range(0, len(records), 1024):
            found, count = work(records[start : start + 1024])
            texts += found
            counted += Counted(texts=len(found), words=count)
        return {"text": pa.array(texts, pa.string())}


class _Slices(Sequence[Any]):
    """A column of strings that become Python's only where they are looked at."""

    def __init__(self, column: pa.Array, read: Callable[[int, Any], str]) -> None:
        self._column, self._read = column, read

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, int | np.integer):
            return self._read(int(at), self._column[int(at)].as_py())
        start, stop, _ = at.indices(len(self._column))
        values = self._column.slice(start, stop - start).to_pylist()
        return [self._read(start + n, value) for n, value in enumerate(values)]


def _check(batch: pa.RecordBatch, seen: int) -> None:
    for column in ("id", "text"):
        if batch.column(column).null_count:
            row = int(pc.index(pc.is_null(batch.column(column)), True).as_py())
            raise DataError(f"record {seen + row + 1} has no {column}; every record needs one.")


def windows(batches: Iterable[pa.RecordBatch], size: int = WINDOW) -> Iterator[pa.RecordBatch]:
    """The records in pieces of about `size` bytes of text, cut and joined as needed."""
    waiting: list[pa.RecordBatch] = []
    held = 0
    for batch in batches:
        batch = _full(batch)
        lengths = pc.fill_null(pc.binary_length(batch.column("text")), 0)
        ends = pc.cumulative_sum(lengths.cast(pa.int64())).to_numpy()
        start = 0
        while start < batch.num_rows:
            before = int(ends[start - 1]) if start else 0
            stop = max(start + 1, int(ends.searchsorted(before + size - held, side="right")))
            part = batch.slice(start, stop - start)
            waiting.append(part)
            held += int(ends[min(stop, batch.num_rows) - 1]) - before
            start = stop
            if held >= size or (start < batch.num_rows):
                yield _joined(waiting)
                waiting, held = [], 0
    if waiting:
        yield _joined(waiting)


def _full(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with every column of the schema; a corpus leaves out the empty ones."""
    names = batch.schema.names
    columns = [
        batch.column(f.name) if f.name in names else pa.nulls(batch.num_rows, f.type)
        for f in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _joined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
