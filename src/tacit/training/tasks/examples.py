"""Tokenized records: `Examples`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.training.dp.dropout import RECORD

Ids = NDArray[np.int32]
Mask = NDArray[np.bool_]
Places = NDArray[np.int64]
Spans = Mapping[str, Sequence[tuple[int, int]]]
Progress = Callable[[int], None]
Long = Literal["truncate", "split"]

IGNORED = -100
UNKNOWN_LABEL = -1


@dataclass(frozen=True, eq=False)
class Examples:
    """Tokenized records; example `i` comes from row `record[i]` of its corpus.

    Without splitting, examples and rows are the same. `labels` are None for next words, a number
    for each example, or an array of numbers for its tokens. `sensitive` marks the tokens that
    touch a sensitive span. `user` numbers users by first appearance, and is -1 where there are
    none. `notes` counts what did not fit: records cut, labels unknown or missing, words lost.
    `characters` is how much of its text each example of next words holds.
    """

    ids: list[Ids]
    user: Ids
    record: Ids
    pad: int
    labels: NDArray[Any] | list[Places] | None = None
    sensitive: list[Mask] | None = None
    types: list[Ids] | None = None
    notes: dict[str, int] = field(default_factory=dict)
    characters: Places | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def lengths(self) -> Places:
        """How many tokens each example has."""
        return np.fromiter((len(row) for row in self.ids), dtype=np.int64, count=len(self.ids))

    def batch(self, rows: NDArray[Any]) -> dict[str, Tensor]:
        """These examples as tensors, padded on the right to the longest of them.

        Their numbers go with them: what is drawn for an example is keyed by its number.
        """
        chosen = [int(row) for row in rows]
        width = max((len(self.ids[row]) for row in chosen), default=0) or 1
        shape = (len(chosen), width)
        # Padding is masked wherever it could be seen, so any valid id will do.
        ids = _fill(shape, self.pad, self.ids, chosen)
        lengths = self.lengths[chosen] if chosen else np.zeros(0, dtype=np.int64)
        mask = np.arange(width) < lengths[:, None]
        made = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask * 1)}
        made[RECORD] = torch.tensor(chosen, dtype=torch.int64)
        if self.types is not None:
            made["token_type_ids"] = torch.from_numpy(_fill(shape, 0, self.types, chosen))
        if self.labels is None:
            made["labels"] = torch.from_numpy(np.where(mask, ids, IGNORED))
        elif isinstance(self.labels, list):
            made["labels"] = torch.from_numpy(_fill(shape, IGNORED, self.labels, chosen))
        else:
            made["labels"] = torch.from_numpy(self.labels[chosen])
        return made

    def marks(self, rows: NDArray[Any], width: int) -> Tensor:
        """Which tokens of these examples are sensitive, padded with False."""
        shape = (len(rows), width)
        if self.sensitive is None:
            return torch.zeros(shape, dtype=torch.bool)
        return torch.from_numpy(_fill(shape, 0, self.sensitive, [int(r) for r in rows]) > 0)

    def in_batches(self, token_budget: int) -> Iterator[NDArray[np.int64]]:
        """All rows, those of like length together, at most so many padded tokens at once."""
        order = np.argsort(self.lengths, kind="stable")
        start = 0
        while start < len(order):
            stop = start + 1
            while stop < len(order) and self.lengths[order[stop]] * (stop + 1 - start) <= (
                token_budget
            ):
                stop += 1
            yield order[start:stop]
            start = stop


def _fill(
    shape: tuple[int, int], value: int, values: Sequence[NDArray[Any]], rows: Sequence[int]
) -> Places:
    filled = np.full(shape, value, dtype=np.int64)
    for line, row in enumerate(rows):
        own = values[row]
        filled[line, : len(own)] = own
    return filled
