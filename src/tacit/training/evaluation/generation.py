"""Next words with their probabilities, and completions by transformers' `generate`."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedTokenizerBase

from tacit.errors import UsageError
from tacit.training.models.devices import device_of, placed
from tacit.training.models.offline import quiet, seeded
from tacit.training.tasks.encoding import pad_of
from tacit.training.tasks.measuring import forward, still
from tacit.training.tasks.tasks import NextWord


def next_words(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    *,
    top: int = 5,
    context: int | None = None,
) -> list[tuple[str, float]]:
    """The likeliest tokens after a text, with their probabilities; `context` as in `complete`."""
    if top < 1:
        raise UsageError(f"top={top} is too few; give 1 or more.")
    probabilities = _after(model, _start(tokenizer, text, context))
    best = probabilities.topk(min(top, len(probabilities)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [(str(tokenizer.decode([token])), float(p)) for token, p in pairs]


def _require_sampling(tokens: int, temperature: float, top_p: float) -> None:
    if tokens < 1:
        raise UsageError(f"tokens={tokens} is too few; give 1 or more.")
    if not temperature >= 0:
        raise UsageError(f"temperature={temperature} is negative; give 0 or more.")
    if not 0 < top_p <= 1:
        raise UsageError(f"top_p={top_p} is not a share; give more than 0, at most 1.")


def complete(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    *,
    tokens: int = 20,
    temperature: float = 1.0,
    top: int | None = None,
    top_p: float = 1.0,
    context: int | None = None,
    seconds: float | None = None,
    rng: np.random.Generator,
) -> str:
    """A text that goes on from the given one; only what was added.

    Of the text the last `context` tokens are read, all if that is not given. After `seconds` no
    further token is begun.

    At temperature 0 the likeliest token is taken each time; else one is drawn, from the `top`
    likeliest where that is given, and from as few as have `top_p` of the probability.
    """
    _require_sampling(tokens, temperature, top_p)
    if not getattr(model, "can_generate", bool)():
        raise UsageError(
            f"{type(model).__name__} cannot continue a text; a model for next words is a "
            "GenerationMixin of transformers."
        )
    drawn: dict[str, Any] = {}
    if temperature:
        drawn = {"temperature": temperature, "top_k": top or len(tokenizer), "top_p": top_p}
    end, room, read = tokenizer.eos_token_id, _room(model), _start(tokenizer, text, context)
    how = GenerationConfig(
        do_sample=temperature > 0, eos_token_id=end, pad_token_id=pad_of(tokenizer),
        max_time=seconds, **drawn,
    )  # fmt: skip
    made: list[int] = []
    until = None if seconds is None else time.monotonic() + seconds
    with still(model), quiet(), seeded(int(rng.integers(2**63))), _generating(model, how):
        while len(made) < tokens and made[-1:] != [end]:
            # Where room is short, the last tokens count, and each new one moves them on by one.
            ids = torch.tensor([(read + made)[-(room or 0) :]], device=device_of(model))
            most = tokens - len(made)
            most = most if room is None else min(most, room - ids.shape[1] + 1)
            found = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=most)
            made += found[0, ids.shape[1] :].tolist()
            if until is not None and time.monotonic() > until:
                break
    return str(tokenizer.decode(made[:-1] if made[-1] == end else made))


@contextmanager
def _generating(model: Any, how: GenerationConfig) -> Iterator[None]:
    """Generate as we say, whatever the folder of a model prefers."""
    before = model.generation_config
    model.generation_config = how
    try:
        yield
    finally:
        model.generation_config = before


def _room(model: nn.Module) -> int | None:
    """How many tokens a model can read at once; None where it has no limit."""
    return getattr(model.config, "max_position_embeddings", None)


def _start(tokenizer: PreTrainedTokenizerBase, text: str, context: int | None = None) -> list[int]:
    before, _ = NextWord().frame(tokenizer)
    ids = [*before, *tokenizer(text, add_special_tokens=False)["input_ids"]]
    ids = ids[-(context or len(ids)) :]
    if not ids:
        raise UsageError("There is no text to go on from, and the tokenizer has no start token.")
    return ids


def _after(model: nn.Module, ids: list[int]) -> torch.Tensor:
    """The probability of every token after these; the last ones count where room is short."""
    batch = {"input_ids": torch.tensor([ids[-(_room(model) or len(ids)) :]])}
    with still(model):
        return forward(model, placed(model, batch), mask=False)[0, -1].float().softmax(-1).cpu()
