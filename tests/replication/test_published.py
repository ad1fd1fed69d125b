"""The papers' figures: reproduced where their inputs are printed, and labelled."""

import json
import math
from typing import Any

import dp_accounting
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st

from support import papers
from tacit.errors import UsageError
from tacit.replication import published
from tacit.replication.published import PUBLISHED, PublishedPrice, renyi

CONLL: dict[str, Any] = {
    "users": 946,
    "users_per_step": 50,
    "entity_rate": 0.5,
    "noise_multiplier": 2.0,
}


def conll(steps: int, sensitive: int = 11_176, **more: Any) -> float:
    price = published.uedp(
        **{**CONLL, "steps": steps, "sensitive": sensitive, "records": 14_040, **more}
    )
    return price.epsilon["users+entities"]


# --- the user-entity paper's own numbers --------------------------------------------------------


def test_all_27_printed_epsilons_are_reproduced() -> None:
    rows = papers.uedp_table()
    assert len(rows) == 27
    assert max(abs(row.residual) for row in rows) < 0.012
    assert math.sqrt(sum(row.residual**2 for row in rows) / 27) < 0.005
    assert {row.corpus for row in rows} == {"CoNLL-2003", "AG", "SEC"}
    assert sum(row.estimator == "user" for row in rows) == 6


@pytest.mark.parametrize(
    ("corpus", "steps", "estimator", "category", "expected"),
    [
        ("CoNLL-2003", 50, "f_E", "Org", 0.6132),
        ("CoNLL-2003", 50, "f_E+", "Org", 0.3565),
        ("CoNLL-2003", 500, "f_E+", "Misc", 0.4288),
        ("CoNLL-2003", 500, "f_E+", "Org", 0.6030),
        ("CoNLL-2003", 500, "user", "", 3.3982),
        ("AG", 50, "user", "", 1.4727),
        ("AG", 500, "f_E+", "All", 1.2378),
        ("SEC", 500, "f_E+", "GPE", 0.1865),
        ("SEC", 500, "user", "", 4.0797),
    ],
)
def test_recomputed_figures_do_not_drift(
    corpus: str, steps: int, estimator: str, category: str, expected: float
) -> None:
    (row,) = [
        row
        for row in papers.uedp_table()
        if (row.corpus, row.steps, row.estimator, row.category)
        == (corpus, steps, estimator, category)
    ]
    assert row.recomputed == pytest.approx(expected, abs=6e-5)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(42, 0.499), (282, 0.999), (660, 1.499), (1181, 1.999), (1841, 2.500), (2634, 3.000)],
)
def test_held_out_checkpoints_land_on_round_epsilons(steps: int, expected: float) -> None:
    """Step counts that the authors saved at; no part of the fit, yet all near a multiple of 1/2."""
    assert conll(steps) == pytest.approx(expected, abs=6e-4)


def test_the_accountant_cannot_print_less_than_its_floor() -> None:
    floor = -math.log(1e-5) / 63
    assert floor == pytest.approx(0.1827, abs=5e-5)
    price = published.uedp(**CONLL, steps=1, sensitive=1, records=10**9)
    assert price.epsilon["users+entities"] == pytest.approx(floor, abs=1e-6)
    assert price.details["epsilon_floor"] == floor
    assert conll(1, entity_rate=0.0) == pytest.approx(floor)


def test_the_share_of_sensitive_records_enters_only_f_e_plus() -> None:
    with_share = published.uedp(**CONLL, steps=50, estimator="f_E", sensitive=5, records=10)
    without = published.uedp(**CONLL, steps=50, estimator="f_E")
    assert with_share.epsilon == without.epsilon
    everything = published.uedp(**CONLL, steps=50, estimator="f_E+", sensitive=7, records=7)
    assert everything.epsilon == without.epsilon


def test_renyi_values_are_the_librarys() -> None:
    """Undoing the library's conversion gives back the closed-form divergence."""
    rate, z, steps, order = 0.03, 1.7, 300, 9
    terms = [
        math.log(math.comb(order, i))
        + i * math.log(rate)
        + (order - i) * math.log1p(-rate)
        + (i * i - i) / (2 * z * z)
        for i in range(order + 1)
    ]
    expected = steps * math.log(sum(map(math.exp, terms))) / (order - 1)
    assert renyi(order, rate, z, steps) == pytest.approx(expected, rel=1e-9)


def test_user_level_figure_is_above_a_tight_accountant() -> None:
    price = published.user(users=946, users_per_step=50, noise_multiplier=2.0, steps=500)
    accountant = dp_accounting.pld.PLDAccountant()
    accountant.compose(
        dp_accounting.SelfComposedDpEvent(
            dp_accounting.PoissonSampledDpEvent(50 / 946, dp_accounting.GaussianDpEvent(2.0)), 500
        )
    )
    assert price.is_bound
    assert "drawn independently" in price.condition
    assert price.epsilon["users"] > accountant.get_epsilon(1e-5)


# --- sensitivities and noise --------------------------------------------------------------------

SCALE: dict[str, Any] = {
    "users": 946,
    "users_per_step": 50,
    "entity_rate": 0.5,
    "user_weight_sum": 946.0,
    "entity_weight_sum": 11_176.0,
    "clip_norm": 0.1,
    "noise_multiplier": 2.0,
}


def test_lemmas_and_patent_by_hand() -> None:
    one = papers.lemma1(**SCALE)
    assert one.sensitivity == pytest.approx(51 * 0.1 / (50 * 5588))
    assert one.noise_std == pytest.approx(2 * one.sensitivity)
    two = papers.lemma2(**SCALE, plain_rate=1.0, plain_weight_sum=2_864.0)
    assert two.sensitivity == pytest.approx(51 * 0.1 / (50 * (5588 + 2864)))
    three = papers.patent(**SCALE)
    assert three.sensitivity == pytest.approx(947 / 51 * one.sensitivity)
    four = papers.patent(**SCALE, plain_rate=1.0, plain_weight_sum=2_864.0)
    assert four.sensitivity == pytest.approx(947 / 51 * two.sensitivity)
    assert not any(scale.is_bound for scale in (one, two, three, four))
    assert all(scale.why_not and scale.standing == "published" for scale in (one, two, three, four))


def test_squaring_the_noise_loses_a_factor_of_forty_thousand() -> None:
    """The size of the mistake of passing a variance where a standard deviation is wanted."""
    scale = papers.lemma2(**SCALE, plain_rate=1.0, plain_weight_sum=2_864.0)
    assert scale.noise_std / scale.noise_std**2 == pytest.approx(41_431, rel=1e-4)


def test_weights_enter_the_scale() -> None:
    capped = papers.lemma1(**SCALE, user_weight_cap=0.5)
    assert capped.sensitivity == pytest.approx(papers.lemma1(**SCALE).sensitivity / 2)
    heavier = papers.lemma1(**{**SCALE, "user_weight_sum": 2 * 946.0})
    assert heavier.sensitivity == pytest.approx(papers.lemma1(**SCALE).sensitivity / 2)


def test_an_empty_denominator_is_refused() -> None:
    with pytest.raises(UsageError, match="denominator"):
        papers.lemma1(**{**SCALE, "entity_rate": 0.0})


# --- the other papers ---------------------------------------------------------------------------


def test_selective_counts_gradients_and_states_alike() -> None:
    one = published.selective(noise_multiplier=0.7, record_rate=3e-4, gradient_releases=90_000)
    two = published.selective(
        noise_multiplier=0.7, record_rate=3e-4, gradient_releases=30_000, state_releases=60_000
    )
    assert one.epsilon == two.epsilon
    assert not one.is_bound
    assert "accounting" in one.details["sound_price"]


def test_the_dialog_baseline_of_the_selective_paper() -> None:
    """10,000 dialogs, one per step, 100 epochs: settings of the public recipe, not the paper."""
    price = published.selective(
        noise_multiplier=0.6, record_rate=1e-4, gradient_releases=1_000_000, delta=8e-5
    )
    assert price.epsilon["tokens"] == pytest.approx(2.51, abs=0.005)


def test_gdp_mu_known_value_and_the_printed_order_of_magnitude() -> None:
    mu = published.gdp_mu(record_rate=256 / 60_000, noise_multiplier=1.3, steps=3516)
    assert mu == pytest.approx(0.227, abs=5e-4)
    one_pass: dict[str, Any] = {"record_rate": 100 / 48_000, "steps": 480}
    assert math.log10(published.gdp_mu(**one_pass, noise_multiplier=0.1)) == pytest.approx(
        20, abs=1
    )
    implied = papers.gdp_noise_multiplier(mu=1e20, **one_pass)
    assert implied == pytest.approx(0.1, abs=0.002)
    assert published.gdp_mu(**one_pass, noise_multiplier=implied) == pytest.approx(1e20, rel=1e-9)


@pytest.mark.parametrize(
    ("mu", "expected"), [(0.25, 0.9263), (0.5, 1.9931), (1, 4.3772), (2, 9.9973), (4, 24.3816)]
)
def test_gdp_epsilon_reference_values(mu: float, expected: float) -> None:
    noise = papers.gdp_noise_multiplier(mu=mu, record_rate=0.01, steps=1000)
    price = published.gdp(record_rate=0.01, noise_multiplier=noise, steps=1000, delta=1e-5)
    assert price.details["mu"] == pytest.approx(mu)
    assert price.epsilon["records"] == pytest.approx(expected, abs=1e-4)


def test_gdp_can_fall_below_a_certain_lower_bound() -> None:
    price = published.gdp(record_rate=0.01, noise_multiplier=0.8, steps=1000, delta=1e-6)
    optimistic = privacy_loss_distribution.from_gaussian_mechanism(
        0.8,
        sampling_prob=0.01,
        pessimistic_estimate=False,
        use_connect_dots=False,
        value_discretization_interval=1e-4,
    ).self_compose(1000)
    assert price.epsilon["records"] < optimistic.get_epsilon_for_delta(1e-6)
    assert not price.is_bound


def test_dpnr() -> None:
    assert published.dpnr(epsilon=0.05, dimensions=768).epsilon["tokens"] == pytest.approx(38.4)
    dropped = published.dpnr(epsilon=0.05, dimensions=20, word_dropout=0.3).epsilon["tokens"]
    assert dropped == pytest.approx(math.log(0.7 * math.e + 0.3))
    huge = published.dpnr(epsilon=1e6, dimensions=768, word_dropout=0.5).epsilon["tokens"]
    assert huge == pytest.approx(768e6 - math.log(2))
    assert published.dpnr(epsilon=1.0, dimensions=4, word_dropout=1.0).epsilon["tokens"] == 0
    assert published.dpnr(epsilon=1.0, dimensions=4).delta == 0


def test_dropout_amplification_holds_in_the_worst_case() -> None:
    """Worst case of two outcomes: both texts and the dropped one within exp(k epsilon)."""
    ratio, dropout = math.exp(2.0), 0.4
    claimed = published.dpnr(epsilon=1.0, dimensions=2, word_dropout=dropout).epsilon["tokens"]
    for step in range(101):
        base = 1 + (ratio - 1) * step / 100  # the dropped text, relative to the less likely one
        attained = (dropout * base + (1 - dropout) * ratio) / (dropout * base + (1 - dropout))
        assert math.log(attained) <= claimed + 1e-12


def test_binary_encoding_as_argued_there() -> None:
    price = published.binary(epsilon=0.1, dimensions=3, integer_bits=2, fraction_bits=3)
    by_hand = 3 * 0.1 * (2**3 + (1 + 2) + (1 / 2 + 1 / 4 + 1 / 8))
    assert price.epsilon["records"] == pytest.approx(by_hand)
    assert price.details["plain_sum"] == pytest.approx(3 * 0.1 * 6)
    assert price.details["label"] == "as argued there"
    assert price.is_bound
    fractions = published.binary(epsilon=0.1, dimensions=3, integer_bits=0, fraction_bits=9)
    assert not fractions.is_bound
    assert fractions.why_not
    giant = published.binary(epsilon=1.0, dimensions=1, integer_bits=5000, fraction_bits=0)
    assert giant.epsilon["records"] == math.inf


def test_lines_over_steps_end_at_the_figure_itself() -> None:
    given = {**CONLL, "steps": 500, "sensitive": 5187, "records": 14_040}
    lines = published.over_steps("uedp", given)
    assert list(lines) == ["users and entities, f_E", "users and entities, f_E+", "users alone"]
    for line in lines.values():
        assert line[-1][0] == 500
        assert [epsilon for _, epsilon in line] == sorted(epsilon for _, epsilon in line)
    claimed = published.uedp(**given).epsilon["users+entities"]
    assert lines["users and entities, f_E+"][-1][1] == claimed
    with pytest.raises(UsageError, match="does not go by steps"):
        published.over_steps("dpnr", {"epsilon": 1.0, "dimensions": 2})


# --- shape of a result --------------------------------------------------------------------------

EXAMPLES: dict[str, dict[str, object]] = {
    "uedp": {**CONLL, "steps": 500, "sensitive": 5187, "records": 14_040},
    "user": {"users": 946, "users_per_step": 50, "noise_multiplier": 2.0, "steps": 500},
    "selective": {"noise_multiplier": 0.5, "record_rate": 1e-3, "gradient_releases": 1000},
    "gdp": {"record_rate": 0.01, "noise_multiplier": 1.0, "steps": 1000},
    "dpnr": {"epsilon": 0.05, "dimensions": 768},
    "binary": {"epsilon": 0.1, "dimensions": 3, "integer_bits": 2, "fraction_bits": 3},
}


def test_registry_names() -> None:
    assert set(PUBLISHED) == {"uedp", "user", "selective", "gdp", "dpnr", "binary"} == set(EXAMPLES)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_every_price_is_labelled_and_serialises(name: str) -> None:
    price = PUBLISHED[name](**EXAMPLES[name])
    assert isinstance(price, PublishedPrice)
    assert price.method == name
    assert price.standing == "published"
    assert price.source
    assert price.is_bound == (price.why_not == "")
    assert "\n" not in price.why_not
    saved = json.loads(json.dumps(price.as_dict(), allow_nan=False))
    assert saved["epsilon"] == dict(price.epsilon)
    assert saved["inputs"].items() >= EXAMPLES[name].items()
    with pytest.raises((AttributeError, TypeError)):
        price.epsilon["users"] = 0.0
    with pytest.raises(AttributeError):
        price.delta = 0.5  # type: ignore[misc]


@settings(max_examples=30, deadline=None)
@given(
    users=st.integers(1, 10**6),
    share=st.floats(0.001, 1),
    entity_rate=st.floats(0, 1),
    noise=st.floats(0, 1e6),
    steps=st.integers(1, 10**6),
    delta=st.floats(1e-18, 0.99),
)
def test_never_nan_never_negative(
    users: int, share: float, entity_rate: float, noise: float, steps: int, delta: float
) -> None:
    common: dict[str, Any] = {"noise_multiplier": noise, "steps": steps, "delta": delta}
    per_step = min(float(users), max(1e-3, share * users))
    prices = [
        published.uedp(
            estimator="f_E", users=users, users_per_step=per_step, entity_rate=entity_rate, **common
        ),
        published.user(users=users, users_per_step=per_step, **common),
        published.gdp(record_rate=share, **common),
        published.selective(
            noise_multiplier=noise, record_rate=share, gradient_releases=steps, delta=delta
        ),
    ]
    for price in prices:
        (epsilon,) = price.epsilon.values()
        assert epsilon >= 0  # False for NaN


@pytest.mark.parametrize("noise", [0.0, 1e-9, 1e-3])
def test_no_noise_is_no_privacy(noise: float) -> None:
    price = published.user(users=10, users_per_step=10, noise_multiplier=noise, steps=1)
    assert price.epsilon["users"] > 1e5
    gdp = published.gdp(record_rate=1.0, noise_multiplier=noise, steps=1)
    assert gdp.epsilon["records"] == math.inf


def test_monotone() -> None:
    assert conll(10) < conll(100) < conll(1000)
    assert conll(100, noise_multiplier=3.0) < conll(100, noise_multiplier=1.0)
    assert conll(100, sensitive=100) < conll(100, sensitive=10_000)
    assert conll(100, entity_rate=0.2) < conll(100, entity_rate=0.9)
    assert conll(100, users_per_step=5) < conll(100, users_per_step=500)
    assert conll(100, delta=1e-3) < conll(100, delta=1e-9)
    gdps = [
        published.gdp(record_rate=0.01, noise_multiplier=z, steps=100).epsilon["records"]
        for z in (0.3, 0.5, 1.0, 3.0)
    ]
    assert gdps == sorted(gdps, reverse=True)
    drops = [
        published.dpnr(epsilon=0.1, dimensions=50, word_dropout=d).epsilon["tokens"]
        for d in (0.0, 0.1, 0.5, 0.9, 1.0)
    ]
    assert drops == sorted(drops, reverse=True)


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("uedp", {"estimator": "f"}, "estimator=f is not known; give one of f_E, f_E"),
        ("uedp", {"users": 0}, "users=0 .* at least 1"),
        ("uedp", {"users": 9.5}, "users=9.5 .* whole number"),
        ("uedp", {"users_per_step": 947}, "users_per_step=947 .* at most users=946"),
        ("uedp", {"users_per_step": 0}, "users_per_step=0 .* above 0"),
        ("uedp", {"entity_rate": 1.5}, "entity_rate=1.5 is not a probability; .* between 0 and 1"),
        ("uedp", {"entity_rate": math.nan}, "entity_rate=nan"),
        ("uedp", {"sensitive": None}, "sensitive=None"),
        ("uedp", {"sensitive": 20_000}, "sensitive=20000 is larger than records=14040"),
        ("uedp", {"noise_multiplier": -1}, "noise_multiplier=-1 .* 0 or more"),
        ("uedp", {"noise_multiplier": math.inf}, "noise_multiplier=inf"),
        ("uedp", {"noise_multiplier": "2"}, "noise_multiplier=2"),
        ("uedp", {"steps": 0}, "steps=0 .* at least 1"),
        ("uedp", {"steps": True}, "steps=True"),
        ("uedp", {"delta": 0}, "delta=0 .* above 0 and below 1"),
        ("user", {"delta": 1}, "delta=1 .* below 1"),
        ("selective", {"gradient_releases": 0}, "releases nothing"),
        ("selective", {"record_rate": -0.1}, "record_rate=-0.1"),
        ("gdp", {"record_rate": 2}, "record_rate=2"),
        ("gdp", {"steps": 1.5}, "steps=1.5"),
        ("dpnr", {"dimensions": 0}, "dimensions=0 .* at least 1"),
        ("dpnr", {"epsilon": -1}, "epsilon=-1"),
        ("dpnr", {"word_dropout": 1.01}, "word_dropout=1.01 is not a probability"),
    ],
)
def test_bad_inputs_name_the_value_and_the_range(
    name: str, change: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        PUBLISHED[name](**{**EXAMPLES[name], **change})
