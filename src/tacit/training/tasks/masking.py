"""Masked words under sanitized context: the target is the word that stood in the original.

An encoder that is trained like this learns to read sanitized text. No masked-word head comes with
the encoders that install as packages, so the head is new and is trained here along with the rest.

Source: Yue et al. (2021), section 4.4.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from tacit.errors import DataError, UsageError
from tacit.packaged_models import located
from tacit.sanitization.sanitizer import Sanitizer
from tacit.sanitization.words import Words
from tacit.training.data.training_data import TrainingData
from tacit.training.dp.random_source import RandomSource
from tacit.training.methods.plain import PlainStep
from tacit.training.models.networks import load_model
from tacit.training.models.optimizers import make_optimizer
from tacit.training.models.tokens import load_tokenizer
from tacit.training.models.weights import save_model
from tacit.training.phases.loop import Loop, OnProgress
from tacit.training.settings import OptimizerSettings
from tacit.training.tasks.encoding import pad_of, special_around
from tacit.training.tasks.examples import IGNORED, Examples, Ids, Places
from tacit.training.tasks.measuring import Batch, Tally, evaluating, mean_of_row

RATE = 0.15
"""How many words are masked, as in BERT."""


@dataclass(frozen=True)
class Aligned:
    """Texts as tokens that are shown, each with the original that it stands for.

    `shown[r][i]` are the pieces of token i of text r, `target[r][i]` the piece that stood there in
    the original; -100 where the original has no single piece, which nobody can guess with one mask.
    """

    shown: list[list[list[int]]]
    target: list[list[int]]

    def __len__(self) -> int:
        return len(self.shown)


def _with_themselves(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> Aligned:
    ids = tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
    unknown = tokenizer.unk_token_id
    return Aligned(
        [[[i] for i in row] for row in ids],
        [[IGNORED if i == unknown else i for i in row] for row in ids],
    )


def align(
    texts: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    sanitizer: Sanitizer | None = None,
    names: Sequence[str] | None = None,
) -> Aligned:
    """Texts with their sanitized form (or with themselves), token by token."""
    if sanitizer is None:
        return _with_themselves(texts, tokenizer)
    if sanitizer.recipe.unknown == "drop":
        raise UsageError("unknown=drop loses the place of words; give random or keep.")
    embedding = sanitizer.embedding
    units = embedding.pieces or Words(embedding.places)
    encoded = [units.encode(text) for text in texts]
    lengths = [len(places) for places, _ in encoded]
    flat = np.fromiter((p for places, _ in encoded for p in places), np.int64, sum(lengths))
    names = [str(n) for n in range(len(texts))] if names is None else names
    chosen = iter(sanitizer.replace(flat, names, lengths).tolist())

    @cache
    def pieces(word: str) -> list[int]:
        if embedding.pieces is None:
            found: Any = tokenizer(word, add_special_tokens=False, verbose=False)["input_ids"]
        else:
            found = tokenizer.convert_tokens_to_ids([word])
        return list(found)

    shown: list[list[list[int]]] = []
    target: list[list[int]] = []
    for places, strange in encoded:
        rest = iter(strange)
        originals = [embedding.words[p] if p >= 0 else next(rest, "") for p in places]
        own = [pieces(w) for w in originals]
        target.append([one[0] if len(one) == 1 else IGNORED for one in own])
        picked = [next(chosen) for _ in places]
        shown.append(
            [pieces(embedding.words[c]) if c >= 0 else o for c, o in zip(picked, own, strict=True)]
        )
    return Aligned(shown, target)


def masked_examples(
    aligned: Aligned,
    tokenizer: PreTrainedTokenizerBase,
    *,
    context: int = 64,
    copies: int = 1,
    rng: np.random.Generator,
) -> Examples:
    """Each text with some of its tokens masked, `copies` times with other masks."""
    mask = tokenizer.mask_token_id
    if mask is None:
        raise UsageError("The tokenizer has no mask token; give a model that was made for masks.")
    before, after = special_around(tokenizer)
    ids: list[Ids] = []
    labels: list[Places] = []
    for _ in range(copies):
        for shown, target in zip(aligned.shown, aligned.target, strict=True):
            can = [i for i, t in enumerate(target) if t >= 0]
            if not can:
                continue
            count = max(1, round(RATE * len(can)))
            hidden = set(rng.choice(can, count, replace=False).tolist())
            row, wanted = list(before), [IGNORED] * len(before)
            for i, pieces in enumerate(shown):
                if i in hidden:
                    row.append(int(mask))
                    wanted.append(target[i])
                else:
                    row += pieces
                    wanted += [IGNORED] * len(pieces)
            row, wanted = row[: context - len(after)], wanted[: context - len(after)]
            ids.append(np.asarray(row + after, dtype=np.int32))
            labels.append(np.asarray(wanted + [IGNORED] * len(after), dtype=np.int64))
    if not ids:
        raise DataError("There is no text to mask.")
    nobody = np.full(len(ids), -1, dtype=np.int32)
    return Examples(
        ids=ids, user=nobody, record=np.arange(len(ids), dtype=np.int32), pad=pad_of(tokenizer),
        labels=labels,
    )  # fmt: skip


def original_losses(model: nn.Module, batch: Batch) -> Tensor:
    """The mean over a record's masks of the negative log-probability of the original."""
    known = batch["labels"] >= 0
    logits = logits_at(model, batch, known)
    found = nn.functional.cross_entropy(logits, batch["labels"][known], reduction="none")
    return mean_of_row(logits.new_zeros(known.shape).masked_scatter(known, found), known)


def original_scores(model: nn.Module, examples: Examples) -> dict[str, float]:
    """How often the likeliest word is the original, and the mean loss."""
    tally = Tally()
    for _, batch in evaluating(model, examples):
        known = batch["labels"] >= 0
        logits, wanted = logits_at(model, batch, known), batch["labels"][known]
        lost = nn.functional.cross_entropy(logits, wanted, reduction="none")
        tally.add(lost, logits.argmax(-1) == wanted)
    return {"accuracy": tally.share, "loss": tally.mean, "masks": tally.count}


def logits_at(model: Any, batch: Batch, known: Tensor) -> Tensor:
    """The head's answer at these places only: elsewhere a vocabulary of numbers is not needed."""
    head = getattr(model, "cls", None)
    base = getattr(model, "base_model", None)
    if head is None or base is None:
        given = {k: v for k, v in batch.items() if k in ("input_ids", "attention_mask")}
        found: Tensor = model(**given).logits[known]
        return found
    hidden = base(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]
    ).last_hidden_state
    answer: Tensor = head(hidden[known])
    return answer


@dataclass(frozen=True)
class Pretraining:
    """How an encoder is trained on masked words; `layers` keeps only the first so many.

    Each text is masked `copies` times; the last `held_out` texts are for scoring.
    """

    steps: int = 500
    batch: int = 32
    learning_rate: float = 5e-4
    layers: int | None = None
    context: int = 64
    copies: int = 4
    held_out: int = 200
    seed: int = 0


def pretrain(
    encoder: str | Path,
    texts: Sequence[str],
    to: Path,
    settings: Pretraining,
    *,
    sanitizer: Sanitizer | None = None,
    on_progress: OnProgress | None = None,
) -> dict[str, float]:
    """Train an encoder on masked words of *public* texts, sanitized if a sanitizer is given.

    What comes out, beside scores on held-out texts, is a Hugging Face folder for `tacit train`
    (`model: {kind: folder}`). Public text costs no privacy, so no ledger is kept.
    """
    cut = len(texts) - settings.held_out
    if cut <= 0:
        raise DataError(
            f"{len(texts)} texts are given, {settings.held_out} of them held out; give more."
        )
    path = located(encoder)
    tokenizer = load_tokenizer(path)
    model = load_model(path, "masked-word", layers=settings.layers, seed=settings.seed)
    aligned = align(texts, tokenizer, sanitizer)
    rng = np.random.default_rng([settings.seed, 1])
    train, rest = (
        masked_examples(part, tokenizer, context=settings.context, copies=times, rng=rng)
        for part, times in (
            (Aligned(aligned.shown[:cut], aligned.target[:cut]), settings.copies),
            (Aligned(aligned.shown[cut:], aligned.target[cut:]), 1),
        )
    )
    _fit(model, train, settings, on_progress)
    scores = original_scores(model, rest)
    save_model(model, tokenizer, Path(to))
    return scores | {"perplexity": math.exp(min(scores["loss"], 700.0))}


def _fit(
    model: Any, train: Examples, settings: Pretraining, on_progress: OnProgress | None
) -> None:
    rows, randomness = np.arange(len(train)), RandomSource(settings.seed)
    optimizer = OptimizerSettings(
        name="adamw", learning_rate=settings.learning_rate, schedule="linear",
        warmup=max(1, settings.steps // 10),
    )  # fmt: skip
    data = TrainingData(train, rows, (rows,), None, None)
    batch = min(settings.batch, len(train))
    method = PlainStep(model, original_losses, data, randomness, None, batch=batch, what="public")
    made = make_optimizer(model, optimizer)
    loop = Loop(model, method, made, optimizer, settings.steps, randomness, phase="pretrain")
    loop.run(on_progress)
    loop.finish()
