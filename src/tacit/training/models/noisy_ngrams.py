"""N-grams that were counted with noise: which are worth a look, and texts sampled from them.

Everything here is made of released counts and of public things; no private text comes in, except
through `numbers`, which tells the n-grams of given texts.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

MOST = 1 << 22
"""At most so many n-grams of one order are looked at: the least certain make room."""
POWER = 0.4
"""How much less a frequent n-gram weighs in a unit's vector. A third to a half did best on dialogs
of other customers; without weights, what is in every text would fill the vector."""
FLOOR = 0.3
"""Below so many standard deviations of noise, n-grams count as equally frequent."""
AGAIN = 0.9
"""So many standard deviations an n-gram must stand above zero to be looked at again."""
KEPT = (1.0, 2.0, 1.5)
"""The same, to be kept, for words, pairs, and what is longer."""
DISCOUNT, BACK = 1.5, 0.3
"""What is taken from every kept count, and added to the weight of shorter n-grams, both in standard
deviations of its noise."""
PRIOR = 0.05
"""How much the words that the start expects are mixed in."""


@dataclass(frozen=True, eq=False)
class Level:
    """Candidates of one order, by the numbers of the shorter n-grams that they begin and end with.

    `shares` says how frequent each is, up to a factor, and `deviations` how uncertain that is.
    """

    order: int
    prefix: Numbers
    suffix: Numbers
    word: Numbers
    below: int
    """How many candidates one order below there are."""
    shares: Floats
    deviations: Floats
    kept: Mask

    def __len__(self) -> int:
        return len(self.word)

    def find(self, prefix: Numbers, suffix: Numbers) -> Numbers:
        """The numbers of n-grams given by their two parts; -1 where there is no candidate."""
        found = np.full(len(prefix), -1)
        known = np.flatnonzero((prefix >= 0) & (suffix >= 0))
        if len(self) and len(known):
            own = self.prefix * self.below + self.suffix
            keys = prefix[known] * self.below + suffix[known]
            at = np.searchsorted(own, keys).clip(max=len(own) - 1)
            found[known] = np.where(own[at] == keys, at, -1)
        return found


class NoisyNgrams:
    """Counts as they come in, one noisy look after the other, of the orders that are asked for.

    An order that is asked for twice in a row is looked at again, and only at what stood out; the
    next order looks at n-grams whose two parts were kept. So which n-grams a look is at, and how
    much each weighs, depends on earlier looks alone.
    """

    def __init__(self, orders: tuple[int, ...], prior: Floats, start: int) -> None:
        size = len(prior)
        self.orders, self.start, self.prior = orders, start, prior / prior.sum()
        self.levels: list[Level] = []
        self.looks = 0
        words = np.arange(size)
        nothing = np.zeros(size, dtype=np.int64)
        self._begin(Level(1, nothing, nothing, words, 1, self.prior, self.prior, words >= 0))

    @property
    def done(self) -> bool:
        """Whether nothing is left to look at."""
        return self.looks == len(self.orders)

    def _begin(self, now: Level) -> None:
        """Look at these candidates next; their shares are guesses."""
        self.now = now
        self.weights: Floats = np.maximum(now.shares, 1e-12) ** -POWER
        self._sums, self._precision = np.zeros(len(now)), np.zeros(len(now))

    def learn(self, released: Floats, deviation: float) -> None:
        """Take in a look: the noisy sum of weighted vectors, and its standard deviation."""
        now, inside = self.now, self.weights > 0
        precision = np.square(self.weights / deviation)
        values = np.divide(released, self.weights, out=np.zeros(len(now)), where=inside)
        self._sums += values * precision
        self._precision += precision
        known = np.maximum(self._precision, 1e-300)
        shares, deviations = self._sums / known, 1 / np.sqrt(known)
        self.looks += 1
        again = not self.done and self.orders[self.looks] == now.order
        least = AGAIN if again else KEPT[min(now.order, len(KEPT)) - 1]
        kept = inside & (shares > least * deviations)
        if again:
            guesses = np.maximum(shares, _floor(deviations[kept]))
            self.weights = np.where(kept, np.maximum(guesses, 1e-12) ** -POWER, 0.0)
            return
        self.levels.append(
            Level(now.order, now.prefix, now.suffix, now.word, now.below, shares, deviations, kept)
        )
        if not self.done:
            self._begin(self._longer())

    def _longer(self) -> Level:
        """The n-grams one longer, both of whose parts were kept; a text begins with its mark."""
        last = self.levels[-1]
        strength = last.shares / last.deviations
        numbers = np.flatnonzero(last.kept)
        while True:
            first, second = self._joined(last, numbers)
            if first is not None and second is not None:
                break
            numbers = np.sort(numbers[np.argsort(-strength[numbers])][: (len(numbers) + 1) // 2])
        order = np.argsort(first * len(last) + second, kind="stable")
        first, second = first[order], second[order]
        floor = _floor(last.deviations[last.kept])
        shares = np.where(last.kept, np.maximum(last.shares, floor), floor)
        if last.order == 1:
            shares[self.start] = shares.max()
        histories = np.bincount(
            last.prefix[last.kept], weights=shares[last.kept], minlength=last.below
        )
        # As frequent as chance has it, or as its rarer part: something in between.
        chance = shares[first] * shares[second] / np.maximum(histories[last.prefix[second]], floor)
        rarer = np.minimum(shares[first], shares[second])
        guesses = np.maximum(np.sqrt(rarer * np.maximum(chance, floor)), floor)
        everything = np.ones(len(first), dtype=bool)
        return Level(
            last.order + 1, first, second, last.word[second], len(last), guesses, guesses,
            everything,
        )  # fmt: skip

    def _joined(self, last: Level, numbers: Numbers) -> tuple[Numbers, Numbers] | tuple[None, None]:
        """Pairs of these n-grams that overlap in all but one word each; None if too many do."""
        begins = numbers
        if last.order == 1:
            begins = np.union1d(numbers, [self.start])
            middle, own = np.zeros(len(begins), dtype=np.int64), np.zeros_like(numbers)
        else:
            middle, own = last.suffix[begins], last.prefix[numbers]
        by_prefix = np.argsort(own, kind="stable")
        low = np.searchsorted(own[by_prefix], middle, "left")
        counts = np.searchsorted(own[by_prefix], middle, "right") - low
        total = int(counts.sum())
        if total > MOST and len(numbers) > 1:
            return None, None
        within = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(begins, counts), numbers[by_prefix][np.repeat(low, counts) + within]

    def numbers(self, tokens: Numbers, places: Numbers) -> Numbers:
        """The candidate that ends at each token of texts laid end to end; -1 where none does.

        `places` are the tokens' places in their texts. The first token of a text is its mark, which
        is part of n-grams and none by itself.
        """
        found = tokens
        for level in [*self.levels[1:], *([self.now] if self.now.order > 1 else [])]:
            longer = np.full(len(tokens), -1)
            inner = np.flatnonzero(places >= level.order - 1)
            longer[inner] = level.find(found[inner - 1], found[inner])
            found = longer
        return np.where(places > 0, found, -1)


def _floor(deviations: Floats) -> float:
    return FLOOR * float(np.median(deviations)) if len(deviations) else 1e-12


class _Table:
    """Kept n-grams of one order as a choice of the next word after each history."""

    def __init__(self, level: Level) -> None:
        taken = np.minimum(DISCOUNT * level.deviations, np.maximum(level.shares, 0))
        counts = np.where(level.kept, level.shares - taken, 0.0)

        def by_history(values: Floats) -> Floats:
            own = level.prefix[level.kept]
            return np.bincount(own, values[level.kept], level.below).astype(np.float64)

        children = np.maximum(by_history(np.ones(len(level))), 1)
        noise = np.sqrt(by_history(np.square(level.deviations)) / children)
        self.level = level
        self.totals = by_history(counts)
        self.back = by_history(taken) + BACK * noise
        self._sums = np.concatenate([[0.0], np.cumsum(counts)])
        self._ends = np.searchsorted(level.prefix, np.arange(level.below), "right")

    def draw(self, histories: Numbers, rng: np.random.Generator) -> Numbers:
        """A word after each history, or -1 where a shorter one is to decide."""
        totals, back = self.totals[histories], self.back[histories]
        own = rng.random(len(histories)) * (totals + back) < totals
        ends = self._ends[histories]
        sums = self._sums[ends] - rng.random(len(histories)) * totals
        # The sum before a drawn number is below the draw, so nothing without a count is drawn.
        drawn = np.searchsorted(self._sums, sums, "left") - 1
        words = self.level.word[drawn.clip(0, max(0, len(self.level) - 1))]
        return np.where(own, words, -1)


class Sampler:
    """Texts whose next word is drawn after as many words before as were counted.

    Source: absolute discounting (Ney, Essen and Kneser 1994). Departs: what is discounted is as
    large as the noise, not a constant.
    """

    def __init__(self, ngrams: NoisyNgrams) -> None:
        first = ngrams.levels[0]
        words = np.where(first.kept, np.maximum(first.shares, 0), 0.0)
        words = words / words.sum() if words.sum() > 0 else ngrams.prior
        self._words = np.cumsum((1 - PRIOR) * words + PRIOR * ngrams.prior)
        self._tables = [_Table(level) for level in ngrams.levels[1:] if len(level)]
        self._start = ngrams.start

    def texts(
        self, count: int, longest: int, end: int | None, rng: np.random.Generator
    ) -> list[NDArray[np.int32]]:
        """So many texts, from their mark to the end token, or to where they are cut off."""
        made = np.full((count, longest), self._start, dtype=np.int32)
        grams = [np.full(count, -1) for _ in range(len(self._tables) + 1)]
        grams[0] = np.full(count, self._start)
        for place in range(1, longest):
            words = self._next(grams, rng)
            grams = self._after(grams, words)
            made[:, place] = words
        if end is None:
            return list(made)
        ends = made[:, 1:] == end
        lengths = np.where(ends.any(axis=1), ends.argmax(axis=1) + 2, longest)
        return [text[:length] for text, length in zip(made, lengths.tolist(), strict=True)]

    def _next(self, grams: list[Numbers], rng: np.random.Generator) -> Numbers:
        words = np.full(len(grams[0]), -1)
        for table, histories in zip(reversed(self._tables), reversed(grams[:-1]), strict=True):
            still = np.flatnonzero((words < 0) & (histories >= 0))
            words[still] = table.draw(histories[still], rng)
        still = np.flatnonzero(words < 0)
        drawn = np.searchsorted(self._words, rng.random(len(still)) * self._words[-1], "right")
        words[still] = drawn.clip(max=len(self._words) - 1)
        return words

    def _after(self, grams: list[Numbers], words: Numbers) -> list[Numbers]:
        """The n-grams that end with these words."""
        ending = [words]
        for table, before in zip(self._tables, grams, strict=False):
            found = table.level.find(before, ending[-1])
            ending.append(np.where((found >= 0) & table.level.kept[found], found, -1))
        return ending
