"""A sanitizer: texts in, texts of as many words out."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tacit.errors import DataError, UsageError
from tacit.privacy.arguments import check_whole
from tacit.sanitization.embeddings import OWN, Embedding, open_embeddings
from tacit.sanitization.kernel import Nearest, Places, Space, uniform
from tacit.sanitization.mechanisms import Draws, Progress, Recipe
from tacit.sanitization.random_streams import Streams
from tacit.sanitization.sensitive import Sensitive, choose_sensitive
from tacit.sanitization.words import UNKNOWN, Words

_AT_ONCE = 4096


@dataclass
class Counted:
    """What was seen of the texts: exact figures, to be kept inside."""

    texts: int = 0
    words: int = 0
    unknown: int = 0
    unchanged: int = 0

    def __iadd__(self, other: "Counted") -> "Counted":
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self


class Sanitizer:
    """Replaces the words of texts by a mechanism that satisfies a metric form of local privacy.

    Guarantee: for `santext`, `fbdd` and `random`, for any two words x, x' of the vocabulary and
    any output y, Pr[y | x] <= exp(epsilon_per_distance d(x, x')) Pr[y | x'] (`random`: 1 for the
    factor); for `santext+`, the same for every output y in the sensitive vocabulary, with
    ln(1 / replace_plain_rate) added where one of the words is sensitive and the other plain. Words
    are replaced independently, so for whole texts the exponents add up.
    """

    def __init__(
        self,
        embedding: Embedding,
        recipe: Recipe,
        sensitive: Sensitive | None = None,
        *,
        seed: int | None = None,
        workers: int = 1,
    ) -> None:
        self.mechanism = recipe.mechanism()
        if ("sensitive words" in self.mechanism.takes) != (sensitive is not None):
            raise UsageError("Sensitive words go with method=santext+, and it needs them.")
        self.embedding, self.recipe, self.sensitive = embedding, recipe, sensitive
        self.streams = Streams(seed)
        self.workers = check_whole("workers", workers, least=1)
        self._units = embedding.pieces or Words(embedding.places)
        self.outputs = np.flatnonzero(sensitive.mask) if sensitive else np.arange(len(embedding))

    @cached_property
    def space(self) -> Space:
        """Distances to the output words; made at first use."""
        outputs = self.outputs if self.sensitive else None
        return Space(self.embedding.vectors, outputs)

    @cached_property
    def nearest(self) -> Nearest:
        """The output word nearest to a point; made at first use."""
        return Nearest(self.embedding.vectors, self.outputs)

    def __call__(
        self, names: Sequence[str], texts: Sequence[str], progress: Progress | None = None
    ) -> tuple[list[str], Counted]:
        """The texts with their words replaced; `names` name each text's random stream.

        A name stands for its draws: use each once in the life of a sanitizer, or two texts share
        their randomness.
        """
        found, counted = self.one_by_one(names, texts, progress)
        return list(found), counted

    def one_by_one(
        self, names: Sequence[str], texts: Sequence[str], progress: Progress | None = None
    ) -> tuple[Iterator[str], Counted]:
        """The same, with each new text made when it is asked for.

        Names and texts are only ever looked at in slices, so that they need not be in memory.
        """
        words, lengths, strange = self._encoded(texts)
        chosen = self.replace(words, names, lengths, progress)
        known = words >= 0
        counted = Counted(
            len(texts), len(words), int((~known).sum()), int((chosen[known] == words[known]).sum())
        )
        return self._texts(chosen, lengths, strange), counted

    def _encoded(self, texts: Sequence[str]) -> tuple[Places, list[int], dict[int, list[str]]]:
        """All words as places, how many each text has, and unknown words that will be kept."""
        keep = self.recipe.unknown == "keep"
        lengths: list[int] = []
        strange: dict[int, list[str]] = {}
        parts: list[Places] = [np.zeros(0, dtype=np.int32)]
        for start in range(0, len(texts), _AT_ONCE):
            flat: list[int] = []
            for row, text in enumerate(texts[start : start + _AT_ONCE], start):
                places, unknown = self._units.encode(text)
                flat += places
                lengths.append(len(places))
                if keep and unknown:
                    strange[row] = unknown
            parts.append(np.array(flat, dtype=np.int32))
        return np.concatenate(parts), lengths, strange

    def replace(
        self,
        words: Places,
        names: Sequence[str],
        lengths: Sequence[int],
        progress: Progress | None = None,
    ) -> Places:
        """A place for each place; -1 where the word is unknown and must be dropped or kept."""
        # Two numbers for each word: a coin for plain words, and the choice itself.
        numbers = self.streams.uniforms(names, [2 * length for length in lengths])
        coins, choices = numbers[0::2], numbers[1::2]
        draws = Draws(self.streams, names, lengths, coins, choices, progress)
        found = self.mechanism.replace(self, words, draws)
        chosen: Places = np.asarray(found, dtype=np.int32)
        known = words >= 0
        if (
            len(chosen) != len(words)
            or not ((chosen[known] >= 0) & (chosen[known] < len(self.embedding))).all()
        ):
            raise DataError(
                f"method={self.recipe.method} gave something that is not a word of the vocabulary "
                "for a word; that mechanism is broken, use another."
            )
        if self.recipe.unknown == "random":
            chosen[~known] = uniform(self.space, choices[~known])
        else:
            chosen[~known] = UNKNOWN
        return chosen

    def _texts(
        self, chosen: Places, lengths: Sequence[int], strange: Mapping[int, Sequence[str]]
    ) -> Iterator[str]:
        words = self.embedding.words
        start = 0
        for row, length in enumerate(lengths):
            own = chosen[start : start + length].tolist()
            start += length
            if UNKNOWN not in own:
                parts = [words[place] for place in own]
            else:
                kept = iter(strange.get(row, ()))
                parts = [words[p] if p >= 0 else next(kept, "") for p in own]
                parts = [part for part in parts if part]
            yield self._units.join(parts)


def open_sanitizer(
    recipe: Recipe,
    embeddings: str | Path | Embedding = OWN,
    *,
    seed: int | None = None,
    workers: int = 1,
    **sensitive: Any,
) -> Sanitizer:
    """The sanitizer of a recipe; `sensitive` are the options of `choose_sensitive`."""
    embedding = embeddings if isinstance(embeddings, Embedding) else open_embeddings(embeddings)
    chosen = None
    if "sensitive words" in recipe.mechanism.takes:
        chosen = choose_sensitive(embedding, **sensitive)
    elif any(given is not None for name, given in sensitive.items() if name != "using"):
        raise UsageError(f"Sensitive words go with method=santext+, not {recipe.method}.")
    return Sanitizer(embedding, recipe, chosen, seed=seed, workers=workers)


def as_it_stands(embedding: Embedding) -> Sanitizer:
    """Changes nothing but how text is cut: what an attack on sanitized text is compared with.

    It is santext at an epsilon so large that every known word stays; unknown ones are kept.
    """
    return Sanitizer(embedding, Recipe("santext", 1e9, unknown="keep"), seed=0)
