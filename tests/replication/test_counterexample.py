"""The counter-example: contradicts the published price, never the sound one."""

import math
from typing import Any

import numpy as np
import pytest

from support import papers, playing
from tacit.errors import UsageError
from tacit.replication import counterexample, published
from tacit.replication.counterexample import PAPER, Instance

CLAIMED = {
    steps: published.uedp(estimator="f_E", steps=steps, **PAPER).epsilon["users+entities"]
    for steps in (50, 500)
}

_GAME = ("steps", "delta", "grid", "runs", "confidence", "rng")


def lower_bound(**given: Any) -> float:
    game = {name: given.pop(name) for name in _GAME if name in given}
    return counterexample.lower_bound(Instance(**given), **game)


def attack(**given: Any) -> playing.SampledAttack:
    game = {name: given.pop(name) for name in _GAME if name in given}
    return playing.attack(Instance(**given), **game)


# Lower bounds by the same construction, computed once by other code; those above 1.
TABLE = {
    (50, 112): 1.603,
    (50, 250): 4.107,
    (50, 500): 9.896,
    (50, 946): 24.86,
    (500, 32): 1.307,
    (500, 64): 2.992,
    (500, 112): 5.851,
    (500, 250): 16.13,
    (500, 500): 42.84,
    (500, 946): 121.2,
}

# Proved upper bounds for the paper's noise: (steps, holders) to epsilon for users+entities.
SOUND = {
    (50, 1): 0.03354,
    (500, 1): 0.1184,
    (50, 8): 0.2282,
    (500, 8): 0.7819,
    (50, 32): 1.052,
    (500, 32): 3.675,
    (50, 112): 3.915,
    (500, 112): 15.36,
}


@pytest.mark.parametrize(("steps", "holders"), sorted(TABLE))
def test_the_table_above_one(steps: int, holders: int) -> None:
    bound = lower_bound(steps=steps, holders=holders, **PAPER)
    assert bound == pytest.approx(TABLE[steps, holders], rel=0.01)
    setting = {name: value for name, value in PAPER.items() if name != "delta"}
    assert Instance(holders=holders, **setting).noise_std == 102.0


def test_rows_say_which_degrees_are_contradicted() -> None:
    rows = counterexample.counterexample_table(holders=(1, 16, 112, 946))
    verdicts = {(row.steps, row.holders): row.contradicts for row in rows}
    assert verdicts == {
        (steps, holders): holders >= 112 for steps in (50, 500) for holders in (1, 16, 112, 946)
    }
    assert {row.claimed for row in rows} == set(CLAIMED.values())


def test_contradicts_every_published_claim_of_the_setting() -> None:
    """112 is the largest number of documents that share a spelling in CoNLL-2003."""
    counts = papers.UEDP_CORPORA["CoNLL-2003"]
    for steps in (50, 500):
        at_least = lower_bound(steps=steps, holders=112, **PAPER)
        assert at_least > CLAIMED[steps]
        for sensitive in counts.sensitive.values():
            claim = published.uedp(
                estimator="f_E+", steps=steps, sensitive=sensitive, records=counts.records, **PAPER
            )
            assert not claim.is_bound
            assert at_least > claim.epsilon["users+entities"]


@pytest.mark.parametrize(("steps", "holders"), sorted(SOUND))
@pytest.mark.parametrize("rule", ["drawn", "any"])
def test_never_contradicts_the_sound_price(steps: int, holders: int, rule: str) -> None:
    grid = 5e-5 if holders <= 32 else 5e-4
    bound = lower_bound(steps=steps, holders=holders, rule=rule, grid=grid, **PAPER)
    assert 0 < bound <= SOUND[steps, holders]


def test_ablations() -> None:
    """Where the published claim breaks, one reason at a time (all users hold the entity)."""
    no_flip = lower_bound(steps=50, holders=946, sign_flip=False, **PAPER)
    assert no_flip == pytest.approx(9.20, rel=0.01)
    any_rule = lower_bound(steps=50, holders=946, rule="any", **PAPER)
    assert any_rule == pytest.approx(52.8, rel=0.01)
    patent = lower_bound(steps=500, holders=946, noise="patent", **PAPER)
    assert patent == pytest.approx(2.282, rel=0.01)
    patent_any = lower_bound(steps=500, holders=946, noise="patent", rule="any", **PAPER)
    assert patent_any == pytest.approx(5.186, rel=0.01)
    assert min(no_flip, any_rule) > CLAIMED[50]
    assert min(patent, patent_any) > CLAIMED[500]


def test_plain_gaussian_is_met_from_below() -> None:
    """One holder drawn for certain, no coin: a Gaussian with known epsilon, computed apart."""
    known = {1.0: 4.3772, 2.0: 9.9973, 0.5: 1.9931}  # signal-to-noise to epsilon at delta 1e-5
    for mu, epsilon in known.items():
        # 2 noise_multiplier units of noise against a move of 2: signal-to-noise 1/noise_multiplier
        bound = lower_bound(
            users=1,
            users_per_step=1,
            entity_rate=1.0,
            noise_multiplier=1 / mu,
            steps=1,
            holders=1,
            delta=1e-5,
            grid=1e-4,
        )
        assert epsilon - 0.02 < bound <= epsilon + 1e-4


def test_composition_of_plain_gaussians() -> None:
    bound = lower_bound(
        users=1,
        users_per_step=1,
        entity_rate=1.0,
        noise_multiplier=10.0,
        steps=100,
        holders=1,
        delta=1e-5,
        grid=1e-4,
    )
    assert bound == pytest.approx(4.3772, abs=0.02)
    assert bound <= 4.3773


def test_monotone() -> None:
    def at(**change: object) -> float:
        return lower_bound(**{**PAPER, "steps": 50, "holders": 250, **change})

    assert at(holders=100) < at() < at(holders=400)
    assert at(steps=10) < at() < at(steps=200)
    assert at(noise_multiplier=4.0) < at() < at(noise_multiplier=1.0)
    assert at(entity_rate=0.1) < at() < at(entity_rate=1.0)
    assert at(entity_rate=1.0) == pytest.approx(at(rule="any"))
    assert at(sign_flip=False) < at()
    assert at(noise="patent") < at()
    assert at(delta=1e-3) < at() < at(delta=1e-7)
    assert at(grid=5e-3) < at() <= at(grid=2.5e-4)


@pytest.mark.parametrize(
    "change",
    [
        {"noise_multiplier": 1e-3},
        {"noise_multiplier": 1e6},
        {"entity_rate": 0.0},
        {"entity_rate": 1.0},
        {"users_per_step": 946},
        {"users_per_step": 0.001},
        {"delta": 1e-18},
        {"delta": 0.9},
        {"steps": 1},
        {"steps": 100_000},
    ],
)
@pytest.mark.filterwarnings("error")
def test_edges_give_a_number(change: dict[str, object]) -> None:
    epsilon = lower_bound(**{**PAPER, "steps": 5, "holders": 100, **change})
    assert 0 <= epsilon <= 700


def test_nothing_to_see_gives_zero() -> None:
    assert lower_bound(**{**PAPER, "entity_rate": 0.0}, steps=50, holders=946) == 0
    assert lower_bound(**{**PAPER, "noise_multiplier": 1e6}, steps=5, holders=946) == 0


# --- the sampled attack -------------------------------------------------------------------------


def test_attack_certifies_around_eight() -> None:
    result = attack(steps=50, holders=946, **PAPER, rng=np.random.default_rng(20))
    assert 7.5 < result.epsilon < 9
    assert result.epsilon > CLAIMED[50]
    assert result.epsilon <= lower_bound(steps=50, holders=946, **PAPER)
    assert result.confidence == 0.99
    assert result.kind == "sampled"


def test_attack_is_reproducible_and_never_above_the_certified_bound() -> None:
    for holders in (112, 250, 500):
        first = attack(
            steps=50, holders=holders, runs=40_000, **PAPER, rng=np.random.default_rng(1)
        )
        again = attack(
            steps=50, holders=holders, runs=40_000, **PAPER, rng=np.random.default_rng(1)
        )
        assert first == again
        assert first.epsilon <= lower_bound(steps=50, holders=holders, **PAPER)


def test_attack_without_sign_flip() -> None:
    result = attack(
        steps=50,
        holders=946,
        sign_flip=False,
        runs=100_000,
        **PAPER,
        rng=np.random.default_rng(3),
    )
    assert CLAIMED[50] < result.epsilon <= 9.3


def test_attack_on_a_rare_entity_shows_nothing() -> None:
    result = attack(steps=50, holders=1, runs=20_000, **PAPER, rng=np.random.default_rng(4))
    assert result.epsilon <= SOUND[50, 1]


def test_attack_has_its_error_rate() -> None:
    """With no difference at all, 99 % confidence may fail now and then, not more."""
    wrong = 0
    for seed in range(60):
        result = attack(
            **{**PAPER, "entity_rate": 0.0},
            steps=1,
            holders=50,
            runs=400,
            rng=np.random.default_rng(seed),
        )
        wrong += result.epsilon > 0
    assert wrong <= 4


def test_clopper_pearson_reference_values() -> None:
    """Counts out of 1000, delta 1e-5, 95 %: certified epsilons computed by other code."""
    got = playing.clopper_pearson_epsilon(
        np.array([300, 900, 500]), np.array([10, 100, 0]), 1000, 1e-5, 0.95
    )
    assert got == pytest.approx([2.6971, 1.9897, 4.8461], abs=2e-4)
    nothing = playing.clopper_pearson_epsilon(np.array([0, 10]), np.array([0, 10]), 10, 1e-5, 0.95)
    assert nothing[0] == -math.inf
    assert nothing[1] < 0


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"holders": 0}, "holders=0 .* at least 1"),
        ({"holders": 947}, "holders=947 is larger than users=946"),
        ({"users_per_step": 1000}, "users_per_step=1000"),
        ({"entity_rate": -0.5}, "entity_rate=-0.5 is not a probability"),
        ({"noise_multiplier": 0}, "noise_multiplier=0 .* above 0"),
        ({"steps": 0}, "steps=0"),
        ({"delta": 0.0}, "delta=0.0"),
        ({"rule": "all"}, "rule=all is not known; give one of drawn, any"),
        ({"noise": "none"}, "noise=none is not known; give one of lemma, patent"),
    ],
)
def test_bad_inputs(change: dict[str, object], message: str) -> None:
    arguments = {**PAPER, "steps": 50, "holders": 10, **change}
    with pytest.raises(UsageError, match=message):
        lower_bound(**arguments)
    with pytest.raises(UsageError, match=message):
        attack(**arguments, runs=100, rng=np.random.default_rng(0))


def test_bad_inputs_of_one_function() -> None:
    with pytest.raises(UsageError, match=r"grid=0 .* above 0"):
        lower_bound(**PAPER, steps=5, holders=5, grid=0)
    with pytest.raises(UsageError, match=r"runs=2 .* at least 8"):
        attack(**PAPER, steps=5, holders=5, runs=2, rng=np.random.default_rng(0))
    with pytest.raises(UsageError, match=r"confidence=1\.0"):
        attack(**PAPER, steps=5, holders=5, confidence=1.0, rng=np.random.default_rng(0))
