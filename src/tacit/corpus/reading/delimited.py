"""CSV and TSV."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

from tacit.corpus.reading.blocks import MAX_RECORD, CheckedFile, checked_chunks, line_blocks
from tacit.corpus.reading.layout import Layout
from tacit.errors import DataError


def read_delimited(path: Path, layout: Layout, delimiter: str) -> Iterator[pa.Table]:
    """The tables of a CSV or TSV file; a ragged row is named by its number."""
    header = list(layout.header) if layout.header else _header(path, layout, delimiter)
    if len(set(header)) < len(header):
        raise DataError(f"{path}: two columns of its header share a name; give each its own.")
    sources = layout.sources(header, path.name)
    bad_row: list[tuple[int | None, int, int]] = []

    def note(row: Any) -> str:
        bad_row.append((row.number, row.expected_columns, row.actual_columns))
        return "error"

    # A quoted field may hold line breaks, which Arrow can only follow if it is told so.
    parse = pa.csv.ParseOptions(
        delimiter=delimiter, quote_char='"' if layout.quoted else False,
        newlines_in_values=layout.quoted, invalid_row_handler=note,
    )  # fmt: skip
    wanted = list(dict.fromkeys(sources.values()))
    chunks = checked_chunks(path, layout.encoding)
    try:
        reader = pa.csv.open_csv(
            CheckedFile(_quotes_closed(chunks, path) if layout.quoted else chunks),
            read_options=pa.csv.ReadOptions(
                use_threads=False,
                block_size=MAX_RECORD,
                column_names=list(header),
                skip_rows=0 if layout.header else 1,
            ),
            parse_options=parse,
            convert_options=pa.csv.ConvertOptions(
                include_columns=wanted,
                column_types=dict.fromkeys(wanted, pa.string()),
                strings_can_be_null=False,
            ),
        )
        for batch in reader:
            table = pa.Table.from_batches([batch])
            yield pa.table({ours: table.column(theirs) for ours, theirs in sources.items()})
    except pa.ArrowInvalid:
        raise DataError(_not_split(path, bad_row)) from None


def _not_split(path: Path, bad_row: list[tuple[int | None, int, int]]) -> str:
    """Why a file is not split into rows, and the way out."""
    if bad_row:
        number, expected, actual = bad_row[0]
        where = f", row {number}," if number is not None else ", one row"
        return (
            f"{path}{where} has {actual} fields and the header {expected}; repair the row, "
            "or quote a field that holds the delimiter or a line break."
        )
    return (
        f"{path} cannot be split into rows; look for a quotation mark in a wrong place (or "
        f"add --no-quotes) and for rows over {MAX_RECORD >> 20} MiB."
    )


def _quotes_closed(chunks: Iterator[bytes], path: Path) -> Iterator[bytes]:
    """The chunks, refused at the end if a quotation mark is left open.

    Arrow would take all that follows an open quotation mark as one field, without a word.
    """
    marks = 0
    for chunk in chunks:
        marks += chunk.count(b'"')
        yield chunk
    if marks % 2:
        raise DataError(
            f"{path} has an odd number of quotation marks, so one is never closed; repair it, "
            "or add --no-quotes if quotation marks are plain characters in this file."
        )


def _header(path: Path, layout: Layout, delimiter: str) -> list[str]:
    first = next(line_blocks(path, layout.encoding), (1, b""))[1]
    line = first.split(b"\n", 1)[0].decode().rstrip("\r")
    if not line:
        raise DataError(f"{path} is empty; give a header line and at least one record.")
    if not layout.quoted:
        return line.split(delimiter)
    try:
        return next(csv.reader([line], delimiter=delimiter))
    except csv.Error:
        raise DataError(f"{path}: its first line is not a header of column names.") from None
