"""The last hidden state of each record: what a model has made of the whole text.

For a model that reads from left to right it stands at the record's last token; for one that reads
both ways at the first, where encoders have their [CLS]. Which of them a model is, is tried.

Of a model that predicts next words it is the state from which the last of them, the end of the
text, is predicted: what follows a text's end is never asked for, so that state means little.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tacit.errors import UsageError
from tacit.training.models.devices import placed
from tacit.training.tasks.measuring import Batch, inputs, still


class LastStates:
    """Reads last hidden states of a model, of our LSTM as of any Transformer."""

    def __init__(self, model: nn.Module, *, next_words: bool) -> None:
        self._body, self._unread = _body_of(model), int(next_words)
        self._takes = set(inspect.signature(self._body.forward).parameters)
        self.width, self._at_first = self._tried(int(getattr(model, "config").vocab_size))  # noqa: B009

    @contextmanager
    def reading(self, batch: Batch) -> Iterator[list[Tensor]]:
        """While the model computes something of a batch, the states come along."""
        found: list[Tensor] = []
        hook = self._body.register_forward_hook(
            lambda _module, _given, out: found.append(self._pick(out[0], batch))
        )
        try:
            yield found
        finally:
            hook.remove()

    def of(self, batch: Batch) -> Tensor:
        """The states of a batch by a pass that leaves out the head, often the dearest part."""
        return self._pick(self._run(batch), batch)

    def _run(self, batch: Batch) -> Tensor:
        # Who reads from left to right sees no padding on the right, and needs no mask.
        given = inputs(self._takes, placed(self._body, batch), mask=self._at_first)
        states: Tensor = self._body(**given)[0]
        return states

    def _pick(self, states: Tensor, batch: Batch) -> Tensor:
        if self._at_first:
            return states[:, 0]
        last = (batch["attention_mask"].sum(1) - 1 - self._unread).clamp(min=0)
        last = last.to(states.device)
        return states[torch.arange(len(last), device=states.device), last]

    def _tried(self, words: int) -> tuple[int, bool]:
        """The width of a state, and whether the first token has seen the last one."""
        ids = (torch.arange(4) % words).unsqueeze(0)
        other = ids.clone()
        other[0, -1] = (other[0, -1] + 1) % words
        self._at_first = True
        with still(self._body):
            ones = torch.ones_like(ids)
            one, two = (self._run({"input_ids": i, "attention_mask": ones}) for i in (ids, other))
        return one.shape[-1], not torch.allclose(one[:, 0], two[:, 0], rtol=1e-4, atol=1e-5)


def _body_of(model: Any) -> nn.Module:
    """The part below the head; adapters stay in it."""
    inside = model.get_base_model() if hasattr(model, "get_base_model") else model
    body: nn.Module = inside.base_model
    if body is inside:
        raise UsageError(
            f"{type(inside).__name__} does not say which of its parts makes hidden states; "
            "regularizers need a model with a base_model, as those of transformers have."
        )
    return body
