"""An attack on sanitized text: mask each token in turn and let a model guess the original.

The *defence rate* is the share of tokens that the guess misses. An attacker who cannot even fill
the masks of unsanitized text shows nothing: below a quarter there, the result is marked.

Source: Yue et al. (2021), section 5.3.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from tacit.errors import DataError
from tacit.training.models.devices import placed
from tacit.training.tasks.encoding import pad_of, special_around
from tacit.training.tasks.masking import Aligned, logits_at
from tacit.training.tasks.measuring import still

WEAK = 0.25
"""An attacker that recovers less than this of unsanitized text is too weak to conclude from."""


@dataclass(frozen=True)
class Guessed:
    """How many tokens were tried, and how many came out as the original."""

    tokens: int
    recovered: int

    @property
    def defence_rate(self) -> float:
        """The share of tokens that the attacker missed."""
        return 1 - self.recovered / self.tokens

    @property
    def error(self) -> float:
        """The standard error of that share, tokens taken as independent."""
        rate = self.defence_rate
        return float(np.sqrt(rate * (1 - rate) / self.tokens))


def verdict(plain: Guessed) -> str:
    """What the attacker's success on unsanitized text says about the attacker."""
    share = plain.recovered / plain.tokens
    if share < WEAK:
        return f"attacker too weak: it recovers {share:.1%} of unsanitized text, under {WEAK:.0%}"
    return f"attacker recovers {share:.1%} of unsanitized text"


def guess_masked(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    aligned: Aligned,
    *,
    context: int = 64,
    token_budget: int = 8192,
    progress: Callable[[int], None] | None = None,
) -> Guessed:
    """Mask every token of every text, one at a time, and count the guesses that are right.

    Tokens whose original is several pieces cannot be guessed by one mask and are left out, in
    favour of the attacker.
    """
    tried = right = 0
    with still(model):
        for ids, places, wanted in _batches(aligned, tokenizer, context, token_budget):
            batch = placed(model, ids)
            known = torch.zeros_like(batch["input_ids"], dtype=torch.bool)
            known[torch.arange(len(places)), places] = True
            guesses = logits_at(model, batch, known).argmax(-1).cpu()
            tried += len(wanted)
            right += int((guesses == wanted).sum())
            if progress:
                progress(len(wanted))
    if not tried:
        raise DataError("No token of these texts can be masked.")
    return Guessed(tried, right)


def _batches(
    aligned: Aligned, tokenizer: PreTrainedTokenizerBase, context: int, token_budget: int
) -> Iterator[tuple[dict[str, Tensor], Tensor, Tensor]]:
    before, after = special_around(tokenizer)
    mask: Any = tokenizer.mask_token_id
    waiting: list[tuple[list[int], int, int]] = []
    widest = 0
    for shown, target in zip(aligned.shown, aligned.target, strict=True):
        for i, original in enumerate(target):
            if original < 0:
                continue
            left = [piece for pieces in shown[:i] for piece in pieces]
            right = [piece for pieces in shown[i + 1 :] for piece in pieces]
            row = [*before, *left, int(mask), *right, *after]
            place = len(before) + len(left)
            if len(row) > context:
                # Keep what stands around the mask.
                start = min(max(0, place - context // 2), len(row) - context)
                row, place = row[start : start + context], place - start
            if waiting and max(widest, len(row)) * (len(waiting) + 1) > token_budget:
                yield _tensors(waiting, tokenizer)
                waiting, widest = [], 0
            waiting.append((row, place, original))
            widest = max(widest, len(row))
    if waiting:
        yield _tensors(waiting, tokenizer)


def _tensors(
    rows: list[tuple[list[int], int, int]], tokenizer: PreTrainedTokenizerBase
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    lines = [torch.tensor(row) for row, _, _ in rows]
    ids = pad_sequence(lines, batch_first=True, padding_value=pad_of(tokenizer))
    mask = pad_sequence([torch.ones_like(line) for line in lines], batch_first=True)
    places = torch.tensor([place for _, place, _ in rows])
    wanted = torch.tensor([original for _, _, original in rows])
    return {"input_ids": ids, "attention_mask": mask}, places, wanted
