"""How likely a model finds many sequences, shared beginnings computed once.

The sequences are sorted; all that begin alike are neighbours, so a window of them is a small tree.
The tree is walked level by level: every distinct beginning is read once, its state (of an LSTM) or
cache (of a transformer) is handed on to those that go on from it.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.attacks.attack import Progress
from tacit.errors import DataError
from tacit.training.models.devices import device_of
from tacit.training.models.recurrent import LSTMForCausalLM
from tacit.training.tasks.measuring import still

Ids = NDArray[np.int32]
_NODES = 4096
"""So many beginnings are read at once."""
_WINDOW = 65536


class _Reading:
    """Reads one token for each of many beginnings, from where each of them left off."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._recurrent = model if isinstance(model, LSTMForCausalLM) else None
        self.device = device_of(model)

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Logits after these tokens (beginnings by tokens), and the state there."""
        if self._recurrent is not None:
            x, after = self._recurrent.body(tokens, state)
            return self._recurrent.head(x[:, -1]), after
        done = self._model(input_ids=tokens, past_key_values=state, use_cache=True)
        return done.logits[:, -1], done.past_key_values

    def select(self, state: Any, rows: Tensor) -> Any:
        """The states of these rows, each as often as it is named."""
        if self._recurrent is not None:
            # nn.LSTM keeps records in the second dimension.
            return tuple(
                (h.index_select(1, rows).contiguous(), c.index_select(1, rows).contiguous())
                for h, c in state
            )
        if state is None:
            raise DataError("This model keeps no cache, so beginnings cannot be shared.")
        chosen = copy.deepcopy(state)
        chosen.batch_select_indices(rows)
        return chosen


def log_likelihoods(
    model: nn.Module,
    before: Sequence[int],
    sequences: Sequence[Sequence[int]] | Ids,
    *,
    progress: Progress | None = None,
) -> NDArray[np.float64]:
    """The natural logarithm of each sequence's probability after a common beginning.

    `sequences` are lists of token ids, or an array of them padded with -1. Equal sequences get
    equal numbers.
    """
    if len(before) == 0:
        raise DataError("Sequences need a beginning: a start token, or a text before them.")
    wide = sequences if isinstance(sequences, np.ndarray) else padded(sequences)
    found = np.zeros(len(wide))
    order = np.lexsort(wide.T[::-1]) if wide.shape[1] else np.arange(len(wide))
    with still(model):
        reading = _Reading(model)
        first = torch.tensor([list(before)], device=reading.device)
        logits, state = reading.step(first, None)
        walk = _Walk(reading, wide, found)
        for at in range(0, len(order), _WINDOW):
            rows = order[at : at + _WINDOW]
            walk.down(logits.log_softmax(-1), state, rows, np.zeros(len(rows), int), 0)
            if progress:
                progress(len(rows))
    return found


def padded(rows: Sequence[Sequence[int]]) -> Ids:
    """Rows of token ids as one array, padded with -1."""
    lengths = np.array([len(row) for row in rows])
    made = np.full((len(rows), int(lengths.max(initial=0))), -1, dtype=np.int32)
    # One pass over all tokens: rows of an array are filled in the same order.
    made[np.arange(made.shape[1]) < lengths[:, None]] = np.fromiter(
        (token for row in rows for token in row), dtype=np.int32, count=int(lengths.sum())
    )
    return made


@dataclass(frozen=True)
class _Walk:
    """A walk down the tree of sorted sequences, whose likelihoods are summed up in `total`."""

    reading: _Reading
    wide: Ids
    total: NDArray[np.float64]

    def down(
        self, log_probs: Tensor, state: Any, rows: NDArray[Any], parent: NDArray[Any], depth: int
    ) -> None:
        """Add what each row's token at `depth` costs after its parent, then go deeper.

        `parent` says which line of `log_probs` and `state` each of the rows goes on from.
        """
        if depth >= self.wide.shape[1]:
            return
        alive = self.wide[rows, depth] >= 0
        rows, parent = rows[alive], parent[alive]
        token = self.wide[rows, depth].astype(np.int64)
        picked = log_probs[torch.from_numpy(parent), torch.from_numpy(token)]
        self.total[rows] += picked.double().cpu().numpy()
        if depth + 1 >= self.wide.shape[1]:
            return
        going = self.wide[rows, depth + 1] >= 0
        rows, parent, token = rows[going], parent[going], token[going]
        if not len(rows):
            return
        # Rows are sorted, so rows that begin alike up to here are neighbours.
        new = np.ones(len(rows), dtype=bool)
        new[1:] = (parent[1:] != parent[:-1]) | (token[1:] != token[:-1])
        node = np.cumsum(new) - 1
        firsts, device = np.flatnonzero(new), self.reading.device
        for low in range(0, len(firsts), _NODES):
            part = firsts[low : low + _NODES]
            chosen = self.reading.select(state, torch.from_numpy(parent[part]).to(device))
            tokens = torch.from_numpy(token[part])[:, None].to(device)
            logits, after = self.reading.step(tokens, chosen)
            inside = (node >= low) & (node < low + len(part))
            self.down(logits.log_softmax(-1), after, rows[inside], node[inside] - low, depth + 1)
