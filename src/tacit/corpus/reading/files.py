"""Parquet, CoNLL columns and plain text."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from tacit.corpus import SCHEMA
from tacit.corpus.reading.blocks import line_blocks
from tacit.corpus.reading.layout import Layout
from tacit.errors import DataError


def read_parquet(path: Path, layout: Layout) -> Iterator[pa.Table]:
    """The row groups of a Parquet file."""
    try:
        with pa.parquet.ParquetFile(path, memory_map=True) as file:
            sources = layout.sources(file.schema_arrow.names, path.name)
            wanted = list(dict.fromkeys(sources.values()))
            for batch in file.iter_batches(batch_size=65_536, columns=wanted):
                table = pa.Table.from_batches([batch])
                yield pa.table({ours: table.column(theirs) for ours, theirs in sources.items()})
    except (pa.ArrowInvalid, OSError, pa.ArrowNotImplementedError):
        raise DataError(
            f"{path} is not a whole Parquet file; check that it was fully copied and that its "
            "ending tells its format (else give --format)."
        ) from None


def _sentence_row(sentence: list[list[str]], document: int, width: int) -> dict[str, Any]:
    tokens = [cells[0] for cells in sentence]
    row: dict[str, Any] = {"text": " ".join(tokens), "tokens": tokens}
    row["tags"] = [cells[-1] for cells in sentence]
    if width > 2:
        row["pos"] = [cells[1] for cells in sentence]
    if document:
        row["user"] = f"doc-{document:05d}"
    return row


def read_conll(path: Path, layout: Layout) -> Iterator[pa.Table]:
    """CoNLL columns: the token first, the NER tag last, the part of speech second of three or more.

    A blank line ends a sentence (a record); a `-DOCSTART-` line opens a document (a user).
    """
    rows: list[dict[str, Any]] = []
    sentence: list[list[str]] = []
    document, width = 0, 0

    def close() -> None:
        if sentence:
            rows.append(_sentence_row(sentence, document, width))
            sentence.clear()

    schema = pa.schema([SCHEMA.field(n) for n in ("user", "text", "tokens", "tags", "pos")])
    for first_line, block in line_blocks(path, layout.encoding):
        for number, line in enumerate(block.decode().split("\n"), first_line):
            cells = line.split()
            if not cells:
                close()
            elif cells[0] == "-DOCSTART-":
                close()
                document += 1
            else:
                width = width or len(cells)
                if len(cells) != width or width < 2:
                    raise DataError(
                        f"{path}, line {number}, has {len(cells)} column(s) where "
                        f"{max(width, 2)} are expected; accepted is a token, its tags, and a "
                        "blank line between sentences."
                    )
                sentence.append(cells)
        # A sentence that goes on in the next block is carried over.
        if rows:
            yield pa.Table.from_pylist(rows, schema=schema)
            rows.clear()
    close()
    if rows:
        yield pa.Table.from_pylist(rows, schema=schema)


def read_text(path: Path, layout: Layout) -> Iterator[pa.Table]:
    """Plain text: each line that is not blank is a record, without user."""
    for _, block in line_blocks(path, layout.encoding):
        lines = [line.strip() for line in block.decode().split("\n")]
        yield pa.table({"text": pa.array([line for line in lines if line], pa.string())})
