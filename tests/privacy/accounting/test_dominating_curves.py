"""The curves dominate exact divergences; obvious mistakes in them would be seen."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from support import exact
from tacit.privacy.accounting.dominating_curves import OwnerMixture, Pair, ShiftMixture, VisibleCoin
from tacit.privacy.accounting.owner_bounds import EntityRevealed, HoldersRevealed, NothingRevealed
from tacit.privacy.accounting.pld_grid import lower_loss, spread, upper_loss

EPSILONS = np.array([0.0, 0.02, 0.1, 0.3, 0.7, 1.3, 2.2, 4.0])
SLACK = 3e-8  # quadrature


SHARES, ENTITY_RATES = (0.25, 0.5, 1.0, 1.5, 2.0), (1.0, 1.0, 0.5)


def instances(count, rng, shares=SHARES, entity_rates=ENTITY_RATES):
    """Random parameters of user clipping, and random neighbours along a line."""
    for _ in range(count):
        k = int(rng.integers(1, 5))
        tau = float(rng.choice(shares))
        q = float(rng.choice([0.01, 0.05, 0.2, 0.5, 0.9]))
        q_e = float(rng.choice(entity_rates))
        z = float(rng.choice([0.5, 1.0, 2.0, 5.0]))
        with_user = bool(rng.integers(0, 2))
        if rng.random() < 0.5:  # all holders alike, as the extremes are
            start = float(rng.choice([-1.0, -tau / 2, 1 - tau]))
            starts, moves = [start] * k, [tau] * k
        else:
            moves = [float(rng.uniform(0, tau) * rng.choice([-1, 1])) for _ in range(k)]
            starts = [float(rng.uniform(max(-1, -1 - m), min(1, 1 - m))) for m in moves]
        user = float(rng.choice([-1.0, 1.0, rng.uniform(-1, 1)])) if with_user else None
        pair = OwnerMixture(q, k, tau, q_e, with_user, 1 / z)
        yield pair, exact.user_clip(q, starts, moves, q_e, user), z


def worst_excess(pair, draws, z):
    forward, backward = exact.hockey_sticks(draws, z, EPSILONS)
    return max((forward - pair.forward(EPSILONS)).max(), (backward - pair.backward(EPSILONS)).max())


def test_no_neighbours_are_easier_to_tell_apart_than_the_bound_says():
    rng = np.random.default_rng(7)
    excess = [worst_excess(*case) for case in instances(400, rng)]
    assert max(excess) < SLACK


@pytest.mark.parametrize("tau", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("with_user", [True, False])
def test_extreme_neighbours_stay_below_the_bound_and_not_far(tau, with_user):
    for k in (1, 2, 4):
        for q in (0.05, 0.5):
            pair = OwnerMixture(q, k, tau, 1.0, with_user, 1 / 2)
            best = 0.0
            for start in (-1.0, -tau / 2, 1 - tau):
                user = 1.0 if with_user else None
                draws = exact.user_clip(q, [start] * k, [tau] * k, 1.0, user)
                assert worst_excess(pair, draws, 2.0) < SLACK
                forward, _ = exact.hockey_sticks(draws, 2.0, np.array([0.1]))
                best = max(best, float(forward[0] / pair.forward(np.array([0.1]))[0]))
            assert best > 0.5


def extreme(k, tau, q, with_user):
    user = 1.0 if with_user else None
    for start in (-1.0, -tau / 2, 1 - tau):
        yield exact.user_clip(q, [start] * k, [tau] * k, 1.0, user)


class NaiveMixture:
    """The obvious repair that is not a theorem: one hidden number of holders against N(0)."""

    def __init__(self, k, tau, q, scale):
        self.pair = ShiftMixture(q, k, tau * scale)

    def forward(self, eps):
        return self.pair.forward(eps)

    def backward(self, eps):
        return self.pair.backward(eps)


MUTANTS = {
    "naive mixture": lambda k, tau, q, z: NaiveMixture(k, tau, q, 1 / z),
    "one holder too few": lambda k, tau, q, z: OwnerMixture(q, k - 1, tau, 1.0, True, 1 / z),
    "a tenth of the share too little": lambda k, tau, q, z: OwnerMixture(
        q, k, 0.9 * tau, 1.0, True, 1 / z
    ),
    "the user forgotten": lambda k, tau, q, z: OwnerMixture(q, k, tau, 1.0, False, 1 / z),
    "the entity forgotten": lambda k, tau, q, z: ShiftMixture(q, 1, 1 / z),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_bound_is_violated_by_real_neighbours(name):
    violated = 0
    for k, tau, q, z in [
        (1, 2.0, 0.05, 1.0),
        (1, 2.0, 0.5, 1.0),
        (2, 1.0, 0.2, 1.0),
        (2, 2.0, 0.5, 2),
    ]:
        with_user = name != "naive mixture"
        mutant = MUTANTS[name](k, tau, q, z)
        sound = OwnerMixture(q, k, tau, 1.0, with_user, 1 / z)
        for draws in extreme(k, tau, q, with_user):
            assert worst_excess(sound, draws, z) < SLACK
            violated += worst_excess(mutant, draws, z) > 1e-6
    assert violated > 0


@pytest.mark.parametrize("revealing", [NothingRevealed, HoldersRevealed, EntityRevealed])
def test_each_of_the_three_bounds_holds_by_itself_and_is_somewhere_the_smallest(revealing):
    rng = np.random.default_rng(11)
    excess, smallest = [], 0
    for pair, draws, z in instances(200, rng, (0.02, 0.1, 0.5, 1.0, 2.0), (1.0, 0.5, 0.1, 0.02)):
        bound = revealing(pair)
        excess.append(worst_excess(bound, draws, z))
        others = [each for each in pair.bounds() if not isinstance(each, revealing)]
        if pair.entity_rate < 1:
            here = bound.forward(EPSILONS)
            smallest += all((here < 0.98 * other.forward(EPSILONS)).any() for other in others)
    assert max(excess) < SLACK
    assert smallest > 5


def test_many_holders_who_are_each_moved_a_little_stay_below_the_bound():
    q, k, tau, z = 0.023, 13, 0.05, 6.6
    eps = np.linspace(0, 0.6, 13)
    for with_user in (True, False):
        pair = OwnerMixture(q, k, tau, 1.0, with_user, 1 / z)
        for instance in pair.instances():
            p = list(zip(instance.p_shifts, instance.p_weights, strict=True))
            q_parts = list(zip(instance.q_shifts, instance.q_weights, strict=True))
            forward, backward = exact.mixture_hockey_sticks(p, q_parts, 1.0, eps)
            assert np.all(forward <= pair.forward(eps) + SLACK)
            assert np.all(backward <= pair.backward(eps) + SLACK)


@dataclass(frozen=True)
class OneMovePerStep(HoldersRevealed):
    """The drawn holders revealed, but moved by the entity as if one of them had been drawn."""

    def _holders(self):
        return [(min(count, 1), weight) for count, weight in super()._holders()]


class WithMistake:
    """The smallest of the bounds where one of them is wrong."""

    def __init__(self, *bounds):
        self.bounds = bounds

    def forward(self, eps):
        return np.minimum.reduce([bound.forward(eps) for bound in self.bounds])

    def backward(self, eps):
        return np.minimum.reduce([bound.backward(eps) for bound in self.bounds])


SHORTCUTS = {
    "the holders revealed, tau B for tau B K": lambda pair: OneMovePerStep(pair),
    "the holders revealed, one too few": lambda pair: HoldersRevealed(
        replace(pair, holders=pair.holders - 1)
    ),
    "the holders revealed, the user forgotten": lambda pair: HoldersRevealed(
        replace(pair, with_user=False)
    ),
    "the holders revealed, the entity's coin counted twice": lambda pair: HoldersRevealed(
        replace(pair, entity_rate=pair.entity_rate**2)
    ),
    "the entity revealed, the user forgotten": lambda pair: EntityRevealed(
        replace(pair, with_user=False)
    ),
    "the entity revealed, its coin counted twice": lambda pair: EntityRevealed(
        replace(pair, entity_rate=pair.entity_rate**2)
    ),
}


@pytest.mark.parametrize("name", SHORTCUTS)
def test_a_wrong_shortcut_among_the_bounds_is_violated_by_real_neighbours(name):
    violated = 0
    for k, tau, q, q_e, z in [
        (2, 0.5, 0.9, 0.5, 1.0),
        (3, 1.0, 0.5, 0.5, 1.0),
        (2, 2.0, 0.2, 0.9, 2),
    ]:
        pair = OwnerMixture(q, k, tau, q_e, True, 1 / z)
        mutant = WithMistake(pair, SHORTCUTS[name](pair))
        for start in (-1.0, -tau / 2, 1 - tau):
            draws = exact.user_clip(q, [start] * k, [tau] * k, q_e, 1.0)
            assert worst_excess(pair, draws, z) < SLACK
            violated += worst_excess(mutant, draws, z) > 1e-6
    assert violated > 0


def test_replacing_one_is_priced_exactly():
    for q, z in [(0.01, 1.0), (0.05, 2.0), (0.5, 1.0), (1.0, 1.5)]:
        pair = OwnerMixture(q, 1, 2.0, 1.0, False, 1 / z)
        truth, reverse = exact.hockey_sticks(
            exact.user_clip(q, [-1.0], [2.0], 1.0, None), z, EPSILONS
        )
        assert np.allclose(pair.forward(EPSILONS), truth, atol=SLACK)
        assert np.allclose(pair.backward(EPSILONS), reverse, atol=SLACK)


def test_no_holders_is_the_sampled_gaussian():
    for q, z in [(0.01, 1.0), (0.3, 0.7), (1.0, 2.0)]:
        owners, shift = OwnerMixture(q, 0, 2.0, 1.0, True, 1 / z), ShiftMixture(q, 1, 1 / z)
        truth, reverse = exact.hockey_sticks(exact.user_clip(q, [], [], 1.0, 1.0), z, EPSILONS)
        for pair in (owners, shift):
            assert np.allclose(pair.forward(EPSILONS), truth, atol=SLACK)
            assert np.allclose(pair.backward(EPSILONS), reverse, atol=SLACK)


def test_flat_draws_are_exact():
    for q, n, z in [(0.05, 5, 2.0), (0.3, 3, 1.0)]:
        pair = ShiftMixture(q, n, 1 / z)
        draws = [
            exact.Draw(math.comb(n, j) * q**j * (1 - q) ** (n - j), float(j), 0.0)
            for j in range(n + 1)
        ]
        truth, reverse = exact.hockey_sticks(draws, z, EPSILONS)
        assert np.allclose(pair.forward(EPSILONS), truth, atol=SLACK)
        assert np.allclose(pair.backward(EPSILONS), reverse, atol=SLACK)


PAIRS: list[Pair] = [
    ShiftMixture(0.01, 1, 1.0),
    ShiftMixture(0.2, 7, 0.1),
    OwnerMixture(0.05, 2, 0.5, 1.0, True, 1 / 8),
    OwnerMixture(0.05, 4, 2.0, 0.5, True, 1 / 4),
    OwnerMixture(0.3, 3, 1.0, 1.0, False, 1 / 2),
    OwnerMixture(1.0, 3, 1.0, 0.4, True, 1 / 2),
    OwnerMixture(0.023, 13, 0.05, 1.0, True, 1 / 6.6),
    OwnerMixture(0.01, 2, 2.0, 0.05, True, 1.0),
    VisibleCoin(0.1, 1.5),
]


def curve_of(losses, eps):
    values = (losses.start + np.arange(losses.probs.size)) * losses.step
    return np.array(
        [losses.infinite + np.sum(losses.probs * np.maximum(-np.expm1(e - values), 0)) for e in eps]
    )


@pytest.mark.parametrize("pair", PAIRS, ids=repr)
def test_gridded_losses_lie_above_every_instance_and_pooled_ones_below(pair):
    step = spread(pair) / 4
    eps = np.concatenate([EPSILONS * step, EPSILONS * spread(pair), [0.5, 3.0]])
    upper = upper_loss(pair, step, 1e-15)
    for losses in upper:
        assert losses.probs.min() >= 0
        assert losses.probs.sum() + losses.infinite == pytest.approx(1, abs=1e-9)
    for instance in pair.instances():
        p = list(zip(instance.p_shifts, instance.p_weights, strict=True))
        q = list(zip(instance.q_shifts, instance.q_weights, strict=True))
        truth = exact.mixture_hockey_sticks(p, q, instance.coin, eps)
        lower = lower_loss(instance, step)
        for role in (0, 1):
            assert np.all(curve_of(upper[role], eps) >= truth[role] - SLACK)
            assert np.all(curve_of(lower[role], eps) <= truth[role] + SLACK)


@pytest.mark.parametrize("pair", [PAIRS[0], PAIRS[1], PAIRS[-1]], ids=repr)
def test_gridded_losses_lie_above_a_convex_curve_everywhere(pair):
    step = spread(pair) / 4
    eps = np.linspace(0, 6, 241) * spread(pair)
    upper = upper_loss(pair, step, 1e-15)
    assert np.all(curve_of(upper.forward, eps) >= pair.forward(eps) * (1 - 1e-9))
    assert np.all(curve_of(upper.backward, eps) >= pair.backward(eps) * (1 - 1e-9))


def test_a_minimum_that_is_not_convex_is_made_so_and_stays_above_the_neighbours():
    pair = OwnerMixture(0.01, 2, 2.0, 0.05, True, 1.0)
    eps = np.linspace(0.01, 3.99, 399)
    slopes = np.diff(pair.forward(eps)) / np.diff(np.exp(eps))
    assert np.diff(slopes).min() < -1e-7  # or there is nothing to make convex
    losses = upper_loss(pair, 0.01, 1e-15).forward
    gridded = curve_of(losses, eps)
    assert np.diff(np.diff(gridded) / np.diff(np.exp(eps))).min() > -1e-12
    assert np.all(gridded <= pair.forward(eps) + 1e-12)
    draws = exact.user_clip(0.01, [-1.0] * 2, [2.0] * 2, 0.05, 1.0)
    assert np.all(exact.hockey_sticks(draws, 1.0, eps)[0] <= gridded + SLACK)


@pytest.mark.parametrize("pair", PAIRS, ids=repr)
def test_both_roles_are_the_same_pair(pair):
    upper = upper_loss(pair, spread(pair) / 4, 1e-15)
    step, start = upper.forward.step, upper.forward.start
    weights = upper.forward.probs * np.exp(-(start + np.arange(upper.forward.probs.size)) * step)
    assert np.allclose(weights[::-1], upper.backward.probs, rtol=1e-6, atol=1e-15)


def test_a_finer_grid_is_never_looser():
    for pair in PAIRS:
        eps = np.linspace(0, 4, 9) * spread(pair)
        coarse = upper_loss(pair, spread(pair) / 3, 1e-15)
        fine = upper_loss(pair, spread(pair) / 12, 1e-15)
        assert np.all(curve_of(fine.forward, eps) <= curve_of(coarse.forward, eps) + 1e-12)


def test_one_step_agrees_with_the_library():
    ours = upper_loss(ShiftMixture(0.05, 1, 0.5), 1e-4, 1e-15)
    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        2.0, value_discretization_interval=1e-4, sampling_prob=0.05
    )
    for eps in (0.01, 0.05, 0.2, 0.5):
        mine = max(float(curve_of(role, [eps])[0]) for role in ours)
        assert mine == pytest.approx(theirs.get_delta_for_epsilon(eps), rel=1e-5, abs=1e-13)


@pytest.mark.parametrize(
    ("q", "k"), [(1.0, 4), (0.05, 729), (0.05, 5000), (0.2, 167), (0.5, 53), (0.9, 16), (0.9, 400)]
)
def test_when_something_is_always_drawn_no_point_of_the_curve_is_lost(q, k):
    pair = OwnerMixture(q, k, 2.0, 1.0, False, 1 / (k * 0.5))
    eps = np.linspace(0, 3, 301)
    for curve in (pair.forward(eps), pair.backward(eps)):
        assert np.all(np.isfinite(curve))
        assert np.all(curve > 0)
        assert np.all(np.diff(curve) <= 1e-12)


def test_certain_participation_is_the_plain_gaussian():
    pair = OwnerMixture(1.0, 4, 2.0, 1.0, False, 1 / 2)
    plain = VisibleCoin(1.0, 4.0)
    eps = np.linspace(0, 30, 61)
    assert np.allclose(pair.forward(eps), plain.forward(eps), rtol=1e-9, atol=1e-15)
    assert np.allclose(pair.backward(eps), plain.forward(eps), rtol=1e-9, atol=1e-15)


def test_losses_far_above_700_stay_finite():
    pair = ShiftMixture(0.2, 3, 40.0)
    upper = upper_loss(pair, spread(pair) / 5, 1e-15)
    for losses in upper:
        assert np.all(np.isfinite(losses.probs))
        assert losses.probs.sum() + losses.infinite == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("with_user", [True, False])
def test_the_bound_grows_with_everything_that_is_worse(with_user):
    eps = np.array([0.01, 0.1, 0.4, 1.0])
    base: dict[str, Any] = {
        "user_rate": 0.1,
        "holders": 2,
        "share": 0.5,
        "entity_rate": 0.5,
        "scale": 0.3,
    }
    worse = [
        ("user_rate", 0.2),
        ("holders", 3),
        ("share", 0.8),
        ("entity_rate", 0.9),
        ("scale", 0.5),
    ]
    low = OwnerMixture(with_user=with_user, **base)
    for name, value in worse:
        high = OwnerMixture(with_user=with_user, **(base | {name: value}))
        assert np.all(high.forward(eps) >= low.forward(eps) - 1e-12), name
        assert np.all(high.backward(eps) >= low.backward(eps) - 1e-12), name
