"""What a network has to beat: counted words and trigrams, the most frequent label, guessing.

N-grams read the same examples and predict the same targets as `NextWord`, so that perplexities
stand side by side. They count exact words: nothing about them is private.
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tacit.errors import DataError, UsageError
from tacit.training.tasks.examples import IGNORED, UNKNOWN_LABEL, Examples
from tacit.training.tasks.masked_words import MaskedWord
from tacit.training.tasks.tasks import NextWord, Regression, Task, bits_per_character

Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]

_BUCKETS = 16
_ROUNDS = 30


@dataclass(frozen=True, eq=False)
class _Table:
    """How often each n-gram was seen, as sorted keys and counts."""

    keys: Numbers
    counts: Numbers

    @classmethod
    def of(cls, keys: Numbers) -> Self:
        return cls(*np.unique(keys, return_counts=True))

    def look_up(self, keys: Numbers) -> Floats:
        if len(self.keys) == 0:
            return np.zeros(len(keys))
        at = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        return np.where(self.keys[at] == keys, self.counts[at], 0).astype(np.float64)


@dataclass(frozen=True, eq=False)
class _Targets:
    """Every predicted token with the two before it; `size` stands for "nothing before"."""

    grams: tuple[Numbers, ...]
    """Keys of the token alone, with one before it, with two before it."""
    pasts: tuple[Numbers, ...]
    """Keys of what stands before: nothing, one token, two."""

    def __len__(self) -> int:
        return len(self.grams[0])


@dataclass(frozen=True, eq=False)
class Ngram:
    """An n-gram model: each order is mixed with the one below, down to the uniform.

    How much a history is trusted depends on how often it was seen (in powers of two). It is
    tuned by expectation maximisation on the records of a held-out share of the users, or of the
    records where there are fewer than ten users; afterwards everything is counted.

    Source: Jelinek and Mercer 1980, interpolation with held-out weights.
    """

    size: int
    order: int
    trust: tuple[Floats, ...]
    _tables: tuple[_Table, ...]
    _totals: tuple[_Table, ...]

    @classmethod
    def fit(
        cls,
        examples: Examples,
        vocabulary_size: int,
        order: int,
        *,
        held_out: float = 0.1,
        rng: np.random.Generator,
    ) -> Self:
        """Count the examples; `held_out` of them tune how the orders are mixed."""
        if not 1 <= order <= 3:
            raise UsageError(f"order={order} is not offered; give 1, 2 or 3.")
        if not 0 < held_out < 1:
            raise UsageError(f"held_out={held_out} is not a share; give a value between 0 and 1.")
        _check_ids(examples, vocabulary_size)
        apart = _apart(examples, held_out, rng)
        some = _targets(examples, np.flatnonzero(~apart), vocabulary_size)
        rest = _targets(examples, np.flatnonzero(apart), vocabulary_size)
        everything = _targets(examples, np.arange(len(examples)), vocabulary_size)
        if len(everything) == 0:
            raise DataError("There is no token to predict in these records.")
        trust = _tune(some, rest, vocabulary_size, order)
        tables = tuple(_Table.of(everything.grams[n]) for n in range(order))
        totals = tuple(_Table.of(everything.pasts[n]) for n in range(order))
        return cls(vocabulary_size, order, trust, tables, totals)

    def probabilities(self, examples: Examples) -> Floats:
        """The probability given to every target, in order of the examples."""
        _check_ids(examples, self.size)
        targets = _targets(examples, np.arange(len(examples)), self.size)
        probability = np.full(len(targets), 1 / self.size)
        for n in range(self.order):
            share, bucket = _share(self._tables[n], self._totals[n], targets, n)
            probability = self.trust[n][bucket] * share + (1 - self.trust[n][bucket]) * probability
        return probability

    def perplexity(self, examples: Examples) -> float:
        """The exponential of the mean loss of a token."""
        probability = self.probabilities(examples)
        if len(probability) == 0:
            raise DataError("There is no token to predict in these records.")
        return float(np.exp(-np.log(probability).mean()))


def baseline_perplexities(
    train: Examples, test: Examples, vocabulary_size: int, *, rng: np.random.Generator
) -> dict[str, float]:
    """Unigram and trigram perplexity of `test` after counting `train`."""
    names = {"unigram": 1, "trigram": 3}
    return {
        name: Ngram.fit(train, vocabulary_size, order, rng=rng).perplexity(test)
        for name, order in names.items()
    }


def baseline_scores(
    task: Task, train: Examples | None, test: Examples, vocabulary_size: int
) -> dict[str, float]:
    """Scores of `test` that need no network, by the measures of the task.

    Without training records only what needs no counting stands there: the uniform guess.
    """
    if isinstance(task, MaskedWord):
        return {"uniform_masked_perplexity": float(vocabulary_size)}
    if isinstance(task, NextWord):
        found = {"uniform": float(vocabulary_size)}
        if train is not None:
            rng = np.random.default_rng(0)
            found |= baseline_perplexities(train, test, vocabulary_size, rng=rng)
        scored = test.lengths.clip(min=1).sum() - len(test)
        bits = {n: bits_per_character(math.log(v) * scored, test) for n, v in found.items()}
        return {f"{name}_perplexity": value for name, value in found.items()} | {
            f"{name}_bits_per_character": value for name, value in bits.items()
        }
    if isinstance(task, Regression):
        return _constant_error(task, train, test)
    return _label_guesses(len(getattr(task, "labels", ())), train, test, task.name == "tagging")


def _constant_error(task: Regression, train: Examples | None, test: Examples) -> dict[str, float]:
    """The squared error of who always names the mean of the training labels."""
    if train is None:
        return {}
    learnt, wanted = (np.asarray(one.labels, dtype=np.float64) for one in (train, test))
    error = np.nanmean((wanted - np.nanmean(learnt)) ** 2) if np.isfinite(wanted).any() else np.nan
    return {"constant_squared_error": float(error) * (task.high - task.low) ** 2}


def _label_guesses(
    labels: int, train: Examples | None, test: Examples, tagging: bool
) -> dict[str, float]:
    """How often the most frequent label of the training records is right, and a uniform guess."""
    wanted = _flat_labels(test)
    # A label that nobody declared is an error, whatever is guessed.
    wanted = wanted[wanted != IGNORED]
    right = {"uniform": 1 / labels * float((wanted != UNKNOWN_LABEL).mean())} if len(wanted) else {}
    if train is not None and len(wanted):
        learnt = _flat_labels(train)
        most = np.bincount(learnt[learnt >= 0], minlength=labels).argmax()
        right["majority"] = float((wanted == most).mean())
    if tagging:
        return {f"{name}_accuracy": share for name, share in right.items()}
    return {f"{name}_error_rate": 1 - share for name, share in right.items()}


def _flat_labels(examples: Examples) -> Numbers:
    own = examples.labels
    if isinstance(own, list):
        return np.concatenate([np.zeros(0, dtype=np.int64), *own])
    return np.asarray(own, dtype=np.int64)


def _apart(examples: Examples, share: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which examples are held out: those of a share of the users, as tests have other users."""
    _, user = np.unique(examples.user, return_inverse=True)
    if len(user) and user.max() >= 9:
        return (rng.random(user.max() + 1) < share)[user]
    return rng.random(len(examples)) < share


def _tune(some: _Targets, rest: _Targets, size: int, order: int) -> tuple[Floats, ...]:
    """For each order and bucket, the weight that makes the held-out tokens likeliest."""
    trust: list[Floats] = []
    probability = np.full(len(rest), 1 / size)
    for n in range(order):
        share, bucket = _share(_Table.of(some.grams[n]), _Table.of(some.pasts[n]), rest, n)
        # One imagined token on either side: an empty bucket stays at a half, none reaches 1.
        seen = np.bincount(bucket, minlength=_BUCKETS) + 2
        weight = np.full(_BUCKETS, 0.5)
        for _ in range(_ROUNDS):
            mixed = weight[bucket] * share
            mixed /= mixed + (1 - weight[bucket]) * probability
            weight = (np.bincount(bucket, weights=mixed, minlength=_BUCKETS) + 1) / seen
        weight[0] = 0.0  # a history that was never seen says nothing
        trust.append(weight)
        probability = weight[bucket] * share + (1 - weight[bucket]) * probability
    return tuple(trust)


def _share(table: _Table, totals: _Table, targets: _Targets, n: int) -> tuple[Floats, Numbers]:
    """The plain share of the token after its history, and how often that was seen, as a bucket."""
    seen = totals.look_up(targets.pasts[n])
    share = table.look_up(targets.grams[n]) / np.maximum(seen, 1)
    bucket = np.ceil(np.log2(seen + 1)).astype(np.int64).clip(max=_BUCKETS - 1)
    return share, bucket


def _targets(examples: Examples, rows: Numbers, size: int) -> _Targets:
    """All targets of these examples; as in `NextWord`, the first token is never one."""
    own = [examples.ids[row] for row in rows if len(examples.ids[row]) > 1]
    nothing = np.zeros(0, dtype=np.int64)
    word = np.concatenate([nothing, *(ids[1:] for ids in own)])
    before = np.concatenate([nothing, *(ids[:-1] for ids in own)])
    two = [np.concatenate([[size], ids[:-2]]) for ids in own]
    earlier = np.concatenate([nothing, *two])
    base = size + 1
    return _Targets(
        (word, before * base + word, (earlier * base + before) * base + word),
        (np.zeros(len(word), dtype=np.int64), before, earlier * base + before),
    )


def _check_ids(examples: Examples, size: int) -> None:
    largest = max((int(ids.max()) for ids in examples.ids if len(ids)), default=0)
    if largest >= size:
        raise UsageError(
            f"vocabulary_size={size} is too small for token {largest}; give the tokenizer's."
        )
    if size > 2_000_000:
        raise UsageError(f"vocabulary_size={size} is too large to be counted in triples.")
