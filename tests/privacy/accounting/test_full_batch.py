"""Everybody in every step: all steps are one Gaussian shift, whose price has a closed form."""

import math

import pytest
from scipy.optimize import brentq
from scipy.special import ndtr

from tacit.planning.plan import Plan, calibrated
from tacit.privacy.accounting.pricing import price
from tacit.privacy.events import SampledGaussian, UserClip

DELTA = 1e-5


def gaussian_delta(epsilon: float, shift: float) -> float:
    """Balle and Wang 2018, Theorem 8: delta of two unit Gaussians so far apart."""
    return float(ndtr(shift / 2 - epsilon / shift)
                 - math.exp(epsilon) * ndtr(-shift / 2 - epsilon / shift))  # fmt: skip


def one_shot_noise(epsilon: float) -> float:
    """The noise of one release that costs this much, by the formula alone."""
    return float(brentq(lambda z: gaussian_delta(epsilon, 1 / z) - DELTA, 0.1, 50))


@pytest.mark.parametrize(("epsilon", "one_shot"), [(8, 0.600), (2, 1.994), (1, 3.731)])
@pytest.mark.parametrize("steps", [1, 20])
def test_the_noise_of_a_full_batch_is_the_closed_form(
    epsilon: float, one_shot: float, steps: int
) -> None:
    assert one_shot_noise(epsilon) == pytest.approx(one_shot, abs=5e-4)
    plan = calibrated(
        Plan(protect="users", epsilon=epsilon, steps=steps, user_rate=1.0, users=1300)
    )
    assert plan.noise_multiplier is not None
    needed = one_shot_noise(epsilon) * math.sqrt(steps)
    assert needed <= plan.noise_multiplier * (1 + 1e-9)
    assert plan.noise_multiplier <= needed * 1.002


@pytest.mark.parametrize("epsilon", [8, 2, 1])
def test_the_price_of_a_full_batch_is_the_closed_form(epsilon: float) -> None:
    noise = one_shot_noise(epsilon) * math.sqrt(20)
    event = SampledGaussian(unit="users", rate=1.0, noise_multiplier=noise)
    found = float(price({event: 20}, "users", DELTA).epsilon)
    assert epsilon * (1 - 1e-6) <= found <= epsilon * 1.001


def test_users_and_one_entity_of_another_user_are_a_longer_shift() -> None:
    """A user moves a sum by 1, its entity moves one other user's by tau: together 1 + tau."""
    noise = one_shot_noise(2) * 1.5 * math.sqrt(20)
    event = UserClip(user_rate=1.0, users_per_entity=1, entity_share=0.5, noise_multiplier=noise)
    found = float(price({event: 20}, "users+entities", DELTA).epsilon)
    assert 2 * (1 - 1e-6) <= found <= 2 * 1.001
