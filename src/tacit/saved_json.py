"""A saved value as a JSON object, one field a line, that names its format and version."""

import gzip
import json
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.errors import DataError
from tacit.files import require_file, whole_file


def spelled(value: Any) -> Any:
    """A value as JSON can hold it: infinity as a word, what is no number as null.

    Whatever may hold a figure that was computed goes through here, and every file of ours is
    written with `allow_nan=False`: other programs refuse a file with NaN or Infinity in it.

    >>> spelled({"epsilon": [1.5, float("inf"), float("-inf"), float("nan")]})
    {'epsilon': [1.5, 'infinity', '-infinity', None]}
    """
    if isinstance(value, Mapping):
        return {key: spelled(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [spelled(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "infinity" if value > 0 else "-infinity"
    return value


def write_fields(path: Path, fields: Mapping[str, Any]) -> None:
    """Write a JSON object with one field a line, whole or not at all; .gz is compressed."""
    lines = ",\n".join(f"{_dense(name)}: {_dense(value)}" for name, value in fields.items())
    data = f"{{\n{lines}\n}}\n".encode()
    if path.suffix == ".gz":
        # No time stamp inside: equal graphs make equal files.
        data = gzip.compress(data, compresslevel=6, mtime=0)
    with whole_file(path) as draft:
        draft.write_bytes(data)


def _dense(value: Any) -> str:
    # Refused rather than spelled: millions of whole numbers need no second look.
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def read_fields(path: Path, format_: str, version: int) -> dict[str, Any]:
    """The fields of a file that `write_fields` wrote, if format and version are as wanted."""
    try:
        data = require_file(path).read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        fields = json.loads(data)
    except (ValueError, EOFError, gzip.BadGzipFile, RecursionError, zlib.error):
        fields = None
    if not isinstance(fields, dict) or fields.get("format") != format_:
        raise DataError(f"{path} is not a file of {format_}; give one that tacit wrote.")
    if fields.get("version") != version:
        raise DataError(
            f"{path} has version {fields.get('version')!r} of {format_}; this tacit reads version "
            f"{version}: write the file again."
        )
    return fields


def whole_numbers(values: ArrayLike, name: str) -> NDArray[np.int64]:
    """The values as an array, if they are whole numbers that fit 32 bits."""
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError):
        array = np.empty((0, 0))
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise DataError(f"{name} is not a list of whole numbers.")
    if array.size and not 0 <= int(array.min()) <= int(array.max()) < 2**31:
        raise DataError(f"{name} has a number below 0 or above {2**31 - 1}.")
    return array.astype(np.int64)
