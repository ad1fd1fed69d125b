"""Prices are right, bounded from both sides, monotone, and never optimistic at the edges."""

import json
import math
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event, gaussian_mechanism, pld
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import PrivacyRefused, TacitError, UsageError
from tacit.privacy.accounting import price_cache, pricing
from tacit.privacy.accounting.accountants import WHOLE_ORDERS, rdp_at_whole_orders
from tacit.privacy.accounting.composition import upper_losses
from tacit.privacy.accounting.divergences import gaussian_epsilon
from tacit.privacy.accounting.dominating_curves import OwnerMixture
from tacit.privacy.accounting.owner_bounds import NothingRevealed
from tacit.privacy.accounting.pricing import (
    Price,
    adversary_gain,
    calibrate,
    curve_over_degree,
    curve_over_steps,
    price,
    price_all,
)
from tacit.privacy.events import (
    UNITS,
    Flat,
    NotPrivate,
    Public,
    ReplaceOne,
    SampledGaussian,
    Selective,
    Unit,
    UserClip,
)
from tacit.privacy.rounding import down, up

VECTORS = json.loads(Path(__file__).with_name("reference_values.json").read_text())


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory):
    before = os.environ.get("TACIT_CACHE")
    os.environ["TACIT_CACHE"] = str(tmp_path_factory.mktemp("prices"))
    yield
    if before is None:
        del os.environ["TACIT_CACHE"]
    else:
        os.environ["TACIT_CACHE"] = before


def gaussian(rate, noise, unit="users"):
    return SampledGaussian(unit=unit, rate=rate, noise_multiplier=noise)


def user_clip(z, q=0.05, k=2, tau=0.5, q_e=1.0):
    return UserClip(
        user_rate=q, users_per_entity=k, entity_share=tau, entity_rate=q_e, noise_multiplier=z
    )


def sane(found: Price):
    assert not math.isnan(found.epsilon)
    assert 0 <= found.lower <= found.epsilon
    for _, opinion in (*found.opinions, *found.looser_bounds):
        assert opinion >= found.lower * (1 - 1e-9)
    assert all(opinion <= found.epsilon for _, opinion in found.opinions)
    assert all(bound > found.epsilon for _, bound in found.looser_bounds)
    return found


def every_bound(found: Price):
    return dict(found.opinions) | dict(found.looser_bounds)


# --- reference values ---------------------------------------------------------------------------


def vectors(kind):
    return [
        pytest.param(v, id=" ".join(f"{k}={v[k]}" for k in v if k not in ("kind", "delta")))
        for v in VECTORS
        if v["kind"] == kind
    ]


@pytest.mark.parametrize("v", vectors("flat_mog"))
def test_flat_vectors(v):
    event = Flat(
        record_rate=v["q"],
        records_per_user=v["units"],
        records_per_entity=0,
        noise_multiplier=v["z"],
    )
    found = sane(price({event: v["T"]}, "users+entities", v["delta"]))
    assert found.epsilon == pytest.approx(v["eps"], rel=0.005)
    assert found.lower > 0.98 * found.epsilon


def owner_price(v, **options):
    event = user_clip(v["z"], v["q_u"], v["k"], v["tau"], v["q_e"])
    unit: Unit = "users+entities" if v["user"] else "entities"
    return sane(price({event: v["T"]}, unit, v["delta"], **options))


@pytest.mark.parametrize("v", vectors("userclip_ajc"))
def test_user_clip_vectors(v):
    found = owner_price(v)
    assert found.epsilon == pytest.approx(v["eps"], rel=0.005)
    assert found.lower > 0.6 * found.epsilon


@pytest.mark.parametrize("v", vectors("paper_noise_sound"))
def test_vectors_at_the_published_noise(v):
    """Two of them (k = 1) were computed on a grid of 1e-3, too coarse for losses this small.

    On that grid we agree; refined, our price is 3 % below them and still above what real
    neighbours attain.
    """
    found = owner_price(v)
    if v["k"] == 1:
        assert owner_price(v, step=1e-3).epsilon == pytest.approx(v["eps"], rel=0.005)
        assert 0.96 * v["eps"] < found.epsilon < v["eps"]
    else:
        assert found.epsilon == pytest.approx(v["eps"], rel=0.005)


def test_the_figures_we_show_first():
    found = price_all({user_clip(8): 500}, 1e-5)
    assert list(found) == ["users", "entities", "users+entities"]
    assert found["users"].epsilon == pytest.approx(0.4986, rel=0.005)
    assert found["entities"].epsilon == pytest.approx(0.5459, rel=0.005)
    assert found["users+entities"].epsilon == pytest.approx(1.169, rel=0.005)
    flat = Flat(record_rate=0.05, records_per_user=4, records_per_entity=1, noise_multiplier=4)
    assert price({flat: 500}, "users+entities", 1e-5).epsilon == pytest.approx(6.761, rel=0.005)


@pytest.mark.parametrize(
    ("z", "apart", "replaced"), [(0.7, 4.619, 5.766), (1.0, 1.829, 2.844), (2.0, 0.6238, 1.206)]
)
def test_replacing_costs_more_than_removing(z, apart, replaced):
    remove = price({gaussian(0.01, z, "records"): 1000}, "records", 1e-5)
    replace = price(
        {ReplaceOne(unit="records", rate=0.01, noise_multiplier=z): 1000}, "records", 1e-5
    )
    assert remove.epsilon == pytest.approx(apart, rel=0.005)
    assert replace.epsilon == pytest.approx(replaced, rel=0.005)
    assert (remove.adjacency, replace.adjacency) == ("add-or-remove", "replace")


@pytest.mark.parametrize(("passes", "eps"), [(1, 49.36), (5, 177.6), (20, 596.0)])
def test_selective_passes_are_gaussian(passes, eps):
    event = Selective(noise_multiplier=0.5, state_noise_multiplier=0.5, segments=1, states=2)
    found = sane(price({event: passes}, "tokens", 8e-5))
    assert found.epsilon == pytest.approx(eps, rel=0.001)
    assert found.accountant == "gdp"


@pytest.mark.parametrize(("segments", "sigma"), [(1, 4.649), (4, 9.299), (16, 18.6)])
def test_selective_noise_for_epsilon_eight(segments, sigma):
    event = Selective(
        noise_multiplier=sigma, state_noise_multiplier=sigma, segments=segments, states=2
    )
    assert price({event: 5}, "tokens", 1e-5).epsilon == pytest.approx(8, rel=0.002)


def test_a_public_coin_helps_less_than_a_hidden_one():
    visible = Selective(
        noise_multiplier=2, state_noise_multiplier=1, segments=1, states=0, rate=0.05
    )
    hidden = ReplaceOne(unit="tokens", rate=0.05, noise_multiplier=2)
    assert (
        price({hidden: 200}, "tokens", 1e-5).epsilon
        < 0.7 * price({visible: 200}, "tokens", 1e-5).epsilon
    )


# --- against the library ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("q", "z", "steps"), [(0.01, 1.0, 1000), (0.05, 2.0, 500), (0.2, 1.0, 20), (1.0, 5.0, 100)]
)
def test_no_holders_equals_the_library(q, z, steps):
    theirs = pld.PLDAccountant(value_discretization_interval=1e-3)
    theirs.compose(dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(z)), steps)
    library = theirs.get_epsilon(1e-5)
    events: list[tuple[UserClip | SampledGaussian, Unit]] = [
        (user_clip(z, q, k=0), "users+entities"),
        (user_clip(z, q, k=3), "users"),
        (gaussian(q, z), "users"),
    ]
    for event, unit in events:
        found = sane(price({event: steps}, unit, 1e-5))
        assert found.epsilon == pytest.approx(library, rel=0.005)
        assert found.lower <= library * (1 + 1e-9)


def test_the_flat_mixture_equals_the_library():
    probs = [math.comb(3, j) * 0.1**j * 0.9 ** (3 - j) for j in range(4)]
    theirs = pld.PLDAccountant(value_discretization_interval=1e-3)
    theirs.compose(dp_event.MixtureOfGaussiansDpEvent(3.0, [0, 1, 2, 3], probs), 100)
    event = Flat(record_rate=0.1, records_per_user=2, records_per_entity=1, noise_multiplier=3)
    assert price({event: 100}, "users+entities", 1e-5).epsilon == pytest.approx(
        theirs.get_epsilon(1e-5), rel=0.005
    )


@pytest.mark.parametrize("mu", [1e-3, 0.25, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-12])
def test_the_gaussian_in_closed_form(mu, delta):
    found = gaussian_epsilon(mu, delta)
    assert found == pytest.approx(
        gaussian_mechanism.get_epsilon_gaussian(1 / mu, delta), rel=1e-6, abs=1e-7
    )


def test_the_gaussian_in_closed_form_far_out():
    for mu in (999.0, 1001.0, 1e6, 1e9, 1e12):
        assert gaussian_epsilon(mu, 1e-5) == pytest.approx(mu * mu / 2 + 4.2649 * mu, rel=1e-4)
        assert gaussian_epsilon(mu, 1e-5) > mu * mu / 2


# --- coins revealed -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "steps", "all_hidden", "most"),
    [
        (user_clip(6.6, 0.023, 13, 0.05), 1500, 1.9851, 1.035),  # the holders revealed
        (user_clip(1.0, 0.01, 1, 2.0, 0.1), 1000, 3.3044, 2.793),  # the entity revealed
        (user_clip(8), 500, 1.1709, 1.1709),  # all hidden is best
    ],
)
def test_the_smallest_bound_is_the_price(event, steps, all_hidden, most, monkeypatch):
    found = sane(price({event: steps}, "users+entities", 1e-5, fresh=True))
    assert found.epsilon <= most * 1.0001
    assert found.lower > 0.7 * found.epsilon
    upper_losses.cache_clear()
    monkeypatch.setattr(OwnerMixture, "bounds", lambda self: [NothingRevealed(self)])
    alone = price({event: steps}, "users+entities", 1e-5, fresh=True, lower=False)
    upper_losses.cache_clear()
    assert alone.epsilon == pytest.approx(all_hidden, rel=5e-3)
    assert found.epsilon <= alone.epsilon


# --- rounding where something is always drawn ---------------------------------------------------


@pytest.mark.parametrize(
    ("event", "unit", "steps", "eps"),
    [
        (user_clip(2, 1.0, 4, 2.0), "entities", 1, 24.3816),
        (user_clip(4, 1.0, 16, 0.5), "users+entities", 10, 54.88),
        (user_clip(100, 0.05, 800, 2.0), "users+entities", 1, 4.08),
    ],
)
def test_when_eta_rounds_to_one_nothing_collapses(event, unit, steps, eps):
    found = sane(price({event: steps}, unit, 1e-5))
    assert found.epsilon == pytest.approx(eps, rel=0.005)
    grid = every_bound(found)["pld"]
    assert grid == pytest.approx(eps, rel=0.005)
    assert grid > eps * 0.999


# --- order --------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["users", "entities", "users+entities"])
def test_worse_costs_more(unit):
    def cost(steps=100, **changes):
        return price({user_clip(**({"z": 3.0, "q": 0.1} | changes)): steps}, unit, 1e-5).epsilon

    base = cost()
    assert cost(steps=200) > base
    assert cost(z=2.0) > base
    assert cost(q=0.2) > base
    for change in ({"k": 3}, {"tau": 1.0}):
        assert cost(**change) == base if unit == "users" else cost(**change) > base


def test_prices_rise_along_every_parameter():
    for unit in ("users+entities",):
        for values, make in (
            ((1, 2, 4, 9), lambda k: user_clip(6, k=k)),
            ((0.1, 0.4, 1.0, 2.0), lambda tau: user_clip(6, tau=tau)),
            ((0.01, 0.1, 0.5, 1.0), lambda q: user_clip(12, q=q)),
            ((0.0, 0.2, 0.7, 1.0), lambda q_e: user_clip(6, q_e=q_e)),
            ((20.0, 8.0, 4.0, 2.0), lambda z: user_clip(z)),
        ):
            prices = [price({make(value): 50}, unit, 1e-5, lower=False).epsilon for value in values]
            assert prices == sorted(prices)
            assert prices[0] < prices[-1]


def test_neither_the_larger_nor_the_sum_of_both_prices_is_a_bound():
    found = price_all({user_clip(8): 500}, 1e-5)
    users, entities, both = (found[unit] for unit in ("users", "entities", "users+entities"))
    assert both.lower > users.epsilon + entities.epsilon > max(users.epsilon, entities.epsilon)


@pytest.mark.parametrize(
    ("q", "z", "steps", "delta"),
    [
        (0.01, 1.0, 1000, 1e-5),
        (0.05, 4.0, 500, 1e-6),
        (0.5, 2.0, 50, 1e-3),
        (0.001, 0.6, 5000, 1e-7),
    ],
)
def test_pld_is_never_above_rdp_and_never_below_what_is_attained(q, z, steps, delta):
    found = sane(price({gaussian(q, z): steps}, "users", delta))
    opinions = every_bound(found)
    assert opinions["pld"] <= opinions["rdp"]
    assert opinions["pld"] <= opinions["gdp"] * 1.01
    assert found.lower <= opinions["pld, finer grid"] <= opinions["pld"]
    assert found.lower > 0.95 * found.epsilon
    assert found.second_opinion == ("pld, finer grid", opinions["pld, finer grid"])


@pytest.mark.parametrize("rate", [0.0, 1e-6, 1e-3, 0.05, 0.5, 0.999, 1.0])
@pytest.mark.parametrize("shift", [1e-4, 0.1, 1.0, 3.0])
def test_moments_at_whole_orders_equal_the_library(rate, shift):
    library = RdpAccountant(WHOLE_ORDERS)
    gaussian_event = dp_event.GaussianDpEvent(1 / shift)
    library.compose(dp_event.PoissonSampledDpEvent(rate, gaussian_event))
    found = rdp_at_whole_orders(rate, shift)
    assert len(found) == 93
    np.testing.assert_allclose(found, np.asarray(library.rdp), rtol=1e-13, atol=1e-17)


@settings(max_examples=25, deadline=None)
@given(
    q=st.floats(1e-4, 1),
    z=st.floats(0.3, 50),
    k=st.integers(0, 12),
    tau=st.floats(0, 2),
    q_e=st.floats(0, 1),
    steps=st.integers(1, 2000),
    unit=st.sampled_from(["entities", "users+entities"]),
)
def test_any_user_clip_has_a_sane_price(q, z, k, tau, q_e, steps, unit):
    sane(price({user_clip(z, q, k, tau, q_e): steps}, unit, 1e-6, fresh=True))


MINUTES = pytest.param(1e-17, 100, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("q_e", "steps"), [(5e-324, 100), (1e-300, 100), (1e-30, 100), (1e-17, 1), MINUTES]
)
def test_an_entity_that_is_hardly_ever_drawn_costs_nothing(q_e, steps):
    found = sane(price({user_clip(1.0, 0.5, 3, 1.0, q_e): steps}, "entities", 1e-6, fresh=True))
    assert found.epsilon < 1e-6


# --- composition --------------------------------------------------------------------------------


def test_different_events_compose():
    first, second = gaussian(0.05, 2.0), gaussian(0.2, 6.0)
    together = sane(price({first: 200, second: 100}, "users", 1e-5))
    alone = [price({first: 200}, "users", 1e-5), price({second: 100}, "users", 1e-5)]
    assert max(p.epsilon for p in alone) < together.epsilon < sum(p.epsilon for p in alone)
    theirs = pld.PLDAccountant(value_discretization_interval=1e-3)
    for event, count in ((first, 200), (second, 100)):
        inner = dp_event.GaussianDpEvent(event.noise_multiplier)
        theirs.compose(dp_event.PoissonSampledDpEvent(event.rate, inner), count)
    assert together.epsilon == pytest.approx(theirs.get_epsilon(1e-5), rel=0.005)


def test_many_different_events_compose():
    ledger = {gaussian(0.05, 2.0 + i / 10): 20 for i in range(12)}
    found = sane(price(ledger, "users", 1e-5))
    best, worst = gaussian(0.05, 3.1), gaussian(0.05, 2.0)
    assert price({best: 240}, "users", 1e-5).epsilon < found.epsilon
    assert found.epsilon < price({worst: 240}, "users", 1e-5).epsilon


def test_the_way_releases_are_listed_does_not_matter():
    event, other = user_clip(8), Public(what="nothing")
    prices = {
        price(releases, "users", 1e-5).epsilon
        for releases in (
            {event: 30, other: 2},
            [(event, 10), (other, 5), (event, 20)],
            ((event, n) for n in (1, 2, 27)),
        )
    }
    assert len(prices) == 1


def test_split_steps_cost_what_whole_ones_cost():
    nearly = gaussian(0.05, 2.0000001)
    mixed = price({gaussian(0.05, 2.0): 250, nearly: 250}, "users", 1e-5).epsilon
    assert mixed == pytest.approx(
        price({gaussian(0.05, 2.0): 500}, "users", 1e-5).epsilon, rel=1e-4
    )


def test_nothing_and_public_things_are_free_and_unprotected_ones_are_not():
    for unit in UNITS:
        assert price({}, unit, 1e-5).epsilon == 0
        assert price({Public(what="a list of countries"): 7}, unit, 1e-5).epsilon == 0
        assert price({NotPrivate(what="a vocabulary"): 1}, unit, 1e-5).epsilon == math.inf
        both = {user_clip(8): 10, NotPrivate(what="a vocabulary"): 1}
        assert price(both, unit, 1e-5).epsilon == math.inf


def test_another_unit_costs_infinity():
    for event in (
        gaussian(0.1, 5.0),
        gaussian(0.1, 5.0, "records"),
        user_clip(8),
        Flat(record_rate=0.1, records_per_user=1, records_per_entity=1, noise_multiplier=5),
        ReplaceOne(unit="tokens", rate=0.1, noise_multiplier=5),
        Selective(noise_multiplier=5, state_noise_multiplier=5, segments=1, states=1),
    ):
        for unit in UNITS:
            assert math.isinf(price(event, unit, 1e-5).epsilon) == (unit not in event.bounds)


def test_replacing_is_the_common_ground_when_neighbours_differ():
    removed = gaussian(0.1, 5.0, "records")
    replaced = ReplaceOne(unit="records", rate=0.1, noise_multiplier=5)
    mixed = price({removed: 50, replaced: 50}, "records", 1e-5)
    assert mixed.adjacency == "replace"
    assert mixed.epsilon == pytest.approx(price({replaced: 100}, "records", 1e-5).epsilon, rel=1e-9)
    clip = {user_clip(8): 5, ReplaceOne(unit="users", rate=0.1, noise_multiplier=5): 5}
    assert price(clip, "users", 1e-5).epsilon == math.inf
    assert price({user_clip(8): 5, gaussian(0.1, 5.0): 5}, "users", 1e-5).adjacency == "zero-out"


# --- edges --------------------------------------------------------------------------------------


def test_rate_zero_is_free_and_no_noise_is_infinite():
    for unit in ("users", "entities", "users+entities"):
        assert price({user_clip(0.0, q=0.0): 10}, unit, 1e-5).epsilon == 0
        assert price({user_clip(0.0, q=0.5): 10}, unit, 1e-5).epsilon == math.inf
    assert price({user_clip(0.0, k=0): 10}, "entities", 1e-5).epsilon == 0
    assert price({user_clip(0.0, tau=0.0): 10}, "entities", 1e-5).epsilon == 0
    assert price({gaussian(0.0, 0.0): 10}, "users", 1e-5).epsilon == 0
    assert price({gaussian(1e-9, 0.0): 1}, "users", 1e-5).epsilon == math.inf


@pytest.mark.parametrize("q", [1e-6, 0.01, 1.0])
@pytest.mark.parametrize("z", [1e-6, 0.05, 1.0, 1e6])
@pytest.mark.parametrize(("steps", "delta"), [(1, 1e-18), (1000, 1e-18), (10**6, 1e-5)])
def test_edges_of_the_sampled_gaussian(q, z, steps, delta):
    found = sane(price({gaussian(q, z): steps}, "users", delta))
    assert found.epsilon <= gaussian_epsilon(math.sqrt(steps) / z, delta) * (1 + 1e-9)
    # Below a shift of a thousandth the closed form cancels, and only a looser bound is certain.
    if q == 1.0 and math.sqrt(steps) / z >= 1e-3:
        assert found.epsilon == pytest.approx(
            gaussian_epsilon(math.sqrt(steps) / z, delta), rel=0.006
        )
    assert found.accountant in ("pld", "rdp", "gdp")


@pytest.mark.parametrize(
    ("event", "steps", "delta"),
    [
        (user_clip(8), 10**6, 1e-5),
        (user_clip(8), 1000, 1e-18),
        (user_clip(0.2), 300, 1e-5),
        (user_clip(1e6), 1000, 1e-5),
        (user_clip(1e-3), 10, 1e-5),
        (user_clip(40, 1.0, 3, 2.0), 1, 1e-18),
        (user_clip(50, 0.05, 10**6, 2.0), 1, 1e-5),
    ],
)
def test_edges_of_user_clipping(event, steps, delta):
    found = sane(price({event: steps}, "users+entities", delta))
    shift = (1 + event.entity_share * event.users_per_entity) / event.noise_multiplier
    assert found.epsilon <= gaussian_epsilon(math.sqrt(steps) * shift, delta) * (1 + 1e-9)


def test_prices_above_700_are_finite_and_bracketed():
    found = sane(price({gaussian(0.05, 0.1): 2000}, "users", 1e-5))
    assert 700 < found.lower <= found.epsilon < 1.2 * found.lower


def test_a_smaller_delta_never_costs_less():
    costs = [
        price({user_clip(6): 100}, "entities", d).epsilon for d in (1e-3, 1e-6, 1e-10, 1e-14, 1e-18)
    ]
    assert costs == sorted(costs)


@pytest.mark.parametrize("delta", [0, 1, -1, math.nan, math.inf, "1e-5", None, True, 2])
def test_a_delta_that_is_none_is_refused(delta):
    with pytest.raises(UsageError, match="delta"):
        price({user_clip(8): 1}, "users", delta)


@pytest.mark.parametrize("count", [-1, 1.0, True, None, "3", 10**30, math.nan])
def test_a_count_that_is_none_is_refused(count):
    with pytest.raises(UsageError, match="count"):
        price({user_clip(8): count}, "users", 1e-5)


def test_other_nonsense_is_refused():
    with pytest.raises(UsageError, match="unit"):
        price({user_clip(8): 1}, "people", 1e-5)  # type: ignore[arg-type]
    for releases in ("public", None, 3, [user_clip(8)], [(user_clip(8),)]):
        with pytest.raises(TacitError):
            price(releases, "users", 1e-5)  # type: ignore[arg-type]
    for step in (-1, 0.0, math.nan, 1e-12):
        with pytest.raises(UsageError, match="step"):
            price({user_clip(8): 1}, "users", 1e-5, step=step)


def test_a_curve_that_is_not_a_number_is_refused(monkeypatch):
    def broken(self, eps):
        return np.full_like(eps, math.nan)

    monkeypatch.setattr(OwnerMixture, "backward", broken)
    with pytest.raises(PrivacyRefused, match="not a number"):
        upper_losses(OwnerMixture(0.07, 2, 0.5, 1.0, True, 0.123), 0.01, 1e-17)


# --- curves -------------------------------------------------------------------------------------


def test_a_curve_over_steps_rises_and_agrees_with_single_prices():
    steps = [1, 10, 100, 500, 1000]
    curve = curve_over_steps(user_clip(8), steps, "users+entities", 1e-5)
    assert [count for count, _ in curve] == steps
    costs = [found.epsilon for _, found in curve]
    assert costs == sorted(costs)
    assert costs[3] == price({user_clip(8): 500}, "users+entities", 1e-5).epsilon


def test_a_curve_over_degree_rises():
    degrees = [0, 1, 2, 8, 40, 112]
    curve = curve_over_degree(user_clip(8, tau=2.0), degrees, "entities", 1e-5, 50)
    costs = [found.epsilon for _, found in curve]
    assert costs[0] == 0
    assert costs == sorted(costs)
    flat = Flat(record_rate=0.05, records_per_user=4, records_per_entity=1, noise_multiplier=4)
    costs = [p.epsilon for _, p in curve_over_degree(flat, [1, 5], "users+entities", 1e-5, 50)]
    assert costs[0] < costs[1]
    with pytest.raises(UsageError, match="degree"):
        curve_over_degree(gaussian(0.1, 1.0), [1], "users", 1e-5, 50)


# --- adversaries --------------------------------------------------------------------------------


def test_what_an_adversary_gains_is_between_guessing_and_one_epsilon():
    releases = {user_clip(8): 500}
    for unit in ("users", "entities", "users+entities"):
        cost = price(releases, unit, 1e-5)
        for gain in adversary_gain(releases, unit, 1e-5):
            assert gain.basis == "trade-off curve"
            assert gain.fpr < gain.tpr < math.exp(cost.epsilon) * gain.fpr + cost.delta


def test_the_gain_against_a_gaussian_is_exact():
    (gain,) = adversary_gain({gaussian(1.0, 1.0): 1}, "users", 1e-5, [0.01])
    assert gain.tpr == pytest.approx(0.0924, abs=2e-4)
    assert gain.tpr >= 0.09236


def test_an_adversary_gains_nothing_from_nothing_and_all_from_everything():
    assert [g.tpr for g in adversary_gain({}, "users", 1e-5)] == [0.01, 0.001]
    assert [g.tpr for g in adversary_gain(NotPrivate(what="x"), "users", 1e-5)] == [1.0, 1.0]
    big = adversary_gain({gaussian(1.0, 0.01): 100}, "users", 1e-5)
    assert all(gain.tpr == pytest.approx(1) for gain in big)
    tiny = adversary_gain({gaussian(0.01, 1.0): 1000}, "users", 1e-18)
    assert all(gain.basis != "trade-off curve" and gain.fpr < gain.tpr <= 1 for gain in tiny)
    with pytest.raises(UsageError, match="fpr"):
        adversary_gain({}, "users", 1e-5, [1.5])


# --- calibration --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "unit", "target", "least"),
    [
        (lambda z: gaussian(0.05, z), "users", 1.0, 4.330),
        (lambda z: user_clip(z), "users+entities", 1.0, 9.201),
        (lambda z: user_clip(z, k=1, tau=2.0), "users+entities", 4.0, 3.907),
        (
            lambda z: Flat(
                record_rate=0.05, records_per_user=4, records_per_entity=1, noise_multiplier=z
            ),
            "users+entities",
            1.0,
            21.07,
        ),
    ],
)
def test_calibrated_noise_meets_the_target_and_hardly_more(make, unit, target, least):
    seen = []
    noise = calibrate(make, target, 1e-5, unit, 500, progress=lambda *trial: seen.append(trial))
    assert price({make(noise): 500}, unit, 1e-5).epsilon <= target
    assert price({make(noise * 0.99): 500}, unit, 1e-5).epsilon > target
    assert noise == pytest.approx(least, rel=0.01)
    assert 0 < len(seen) <= 25
    assert [trial for trial, _, _ in seen] == list(range(1, len(seen) + 1))


@pytest.mark.parametrize("target", [8.0, 0.5, 2.71828, 0.99999])
@pytest.mark.parametrize("rate", [1.0, 0.05])
@pytest.mark.parametrize("delta", [1e-5, 1e-14])
def test_nothing_that_is_shown_as_an_opinion_exceeds_the_target(target, rate, delta):
    """Without sampling the closed form is the price, and the grid lies above it."""
    noise = calibrate(lambda z: gaussian(rate, z), target, delta, "users", 50)
    found = sane(price({gaussian(rate, noise): 50}, "users", delta))
    shown = [float(up(opinion)) for _, opinion in (("price", found.epsilon), *found.opinions)]
    assert max(shown) <= target
    if found.second_opinion is None:
        assert found.beside.startswith("looser bounds ")
    else:
        assert found.beside.startswith("second opinion ")
        assert float(up(found.second_opinion[1])) <= target
    assert float(down(found.lower)) <= float(up(found.epsilon))


def test_without_sampling_the_grid_is_a_looser_bound_and_no_opinion():
    found = price({gaussian(1.0, 6.0): 100}, "users", 1e-5)
    assert found.accountant == "gdp"
    assert found.opinions == (("gdp", found.epsilon),)
    assert {name for name, _ in found.looser_bounds} == {"rdp", "pld", "pld, finer grid"}


def test_calibration_counts_what_was_released_before():
    before = {gaussian(0.1, 5.0): 100}
    noise = calibrate(lambda z: gaussian(0.05, z), 2.0, 1e-5, "users", 200, also=before)
    assert price(before | {gaussian(0.05, noise): 200}, "users", 1e-5).epsilon <= 2.0
    assert noise > calibrate(lambda z: gaussian(0.05, z), 2.0, 1e-5, "users", 200)


def test_a_target_out_of_reach_is_refused():
    cases: list[tuple[Any, Unit, dict[Any, int]]] = [
        (lambda z: gaussian(0.05, z), "entities", {}),
        (lambda z: gaussian(0.05, z), "users", {gaussian(0.5, 1.0): 100}),
        (lambda z: NotPrivate(what="x"), "users", {}),
    ]
    for make, unit, also in cases:
        with pytest.raises(PrivacyRefused, match="not reached"):
            calibrate(make, 0.5, 1e-5, unit, 100, also=also)
    for target in (0, -1, math.nan, math.inf, "1"):
        with pytest.raises(UsageError, match="target_epsilon"):
            calibrate(lambda z: gaussian(0.05, z), target, 1e-5, "users", 100)  # type: ignore[arg-type]


def test_what_costs_nothing_needs_no_noise():
    assert calibrate(lambda z: gaussian(0.0, z), 1.0, 1e-5, "users", 100) == 0.0


# --- the cache ----------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path))
    return tmp_path


def entries(folder):
    return sorted(folder.rglob("*.json"))


def test_a_price_is_remembered_exactly(cache, monkeypatch):
    releases = {user_clip(7.5): 20}
    first = price(releases, "entities", 1e-5)
    assert len(entries(cache)) == 1
    monkeypatch.setattr(pricing, "_price", lambda *_: pytest.fail("computed again"))
    assert price(releases, "entities", 1e-5) == first
    with pytest.raises(pytest.fail.Exception):
        price({user_clip(math.nextafter(7.5, 8)): 20}, "entities", 1e-5)
    with pytest.raises(pytest.fail.Exception):
        price(releases, "entities", 1e-5, fresh=True)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "null",
        lambda text: '{"price": {}}',
        lambda text: text.replace("epsilon", "epsilom"),
        lambda text: text.replace('"epsilon": 0.', '"epsilon": 0.0'),
        lambda text: text.replace('"unit": "entities"', '"unit": "users"'),
    ],
)
def test_a_damaged_entry_is_ignored_and_replaced(cache, damage):
    releases = {user_clip(7.5): 20}
    first = price(releases, "entities", 1e-5)
    (entry,) = entries(cache)
    whole = entry.read_text()
    entry.write_text(damage(whole))
    assert entry.read_text() != whole
    assert price(releases, "entities", 1e-5) == first
    assert entry.read_text() == whole


def test_an_infinite_price_is_remembered_too(cache):
    assert price({user_clip(0.0): 5}, "users", 1e-5) == price({user_clip(0.0): 5}, "users", 1e-5)
    assert len(entries(cache)) == 1
    assert price({user_clip(0.0): 5}, "users", 1e-5).as_json()["epsilon"] == "infinity"


def test_a_cache_that_cannot_be_used_costs_nothing_else(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("TACIT_CACHE", str(blocked))
    assert price({user_clip(7.5): 20}, "entities", 1e-5).epsilon > 0
    monkeypatch.setenv("TACIT_CACHE", "off")
    assert price_cache.cache_folder() is None
    assert price({user_clip(7.5): 20}, "entities", 1e-5).epsilon > 0


def test_the_code_version_covers_every_file_that_prices():
    room = Path(pricing.__file__).parent.parent
    covered = {file for pattern in price_cache.CODE for file in room.glob(pattern)}
    reached, open_ = set(), {Path(pricing.__file__)}
    while open_:
        file = open_.pop()
        reached.add(file)
        text = file.read_text()
        assert "from tacit.privacy import" not in text  # the pattern below would not see it
        assert "from tacit.privacy.accounting import" not in text
        named = re.findall(r"^ *(?:from|import) tacit\.privacy\.([\w.]+)", text, re.MULTILINE)
        open_ |= {room / f"{name.replace('.', '/')}.py" for name in named} - reached
    assert len(reached) > 12
    assert reached <= covered


def test_many_at_once_agree(cache):
    def ask(_):
        return price({user_clip(7.5): 20}, "entities", 1e-5).epsilon

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(ask, range(16)))) == 1
    assert len(entries(cache)) == 1
    assert not list(cache.rglob("*.new"))


def test_a_price_is_readable_json():
    found = price({user_clip(8): 500}, "users", 1e-5)
    text = json.loads(json.dumps(found.as_json()))
    assert text["standing"] == "proved"
    assert text["unit"] == "users"
    assert text["lower"] <= text["epsilon"]
    assert set(text["opinions"]) == {"pld", "pld, finer grid"}
    assert set(text["looser_bounds"]) == {"gdp", "rdp"}
