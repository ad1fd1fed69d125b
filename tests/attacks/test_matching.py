"""Which kept models are attacked: those near to the perplexity that all runs reach, found fast."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.attacks.matching import common_level, near_and_spread, off


def test_the_level_is_what_all_reach_but_the_ruined() -> None:
    assert common_level({"a": 3.0, "b": 12.0, "c": 299.0}) == 299.0
    assert common_level({"a": 3.0, "b": 12.0, "c": 301.0}) == 12.0
    assert common_level({"a": 3.0, "b": math.inf, "c": math.nan}) == 3.0
    assert common_level({"a": math.nan}) is None
    assert common_level({}) is None


def test_what_has_no_perplexity_is_near_to_nothing() -> None:
    assert off(10.0, 10.0) == 0.0
    assert off(20.0, 10.0) == pytest.approx(off(5.0, 10.0))
    assert off(math.nan, 10.0) == off(math.inf, 10.0) == math.inf


@given(
    st.lists(st.floats(1.0, 1e4), min_size=1, max_size=80, unique=True),
    st.floats(1.0, 1e4),
    st.integers(1, 6),
)
def test_where_perplexity_falls_the_nearest_is_among_the_few(
    values: list[float], level: float, count: int
) -> None:
    falling = sorted(values, reverse=True)
    steps = [3 * place + 1 for place in range(len(falling))]
    asked = []

    def perplexity(step: int) -> float:
        asked.append(step)
        return falling[(step - 1) // 3]

    chosen = near_and_spread(steps, perplexity, level, count)
    assert len(chosen) == min(count, len(steps))
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(steps)
    least = min(off(value, level) for value in falling)
    assert min(off(falling[(step - 1) // 3], level) for step in chosen) == least
    assert len(set(asked)) <= math.log2(len(steps)) + 4  # not all of them are scored


def test_without_a_level_models_are_spread_and_none_is_scored() -> None:
    def never(step: int) -> float:
        raise AssertionError(step)

    assert near_and_spread(range(10, 90, 10), never, None, 3) == [30, 50, 70]
    assert near_and_spread([5, 10], never, 7.0, 3) == [5, 10]
