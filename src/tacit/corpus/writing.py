"""A corpus written to a file: whole, or not at all."""

import gzip
import io
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from tacit.corpus import Corpus
from tacit.corpus.reading import format_of
from tacit.errors import UsageError
from tacit.files import whole_file

Progress = Callable[[int], None]


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
    if format not in ("jsonl", "csv", "tsv", "parquet"):
        raise UsageError(
            f"format={format!r} cannot be written; accepted: jsonl, csv, tsv, parquet."
        )
    kept = [name for name in corpus.columns if name not in drop]
    lists = [name for name in kept if pa.types.is_nested(corpus.table.schema.field(name).type)]
    if format in ("csv", "tsv") and lists:
        names = ",".join(lists)
        raise UsageError(
            f"{format.upper()} cannot hold the column(s) {names}; write JSONL or Parquet, or "
            f"leave them out with --drop {names}."
        )
    table = corpus.table.select(kept)
    with whole_file(path) as draft:
        if format == "parquet":
            with pa.parquet.ParquetWriter(draft, table.schema, compression="zstd") as writer:
                for batch in _reported(table, progress):
                    writer.write_batch(batch)
        else:
            with _open(draft) as out:
                if format == "jsonl":
                    _write_jsonl(table, out, progress)
                else:
                    options = pa.csv.WriteOptions(delimiter="," if format == "csv" else "\t")
                    with pa.csv.CSVWriter(out, table.schema, write_options=options) as csv:
                        for batch in _reported(table, progress):
                            csv.write_batch(batch)


def _open(path: Path) -> IO[bytes]:
    # No time stamp inside: the same corpus gives the same bytes.
    if path.name.endswith(".gz"):
        return gzip.GzipFile(path, "wb", mtime=0)  # type: ignore[return-value]
    return path.open("wb")


def _write_jsonl(table: pa.Table, out: IO[bytes], progress: Progress | None) -> None:
    text = io.TextIOWrapper(out, encoding="utf-8", newline="\n", write_through=False)
    for batch in _reported(table, progress):
        for row in batch.to_pylist():
            given = {name: value for name, value in row.items() if value is not None}
            text.write(json.dumps(given, ensure_ascii=False, allow_nan=False) + "\n")
    text.flush()
    text.detach()


def _reported(table: pa.Table, progress: Progress | None) -> Iterator[pa.RecordBatch]:
    for batch in table.to_batches(max_chunksize=16_384):
        yield batch
        if progress:
            progress(batch.num_rows)
