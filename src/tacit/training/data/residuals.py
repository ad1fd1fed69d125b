"""Records with two texts each: as written, and with sensitive tokens masked.

What a record's sensitive tokens add is the gradient of the one minus that of the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import DataError
from tacit.training.data.shown_names import padded
from tacit.training.dp.dropout import RECORD
from tacit.training.tasks.examples import Batched, Examples, Owned

Rows = NDArray[np.int64]
SIGN = "sign"
"""By what the loss of each text of a batch is multiplied."""


@dataclass(frozen=True)
class Redacted:
    """The masked text of every record, in the order of the texts as written.

    `differs` says where the two are not the same.
    """

    examples: Owned
    differs: NDArray[np.bool_]

    @classmethod
    def beside(cls, whole: Examples, masked: Examples) -> "Redacted":
        """The masked texts of records that were encoded in the same order."""
        if not np.array_equal(whole.record, masked.record):
            raise DataError("The masked text has other records than the text as it was written.")
        differs = [not np.array_equal(a, b) for a, b in zip(whole.ids, masked.ids, strict=True)]
        return cls(masked, np.asarray(differs, dtype=bool))


class Pairs:
    """Both texts of some records as examples: record n as written is 2n, masked it is 2n + 1.

    Both have the record's number, so that what is drawn for the one (dropout) is drawn for the
    other, and what they have in common cancels.
    """

    def __init__(self, whole: Batched, redacted: Redacted, rows: Rows) -> None:
        self._whole, self._redacted = whole, redacted
        self._rows = np.asarray(rows[redacted.differs[rows]], dtype=np.int64)
        # Both count as the longer one: sorted by length, the two stay side by side.
        longer = np.maximum(whole.lengths, redacted.examples.lengths)[self._rows]
        self.lengths: Rows = np.repeat(longer, 2)

    @property
    def units(self) -> Sequence[Rows]:
        """The two texts of each record; one whose texts are the same adds nothing."""
        return [np.array([2 * at, 2 * at + 1]) for at in range(len(self._rows))]

    def batch(self, rows: NDArray[Any]) -> dict[str, Tensor]:
        """These texts as tensors, padded to the longest; `SIGN` says how each is counted."""
        masked = rows % 2 == 1
        records = self._rows[rows // 2]
        parts = [
            examples.batch(records[chosen])
            for examples, chosen in ((self._whole, ~masked), (self._redacted.examples, masked))
            if chosen.any()
        ]
        order = np.concatenate([np.flatnonzero(~masked), np.flatnonzero(masked)])
        back = torch.from_numpy(np.argsort(order, kind="stable"))
        made = {name: padded([part[name] for part in parts], name)[back] for name in parts[0]}
        if RECORD in made:
            made[RECORD] = torch.from_numpy(records)
        made[SIGN] = torch.from_numpy(np.where(masked, -1.0, 1.0)).float()
        return made
