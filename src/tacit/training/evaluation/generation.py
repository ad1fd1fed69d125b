"""Next words with their probabilities, and completions by transformers' `generate`."""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedTokenizerBase, StoppingCriteria

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


@dataclass(frozen=True)
class Sampling:
    """How texts go on; at temperature 0 the likeliest token is taken each time.

    Else one is drawn, from the `top` likeliest where that is given, and from as few as have `top_p`
    of the probability. A text ends before the first of the `stop` words that it would say.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    top: int | None = None
    stop: tuple[str, ...] = ()

    def require(self, tokens: int) -> None:
        """Refuse what cannot be drawn."""
        if tokens < 1:
            raise UsageError(f"tokens={tokens} is too few; give 1 or more.")
        if not self.temperature >= 0:
            raise UsageError(f"temperature={self.temperature} is negative; give 0 or more.")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p={self.top_p} is not a share; give more than 0, at most 1.")
        if "" in self.stop:
            raise UsageError("A stop word is empty; give at least one character.")

    def configuration(
        self, tokenizer: PreTrainedTokenizerBase, seconds: float | None
    ) -> GenerationConfig:
        """The same as transformers has it, whatever the folder of a model prefers."""
        drawn: dict[str, Any] = {}
        if self.temperature:
            top = self.top or len(tokenizer)
            drawn = {"temperature": self.temperature, "top_k": top, "top_p": self.top_p}
        return GenerationConfig(
            do_sample=self.temperature > 0, eos_token_id=tokenizer.eos_token_id,
            pad_token_id=pad_of(tokenizer), max_time=seconds, **drawn,
        )  # fmt: skip

    def cut(self, text: str) -> str:
        """The text before the first stop word."""
        return text[: min((text.find(one) for one in self.stop if one in text), default=len(text))]


def complete(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    how: Sampling,
    *,
    tokens: int = 20,
    context: int | None = None,
    seconds: float | None = None,
) -> list[str]:
    """Texts that go on from the given ones; only what was added to each.

    Of a text the last `context` tokens are read, all if that is not given. After `seconds` no
    further token is begun. Texts of one length are read together.
    """
    how.require(tokens)
    if not getattr(model, "can_generate", bool)():
        raise UsageError(
            f"{type(model).__name__} cannot continue a text; a model for next words is a "
            "GenerationMixin of transformers."
        )
    until = None if seconds is None else time.monotonic() + seconds
    rows = [_Row(_start(tokenizer, text, context)) for text in texts]
    alike: defaultdict[int, list[_Row]] = defaultdict(list)
    for row in rows:
        alike[len(row.read)].append(row)
    seed = int(np.random.default_rng(how.seed).integers(2**63))
    configuration = how.configuration(tokenizer, seconds)
    with still(model), quiet(), seeded(seed), _generating(model, configuration):
        for group in alike.values():
            while group and (until is None or time.monotonic() <= until):
                _extend(model, tokenizer, group, tokens, how)
                group = [row for row in group if not row.ended(tokenizer, tokens, how)]
    return [how.cut(row.said(tokenizer)) for row in rows]


@dataclass
class _Row:
    """One text: the tokens that were read, and those that were made."""

    read: list[int]
    made: list[int] = field(default_factory=list)

    def said(self, tokenizer: PreTrainedTokenizerBase) -> str:
        """What was made, without the end."""
        ends = self.made[-1:] == [tokenizer.eos_token_id]
        return str(tokenizer.decode(self.made[:-1] if ends else self.made))

    def ended(self, tokenizer: PreTrainedTokenizerBase, tokens: int, how: Sampling) -> bool:
        """Whether nothing is to be added any more."""
        if len(self.made) >= tokens or self.made[-1:] == [tokenizer.eos_token_id]:
            return True
        return bool(how.stop) and (said := self.said(tokenizer)) != how.cut(said)


def _extend(
    model: Any, tokenizer: PreTrainedTokenizerBase, rows: list[_Row], tokens: int, how: Sampling
) -> None:
    """Add to texts of one length, until they end or the model's room does.

    Where room is short, the last tokens count, and each new one moves them on by one.
    """
    room = _room(model)
    ids = torch.tensor([(row.read + row.made)[-(room or 0) :] for row in rows])
    ids, width = ids.to(device_of(model)), ids.shape[1]
    most = tokens - len(rows[0].made)
    most = most if room is None else min(most, room - width + 1)
    found = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=most,
        stopping_criteria=[_Stop(tokenizer, how, width)] if how.stop else None,
    )  # fmt: skip
    for row, new in zip(rows, found[:, width:].tolist(), strict=True):
        end = tokenizer.eos_token_id
        row.made += new[: new.index(end) + 1] if end in new else new


class _Stop(StoppingCriteria):
    """A text ends with the first stop word that it says."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, how: Sampling, before: int) -> None:
        self._tokenizer, self._how, self._before = tokenizer, how, before

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        """Which of the texts have ended."""
        said = self._tokenizer.batch_decode(input_ids[:, self._before :])
        ended = [self._how.cut(text) != text for text in said]
        return torch.tensor(ended, device=input_ids.device)


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
