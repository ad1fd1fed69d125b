"""Tokenized records: `Examples`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import DataError
from tacit.training.data.activation_cache import Activations
from tacit.training.dp.dropout import RECORD

Ids = NDArray[np.int32]
Mask = NDArray[np.bool_]
Places = NDArray[np.int64]
Spans = Mapping[str, Sequence[tuple[int, int]]]
Progress = Callable[[int], None]
Long = Literal["truncate", "split"]

IGNORED = -100
UNKNOWN_LABEL = -1


class Batched(Protocol):
    """Examples, as far as batches need them: how many tokens each has, and some as tensors."""

    @property
    def lengths(self) -> Places: ...

    def batch(self, rows: NDArray[Any]) -> dict[str, Tensor]: ...


class Owned(Batched, Protocol):
    """Examples of users: the number of each one's user, and of the record it was made of."""

    @property
    def user(self) -> Ids: ...

    @property
    def record(self) -> Ids: ...

    def __len__(self) -> int: ...


@dataclass(frozen=True, eq=False)
class Examples:
    """Tokenized records; example `i` comes from row `record[i]` of its corpus.

    Without splitting, examples and rows are the same. `labels` are None for next words, a number
    for each example, or an array of numbers for its tokens. `sensitive` marks the tokens that
    touch a sensitive span. `user` numbers users by first appearance, and is -1 where there are
    none. `notes` counts what did not fit: records cut, labels unknown or missing, words lost.
    `features` are what a frozen encoder makes of them: one vector each, or one for each token.
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
    features: Activations | None = None
    characters: Places | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def lengths(self) -> Places:
        """How many tokens each example has, or how many vectors that stand for them."""
        if self.features is not None:
            return self.features.lengths
        return np.fromiter((len(row) for row in self.ids), dtype=np.int64, count=len(self.ids))

    def batch(self, rows: NDArray[Any]) -> dict[str, Tensor]:
        """These examples as tensors, padded on the right to the longest of them.

        Their numbers go with them: what is drawn for an example is keyed by its number. Where
        there are features, they stand for the tokens.
        """
        chosen = np.asarray(rows, dtype=np.int64)
        lengths = self.lengths[chosen]
        shape = (len(chosen), int(lengths.max(initial=1)))
        mask = np.arange(shape[1]) < lengths[:, None]
        made = {RECORD: torch.from_numpy(chosen)}
        if self.features is None or self.labels is None:  # tokens are targets, too
            made |= self._tokens(chosen, mask)
        if self.features is None:
            pass
        elif self.labels is None or isinstance(self.labels, list):
            made["features"] = torch.from_numpy(self.features.padded(chosen, shape[1]))
        else:
            made["features"] = torch.from_numpy(self.features.of(chosen))
        if self.labels is None:
            made["labels"] = torch.where(torch.from_numpy(mask), made["input_ids"], IGNORED)
        elif isinstance(self.labels, list):
            made["labels"] = torch.from_numpy(_fill(shape, IGNORED, self.labels, chosen))
        else:
            made["labels"] = torch.from_numpy(self.labels[chosen])
        return made

    def _tokens(self, rows: Places, mask: Mask) -> dict[str, Tensor]:
        """The tokens of these examples; `mask` says where there are any."""
        # Padding is masked wherever it could be seen, so any valid id will do.
        ids = _fill(mask.shape, self.pad, self.ids, rows)
        made = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask * 1)}
        if self.types is not None:
            made["token_type_ids"] = torch.from_numpy(_fill(mask.shape, 0, self.types, rows))
        return made

    def marks(self, rows: NDArray[Any], width: int) -> Tensor:
        """Which tokens of these examples are sensitive, padded with False."""
        shape = (len(rows), width)
        if self.sensitive is None:
            return torch.zeros(shape, dtype=torch.bool)
        return torch.from_numpy(_fill(shape, 0, self.sensitive, rows) > 0)

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


def plain_targets(examples: Examples) -> Examples:
    """Examples of next words whose sensitive tokens are read, and never a target."""
    assert examples.sensitive is not None
    marked = zip(examples.ids, examples.sensitive, strict=True)
    labels = [np.where(marks, IGNORED, ids).astype(np.int64) for ids, marks in marked]
    return replace(examples, labels=labels, sensitive=None)


def require_sensitive(some: bool) -> None:
    """Refuse to protect sensitive tokens where no record has one."""
    if not some:
        raise DataError(
            "No token of the training records is sensitive, so there is nothing to protect; check "
            "the policy with `tacit policy show`."
        )


def _fill(
    shape: tuple[int, ...], value: int, values: Sequence[NDArray[Any]], rows: NDArray[Any]
) -> Places:
    filled = np.full(shape, value, dtype=np.int64)
    for line, row in enumerate(rows.tolist()):
        own = values[row]
        filled[line, : len(own)] = own
    return filled
