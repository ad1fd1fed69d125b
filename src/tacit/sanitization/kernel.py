"""The mechanisms as arithmetic: exact probability rows in blocks, and draws from them.

Legend: x is an input word, y an output word, d their Euclidean distance, eps the
`epsilon_per_distance`; Pr[y | x] = exp(-eps d(x, y) / 2) / sum over y' of the same (Eq. 1 of
Yue et al. 2021). Rows exist only for words that occur, a block at a time; no |V| x |V| table is
kept. Everything that decides a probability is done in double precision.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Places = NDArray[np.integer]
Progress = Callable[[int], None]

BLOCK = 4_000_000
"""How many numbers a block of rows holds: 32 MB."""


class Space:
    """Input words and output words as points, with distances from the one to the other.

    `outputs` are the places of the output words among all words. Points are moved to their
    common centre first, which leaves distances as they are and makes differences more precise.
    """

    def __init__(self, vectors: NDArray[np.floating], outputs: Places | None = None) -> None:
        self._vectors = vectors
        self.size = len(vectors)
        self.outputs = np.arange(self.size) if outputs is None else np.asarray(outputs)
        self.width = len(self.outputs)
        self._place = np.full(self.size, -1, dtype=np.int64)
        self._place[self.outputs] = np.arange(self.width)
        dims = vectors.shape[1]
        targets = np.empty((self.width, dims + 2))
        targets[:, :dims] = vectors if outputs is None else vectors[self.outputs]
        self._centre = targets[:, :dims].mean(0)
        targets[:, :dims] -= self._centre
        targets[:, dims] = 1.0
        targets[:, dims + 1] = np.einsum("ij,ij->i", targets[:, :dims], targets[:, :dims])
        self._targets = targets.T
        self.rows_at_once = max(1, BLOCK // max(1, self.width))

    def distances(self, words: Places) -> Floats:
        """The distance of each of these words to every output word."""
        points = self._vectors[words] - self._centre
        dims = points.shape[1]
        given = np.empty((len(points), dims + 2))
        np.multiply(points, -2.0, out=given[:, :dims])
        given[:, dims] = np.einsum("ij,ij->i", points, points)
        given[:, dims + 1] = 1.0
        # One product gives |x|^2 + |y|^2 - 2xy; rounding may leave it a hair below zero.
        found = given @ self._targets
        np.maximum(found, 0.0, out=found)
        np.sqrt(found, out=found)
        own = self._place[words]
        known = np.flatnonzero(own >= 0)
        found[known, own[known]] = 0.0
        return found

    def weights(self, words: Places, epsilon: float) -> Floats:
        """exp(-eps d / 2) of each row over the row's largest value: never 0 everywhere."""
        found = self.distances(words)
        found *= -0.5 * epsilon
        # A word that is an output word itself has distance 0, so its row's largest value is 0.
        strangers = np.flatnonzero(self._place[words] < 0)
        if len(strangers):
            found[strangers] -= found[strangers].max(1, keepdims=True)
        return np.exp(found, out=found)

    def probabilities(self, words: Places, epsilon: float) -> Floats:
        """The rows of Eq. 1: Pr[y | x] for these words x and every output word y."""
        found = self.weights(words, epsilon)
        found /= found.sum(1, keepdims=True)
        return found

    def blocks(self, words: Places) -> Iterator[Places]:
        """The words in groups whose rows fit a block."""
        for start in range(0, len(words), self.rows_at_once):
            yield words[start : start + self.rows_at_once]


def draw(
    space: Space,
    words: Places,
    uniforms: Floats,
    epsilon: float,
    *,
    workers: int = 1,
    progress: Progress | None = None,
) -> Places:
    """An output word for each input word by Eq. 1, as places among all words.

    Each row is added up and inverted at the token's own uniform number, so that what a token
    becomes depends on nothing but its word and that number.
    """
    order = np.argsort(words, kind="stable")
    ordered = words[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]][: len(words)])
    distinct, stops = ordered[starts], np.append(starts[1:], len(words))
    del ordered
    chosen = np.empty(len(words), dtype=np.int32)

    def one(first: int) -> int:
        rows = slice(first, first + space.rows_at_once)
        sums = space.weights(distinct[rows], epsilon)
        np.cumsum(sums, axis=1, out=sums)
        for line, start, stop in zip(sums, starts[rows], stops[rows], strict=True):
            tokens = order[start:stop]
            chosen[tokens] = line.searchsorted(uniforms[tokens] * line[-1], side="right")
        if progress:
            progress(int(stops[rows][-1] - starts[first]))
        return first

    each(one, range(0, len(distinct), space.rows_at_once), workers)
    # A product that was rounded up to the whole sum belongs to the last word.
    np.minimum(chosen, space.width - 1, out=chosen)
    return space.outputs[chosen].astype(np.int32)


def uniform(space: Space, uniforms: Floats) -> Places:
    """An output word for each number, all equally likely."""
    return space.outputs[np.minimum((uniforms * space.width).astype(np.int64), space.width - 1)]


def noise(count: int, dims: int, epsilon: float, rng: np.random.Generator) -> Floats:
    """Vectors with density proportional to exp(-eps |z|): a direction, and a Gamma(dims) length.

    Source: Feyisetan et al. (2020), section 2.6.
    """
    directions = rng.standard_normal((count, dims))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    return directions * rng.gamma(dims, 1 / epsilon, size=(count, 1))


class Nearest:
    """The output word nearest to a point; what is done to a noisy point costs no privacy."""

    def __init__(self, vectors: NDArray[np.floating], outputs: Places) -> None:
        # Single precision is enough here: any rule that looks at the noisy point alone will do.
        chosen = vectors[outputs].astype(np.float32)
        self._centre = chosen.mean(0)
        chosen -= self._centre
        self._outputs = outputs
        self._targets = np.ascontiguousarray(chosen.T)
        self._halves = 0.5 * np.einsum("ij,ij->i", chosen, chosen)
        self.points_at_once = max(1, 4 * BLOCK // max(1, len(outputs)))

    def __call__(self, points: NDArray[np.floating]) -> Places:
        """The places of the nearest output words among all words."""
        found = np.empty(len(points), dtype=np.int64)
        for start in range(0, len(points), self.points_at_once):
            part = (points[start : start + self.points_at_once] - self._centre).astype(np.float32)
            scores = part @ self._targets
            scores -= self._halves
            found[start : start + len(part)] = scores.argmax(1)
        return self._outputs[found]


def each(work: Callable[[int], int], items: range, workers: int) -> None:
    """Do the work for every item, by so many threads; arithmetic leaves Python's lock free."""
    if workers <= 1 or len(items) <= 1:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(work, items):
            pass
