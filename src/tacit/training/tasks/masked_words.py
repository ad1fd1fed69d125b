"""Words behind masks, for encoders such as BERT, as a task of the training loop.

For masked words under *sanitized* context see masking.py.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from tacit.errors import UsageError
from tacit.training.dp.dropout import record_uniform
from tacit.training.models.devices import placed
from tacit.training.tasks.encoding import ExampleBuilder, check_lengths, special_around
from tacit.training.tasks.examples import IGNORED, Examples
from tacit.training.tasks.measuring import (
    Batch,
    forward,
    judged,
    mean_of_row,
    still,
    tally_tokens,
    token_losses,
)
from tacit.training.tasks.tasks import Batches, Task

RATE = 0.15
"""How many tokens are masked, as in BERT; all of them by the mask itself."""


@dataclass(frozen=True)
class MaskedWord(Task):
    """Guess the tokens behind masks, which are drawn anew for every pass over a record.

    They are drawn from random numbers of the record's own that look at no text, so the loss of a
    record depends on no other. What exceeds the context is cut off.
    """

    mask: int
    special: tuple[int, ...] = ()
    name = "masked-word"

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> "MaskedWord":
        """With the mask of a tokenizer."""
        if tokenizer.mask_token_id is None:
            raise UsageError(
                "task=masked-word needs a tokenizer with a mask; give the folder of an encoder, "
                "or tokenizer.kind=bpe."
            )
        return cls(int(tokenizer.mask_token_id), tuple(map(int, tokenizer.all_special_ids)))

    def _encode(self, builder: ExampleBuilder) -> Examples:
        before, after = frame = special_around(builder.tokenizer)
        check_lengths(builder.context, "truncate", len(before) + len(after) + 1)
        room = builder.context - len(before) - len(after)
        for row, pieces in enumerate(builder.pieces()):
            builder.add(row, pieces.ids[:room], builder.marks(row, pieces)[:room], frame)
            builder.note_cut(len(pieces.ids) > room)
        return builder.examples(None)

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean over a record's masks of the negative log-probability of what they hide."""
        logits, targets = self._guess(model, placed(model, batch))
        return mean_of_row(token_losses(logits, targets), targets >= 0)

    def _score(self, model: nn.Module, examples: Examples, batches: Batches) -> dict[str, float]:
        """Perplexity and top-1 accuracy behind masks, the same for every model."""
        rng = torch.Generator().manual_seed(0)
        tally = tally_tokens(
            lambda model, batch: judged(*self._guess(model, batch, rng)), model, examples, batches
        )
        found: dict[str, float] = {}
        for name, one in tally.items():
            found |= {
                f"masked_perplexity{name}": math.exp(min(one.mean, 700.0)),
                f"accuracy{name}": one.share,
                f"masks{name}": one.count,
            }
        return found

    def fill(
        self, model: nn.Module, tokenizer: PreTrainedTokenizerBase, text: str, *, top: int
    ) -> list[list[tuple[str, float]]]:
        """The likeliest tokens for each mask of a text, with their probabilities."""
        sign = str(tokenizer.mask_token)
        ids = tokenizer(text, return_tensors="pt", verbose=False)["input_ids"]
        if self.mask not in ids[0]:
            raise UsageError(f"Nothing is masked; write {sign} where a word is to be guessed.")
        room = getattr(model.config, "max_position_embeddings", None) or ids.shape[1]
        ids = ids[:, : int(room)]
        batch: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        with still(model):
            logits = forward(model, placed(model, batch))[0]
        probabilities = torch.softmax(logits[ids[0].to(logits.device) == self.mask], -1)
        likely, places = probabilities.topk(min(top, probabilities.shape[-1]))
        return [
            [(str(tokenizer.decode([at])).strip(), share) for at, share in zip(a, s, strict=True)]
            for a, s in zip(places.tolist(), likely.tolist(), strict=True)
        ]

    def _guess(
        self, model: nn.Module, batch: Batch, rng: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Logits, and what stands behind the masks; every record has one if it has a token."""
        ids = batch["input_ids"]
        can = batch["labels"] >= 0
        for token in self.special:
            can = can & (ids != token)
        drawn = self._uniform(ids, rng).to(ids.device).masked_fill(~can, 2.0)
        chosen = can & ((drawn < RATE) | (drawn == drawn.amin(1, keepdim=True)))
        shown = torch.where(chosen, torch.full_like(ids, self.mask), ids)
        logits = forward(model, {**batch, "input_ids": shown})
        return logits, torch.where(chosen, ids, torch.full_like(ids, IGNORED))

    def _uniform(self, ids: Tensor, rng: torch.Generator | None) -> Tensor:
        """A number between 0 and 1 for every token."""
        own = record_uniform(ids.shape[1], ids.device) if rng is None else None
        return torch.rand(ids.shape, generator=rng) if own is None else own
