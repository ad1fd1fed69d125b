"""The probability rows keep their promise, and draws follow the rows."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tacit.sanitization.kernel import Nearest, Space, draw, noise, uniform

SLACK = 1e-9
"""What double precision may add to a logarithm of about 100."""


def space_of(seed: int, words: int, dims: int, scale: float = 1.0) -> tuple[np.ndarray, Space]:
    rng = np.random.default_rng(seed)
    vectors = (scale * rng.standard_normal((words, dims))).astype(np.float32)
    return vectors, Space(vectors)


def apart(vectors: np.ndarray) -> np.ndarray:
    """Distances the slow way, in double precision."""
    points = vectors.astype(np.float64)
    return np.linalg.norm(points[:, None] - points[None], axis=2)


def rows_of(space: Space, epsilon: float) -> np.ndarray:
    return np.concatenate(
        [space.probabilities(b, epsilon) for b in space.blocks(np.arange(space.size))]
    )


def slow_rows(vectors: np.ndarray, epsilon: float, outputs: np.ndarray) -> np.ndarray:
    logs = -0.5 * epsilon * apart(vectors)[:, outputs]
    weights = np.exp(logs - logs.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32 - 1),
    words=st.integers(2, 25),
    dims=st.integers(1, 8),
    epsilon=st.floats(0, 30),
)
def test_every_triple_of_a_small_vocabulary(
    seed: int, words: int, dims: int, epsilon: float
) -> None:
    vectors, space = space_of(seed, words, dims)
    rows, d = rows_of(space, epsilon), apart(vectors)
    np.testing.assert_allclose(rows, slow_rows(vectors, epsilon, space.outputs), rtol=1e-6)
    logs = np.log(rows)
    # log Pr[y | x] - log Pr[y | x'] <= eps d(x, x'), for all x, x', y
    lost = logs[:, None, :] - logs[None, :, :]
    assert (lost <= epsilon * d[:, :, None] + 1e-6).all()


def test_random_triples_of_a_large_vocabulary() -> None:
    vectors, space = space_of(1, 20_000, 50, 0.6)
    rng = np.random.default_rng(2)
    words = rng.integers(0, 20_000, 60)
    for epsilon in (0.5, 2.0, 12.0):
        logs = np.log(space.probabilities(words, epsilon))
        points = vectors[words].astype(np.float64)
        d = np.linalg.norm(points[:, None] - points[None], axis=2)
        for one in range(len(words)):
            lost = (logs[one] - logs).max(1)
            assert (lost <= epsilon * d[one] + SLACK * 1e3).all()


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32 - 1),
    epsilon=st.floats(0, 20),
    rate=st.floats(0.01, 1),
    share=st.floats(0.2, 0.9),
)
def test_every_case_of_the_utility_optimized_promise(
    seed: int, epsilon: float, rate: float, share: float
) -> None:
    """Theorem 2 of Yue et al.: both sensitive, both plain, one of each; and invertible outputs."""
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((20, 4)).astype(np.float32)
    sensitive = np.zeros(20, dtype=bool)
    sensitive[rng.permutation(20)[: max(2, round(share * 20))]] = True
    outputs = np.flatnonzero(sensitive)
    rows = Space(vectors, outputs).probabilities(np.arange(20), epsilon)
    whole = np.zeros((20, 20))
    whole[np.ix_(sensitive, outputs)] = rows[sensitive]
    whole[np.ix_(~sensitive, outputs)] = rate * rows[~sensitive]
    whole[~sensitive, ~sensitive] = 0
    for plain in np.flatnonzero(~sensitive):
        whole[plain, plain] = 1 - rate
    np.testing.assert_allclose(whole.sum(1), 1, rtol=1e-9)
    d, extra = apart(vectors), math.log(1 / rate)
    logs = np.log(whole[:, outputs])
    for x in range(20):
        for other in range(20):
            mixed = sensitive[x] != sensitive[other]
            bound = epsilon * d[x, other] + (extra if mixed else 0.0)
            assert (logs[x] - logs[other]).max() <= bound + 1e-6
    # Outside the sensitive vocabulary an output comes from one word only: itself.
    for y in np.flatnonzero(~sensitive):
        assert set(np.flatnonzero(whole[:, y])) <= {y}


def test_random_triples_of_a_large_sensitive_vocabulary() -> None:
    """The same promise where nine tenths of 20,000 words are sensitive: x and x' of either side."""
    rng = np.random.default_rng(14)
    vectors = (0.6 * rng.standard_normal((20_000, 50))).astype(np.float32)
    sensitive = rng.random(20_000) < 0.9
    space = Space(vectors, np.flatnonzero(sensitive))
    sides = (np.flatnonzero(sensitive), np.flatnonzero(~sensitive))
    words = np.concatenate([rng.choice(side, 30) for side in sides])
    points = vectors[words].astype(np.float64)
    d = np.linalg.norm(points[:, None] - points[None], axis=2)
    mixed = sensitive[words][:, None] != sensitive[words][None]
    for epsilon, rate in ((0.5, 0.9), (2.0, 0.3), (12.0, 0.01)):
        rows = space.probabilities(words, epsilon)
        rows[~sensitive[words]] *= rate
        logs, extra = np.log(rows), math.log(1 / rate)
        for x in range(len(words)):
            lost = (logs[x] - logs).max(1)
            assert (lost <= epsilon * d[x] + extra * mixed[x] + SLACK * 1e3).all()


def test_epsilon_zero_is_uniform() -> None:
    _, space = space_of(3, 40, 5)
    np.testing.assert_allclose(rows_of(space, 0.0), 1 / 40, rtol=1e-12)


def test_a_huge_epsilon_is_the_identity() -> None:
    _, space = space_of(4, 40, 5)
    words = np.arange(40).repeat(5)
    numbers = np.random.default_rng(0).random(len(words))
    for epsilon in (1e4, 1e100, 1e300):
        assert (draw(space, words, numbers, epsilon) == words).all()


def test_a_huge_epsilon_takes_the_nearest_sensitive_word() -> None:
    vectors, _ = space_of(5, 40, 5)
    outputs = np.arange(10, 30)
    space = Space(vectors, outputs)
    words = np.arange(40)
    found = draw(space, words, np.full(40, 0.5), 1e6)
    assert (found == outputs[apart(vectors)[:, outputs].argmin(1)]).all()


def test_words_with_one_vector_cannot_be_told_apart() -> None:
    vectors, _ = space_of(6, 10, 3)
    vectors[7] = vectors[2]
    rows = rows_of(Space(vectors), 5.0)
    # Each gets distance 0 to itself exactly; to its twin up to rounding.
    np.testing.assert_allclose(rows[7], rows[2], rtol=1e-5)
    np.testing.assert_allclose(rows[2, 7], rows[2, 2], rtol=1e-5)
    assert rows[2, 2] < 0.51


FALSE_ALARM = 1e-6


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0, 8.0])
def test_draws_follow_the_rows(epsilon: float) -> None:
    """Chi-square for each word, pooled where few are expected; a false alarm in a million runs."""
    _, space = space_of(7, 30, 4, 0.5)
    rows = rows_of(space, epsilon)
    rng = np.random.default_rng(8)
    times = 20_000
    words = np.repeat(np.arange(30), times)
    found = draw(space, words, rng.random(len(words)), epsilon).reshape(30, times)
    for x in range(30):
        counts, expected = np.bincount(found[x], minlength=30), rows[x] * times
        rare = expected < 5
        observed = [*counts[~rare], counts[rare].sum()]
        wanted = [*expected[~rare], expected[rare].sum()]
        if wanted[-1] < 5:
            # Too few to test: left out on both sides.
            observed, wanted = observed[:-1], wanted[:-1]
        if len(wanted) < 2:
            continue
        scale = sum(observed) / sum(wanted)
        test = stats.chisquare(observed, [w * scale for w in wanted])
        assert test.pvalue > FALSE_ALARM / 120


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_neither_workers_nor_grouping_matter(workers: int) -> None:
    _, space = space_of(9, 300, 8)
    space.rows_at_once = 7
    rng = np.random.default_rng(1)
    words, numbers = rng.integers(0, 300, 5000), rng.random(5000)
    whole = draw(space, words, numbers, 2.0, workers=1)
    assert (draw(space, words, numbers, 2.0, workers=workers) == whole).all()
    halves = [draw(space, words[s], numbers[s], 2.0) for s in (slice(0, 999), slice(999, None))]
    assert (np.concatenate(halves) == whole).all()


def test_the_ends_of_the_unit_interval_are_words() -> None:
    _, space = space_of(10, 5, 2)
    numbers = np.array([0.0, 1 - 2.0**-53])
    for epsilon in (0.0, 1.0, 500.0):
        found = draw(space, np.array([0, 0]), numbers, epsilon)
        assert ((found >= 0) & (found < 5)).all()
    assert uniform(space, numbers).tolist() == [0, 4]


def test_noise_has_the_density_that_is_claimed() -> None:
    """Its length is Gamma(dims, 1 / eps), its direction has no preference."""
    found = noise(40_000, 6, 2.5, np.random.default_rng(11))
    lengths = np.linalg.norm(found, axis=1)
    assert stats.kstest(lengths, stats.gamma(6, scale=1 / 2.5).cdf).pvalue > FALSE_ALARM
    directions = found / lengths[:, None]
    # One coordinate of a uniform direction: (u + 1) / 2 is Beta((dims - 1) / 2, the same).
    for axis in range(6):
        test = stats.kstest((directions[:, axis] + 1) / 2, stats.beta(2.5, 2.5).cdf)
        assert test.pvalue > FALSE_ALARM


def test_nearest_is_nearest() -> None:
    vectors, _ = space_of(12, 500, 10)
    outputs = np.arange(100, 400)
    points = np.random.default_rng(13).standard_normal((200, 10))
    nearest = Nearest(vectors, outputs)
    nearest.points_at_once = 64
    slow = np.linalg.norm(points[:, None] - vectors[outputs][None].astype(float), axis=2).argmin(1)
    assert (nearest(points) == outputs[slow]).mean() > 0.99
