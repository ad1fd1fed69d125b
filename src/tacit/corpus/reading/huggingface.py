"""Hugging Face data sets, in memory and on disk."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tacit.corpus.reading.casting import relist
from tacit.corpus.reading.layout import Layout
from tacit.errors import DataError, UsageError, require_package


def load_folder(folder: Path) -> Any:
    """The data set that `save_to_disk` wrote into a folder."""
    datasets = require_package("datasets", "Reading a Hugging Face data set")
    datasets.disable_progress_bars()
    try:
        return datasets.load_from_disk(str(folder))
    except Exception:  # the library raises whatever its many loaders raise
        raise DataError(
            f"{folder} is not a whole data set folder; accepted is what `Dataset.save_to_disk` "
            "writes."
        ) from None


def dataset_tables(dataset: Any, layout: Layout, name: str) -> Iterator[pa.Table]:
    """The tables of a `Dataset` or `DatasetDict`, class numbers turned into class names."""
    if isinstance(dataset, Mapping):
        for split, part in dataset.items():
            usual = {"validation": "valid", "dev": "valid"}.get(str(split), str(split))
            for table in dataset_tables(part, layout, name):
                yield with_split(table, usual)
        return
    if not hasattr(dataset, "with_format"):
        raise UsageError(
            f"{type(dataset).__name__} is not a data set; accepted are `datasets.Dataset` and "
            "`DatasetDict`."
        )
    sources = layout.sources(list(dataset.column_names), name)
    arrow = dataset.with_format("arrow")
    for table in arrow.iter(batch_size=65_536):
        columns = {}
        for ours, theirs in sources.items():
            feature = dataset.features[theirs]
            columns[ours] = _named_classes(table.column(theirs), feature)
        yield pa.table(columns)


def _named_classes(column: pa.ChunkedArray, feature: Any) -> pa.ChunkedArray:
    """Class numbers as the names that a data set gives them."""
    names = getattr(feature, "names", None) or getattr(
        getattr(feature, "feature", None), "names", None
    )
    if not names:
        return column
    lookup = pa.array(names, pa.string())
    array = pa.concat_arrays(column.chunks)
    if pa.types.is_integer(array.type):
        return pa.chunked_array([pc.take(lookup, _valid(array, len(names)))])
    values = pc.take(lookup, _valid(array.flatten(), len(names)))
    return pa.chunked_array([relist(array, values)])


def _valid(codes: pa.Array, size: int) -> pa.Array:
    # Class -1 is how data sets write "no label".
    inside = pc.and_(pc.greater_equal(codes, 0), pc.less(codes, size))
    return pc.if_else(inside, codes, pa.scalar(None, codes.type))


def with_split(table: pa.Table, split: str | None) -> pa.Table:
    """The table with one split for all, unless it has a column of splits."""
    if split is None or "split" in table.column_names:
        return table
    return table.append_column("split", pa.array([split] * table.num_rows, pa.string()))
