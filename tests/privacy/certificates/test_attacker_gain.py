"""What an attacker gains, in words: chosen by the gain, rounded up, and the same everywhere."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from tacit.privacy.certificates.attacker_gain import (
    EPSILONS,
    Gained,
    at_worst,
    choosing,
    of_gaussian,
    of_hundred,
)
from tacit.privacy.certificates.explanation import page
from tacit.privacy.rounding import percent

GRADES = ("strong", "good", "moderate", "weak", "very weak", "none to speak of")
RATES = st.floats(0, 1)


@given(RATES, RATES, RATES, RATES)
def test_more_gain_never_gets_better_words(a: float, b: float, c: float, d: float) -> None:
    less, more = Gained(min(a, b), min(c, d)), Gained(max(a, b), max(c, d))
    assert GRADES.index(less.grade) <= GRADES.index(more.grade)


@pytest.mark.parametrize(
    ("accuracy", "caught", "grade"),
    [
        (0.53, 0.014, "strong"),
        (0.53, 0.05, "good"),  # the other bound decides
        (0.60, 0.05, "good"),
        (0.70, 0.11, "moderate"),
        (0.81, 0.36, "weak"),
        (0.55, 0.80, "very weak"),
        (0.95, 0.80, "very weak"),
        (1.0, 1.0, "none to speak of"),
    ],
)
def test_the_words_go_by_the_larger_of_both_gains(
    accuracy: float, caught: float, grade: str
) -> None:
    assert Gained(accuracy, caught).grade == grade


@given(st.floats(0.75, 1), RATES)
def test_nothing_soothing_is_said_where_an_attacker_is_mostly_right(
    accuracy: float, caught: float
) -> None:
    said = Gained(accuracy, caught).verdict
    assert not any(word in said for word in ("hardly", "little", "next to nothing", "often wrong"))


@given(RATES)
def test_rates_are_never_rounded_down(rate: float) -> None:
    assert float(percent(rate)[:-1]) / 100 >= rate - 1e-9
    assert int(of_hundred(rate)) / 100 >= rate - 1e-9


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 8.0])
def test_gaussian_noise_is_told_apart_by_the_best_test(epsilon: float) -> None:
    """A threshold on the one number that is left, tried at every place."""
    found = of_gaussian(epsilon, 1e-5)
    mu = 2 * norm.ppf(found.accuracy)
    cost = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert cost == pytest.approx(1e-5, rel=1e-3)
    places = np.linspace(-8, 8 + mu, 20_001)
    alarms, hits = norm.sf(places), norm.sf(places, mu)
    assert ((1 - alarms + hits) / 2).max() == pytest.approx(found.accuracy, abs=1e-5)
    assert hits[alarms <= 0.01].max() == pytest.approx(found.caught, abs=1e-3)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0, 8.0])
def test_epsilon_alone_allows_what_randomized_response_attains(epsilon: float) -> None:
    worst = at_worst(epsilon, 0.0)
    assert worst.accuracy == pytest.approx(math.exp(epsilon) / (1 + math.exp(epsilon)))
    gaussian = of_gaussian(max(epsilon, 1e-6), 1e-9)
    assert worst.accuracy >= gaussian.accuracy - 1e-6
    assert worst.caught >= gaussian.caught - 1e-6


def test_the_table_covers_what_people_choose_from() -> None:
    header, rows = choosing(1e-5)
    assert [row[0] for row in rows] == ["0.5", "1", "2", "4", "8", "16"]
    assert EPSILONS == (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
    assert all(len(row) == len(header) for row in rows)
    assert [GRADES.index(row[1]) for row in rows] == sorted(GRADES.index(row[1]) for row in rows)


def test_no_text_of_a_certificate_becomes_a_tag() -> None:
    text = "# a\n\n\0script\1alert()\0/script\1 <img src=x> ![y](x) [z](javascript:0) **b** `c`\n"
    made = page(text, "<t>")
    for tag in ("<script", "<img", "<a ", "<t>"):
        assert tag not in made
    assert "<strong>b</strong> <code>c</code>" in made
