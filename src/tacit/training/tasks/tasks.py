"""Tasks: what is asked of a model, one loss for each record, and how well it did.

A record's loss is the mean over its own targets; nothing of another record of the batch enters
it. A record without any target has loss zero.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from tacit.corpus import Corpus
from tacit.errors import UsageError
from tacit.training.models.devices import placed
from tacit.training.models.registries import TaskName
from tacit.training.tasks.encoding import (
    ExampleBuilder,
    check_labels,
    check_lengths,
    label_codes,
    label_numbers,
    labels_in,
    windows,
)
from tacit.training.tasks.examples import (
    IGNORED,
    UNKNOWN_LABEL,
    Examples,
    Long,
    Places,
    Progress,
    Spans,
)
from tacit.training.tasks.measuring import (
    TOKEN_BUDGET,
    Batch,
    Tally,
    evaluating,
    forward,
    judged,
    label_losses,
    mean_of_row,
    outputs,
    tally_tokens,
    token_losses,
)

Batches = Iterator[tuple[Places, Batch]]


class Task(ABC):
    """From records to examples, to losses, to scores."""

    name: ClassVar[TaskName]

    def encode(
        self,
        corpus: Corpus,
        tokenizer: PreTrainedTokenizerBase,
        *,
        context: int = 128,
        sensitive: Spans | None = None,
        training: bool = True,
    ) -> Examples:
        """The records as token ids.

        In training a missing or unknown label is an error. Otherwise an unknown label is counted
        and scored as an error, a missing one left out.
        """
        return self._encode(ExampleBuilder(corpus, tokenizer, context, sensitive, training))

    def score(
        self,
        model: nn.Module,
        examples: Examples,
        *,
        token_budget: int = TOKEN_BUDGET,
        progress: Progress | None = None,
    ) -> dict[str, float]:
        """How well the model does, by name."""
        return self._score(model, examples, evaluating(model, examples, token_budget, progress))

    def record_losses(self, model: nn.Module, examples: Examples) -> NDArray[np.float64]:
        """The loss of each example, without gradients."""
        found = np.zeros(len(examples))
        for rows, batch in evaluating(model, examples):
            found[rows] = self.losses(model, batch).double().cpu().numpy()
        return found

    @abstractmethod
    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """One differentiable loss for each record."""

    def learnt_losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """The same, weighed as training weighs them."""
        return self.losses(model, batch)

    @abstractmethod
    def _encode(self, builder: ExampleBuilder) -> Examples: ...

    @abstractmethod
    def _score(
        self, model: nn.Module, examples: Examples, batches: Batches
    ) -> dict[str, float]: ...


USUAL = 32
"""Tokens of a record that weighs one where tokens are weighed: norms stay what they are."""


@dataclass(frozen=True)
class NextWord(Task):
    """Predict every token from those before it.

    A record is its start token, its text and its end token, where the tokenizer has them; the
    start is never a target, the end is one (`end=False` leaves it out). Longer than the context,
    it is cut off there (`truncate`), or cut into windows that share one token, so that every
    token is predicted exactly once (`split`); these are records of the same user.

    What training asks of a record is the mean over its tokens, or, where tokens are weighed, their
    sum: then a line of three words counts less than a sentence, as it does in a perplexity.
    """

    long: Long = "truncate"
    end: bool = True
    weigh: Literal["records", "tokens"] = "records"
    name = "next-word"

    def frame(self, tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
        """The special tokens before and after a text."""
        before = (tokenizer.bos_token_id, tokenizer.cls_token_id, tokenizer.eos_token_id)
        after = (tokenizer.eos_token_id, tokenizer.sep_token_id) if self.end else ()
        first = next(([int(i)] for i in before if i is not None), [])
        return first, next(([int(i)] for i in after if i is not None), [])

    def _encode(self, builder: ExampleBuilder) -> Examples:
        check_lengths(builder.context, self.long, 2)
        before, after = self.frame(builder.tokenizer)
        for row, pieces in enumerate(builder.pieces()):
            ids = np.concatenate([before, pieces.ids, after]).astype(np.int32)
            marks = np.zeros(len(ids), dtype=bool)
            marks[len(before) : len(before) + len(pieces.ids)] = builder.marks(row, pieces)
            parts = windows(len(ids), builder.context, self.long, shared=1)
            for number, (start, stop) in enumerate(parts):
                own = marks[start:stop].copy()
                # The first token of a later window was the last target of the one before.
                own[: min(number, 1)] = False
                builder.add(row, ids[start:stop], own)
                # The first token of a window is no target.
                builder.note_characters(pieces, start + 1 - len(before), stop - len(before))
            builder.note_cut(len(ids) > builder.context)
        return builder.examples(None)

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean over a record's tokens of their negative log-probability."""
        batch = placed(model, batch)
        targets = _following(batch)
        own: Any = getattr(model, "token_losses", None)  # of one that keeps what is frozen of it
        if own is not None:
            return mean_of_row(own(batch, targets), targets >= 0)
        # A causal model sees nothing to the right, hence no padding: it needs no mask.
        return mean_of_row(token_losses(forward(model, batch, mask=False), targets), targets >= 0)

    def learnt_losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """The same, or where tokens are weighed as many times it as `USUAL` tokens go into it."""
        lost = self.losses(model, batch)
        if self.weigh == "records":
            return lost
        known = (_following(batch) >= 0).sum(1).to(lost)
        return lost * known / USUAL

    def _score(self, model: nn.Module, examples: Examples, batches: Batches) -> dict[str, float]:
        """Perplexity and top-1 accuracy on all, on sensitive and on plain tokens.

        Perplexity is the exponential of the mean loss of a token, whichever record it is in; bits
        of a character are the same loss in a unit that no tokenizer decides.
        """
        tally = tally_tokens(self._judge, model, examples, batches, ahead=1)
        made: dict[str, float] = {"loss": tally[""].mean}
        made["bits_per_character"] = bits_per_character(tally[""].lost, examples)
        for name, one in tally.items():
            # A mean loss beyond this is no model at all; infinity says so without an overflow.
            perplexity = math.exp(one.mean) if not one.mean > 700 else math.inf
            made |= {
                f"perplexity{name}": perplexity,
                f"accuracy{name}": one.share,
                f"tokens{name}": one.count,
            }
        return made

    def _judge(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        targets = _following(batch)
        own: Any = getattr(model, "judged", None)
        if own is not None:
            return *own(batch, targets), targets
        return judged(forward(model, batch, mask=False), targets)


def _following(batch: Batch) -> Tensor:
    """What comes next at every place; moving targets, not logits, saves a copy of the latter."""
    targets = torch.full_like(batch["labels"], IGNORED)
    targets[:, :-1] = batch["labels"][:, 1:]
    return targets


def bits_per_character(lost: float, examples: Examples) -> float:
    """A whole loss in nats as bits for each character of the text; NaN where there is none."""
    characters = 0 if examples.characters is None else int(examples.characters.sum())
    return lost / math.log(2) / characters if characters else math.nan


@dataclass(frozen=True)
class Classification(Task):
    """Give a text, or a pair of texts, one of the labels. What exceeds the context is cut off."""

    labels: tuple[str, ...]
    name = "classification"

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", check_labels(self.labels))

    @classmethod
    def of(cls, corpus: Corpus) -> "Classification":
        """The labels that a corpus has, in alphabetical order: which ones these are is public."""
        return cls(labels_in(corpus.column("label").to_pylist()))

    def _encode(self, builder: ExampleBuilder) -> Examples:
        labels, notes = label_codes(builder.corpus, self.labels, training=builder.training)
        return builder.whole_texts(labels, notes)

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """The negative log-probability of a record's label."""
        batch = placed(model, batch)
        return label_losses(forward(model, batch), batch["labels"])

    def _score(self, model: nn.Module, examples: Examples, batches: Batches) -> dict[str, float]:
        """Error rate, accuracy, mean loss, and how many labels were unknown or missing."""
        tally, unknown, missing = Tally(), 0, 0
        for _, batch in batches:
            logits, labels = forward(model, batch), batch["labels"]
            known = labels >= 0
            lost = label_losses(logits, labels)
            tally.add(lost[known], (logits.argmax(-1) == labels)[known])
            unknown += int((labels == UNKNOWN_LABEL).sum())
            missing += int((labels == IGNORED).sum())
        scored = tally.count + unknown
        accuracy = tally.right / scored if scored else math.nan
        return {
            "error_rate": 1 - accuracy,
            "accuracy": accuracy,
            "loss": tally.mean,
            "records": scored,
            "labels_unknown": unknown,
            "labels_missing": missing,
        }

    def predict(self, model: nn.Module, examples: Examples) -> NDArray[np.float32]:
        """The probability of each label, for each example."""
        return outputs(model, examples, lambda logits: logits.softmax(-1))


@dataclass(frozen=True)
class Regression(Task):
    """Give a text, or a pair of texts, a number between `low` and `high` (public bounds).

    The model learns the share of the way from `low` to `high`; its loss is the squared error of
    that share, so a record's loss does not depend on the scale. Labels outside of the bounds are
    moved to them.
    """

    low: float = 0.0
    high: float = 5.0
    name = "regression"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise UsageError(f"low={self.low}, high={self.high}: low must be below high.")

    def _encode(self, builder: ExampleBuilder) -> Examples:
        numbers, notes = label_numbers(builder.corpus, training=builder.training)
        notes["labels_out_of_bounds"] = int(((numbers < self.low) | (numbers > self.high)).sum())
        shares = (np.clip(numbers, self.low, self.high) - self.low) / (self.high - self.low)
        return builder.whole_texts(shares, notes)

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """The squared error of a record."""
        batch = placed(model, batch)
        wanted, given = batch["labels"], forward(model, batch).squeeze(-1)
        known = torch.isfinite(wanted)
        # Filled before the difference: a missing label must not make the gradient NaN.
        error = given - torch.where(known, wanted, 0).to(given.dtype)
        return torch.where(known, error.square(), given.new_zeros(()) * given)

    def _score(self, model: nn.Module, examples: Examples, batches: Batches) -> dict[str, float]:
        """Pearson and Spearman correlation, and the mean squared error on the labels' scale."""
        given, wanted = [], []
        for _, batch in batches:
            known = torch.isfinite(batch["labels"])
            given.append(forward(model, batch).squeeze(-1)[known].double().cpu().numpy())
            wanted.append(batch["labels"][known].double().cpu().numpy())
        a, b = np.concatenate(given), np.concatenate(wanted)
        varied = len(a) > 1 and bool(np.ptp(a) > 0 and np.ptp(b) > 0)
        width = self.high - self.low
        return {
            "pearson": float(stats.pearsonr(a, b)[0]) if varied else math.nan,
            "spearman": float(stats.spearmanr(a, b)[0]) if varied else math.nan,
            "squared_error": float(np.mean((a - b) ** 2)) * width**2 if len(a) else math.nan,
            "records": len(a),
        }

    def predict(self, model: nn.Module, examples: Examples) -> NDArray[np.float32]:
        """The number for each example, on the labels' scale."""
        shares = outputs(model, examples, lambda logits: logits.squeeze(-1))
        return self.low + shares * (self.high - self.low)
