"""Figures of membership against slow truth."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.attacks.rates import accuracy, auc, proportion, roc, true_positives

scores = st.lists(st.integers(-5, 5), min_size=2, max_size=30).map(
    lambda values: np.array(values, dtype=float)
)


@given(scores, scores)
def test_auc_is_the_share_of_ordered_pairs(members: np.ndarray, others: np.ndarray) -> None:
    wanted = np.mean([(m > o) + 0.5 * (m == o) for m in members for o in others])
    value, (low, high) = auc(members, others)
    assert value == pytest.approx(wanted)
    assert low <= value <= high


@given(scores, scores)
def test_accuracy_is_fair_to_ties(members: np.ndarray, others: np.ndarray) -> None:
    """Whoever swaps the sides is wrong where the other was right; equal scores say nothing."""
    assert accuracy(members, others)[0] + accuracy(others, members)[0] == pytest.approx(1)
    assert accuracy(members, members)[0] == pytest.approx(0.5)
    assert accuracy(members + 11, others)[0] == pytest.approx(1)


@given(scores, scores)
def test_the_curve_rises_and_holds_the_area(members: np.ndarray, others: np.ndarray) -> None:
    x, y = np.array(roc(members, others, points=1000)).T
    assert (np.diff(x) >= 0).all()
    assert (np.diff(y) >= 0).all()
    assert np.trapezoid(y, x) == pytest.approx(auc(members, others)[0])


@given(scores, scores, st.sampled_from([0.0, 0.1, 0.5]))
def test_true_positives_keep_the_false_ones_in_check(
    members: np.ndarray, others: np.ndarray, fpr: float
) -> None:
    """Every place that a member can have among its equals, and the last one in part."""
    tpr, (low, high), resolved = true_positives(members, others, fpr)
    assert low <= tpr <= high
    room = fpr * (len(others) + 1)
    assert resolved == (room >= 1)
    wanted = [
        np.mean([min(1, max(0, room - rank)) for rank in range(a, a + e + 1)])
        for a, e in (((others > m).sum(), (others == m).sum()) for m in members)
    ]
    assert tpr == pytest.approx(np.mean(wanted))


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    # Two Gaussians one apart: AUC is Phi(1 / sqrt 2) = 0.7602, accuracy Phi(1 / 2) = 0.6915.
    held = np.zeros(2)
    for _ in range(300):
        members, others = rng.normal(1, 1, 80), rng.normal(0, 1, 120)
        for at, (made, truth) in enumerate(((auc, 0.7602), (accuracy, 0.6915))):
            low, high = made(members, others)[1]
            held[at] += low <= truth <= high
    assert (held / 300 > 0.92).all()


def test_exact_intervals_are_the_known_ones() -> None:
    assert proportion(5, 10) == pytest.approx((0.1871, 0.8129), abs=1e-4)
    assert proportion(0, 0) == (0.0, 1.0)
