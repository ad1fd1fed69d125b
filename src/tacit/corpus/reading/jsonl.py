"""JSON lines: one object a line."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json

from tacit.corpus import SCHEMA
from tacit.corpus.reading.blocks import line_blocks
from tacit.corpus.reading.casting import KIND_KEYS
from tacit.corpus.reading.layout import Layout
from tacit.errors import DataError


def read_jsonl(path: Path, layout: Layout) -> Iterator[pa.Table]:
    """The tables of a JSONL file, fast where Arrow agrees and slowly where it does not."""
    schema: pa.Schema | None = None
    sources: dict[str, str] = {}
    for first_line, block in line_blocks(path, layout.encoding):
        if schema is None:
            sample = _first_object(block, path, first_line)
            sources = layout.sources(_keys(block, sample), path.name)
            schema = pa.schema(
                [
                    (theirs, _arrow_type(sample.get(theirs), ours))
                    for ours, theirs in sources.items()
                ]
            )
        table = _json_fast(block, schema)
        if table is None:
            yield _json_slowly(block, first_line, path, sources)
        else:
            yield table.select(list(sources.values())).rename_columns(list(sources))


def _json_fast(block: bytes, schema: pa.Schema) -> pa.Table | None:
    try:
        return pa.json.read_json(
            pa.BufferReader(block),
            read_options=pa.json.ReadOptions(use_threads=False, block_size=len(block) + 1),
            parse_options=pa.json.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="ignore"
            ),
        )
    except pa.ArrowInvalid:
        return None


def _first_object(block: bytes, path: Path, first_line: int) -> dict[str, Any]:
    for number, line in enumerate(block.split(b"\n"), first_line):
        if line.strip():
            return _json_object(line, path, number)
    return {}


def _keys(block: bytes, sample: dict[str, Any]) -> list[str]:
    # Optional columns may be missing from the first record: look at a few more.
    keys = dict.fromkeys(sample)
    for line in block.split(b"\n", 200)[:200]:
        try:
            keys.update(dict.fromkeys(json.loads(line)))
        except (ValueError, TypeError, RecursionError):
            continue
    return list(keys)


def _arrow_type(value: Any, ours: str) -> pa.DataType:
    """The Arrow type to expect of a JSON value; a wrong guess only costs the slow way."""
    if ours == "spans":
        kind = "kind"
        if isinstance(value, list) and value and isinstance(value[0], dict):
            kind = next((k for k in KIND_KEYS if k in value[0]), "kind")
        return pa.list_(
            pa.struct([("start", pa.int64()), ("end", pa.int64()), (kind, pa.string())])
        )
    if pa.types.is_list(SCHEMA.field(ours).type):
        return pa.list_(pa.string())
    if ours == "text":
        return pa.string()
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64()
    return pa.float64() if isinstance(value, float) else pa.string()


def _json_object(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise DataError(
            f"{path}, line {number}, is not a JSON object; accepted is one object a line "
            '({"user": ..., "text": ...}): repair or remove that line.'
        ) from None
    if not isinstance(row, dict):
        raise DataError(
            f"{path}, line {number}, holds a JSON {_json_name(row)}; accepted is one object a "
            "line (a file that is one long array must be written as lines first)."
        )
    return row


def _json_slowly(block: bytes, first_line: int, path: Path, sources: Mapping[str, str]) -> pa.Table:
    rows = []
    for number, line in enumerate(block.split(b"\n"), first_line):
        if line.strip():
            row = _json_object(line, path, number)
            rows.append(
                {
                    ours: _json_value(ours, row.get(theirs), path, number)
                    for ours, theirs in sources.items()
                }
            )
    return pa.Table.from_pylist(rows, schema=pa.schema([SCHEMA.field(o) for o in sources]))


def _json_value(ours: str, value: Any, path: Path, number: int) -> Any:
    """One value as our column takes it, or a sentence about it that does not quote it."""
    if value is None:
        return None
    wanted = "a string"
    if ours == "spans":
        wanted = "a list of {start, end, kind}"
        if isinstance(value, list) and all(_is_span(s) for s in value):
            return [
                {"start": s["start"], "end": s["end"],
                 "kind": next(s[k] for k in KIND_KEYS if k in s)}
                for s in value
            ]  # fmt: skip
    elif pa.types.is_list(SCHEMA.field(ours).type):
        wanted = "a list of strings"
        if isinstance(value, list) and all(isinstance(v, str | int) for v in value):
            return [_clean(str(v), path, number, ours) for v in value]
    elif isinstance(value, str) or (ours != "text" and isinstance(value, int | float)):
        return _clean(str(value), path, number, ours)
    raise DataError(
        f"{path}, line {number}: {ours} is a JSON {_json_name(value)}; accepted is {wanted}."
    )


def _is_span(span: Any) -> bool:
    return (
        isinstance(span, dict)
        and all(isinstance(span.get(k), int) and abs(span[k]) < 2**31 for k in ("start", "end"))
        and any(isinstance(span.get(k), str) for k in KIND_KEYS)
    )


def _clean(value: str, path: Path, number: int, ours: str) -> str:
    if any("\ud800" <= c <= "\udfff" for c in value):
        raise DataError(
            f"{path}, line {number}: {ours} holds half of a surrogate pair, which is no "
            "character; repair how the file was made."
        )
    return value


def _json_name(value: Any) -> str:
    names = {
        dict: "object",
        list: "array",
        str: "string",
        bool: "boolean",
        type(None): "null",
    }
    return names.get(type(value), "number")
