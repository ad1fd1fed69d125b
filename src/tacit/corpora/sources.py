"""Reading the files of a corpus release: found by name, plain or gzip, faults named by line.

No message here quotes a file's text; it names the file, the line and what is expected.
"""

import csv
import io
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tacit.corpus import SCHEMA
from tacit.corpus.reading.blocks import checked_chunks
from tacit.errors import DataError

_FIELD_LIMIT = 1 << 28
_csv_limit = threading.Lock()


def corpus_folder(data: Path, name: str) -> Path:
    """The folder of a corpus: `data/name` where there is one, else `data` itself."""
    data = Path(data)
    if not data.is_dir():
        what = "is a file" if data.exists() else "does not exist"
        raise DataError(
            f"{data} {what}; give the folder of {name}, or a folder that has a sub-folder {name}."
        )
    inner = data / name
    return inner if inner.is_dir() else data


def find(folder: Path, *names: str) -> Path | None:
    """The first of these files that is there, plain or with `.gz` after its name."""
    for name in names:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    return None


def need(folder: Path, corpus: str, *names: str) -> Path:
    """The first of these files that is there; none is an error that names them."""
    path = find(folder, *names)
    if path is None:
        raise DataError(
            f"{folder} has no file {' or '.join(names)} (plain or .gz); {corpus} needs it: "
            f"check the folder, or give a parent that has a sub-folder {corpus}."
        )
    return path


def read_text(path: Path, *, encoding: str = "utf-8") -> str:
    """A whole file as text; a byte that is no text is an error with its line."""
    try:
        with path.open("rb") as raw:
            if path.suffix == ".gz" and raw.read(2) not in (b"", b"\x1f\x8b"):
                raise DataError(f"{path} is not a whole gzip file; check that it was fully copied.")
        return b"".join(checked_chunks(path, encoding)).decode()
    except OSError:
        raise DataError(f"{path} cannot be read; check its permissions.") from None


def read_lines(path: Path) -> list[str]:
    """The lines of a file without their ends; only a line feed ends a line."""
    lines = read_text(path).split("\n")
    if lines and not lines[-1]:
        lines.pop()
    return [line[:-1] if line.endswith("\r") else line for line in lines]


def read_csv(path: Path) -> list[tuple[int, list[str]]]:
    """The rows of a quoted CSV file, each with the number of its last line."""
    text = read_text(path)
    # The limit is the csv module's own global: one reader at a time raises it, and puts it back.
    with _csv_limit:
        before = csv.field_size_limit(_FIELD_LIMIT)
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        try:
            return [(reader.line_num, row) for row in reader if row]
        except csv.Error:
            line = reader.line_num
        finally:
            csv.field_size_limit(before)
    raise bad_line(path, line, "its quoting is broken; CSV with doubled quotes is expected")


def read_json(path: Path, needed: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a JSON lines file, each with its line number and the needed strings."""
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise bad_line(path, number, "it is not a JSON object")
        for name in needed:
            if not isinstance(row.get(name), str):
                raise bad_line(path, number, f"it has no string {name!r}")
        yield number, {name: row[name] for name in needed}


def bad_line(path: Path, number: int, fault: str) -> DataError:
    """The error for a malformed line: where, and what is wrong; never what it says."""
    return DataError(f"{path}, line {number}: {fault}.")


def require_rows(path: Path, rows: Sequence[object], what: str) -> None:
    """Stop where a file holds nothing."""
    if not rows:
        raise DataError(f"{path} is empty; expected are {what}.")


def to_table(columns: Mapping[str, Sequence[Any]], path: Path) -> pa.Table:
    """The columns as an Arrow table of the corpus schema."""
    try:
        return pa.table({n: pa.array(v, SCHEMA.field(n).type) for n, v in columns.items()})
    except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeEncodeError):
        pass
    raise DataError(f"{path} holds a character that UTF-8 does not have (half a surrogate pair).")
