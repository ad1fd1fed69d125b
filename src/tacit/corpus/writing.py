"""A corpus written to a file: whole, or not at all."""

import gzip
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any, Self

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from tacit.corpus import SCHEMA, Corpus
from tacit.corpus.reading import format_of
from tacit.errors import DataError, UsageError
from tacit.files import whole_file

Progress = Callable[[int], None]
FORMATS = ("jsonl", "csv", "tsv", "parquet")


def write(
    corpus: Corpus,
    path: str | Path,
    *,
    format: str | None = None,
    drop: Sequence[str] = (),
    progress: Progress | None = None,
) -> None:
    """Write JSONL, CSV, TSV or Parquet, by the file's ending; `.gz` packs the text formats."""
    path = Path(path)
    format = format or format_of(path)
    if format not in FORMATS:
        raise UsageError(f"format={format!r} cannot be written; accepted: {', '.join(FORMATS)}.")
    kept = [name for name in corpus.columns if name not in drop]
    lists = [name for name in kept if pa.types.is_nested(corpus.table.schema.field(name).type)]
    if format in ("csv", "tsv") and lists:
        names = ",".join(lists)
        raise UsageError(
            f"{format.upper()} cannot hold the column(s) {names}; write JSONL or Parquet, or "
            f"leave them out with --drop {names}."
        )
    with whole_file(path) as draft, CorpusFile(draft, format, columns=kept) as file:
        for batch in corpus.table.select(kept).to_batches(max_chunksize=16_384):
            file.write(batch)
            if progress:
                progress(batch.num_rows)


def filled(batch: pa.RecordBatch) -> list[str]:
    """The columns of a batch in which there is something."""
    return [n for n in batch.schema.names if batch.column(n).null_count < batch.num_rows]


class CorpusFile:
    """A file that batches are written to as they come: JSONL, CSV, TSV, Parquet or text.

    Which columns it has is told by `columns`, or by what the first batch holds. `held` are those in
    which something was written.
    """

    def __init__(
        self,
        path: Path,
        format: str | None = None,
        *,
        drop: Sequence[str] = (),
        columns: Sequence[str] = (),
    ) -> None:
        self._format = format or format_of(path)
        if self._format not in (*FORMATS, "text"):
            raise UsageError(
                f"format={self._format!r} cannot be written; accepted: {', '.join(FORMATS)}, text."
            )
        self._path, self._drop, self._columns = path, drop, list(columns)
        self.held: set[str] = set()
        self._raw: IO[bytes] | None = None
        self._table: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for open_ in (self._table, self._raw):
            if open_ is not None:
                open_.close()

    def write(self, batch: pa.RecordBatch) -> None:
        """Append these records."""
        given = [name for name in filled(batch) if name not in self._drop]
        if self._raw is None and self._table is None:
            self._open([n for n in batch.schema.names if n in ("id", "text") or n in given])
        lost = [name for name in given if name not in self._columns]
        if lost and self._format not in ("jsonl", "text"):
            raise DataError(
                f"The column {lost[0]} begins only after the first records; write JSONL, or leave "
                f"it out with --drop {lost[0]}."
            )
        self.held |= {"text"} if self._format == "text" else set(given)
        if self._format == "jsonl":
            rows = batch.select([n for n in batch.schema.names if n not in self._drop]).to_pylist()
            said = ({k: v for k, v in row.items() if v is not None} for row in rows)
            self._write_lines(json.dumps(s, ensure_ascii=False, allow_nan=False) for s in said)
        elif self._format == "text":
            self._write_lines(batch.column("text").to_pylist())
        else:
            self._table.write_batch(batch.select(self._columns))

    def _write_lines(self, lines: Iterable[str]) -> None:
        assert self._raw is not None
        self._raw.write("".join(line + "\n" for line in lines).encode())

    def _open(self, columns: list[str]) -> None:
        self._columns = self._columns or [name for name in columns if name not in self._drop]
        schema = pa.schema([SCHEMA.field(name) for name in self._columns])
        if self._format == "parquet":
            self._table = pa.parquet.ParquetWriter(self._path, schema, compression="zstd")
            return
        if self._path.name.endswith(".gz"):
            # No time stamp inside: the same corpus gives the same bytes.
            self._raw = gzip.GzipFile(self._path, "wb", mtime=0)  # type: ignore[assignment]
        else:
            self._raw = self._path.open("wb")
        if self._format in ("csv", "tsv"):
            options = pa.csv.WriteOptions(delimiter="," if self._format == "csv" else "\t")
            self._table = pa.csv.CSVWriter(self._raw, schema, write_options=options)
