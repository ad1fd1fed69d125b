"""Running a model over examples: its logits, losses at targets, and running totals."""

import inspect
import math
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from tacit.errors import DataError, UsageError
from tacit.training.models.devices import placed
from tacit.training.tasks.examples import IGNORED, Examples, Progress

Batch = dict[str, Tensor]
TOKEN_BUDGET = 8192


def forward(model: nn.Module, batch: Batch, *, mask: bool = True) -> Tensor:
    """The logits for a batch, with what this model accepts.

    Places are given for every record: a layer that looks them up then works on whole records
    like any other, and each record's share of its gradient can be told apart.
    """
    wrapped: Any = model
    inside = wrapped.get_base_model() if hasattr(wrapped, "get_base_model") else wrapped
    accepted = set(inspect.signature(inside.forward).parameters)
    logits: Tensor = model(**inputs(accepted, batch, mask=mask)).logits
    return logits


def inputs(accepted: Container[str], batch: Batch, *, mask: bool) -> dict[str, Any]:
    """What of a batch a module accepts; without a `mask`, all ones."""
    if "features" in batch:  # they stand for the tokens
        return {"features": batch["features"]}
    ids = batch["input_ids"]
    given: dict[str, Any] = {"input_ids": ids}
    if "attention_mask" in accepted:
        # All ones is no mask, said in a way that nobody warns about.
        given["attention_mask"] = batch["attention_mask"] if mask else torch.ones_like(ids)
    if "position_ids" in accepted:
        rows, width = ids.shape
        given["position_ids"] = torch.arange(width, device=ids.device).repeat(rows, 1)
    if "token_type_ids" in accepted and "token_type_ids" in batch:
        given["token_type_ids"] = batch["token_type_ids"]
    if "use_cache" in accepted:
        given["use_cache"] = False
    return given


def check_fit(model: nn.Module, examples: Examples) -> None:
    """Refuse tokens that the model does not know, and records longer than it can read."""
    config: Any = model.config
    largest = max((int(row.max()) for row in examples.ids if len(row)), default=0)
    if max(largest, examples.pad) >= config.vocab_size:
        raise DataError(
            f"The tokenizer gives token {max(largest, examples.pad)}, but the model knows "
            f"{config.vocab_size}; use the model's own tokenizer."
        )
    room = getattr(config, "max_position_embeddings", None)
    longest = int(examples.lengths.max(initial=0))
    if room is not None and longest > room:
        raise UsageError(
            f"A record has {longest} tokens, but the model reads {room}; give context={room}."
        )


class _CrossEntropy(torch.autograd.Function):
    """The cross-entropy at every target, with one pass of exponentials for both directions.

    With a vocabulary of thousands, a step of a small model is mostly this. The gradient,
    softmax - target, is written over the softmax, so it can be asked for once.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        probabilities = torch.softmax(logits, -1)
        at = targets.clamp(min=0).unsqueeze(-1)
        # The largest probability is exp(largest logit - log of the sum), and never underflows.
        largest, own = logits.amax(-1), logits.gather(-1, at).squeeze(-1)
        lost = largest - own - probabilities.amax(-1).log()
        ctx.save_for_backward(probabilities, at, targets >= 0)
        return lost.masked_fill(targets < 0, 0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        probabilities, at, known = ctx.saved_tensors
        each = (gradients[0] * known).unsqueeze(-1)
        probabilities.mul_(each)
        return probabilities.scatter_add_(-1, at, -each), None


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy at every target, zero elsewhere; shaped like the targets."""
    known = targets >= 0
    if 2 * int(known.sum()) > known.numel():
        lost: Tensor = _CrossEntropy.apply(logits, targets)
        return lost
    # Where targets are few, the normalisation is not spent on the rest.
    flat, wanted = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
    at = (wanted >= 0).nonzero().squeeze(1)
    found = F.cross_entropy(flat[at], wanted[at], reduction="none")
    return flat.new_zeros(len(flat)).index_put((at,), found).view(targets.shape)


def label_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """The cross-entropy of each record's label, zero where it has none."""
    wanted = labels.masked_fill(labels < 0, IGNORED)
    return F.cross_entropy(logits, wanted, ignore_index=IGNORED, reduction="none")


def mean_of_row(values: Tensor, known: Tensor) -> Tensor:
    """The mean of each row's values over the known places; zero where there are none."""
    return values.sum(1) / known.sum(1).clamp(min=1)


@contextmanager
def still(model: nn.Module) -> Iterator[None]:
    """Without dropout and gradients, and afterwards as before."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


def evaluating(
    model: nn.Module,
    examples: Examples,
    token_budget: int = TOKEN_BUDGET,
    progress: Progress | None = None,
) -> Iterator[tuple[NDArray[np.int64], Batch]]:
    """All examples in batches, while the model stands still; `progress` hears of each batch."""
    if len(examples) == 0:
        raise DataError("There is nothing to score; give at least one record.")
    with still(model):
        for rows in examples.in_batches(token_budget):
            yield rows, placed(model, examples.batch(rows))
            if progress is not None:
                progress(len(rows))


def outputs(
    model: nn.Module, examples: Examples, read: Callable[[Tensor], Tensor]
) -> NDArray[np.float32]:
    """What is read from the logits of each example."""
    found: NDArray[np.float32] | None = None
    for rows, batch in evaluating(model, examples):
        values = read(forward(model, batch)).float().cpu().numpy()
        if found is None:
            found = np.zeros((len(examples), *values.shape[1:]), dtype=np.float32)
        found[rows] = values
    assert found is not None  # evaluating refuses to be empty
    return found


@dataclass
class Tally:
    """Losses and hits, added up in double precision."""

    lost: float = 0.0
    right: int = 0
    count: int = 0

    def add(self, lost: Tensor, right: Tensor) -> None:
        """Count these targets."""
        self.lost += float(lost.double().sum())
        self.right += int(right.sum())
        self.count += right.numel()

    @property
    def mean(self) -> float:
        """The mean loss; NaN of nothing."""
        return self.lost / self.count if self.count else math.nan

    @property
    def share(self) -> float:
        """The share of hits; NaN of nothing."""
        return self.right / self.count if self.count else math.nan


def tally_tokens(
    guess: Callable[[nn.Module, Batch], tuple[Tensor, Tensor]],
    model: nn.Module,
    examples: Examples,
    batches: Iterator[tuple[NDArray[np.int64], Batch]],
    *,
    ahead: int = 0,
) -> dict[str, Tally]:
    """Losses and right guesses at all targets and, where some are marked, at sensitive and plain.

    `guess` gives logits and targets; a target stands `ahead` of the token that it is.
    """
    names = ("", "_sensitive", "_plain") if examples.sensitive is not None else ("",)
    tally = {name: Tally() for name in names}
    for rows, batch in batches:
        logits, targets = guess(model, batch)
        lost, right = token_losses(logits, targets), logits.argmax(-1) == targets
        marks = examples.marks(rows, targets.shape[1]).roll(-ahead, 1).to(targets.device)
        known = targets != IGNORED
        for one, chosen in zip(
            tally.values(), (known, known & marks, known & ~marks), strict=False
        ):
            one.add(lost[chosen], right[chosen])
    return tally
