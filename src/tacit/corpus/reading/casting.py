"""From a source's types to ours."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from tacit.corpus import SCHEMA
from tacit.errors import DataError

KIND_KEYS = ("kind", "label", "type")
"""What the kind of a span may be called at its source."""


def as_batches(tables: Iterator[pa.Table], name: str) -> Iterator[pa.RecordBatch]:
    """Tables of whatever types as batches of the full schema, ids counted where none are given."""
    seen = 0
    for table in tables:
        if table.num_rows == 0:
            continue
        columns = []
        for wanted in SCHEMA:
            if wanted.name in table.column_names:
                columns.append(_cast(table.column(wanted.name), wanted, name, seen))
            elif wanted.name == "id":
                ids = pa.array(range(seen, seen + table.num_rows), pa.int64())
                columns.append(pa.chunked_array([ids.cast(pa.string())]))
            elif wanted.name == "text":
                tokens = _cast(table.column("tokens"), SCHEMA.field("tokens"), name, seen)
                columns.append(pc.binary_join(tokens, " "))
            else:
                columns.append(pa.chunked_array([pa.nulls(table.num_rows, wanted.type)]))
        seen += table.num_rows
        yield from (pa.Table.from_arrays(columns, schema=SCHEMA).combine_chunks().to_batches())


def _cast(column: pa.ChunkedArray, wanted: pa.Field, name: str, seen: int) -> pa.ChunkedArray:
    try:
        cast = _cast_spans(column) if wanted.name == "spans" else column.cast(wanted.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, KeyError):
        raise DataError(
            f"{name}: the column for {wanted.name} has the type {column.type}, and the records "
            f"from {seen + 1} on do not fit {wanted.type}; name another column for it."
        ) from None
    if wanted.name in ("user", "label", "split", "pair"):
        # An empty cell of a CSV file stands for nothing given.
        cast = pc.if_else(pc.equal(cast, ""), pa.scalar(None, pa.string()), cast)
    return cast


def _cast_spans(column: pa.ChunkedArray) -> pa.ChunkedArray:
    array = pa.concat_arrays(column.chunks)
    if pa.types.is_null(array.type):
        return column.cast(SCHEMA.field("spans").type)
    flat = array.flatten()
    kind = next(k for k in (*KIND_KEYS, None) if k is None or flat.type.get_field_index(k) >= 0)
    if kind is None:
        raise KeyError("kind")
    names = ["start", "end", "kind"]
    parts = [flat.field("start"), flat.field("end"), flat.field(kind)]
    types = [pa.int32(), pa.int32(), pa.string()]
    structs = pa.StructArray.from_arrays(
        [p.cast(t) for p, t in zip(parts, types, strict=True)], names=names
    )
    return pa.chunked_array([relist(array, structs)])


def relist(array: pa.ListArray, values: pa.Array) -> pa.ListArray:
    """Lists of the same lengths as `array`'s, and null where it is, over other values."""
    sizes = pc.fill_null(pc.list_value_length(array), 0)
    ends = pc.cumulative_sum(sizes).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    return pa.ListArray.from_arrays(offsets, values, mask=pc.is_null(array))


def without_empty(table: pa.Table) -> pa.Table:
    """The table without the optional columns that nobody filled."""
    return table.select(
        [
            n
            for n in table.column_names
            if n in ("id", "text") or table.column(n).null_count < table.num_rows
        ]
    )
