"""How likely a model finds many sequences, shared beginnings computed once.

The sequences are sorted; all that begin alike are neighbours, so a window of them is a small tree.
The tree is walked level by level: every distinct beginning is read once, its state (of an LSTM) or
cache (of a transformer) is handed on to those that go on from it.
"""

import copy
from collections.abc import Sequence
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
    wide = _array(sequences)
    found = np.zeros(len(wide))
    order = np.lexsort(wide.T[::-1]) if wide.shape[1] else np.arange(len(wide))
    with still(model):
        reading = _Reading(model)
        first = torch.tensor([list(before)], device=reading.device)
        logits, state = reading.step(first, None)
        start = logits.log_softmax(-1), state
        for at in range(0, len(order), _WINDOW):
            rows = order[at : at + _WINDOW]
            found[rows] = _window(reading, start, wide[rows])
            if progress:
                progress(len(rows))
    return found


def _array(sequences: Sequence[Sequence[int]] | Ids) -> Ids:
    if isinstance(sequences, np.ndarray):
        return sequences
    width = max((len(s) for s in sequences), default=0)
    wide = np.full((len(sequences), width), -1, dtype=np.int32)
    for row, one in enumerate(sequences):
        wide[row, : len(one)] = one
    return wide


def _window(reading: _Reading, start: tuple[Tensor, Any], wide: Ids) -> NDArray[np.float64]:
    """The likelihoods of sorted sequences: one walk down their tree."""
    total = np.zeros(len(wide))
    _walk(
        reading, start[0], start[1], np.arange(len(wide)), wide, np.zeros(len(wide), int), 0, total
    )
    return total


def _walk(
    reading: _Reading,
    log_probs: Tensor,
    state: Any,
    rows: NDArray[Any],
    wide: Ids,
    parent: NDArray[Any],
    depth: int,
    total: NDArray[np.float64],
) -> None:
    """Add what each row's token at `depth` costs after its parent, then go deeper.

    `parent` says which line of `log_probs` and `state` each of the rows goes on from.
    """
    if depth >= wide.shape[1]:
        return
    alive = wide[rows, depth] >= 0
    rows, parent = rows[alive], parent[alive]
    if not len(rows):
        return
    token = wide[rows, depth]
    picked = log_probs[torch.from_numpy(parent), torch.from_numpy(token.astype(np.int64))]
    total[rows] += picked.double().cpu().numpy()
    if depth + 1 >= wide.shape[1]:
        return
    going = wide[rows, depth + 1] >= 0
    rows, parent, token = rows[going], parent[going], token[going]
    if not len(rows):
        return
    # Rows are sorted, so rows that begin alike up to here are neighbours.
    new = np.ones(len(rows), dtype=bool)
    new[1:] = (parent[1:] != parent[:-1]) | (token[1:] != token[:-1])
    node = np.cumsum(new) - 1
    firsts = np.flatnonzero(new)
    for low in range(0, len(firsts), _NODES):
        part = firsts[low : low + _NODES]
        tokens = torch.from_numpy(token[part].astype(np.int64))[:, None].to(reading.device)
        chosen = reading.select(state, torch.from_numpy(parent[part]).to(reading.device))
        logits, after = reading.step(tokens, chosen)
        inside = (node >= low) & (node < low + len(part))
        _walk(
            reading, logits.log_softmax(-1), after, rows[inside], wide, node[inside] - low,
            depth + 1, total,
        )  # fmt: skip
