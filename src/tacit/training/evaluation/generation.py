"""Next words with their probabilities, and completions, by one simple loop for every model."""

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from tacit.errors import UsageError
from tacit.training.models.devices import placed
from tacit.training.tasks.measuring import forward, still
from tacit.training.tasks.tasks import NextWord


def next_words(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase, text: str, *, top: int = 5
) -> list[tuple[str, float]]:
    """The likeliest tokens after a text, with their probabilities."""
    if top < 1:
        raise UsageError(f"top={top} is too few; give 1 or more.")
    chance = _after(model, _start(tokenizer, text))
    best = chance.topk(min(top, len(chance)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [(str(tokenizer.decode([token])), float(p)) for token, p in pairs]


def complete(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    *,
    tokens: int = 20,
    temperature: float = 1.0,
    top: int | None = None,
    rng: np.random.Generator,
) -> str:
    """A text that goes on from the given one; only what was added.

    At temperature 0 the likeliest token is taken each time; else one is drawn, from the `top`
    likeliest where that is given.
    """
    if tokens < 1:
        raise UsageError(f"tokens={tokens} is too few; give 1 or more.")
    if not temperature >= 0:
        raise UsageError(f"temperature={temperature} is negative; give 0 or more.")
    ids = _start(tokenizer, text)
    given = len(ids)
    for _ in range(tokens):
        token = _draw(_after(model, ids), temperature, top, rng)
        if token == tokenizer.eos_token_id:
            break
        ids.append(token)
    return str(tokenizer.decode(ids[given:]))


def _draw(
    chance: torch.Tensor, temperature: float, top: int | None, rng: np.random.Generator
) -> int:
    if temperature == 0:
        return int(chance.argmax())
    weights = chance.double().log().div(temperature).softmax(0).numpy()
    if top is not None:
        weights = np.where(weights >= np.sort(weights)[-min(top, len(weights))], weights, 0)
    return int(rng.choice(len(weights), p=weights / weights.sum()))


def _start(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    before, _ = NextWord().frame(tokenizer)
    ids = [*before, *tokenizer(text, add_special_tokens=False)["input_ids"]]
    if not ids:
        raise UsageError("There is no text to go on from, and the tokenizer has no start token.")
    return ids


def _after(model: nn.Module, ids: list[int]) -> torch.Tensor:
    """The probability of every token after these; the last ones count where room is short."""
    room = getattr(model.config, "max_position_embeddings", None) or len(ids)
    batch = {"input_ids": torch.tensor([ids[-room:]])}
    with still(model):
        return forward(model, placed(model, batch), mask=False)[0, -1].float().softmax(-1).cpu()
