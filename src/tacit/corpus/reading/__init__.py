"""Files and data sets of others, read into a `Corpus`.

Reading is done by Arrow, block by block; only a block that Arrow refuses is read again, slowly,
to say which line is wrong and why. Arrow's own messages quote the data, so they are never shown.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from tacit.corpus import SCHEMA, Corpus
from tacit.corpus.reading.casting import as_batches, without_empty
from tacit.corpus.reading.delimited import read_delimited
from tacit.corpus.reading.files import read_conll, read_parquet, read_text
from tacit.corpus.reading.huggingface import dataset_tables, load_folder, with_split
from tacit.corpus.reading.jsonl import read_jsonl
from tacit.corpus.reading.layout import FORMATS, Layout, format_of
from tacit.errors import DataError, UsageError
from tacit.files import require_file

Progress = Callable[[int], None]


def read(
    source: str | Path,
    layout: Layout | None = None,
    *,
    in_memory: int | None = None,
    progress: Progress | None = None,
) -> Corpus:
    """A file, or a folder of a data set, as a corpus.

    A source larger than `in_memory` bytes (half of the machine's memory, if not given) goes
    through an Arrow file on disk that is mapped, not loaded.
    """
    source = Path(source)
    layout = layout or Layout()
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    batches = stream(source, layout)
    if progress:
        batches = _reported(batches, progress)
    if _size(source) > (half if in_memory is None else in_memory):
        table = _spooled(batches)
    else:
        table = pa.Table.from_batches(list(batches), schema=SCHEMA)
    return Corpus(without_empty(table), name=source.name)


def opened(given: Corpus | str | Path) -> Corpus:
    """A corpus as it is, or that of a path."""
    if isinstance(given, Corpus):
        return given
    return read(require_path(given))


def require_path(given: Any) -> str | Path:
    """Refuse what is neither a corpus nor the path of one, such as a data frame."""
    if isinstance(given, str | Path):
        return given
    raise UsageError(
        f"A {type(given).__name__} is no corpus; make one with tacit.Corpus.from_pandas, "
        "from_records or from_dataset, or give the path of a file."
    )


def stream(source: Path, layout: Layout) -> Iterator[pa.RecordBatch]:
    """The records of a source as Arrow batches of the full schema, a block in memory at a time."""
    source = Path(source)
    if source.is_dir():
        tables = _folder(source, layout)
    else:
        require_file(source)
        tables = _READERS[layout.format or format_of(source)](source, layout)
    return as_batches(tables, source.name)


def from_dataset(dataset: Any, layout: Layout | None = None, *, name: str = "dataset") -> Corpus:
    """An in-memory `datasets.Dataset` or `DatasetDict` as a corpus; a dict's keys are splits."""
    layout = layout or Layout()
    table = pa.Table.from_batches(
        list(as_batches(dataset_tables(dataset, layout, name), name)), schema=SCHEMA
    )
    return Corpus(without_empty(table), name=name)


def _folder(folder: Path, layout: Layout) -> Iterator[pa.Table]:
    """A Hugging Face folder: saved to disk, or data files whose names tell the split."""
    if (folder / "dataset_dict.json").exists() or (folder / "state.json").exists():
        yield from dataset_tables(load_folder(folder), layout, folder.name)
        return
    files = sorted(
        f
        for f in folder.rglob("*")
        if f.is_file() and Path(f.name.removesuffix(".gz")).suffix in (".parquet", ".jsonl", ".csv")
    )
    if not files:
        raise DataError(
            f"{folder} holds no data set; accepted is a folder that `Dataset.save_to_disk` "
            "wrote, or one with .parquet, .jsonl or .csv files."
        )
    for file in files:
        split = next(
            (s for s in ("train", "valid", "test", "dev") if s in file.name.lower()),
            None,
        )
        for table in _READERS[format_of(file)](file, layout):
            yield with_split(table, "valid" if split == "dev" else split)


_READERS: dict[str, Callable[[Path, Layout], Iterator[pa.Table]]] = {
    "jsonl": read_jsonl,
    "csv": lambda path, layout: read_delimited(path, layout, ","),
    "tsv": lambda path, layout: read_delimited(path, layout, "\t"),
    "parquet": read_parquet,
    "conll": read_conll,
    "text": read_text,
    "dataset": _folder,
}


def _spooled(batches: Iterator[pa.RecordBatch]) -> pa.Table:
    """The batches in a mapped Arrow file that has no name any more: it goes when the table goes."""
    handle, path = tempfile.mkstemp(suffix=".arrow", prefix="tacit-")
    os.close(handle)
    try:
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
            for batch in batches:
                writer.write_batch(batch)
        return pa.ipc.open_file(pa.memory_map(path)).read_all()
    finally:
        os.unlink(path)


def _reported(batches: Iterator[pa.RecordBatch], progress: Progress) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        progress(batch.num_rows)
        yield batch


def _size(source: Path) -> int:
    files = [source] if source.is_file() else [f for f in source.rglob("*") if f.is_file()]
    # Text shrinks to about a fifth under gzip.
    return sum(f.stat().st_size * (5 if f.suffix == ".gz" else 1) for f in files)


__all__ = ["FORMATS", "Layout", "format_of", "from_dataset", "read", "stream"]
