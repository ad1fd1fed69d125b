"""Chains of one user and shown names: known prices, real neighbours, and planted bugs."""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tacit.privacy.accounting.accountants import merged_opinion
from tacit.privacy.accounting.composition import attained, first_step, grid_epsilon
from tacit.privacy.accounting.divergences import Array, gaussian_epsilon
from tacit.privacy.accounting.dominating_curves import OwnerMixture, Pair, ShiftMixture
from tacit.privacy.accounting.dominating_pairs import common_adjacency, dominating_items
from tacit.privacy.accounting.merged_chains import MergedChain
from tacit.privacy.accounting.name_chains import NameChain
from tacit.privacy.accounting.pricing import price
from tacit.privacy.certificates.wording import guarantee, not_covered
from tacit.privacy.events import (
    AnyEvent,
    MentionSubstitution,
    NotPrivate,
    ReplaceOne,
    SampledGaussian,
    Unit,
    UserClip,
)

DELTA = 1e-5
# noise multiplier, rate, steps, users per name, names per user, share, unit, epsilon. The prices
# were computed twice outside of this package, by two programs that share no code; the last four
# but one have closed or known values.
VECTORS: list[tuple[float, float, int, int, int, float, Unit, float]] = [
    (5, 0.05, 500, 1, 1, 0.1, "users+names", 1.0519),
    (5, 0.05, 500, 4, 4, 0.1, "users+names", 1.7140),
    (2, 0.05, 500, 4, 4, 0.1, "users+names", 5.9012),
    (1.5, 0.05, 500, 4, 4, 0.05, "users+names", 6.5627),
    (6, 0.05, 500, 2, 4, 0.05, "users+names", 0.9390),
    (6, 0.05, 500, 2, 4, 0.05, "users", 0.8534),
    (6, 0.05, 500, 2, 4, 0.05, "names", 0.0628),
    (4, 0.2, 50, 4, 4, 0.1, "users+names", 2.9938),
    (1.5, 0.2, 50, 2, 4, 0.05, "users+names", 7.9773),
    (8, 0.2, 50, 4, 4, 0.25, "users+names", 2.2917),
    (20, 1, 20, 4, 4, 0.1, "users+names", 1.5657),
    (2, 0.05, 500, 3, 3, 0, "users+names", 2.5321),
    (2, 0.05, 500, 1, 1, 2, "names", 4.9809),
    (1, 0.5, 1, 1, 1, 2, "names", 4.2226),
    (3, 0.01, 1000, 2, 4, 0.1, "users+names", 0.6944),
]


def event_of(row: tuple[float, float, int, int, int, float, Unit, float]) -> MentionSubstitution:
    noise, rate, _, k, m, share, _, _ = row
    return MentionSubstitution(
        user_rate=float(rate),
        users_per_name=k,
        names_per_user=m,
        name_share=float(share),
        noise_multiplier=float(noise),
    )


def epsilon(unit: Unit = "users+names", steps: int = 100, **changes: float) -> float:
    fields: dict[str, Any] = {"user_rate": 0.1, "name_share": 0.1, "noise_multiplier": 3.0}
    fields |= {"users_per_name": 2, "names_per_user": 3} | changes
    event = MentionSubstitution(**fields)
    return price({event: steps}, unit, DELTA, lower=False, fresh=True).epsilon


@pytest.mark.parametrize("row", VECTORS)
def test_known_prices_by_two_ways(row: Any) -> None:
    *_, unit, known = row
    releases: dict[AnyEvent, int] = {event_of(row): row[2]}
    found = price(releases, unit, DELTA, fresh=True)
    assert known * 0.999 <= found.epsilon <= known * 1.005  # as it is shown, never below
    assert found.lower <= known * 1.001
    items = dominating_items(releases, unit, common_adjacency(releases, unit))
    assert items is not None
    if not isinstance(items[0][0], NameChain):
        return  # closed form, or the price of users
    step = first_step(items, DELTA)
    close = 1e-3 if known > 0.1 else 2e-3  # the known ones have four digits
    assert grid_epsilon(items, step / 5, DELTA) == pytest.approx(known, rel=close)
    ((_, merged),) = merged_opinion(items, DELTA, step / 2)
    assert merged == pytest.approx(known, rel=3.5e-3)
    assert merged >= known * 0.999


def test_both_ways_give_the_same_curves() -> None:
    eps = np.array([0.0, 1e-3, 0.01, 0.03, 0.1])
    for chain in (
        NameChain(0.05, 2, 4, 0.05, True, 1 / 1.5),
        NameChain(0.2, 3, 0, 0.3, False, 0.5),
        NameChain(0.5, 0, 2, 1.5, True, 1.0),
    ):
        merged = MergedChain(chain, 1e-17)
        for own, other in (
            (chain.forward(eps), merged.forward(eps)),
            (chain.backward(eps), merged.backward(eps)),
        ):
            assert own == pytest.approx(other, rel=5e-3, abs=1e-9)


def test_one_move_is_the_theorem_for_one_holder() -> None:
    eps = np.geomspace(1e-4, 3, 40)
    for share in (0.05, 0.5, 1.0, 1.7, 2.0):
        chain, owner = (
            NameChain(0.1, 1, 0, share, False, 0.8),
            OwnerMixture(0.1, 1, share, 1.0, False, 0.8),
        )
        assert chain.forward(eps) == pytest.approx(owner.backward(eps), rel=1e-4, abs=1e-15)
        assert chain.backward(eps) == pytest.approx(owner.backward(eps), rel=1e-4, abs=1e-15)


def test_everybody_in_every_step_is_one_gaussian() -> None:
    found = epsilon(steps=25, user_rate=1.0, noise_multiplier=20.0)
    assert found == pytest.approx(gaussian_epsilon(1.5 * 5 / 20, DELTA), rel=1e-9)


def test_without_shown_names_users_pay_for_users_and_names_nothing() -> None:
    alone = SampledGaussian(unit="users", rate=0.1, noise_multiplier=3.0)
    of_users = price({alone: 100}, "users", DELTA, lower=False, fresh=True).epsilon
    for unit in ("users", "users+names"):
        assert epsilon(unit, name_share=0.0) == of_users
        assert epsilon(unit, names_per_user=0) == of_users
        assert epsilon(unit, users_per_name=0) == of_users
    assert epsilon("names", name_share=0.0) == 0
    assert epsilon("names", name_share=0.0, noise_multiplier=0.0) == 0
    assert epsilon("names", noise_multiplier=0.0) == math.inf


def test_prices_rise_with_all_that_may_move() -> None:
    base = epsilon()
    for more in (
        {"users_per_name": 4},
        {"names_per_user": 6},
        {"name_share": 0.2},
        {"user_rate": 0.15},
        {"noise_multiplier": 2.5},
    ):
        assert epsilon(**more) > base * 1.02
    assert epsilon(steps=150) > base * 1.02
    assert epsilon("users") < base
    assert epsilon("names") < base
    assert epsilon("names", users_per_name=8, name_share=0.1) > epsilon(
        "names", users_per_name=1, name_share=0.8
    )


# --- real neighbours ----------------------------------------------------------------------------


def divergence(p: dict[float, float], q: dict[float, float], eps: float) -> float:
    """H_eps of two mixtures of unit Gaussians on the line, by quadrature."""
    x = np.linspace(-14, 18, 200_001)

    def density(mixture: dict[float, float]) -> Array:
        bells = [w * np.exp(-((x - at) ** 2) / 2) for at, w in mixture.items()]
        total: Array = np.sum(bells, axis=0) / math.sqrt(2 * math.pi)
        return total

    return float(np.trapezoid(np.maximum(density(p) - math.exp(eps) * density(q), 0), x))


def release(vectors: list[float], rate: float, scale: float) -> dict[float, float]:
    """The law of the sum of those who are drawn."""
    found: dict[float, float] = {}
    for coins in itertools.product((0, 1), repeat=len(vectors)):
        weight = math.prod(rate if c else 1 - rate for c in coins)
        at = scale * sum(v for v, c in zip(vectors, coins, strict=True) if c)
        found[at] = found.get(at, 0.0) + weight
    return found


def neighbours(
    rng: np.random.Generator, moves: int, share: float
) -> Iterator[tuple[list[float], list[float]]]:
    """Vectors of other users before and after, the moves dealt among them in any way."""
    while True:
        users = int(rng.integers(1, min(moves, 3) + 1))
        dealt = np.bincount(rng.integers(0, users, moves), minlength=users)
        signs = rng.choice([-1.0, 1.0], users) if rng.random() < 0.5 else np.ones(users)
        before = np.where(rng.random(users) < 0.5, signs, rng.uniform(-1, 1, users))
        after = np.clip(before - signs * dealt * share, -1, 1)
        yield before.tolist(), after.tolist()


@pytest.mark.parametrize("with_user", [False, True])
def test_no_neighbours_on_a_line_are_told_apart_more_easily(with_user: bool) -> None:
    rng = np.random.default_rng(5)
    closest = 0.0
    for moves, share, rate, scale in itertools.product(
        (1, 2, 4), (0.1, 0.6), (0.1, 0.5), (0.4, 1.3)
    ):
        chain = NameChain(rate, 0, moves, share, with_user, scale)
        for (before, after), eps in zip(
            neighbours(rng, moves, share), (0.0, 0.02, 0.1, 0.3, 0.1, 0.02), strict=False
        ):
            p = release([*before, 1.0] if with_user else before, rate, scale)
            q = release(after, rate, scale)
            for exact, bound in (
                (divergence(p, q, eps), chain.forward(np.array([eps]))[0]),
                (divergence(q, p, eps), chain.backward(np.array([eps]))[0]),
            ):
                assert exact <= bound * (1 + 1e-6) + 1e-12
                closest = max(closest, exact / bound)
    assert closest > 0.98  # else the search shows nothing


def _attained(chain: NameChain, steps: int) -> float:
    items = ((chain, steps),)
    return attained(items, DELTA, first_step(items, DELTA) / 4, math.inf)


def _bound(pair: Pair, steps: int) -> float:
    items = ((pair, steps),)
    return grid_epsilon(items, first_step(items, DELTA) / 4, DELTA)


def test_eight_changes_in_one_user_cost_more_than_spread_over_eight() -> None:
    """Promotions may fall on one user, whose one coin then hides all of them."""
    chain = NameChain(0.05, 0, 8, 0.05, True, 1 / 1.5)
    spread = _bound(OwnerMixture(0.05, 8, 0.05, 1.0, True, 1 / 1.5), 500)
    reached = _attained(chain, 500)
    assert spread == pytest.approx(5.68, abs=0.02)
    assert reached > 5.85
    assert spread < reached < _bound(chain, 500)
    event = MentionSubstitution(
        user_rate=0.05, users_per_name=4, names_per_user=4, name_share=0.05, noise_multiplier=1.5
    )
    assert price({event: 500}, "users+names", DELTA, fresh=True).epsilon > 5.85


@pytest.mark.parametrize(
    ("planted", "steps"),
    [
        (lambda c: NameChain(c.rate, c.holders, c.promotions - 1, c.share, True, c.scale), 20),
        (lambda c: NameChain(c.rate, c.holders, c.promotions, c.share * 0.9, True, c.scale), 20),
        (lambda c: NameChain(c.rate, c.holders, c.promotions, c.share, False, c.scale), 20),
        (lambda c: ShiftMixture(c.rate, 1, c.scale), 20),
    ],
    ids=["one change fewer", "share times .9", "user forgotten", "users alone"],
)
def test_planted_bugs_are_contradicted_by_neighbours(
    planted: Callable[[NameChain], Pair], steps: int
) -> None:
    chain = NameChain(0.9, 0, 2, 0.5, True, 0.3)
    reached = _attained(chain, steps)
    assert reached <= _bound(chain, steps)
    assert _bound(planted(chain), steps) < reached


# --- what an event means beside others ----------------------------------------------------------


def test_which_releases_may_stand_beside_it() -> None:
    event = MentionSubstitution(
        user_rate=0.1, users_per_name=2, names_per_user=4, name_share=0.0, noise_multiplier=4.0
    )
    users = SampledGaussian(unit="users", rate=0.1, noise_multiplier=4.0)
    replaced = ReplaceOne(unit="users", rate=0.1, noise_multiplier=4.0)
    clip = UserClip(user_rate=0.1, users_per_entity=1, entity_share=0.5, noise_multiplier=4.0)
    raw = NotPrivate(what="training on the text as it is")
    assert price({event: 5, users: 5}, "users", DELTA).adjacency == "substitute"
    assert price({event: 5, users: 5}, "users", DELTA).epsilon == pytest.approx(
        price({users: 10}, "users", DELTA).epsilon, rel=1e-6
    )
    reading: list[AnyEvent] = [users, raw, clip]
    for other in reading:  # they read names, and do not bound them
        assert price({event: 5, other: 5}, "names", DELTA).epsilon == math.inf
    for other in [*reading[2:], replaced]:
        assert price({event: 5, other: 5}, "users", DELTA).epsilon == math.inf
    assert price({event: 5}, "entities", DELTA).epsilon == math.inf


def test_the_sentence_speaks_of_names_and_says_what_is_open() -> None:
    both = guarantee("users+names", "substitute", 2.0, DELTA)
    assert "without any one user's records" in both
    assert "invented names" in both
    assert "Marks are held fixed" in both
    assert "Words around a name" in both
    exactly = guarantee("names", "substitute", 0.0, DELTA)
    assert "exactly the same computation" in exactly
    assert "user's records" not in exactly
    for sentence in (both, exactly):
        assert "entit" not in sentence
        assert "person" not in sentence.lower()
    event = MentionSubstitution(
        user_rate=0.1, users_per_name=2, names_per_user=4, name_share=0.0, noise_multiplier=4.0
    )
    points = " ".join(not_covered([event]))
    for said in ("words around a name", "no detector marked", "not anonymisation"):
        assert said in points.replace("The words", "the words")
