"""What a trained model answers to a text."""

from collections.abc import Sequence
from typing import Any

from torch import nn
from transformers import PreTrainedTokenizerBase

from tacit.corpus import Corpus
from tacit.errors import UsageError
from tacit.training.evaluation.generation import Sampling, complete, next_words
from tacit.training.tasks.masked_words import MaskedWord
from tacit.training.tasks.tagging import Tagging
from tacit.training.tasks.tasks import Classification, NextWord, Regression, Task

_ENOUGH = 512
"""Tokens of a text that are read by a model without a limit of its own."""


def answer(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    text: str,
    *,
    words: int,
    choices: int,
    sampling: Sampling | None = None,
    seconds: float | None = None,
) -> dict[str, Any]:
    """Next tokens with probabilities and a completion; or masks, labels or tags.

    The completion is the likeliest, token by token, unless it is drawn, and ends after `seconds`.
    Of a long text a model reads what fits, so the cost does not grow with what is sent.
    """
    if isinstance(task, MaskedWord):
        guessed = task.fill(model, tokenizer, text, top=choices)
        return {f"mask {n}": [list(pair) for pair in one] for n, one in enumerate(guessed, 1)}
    if isinstance(task, Tagging):
        tagged = task.tag(model, tokenizer, text, context=_room(model))
        return {"tags": [list(pair) for pair in tagged]}
    if isinstance(task, Classification | Regression):
        corpus = Corpus.from_records([{"id": "0", "text": text}])
        examples = task.encode(corpus, tokenizer, context=_room(model), training=False)
        found = task.predict(model, examples)[0]
        if isinstance(task, Regression):
            return {"value": float(found)}
        ranked = sorted(zip(task.labels, found.tolist(), strict=True), key=lambda p: -p[1])
        return {"class": ranked[0][0], "probabilities": [list(p) for p in ranked[:choices]]}
    context = _read(model, words)
    (added,) = complete(
        model, tokenizer, [text], sampling or Sampling(0.0), tokens=words, context=context,
        seconds=seconds,
    )  # fmt: skip
    likely = next_words(model, tokenizer, text, top=choices, context=context)
    return {"next": [list(pair) for pair in likely], "completion": text + added}


def completions(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    texts: Sequence[str],
    *,
    words: int,
    sampling: Sampling,
) -> list[str]:
    """Each text, and what the model adds to it."""
    if not isinstance(task, NextWord):
        raise UsageError(f"The model generates no text: its task is {task.name}; use predict.")
    context = _read(model, words)
    added = complete(model, tokenizer, texts, sampling, tokens=words, context=context)
    return [text + more for text, more in zip(texts, added, strict=True)]


def _read(model: nn.Module, words: int) -> int:
    """How much of a text is read, so that the answer fits, too.

    Where both do not fit together, every new token would cost a whole pass.
    """
    room = _room(model)
    return max(room - words, room // 2)


def _room(model: nn.Module) -> int:
    """How many tokens a model can read at once."""
    return int(getattr(model.config, "max_position_embeddings", None) or _ENOUGH)
