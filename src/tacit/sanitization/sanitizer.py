"""A sanitizer: texts in, texts of as many words out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tacit.errors import UsageError
from tacit.sanitization.embeddings import Embedding
from tacit.sanitization.kernel import Floats, Nearest, Places, Space, draw, each, noise, uniform
from tacit.sanitization.random_streams import Streams
from tacit.sanitization.recipes import Recipe, check_workers
from tacit.sanitization.sensitive import Mask, Sensitive
from tacit.sanitization.words import UNKNOWN, Words

Progress = Callable[[int], None]
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
        if (recipe.method == "santext+") != (sensitive is not None):
            raise UsageError("Sensitive words go with method=santext+, and it needs them.")
        self.embedding, self.recipe, self.sensitive = embedding, recipe, sensitive
        self.streams = Streams(seed)
        self.workers = check_workers(workers)
        self._units = embedding.pieces or Words(embedding.places)
        outputs = np.flatnonzero(sensitive.mask) if sensitive else np.arange(len(embedding))
        self.outputs = outputs
        self._space: Space | None = None
        self._nearest: Nearest | None = None

    @property
    def space(self) -> Space:
        """Distances to the output words; made at first use."""
        if self._space is None:
            outputs = self.outputs if self.sensitive else None
            self._space = Space(self.embedding.vectors, outputs)
        return self._space

    def __call__(
        self, names: Sequence[str], texts: Sequence[str], progress: Progress | None = None
    ) -> tuple[list[str], Counted]:
        """The texts with their words replaced; `names` name each text's stream of chance.

        A name stands for its draws: use each once in the life of a sanitizer, or two texts share
        their chance.
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
        method = self.recipe.method
        # Two numbers for each word: a coin for plain words, and the choice itself.
        numbers = self.streams.uniforms(names, [2 * length for length in lengths])
        coins, choices = numbers[0::2], numbers[1::2]
        chosen: Places = np.full(len(words), UNKNOWN, dtype=np.int32)
        known = words >= 0
        if self.recipe.unknown == "random":
            chosen[~known] = uniform(self.space, choices[~known])
        if method == "random":
            chosen[known] = uniform(self.space, choices[known])
        elif method == "fbdd":
            self._perturb(words, names, lengths, chosen, progress)
        else:
            moved = known & self._moves(words, known, coins)
            stay = known & ~moved
            chosen[stay] = words[stay]
            at = np.flatnonzero(moved)
            chosen[at] = draw(
                self.space,
                words[at],
                choices[at],
                float(self.recipe.epsilon_per_distance or 0.0),
                workers=self.workers,
                progress=progress,
            )
        return chosen

    def _moves(self, words: Places, known: Mask, coins: Floats) -> Mask:
        """Which words are drawn anew: the sensitive ones, and plain ones whose coin says so."""
        if self.sensitive is None:
            return np.ones(len(words), dtype=bool)
        sensitive = np.zeros(len(words), dtype=bool)
        sensitive[known] = self.sensitive.mask[words[known]]
        return sensitive | (coins < float(self.recipe.replace_plain_rate or 0.0))

    def _perturb(
        self,
        words: Places,
        names: Sequence[str],
        lengths: Sequence[int],
        chosen: Places,
        progress: Progress | None,
    ) -> None:
        """FBDD: each record's noise from its own stream, nearest words in blocks."""
        if self._nearest is None:
            self._nearest = Nearest(self.embedding.vectors, self.outputs)
        nearest, vectors = self._nearest, self.embedding.vectors
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        # Whole records, in groups of about as many words as the search takes at once.
        groups = np.unique(
            np.searchsorted(starts, np.arange(0, starts[-1], nearest.points_at_once))
        )
        edges = [*groups.tolist(), len(lengths)] if len(groups) else [0, len(lengths)]
        epsilon = float(self.recipe.epsilon_per_distance or 0.0)

        def one(number: int) -> int:
            first, last = edges[number], edges[number + 1]
            own = slice(int(starts[first]), int(starts[last]))
            places = words[own]
            points = vectors[np.maximum(places, 0)].astype(np.float64)
            for record in range(first, last):
                part = slice(starts[record] - own.start, starts[record + 1] - own.start)
                if lengths[record]:
                    rng = self.streams.generator("noise\0" + names[record])
                    points[part] += noise(lengths[record], points.shape[1], epsilon, rng)
            known = places >= 0
            chosen[own][known] = nearest(points)[known]
            if progress:
                progress(int(known.sum()))
            return number

        each(one, range(len(edges) - 1), self.workers)

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


def as_it_stands(embedding: Embedding) -> Sanitizer:
    """Changes nothing but how text is cut: what an attack on sanitized text is compared with.

    It is santext at an epsilon so large that every known word stays; unknown ones are kept.
    """
    return Sanitizer(embedding, Recipe("santext", 1e9, unknown="keep"), seed=0)
