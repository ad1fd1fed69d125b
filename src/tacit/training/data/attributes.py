"""A sensitive attribute of records: who wrote each, or any other column of the corpus."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.corpus import Corpus
from tacit.corpus.reading import Layout, read
from tacit.errors import DataError, UsageError

_VALUED = ("user", "label", "split", "pair")
"""Columns of every corpus that hold one value for a record, and are no text of it."""


@dataclass(frozen=True, eq=False)
class Attribute:
    """The number of each record's value, by first appearance, and how many values there are."""

    codes: NDArray[np.int64]
    count: int

    def digest(self) -> str:
        """A SHA-256 of who has which value."""
        return hashlib.sha256(self.codes.tobytes()).hexdigest()


def attribute_of(name: str, part: Corpus, source: str) -> Attribute:
    """A column of a corpus; one that the corpus did not keep is read again from its file."""
    values = part.column(name) if name in _VALUED else _from_file(name, part, source)
    if values.null_count:
        raise DataError(
            f"{part.name}: {values.null_count:,} record(s) have no {name}, and attribute={name}; "
            "give each one, leave them out, or name another column."
        )
    encoded = values.combine_chunks().dictionary_encode()
    count = len(encoded.dictionary)
    if count < 2:
        raise DataError(
            f"{part.name}: all records have the same {name}, so there is nothing to hide; name "
            "another column as the attribute."
        )
    return Attribute(encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), count)


def _from_file(name: str, part: Corpus, source: str) -> pa.ChunkedArray:
    if name in part.columns:
        raise UsageError(
            f"attribute={name} holds no values that records share; give user, label, or another "
            "column of the corpus's file."
        )
    if not Path(source).exists():
        raise UsageError(
            f"attribute={name} is not kept of a known corpus; give one of "
            f"{', '.join(n for n in _VALUED if n in part.columns)}."
        )
    again = read(Path(source), Layout({"label": name}))
    ids, values = (again.column(n).to_pylist() for n in ("id", "label"))
    held = dict(zip(ids, values, strict=True))
    return pa.chunked_array([[held[i] for i in part.column("id").to_pylist()]], type=pa.string())
