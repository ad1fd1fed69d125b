"""N-grams counted with noise: numbers as a naive loop has them, and texts as the counts say."""

from collections import Counter

import numpy as np
import pytest

from tacit.training.models.noisy_ngrams import MOST, Floats, NoisyNgrams, Sampler

START, END = 0, 1
TEXTS = [[0, 2, 3, 4, 1], [0, 2, 3, 5, 1], [0, 2, 3, 4, 1], [0, 6, 3, 5, 1]]
TINY = 1e-6


def flat(texts: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    places = [np.arange(len(text)) for text in texts]
    return np.concatenate([np.asarray(text) for text in texts]), np.concatenate(places)


def look(ngrams: NoisyNgrams, texts: list[list[int]], deviation: float = TINY) -> None:
    """One look, nobody clipped, with hardly any noise."""
    found = ngrams.numbers(*flat(texts))
    counts: Floats = np.bincount(found[found >= 0], minlength=len(ngrams.now)).astype(float)
    ngrams.learn(counts * ngrams.weights, deviation)


def counted(orders: tuple[int, ...], texts: list[list[int]] = TEXTS, size: int = 8) -> NoisyNgrams:
    ngrams = NoisyNgrams(orders, np.ones(size), START)
    while not ngrams.done:
        look(ngrams, texts)
    return ngrams


def spelled(ngrams: NoisyNgrams, order: int, number: int) -> tuple[int, ...]:
    """The words of an n-gram."""
    level = ngrams.levels[order - 1]
    if order == 1:
        return (int(level.word[number]),)
    return (*spelled(ngrams, order - 1, int(level.prefix[number])), int(level.word[number]))


@pytest.mark.parametrize("orders", [(1, 2, 3, 4), (1, 1, 2, 2, 3, 3, 4)])
def test_counts_are_those_of_a_naive_loop(orders: tuple[int, ...]) -> None:
    ngrams = counted(orders)
    for order in range(1, 5):
        wanted = Counter(
            tuple(text[at - order + 1 : at + 1])
            for text in TEXTS
            for at in range(max(1, order - 1), len(text))
        )
        level = ngrams.levels[order - 1]
        kept = np.flatnonzero(level.kept).tolist()
        found = {spelled(ngrams, order, n): level.shares[n] for n in kept}
        assert found == pytest.approx(wanted, rel=1e-4)


def test_two_looks_are_weighed_by_their_noise() -> None:
    ngrams = NoisyNgrams((1, 1), np.ones(3), START)
    ngrams.learn(np.array([0.0, 10.0, 10.0]) * ngrams.weights, float(ngrams.weights[0]))
    first = ngrams.weights.copy()
    assert first[0] == 0  # it did not stand out, so nobody looks again
    ngrams.learn(np.array([99.0, 13.0, 10.0]) * first, 2 * first[1])
    assert ngrams.levels[0].shares[:3] == pytest.approx([0, 10.6, 10.0])
    assert ngrams.levels[0].deviations[1] == pytest.approx(np.sqrt(1 / (1 + 1 / 4)))
    assert list(ngrams.levels[0].kept) == [False, True, True]


def test_what_is_looked_at_next_follows_from_releases_alone() -> None:
    one, other = (NoisyNgrams((1, 2), np.ones(8), START) for _ in range(2))
    release = np.array([0, 5.0, 0.1, 4.0, 0, 0, 0, 9.0])
    for ngrams in (one, other):
        ngrams.learn(release * ngrams.weights, float(ngrams.weights[0]))
    assert np.array_equal(one.now.word, other.now.word)
    assert np.array_equal(one.weights, other.weights)
    pairs = {(int(a), int(b)) for a, b in zip(one.now.prefix, one.now.suffix, strict=True)}
    assert pairs == {(a, b) for a in (0, 1, 3, 7) for b in (1, 3, 7)}  # a text begins with 0


def test_where_nothing_stands_out_everything_goes_on() -> None:
    ngrams = NoisyNgrams((1, 2, 3), np.ones(6), START)
    while not ngrams.done:
        ngrams.learn(np.full(len(ngrams.now), -1.0), 1.0)
    assert len(ngrams.levels[2]) == 0
    texts = Sampler(ngrams).texts(20, 5, END, np.random.default_rng(0))
    assert all(text[0] == START and len(text) <= 5 for text in texts)


def test_the_least_certain_make_room() -> None:
    size = int(MOST**0.5) + 100
    ngrams = NoisyNgrams((1, 2), np.ones(size), START)
    strong = np.arange(size) + 100.0
    ngrams.learn(strong * ngrams.weights, float(ngrams.weights[0]))
    assert len(ngrams.now) <= MOST
    assert set(np.unique(ngrams.now.suffix)) == set(range(size - (size + 1) // 2, size))


def test_texts_are_as_frequent_as_the_counts_say() -> None:
    """With exact counts and all the words of a text as its history, texts are those counted."""
    ngrams = counted((1, 2, 3, 4))
    texts = Sampler(ngrams).texts(4000, 9, END, np.random.default_rng(3))
    seen = Counter(tuple(int(word) for word in text) for text in texts)
    wanted = Counter(tuple(text) for text in TEXTS)
    assert set(seen) == set(wanted)
    for text, times in wanted.items():
        assert seen[text] / 4000 == pytest.approx(times / 4, abs=0.03)


def test_what_noise_may_have_taken_goes_to_shorter_histories() -> None:
    ngrams = NoisyNgrams((1, 2), np.ones(8), START)
    look(ngrams, TEXTS)
    found = ngrams.numbers(*flat(TEXTS))
    counts = np.bincount(found[found >= 0], minlength=len(ngrams.now))
    ngrams.learn(counts * ngrams.weights, 0.4 * float(ngrams.weights.min()))
    texts = Sampler(ngrams).texts(3000, 9, END, np.random.default_rng(3))
    after = Counter(int(text[at + 1]) for text in texts for at in (1,) if text[1] == 2)
    assert 0.5 < after[3] / sum(after.values()) < 1  # only 3 was ever seen after 2
