"""Selective passes: every release has an entry, and what they cost agrees with formulas apart.

Coins are public, so how often a record took part is known to whoever looks: given k passes the
loss is that of one Gaussian, and delta is a mean over the binomial k. Nothing of ours is in that.
"""

import math
from pathlib import Path

import pytest
from scipy import optimize, stats

from tacit.errors import OverBudget, PrivacyRefused, UsageError
from tacit.planning.plan import Plan
from tacit.privacy.accounting.pricing import price
from tacit.privacy.budget import Budget
from tacit.privacy.events import (
    AnyEvent,
    Public,
    Selective,
    part_of,
    read_event,
    whole_passes,
    write_event,
)
from tacit.privacy.ledger import Ledger, read_ledger
from tacit.replication.published import selective, selective_claim

PASS = Selective(
    noise_multiplier=3.0, state_noise_multiplier=6.0, segments=3, states=2, rate=0.2
)  # fmt: skip


def parts(whole: Selective, passes: int, *, segments: int | None = None) -> dict[AnyEvent, int]:
    """What a ledger holds after so many passes."""
    many = whole.segments if segments is None else segments
    return {
        part_of(whole, segment, state): passes
        for segment in range(1, many + 1)
        for state in range(whole.states + 1)
    }


def gaussian_delta(mu: float, eps: float) -> float:
    if mu == 0:
        return 0.0
    tail = stats.norm.logcdf(-eps / mu - mu / 2) + eps
    return float(stats.norm.cdf(-eps / mu + mu / 2) - math.exp(tail))


def exact_epsilon(whole: Selective, passes: int, delta: float) -> float:
    """Epsilon from the binomial number of passes in which a record took part."""
    gradient, state = 2 / whole.noise_multiplier, 2 / whole.state_noise_multiplier
    once = whole.segments * (gradient**2 + whole.states * state**2)
    counts = range(passes + 1)
    weight = stats.binom.pmf(counts, passes, whole.rate)

    def over(eps: float) -> float:
        each = (gaussian_delta(math.sqrt(k * once), eps) for k in counts)
        return float(sum(w * d for w, d in zip(weight, each, strict=True))) - delta

    return float(optimize.brentq(over, 0, 500))


@pytest.mark.parametrize(
    ("noise", "state_noise", "segments", "states", "rate", "passes"),
    [
        (3.0, 6.0, 3, 2, 0.2, 20),
        (3.0, 6.0, 3, 2, 1.0, 5),
        (8.0, 8.0, 4, 2, 0.05, 60),
        (8.0, 8.0, 4, 4, 0.5, 10),
        (2.0, 2.0, 1, 0, 0.1, 30),
    ],
)
def test_the_price_of_a_ledger_is_that_of_its_passes(
    noise: float, state_noise: float, segments: int, states: int, rate: float, passes: int
) -> None:
    whole = Selective(
        noise_multiplier=noise, state_noise_multiplier=state_noise, segments=segments,
        states=states, rate=rate,
    )  # fmt: skip
    found = price(parts(whole, passes), "tokens", 1e-5, fresh=True)
    truth = exact_epsilon(whole, passes, 1e-5)
    assert truth * (1 - 1e-6) <= found.epsilon <= truth * 1.01
    assert found.lower <= truth * (1 + 1e-6)
    assert found.adjacency == "replace"


def test_a_stopped_pass_and_short_passes_count_as_whole() -> None:
    held = parts(PASS, 4, segments=2)
    held[part_of(PASS, 1)] = 6  # two more began, and were stopped
    assert whole_passes(held) == {PASS: 6}
    assert price(held, "tokens", 1e-5).epsilon == price({PASS: 6}, "tokens", 1e-5).epsilon
    assert whole_passes({PASS: 2, **parts(PASS, 3)}) == {PASS: 5}


def test_a_coin_for_each_part_would_not_be_a_bound() -> None:
    """The shortcut that the parts exclude: all of a pass hang on one coin."""
    whole = Selective(
        noise_multiplier=4.0, state_noise_multiplier=4.0, segments=4, states=2, rate=0.05
    )
    alone = Selective(
        noise_multiplier=4.0, state_noise_multiplier=4.0, segments=1, states=0, rate=0.05
    )
    truth = exact_epsilon(whole, 10, 1e-5)
    assert exact_epsilon(alone, 10 * 4 * 3, 1e-5) < 0.9 * truth
    assert price(parts(whole, 10), "tokens", 1e-5).epsilon >= truth


@pytest.mark.parametrize(
    "held",
    [
        {part_of(PASS, 1, 1): 1},
        {part_of(PASS, 2): 3, part_of(PASS, 1): 2},
        {**parts(PASS, 1), part_of(PASS, 3, 2): 2},
    ],
)
def test_parts_without_their_pass_are_refused(held: dict[AnyEvent, int]) -> None:
    with pytest.raises(PrivacyRefused, match="each of its parts once"):
        price(held, "tokens", 1e-5)


@pytest.mark.parametrize(("segment", "state"), [(0, 0), (4, 0), (1, 3), (1, -1)])
def test_a_part_is_a_part_of_its_pass(segment: int, state: int) -> None:
    with pytest.raises(UsageError):
        part_of(PASS, segment, state)


def test_plain_tokens_are_not_protected() -> None:
    for unit in ("records", "users", "entities"):
        assert price(parts(PASS, 1), unit, 1e-5).epsilon == math.inf


def test_a_budget_asks_when_a_pass_begins_and_lets_it_end(tmp_path: Path) -> None:
    limit = exact_epsilon(PASS, 3, 1e-5) * 1.02
    budget = Budget({"tokens": limit}, 1e-5, steps=3)
    with Ledger(tmp_path / "ledger.jsonl", {}, allows=budget.allows) as ledger:
        ledger.charge(Public(what="a vocabulary"))
        with pytest.raises(PrivacyRefused, match="did not begin"):
            ledger.charge(part_of(PASS, 1, 1))
        for _ in range(3):
            for event in parts(PASS, 1):
                ledger.charge(event)
        with pytest.raises(PrivacyRefused, match="did not begin"):
            ledger.charge(part_of(PASS, 3, 2))
        with pytest.raises(OverBudget):
            ledger.charge(part_of(PASS, 1))
    books = read_ledger(tmp_path / "ledger.jsonl")
    assert len(books.entries) == 1 + 3 * 9
    assert price(books.releases(), "tokens", 1e-5).epsilon <= limit


def test_parts_survive_json() -> None:
    for event in parts(PASS, 1):
        assert read_event(write_event(event)) == event


def test_the_published_figure_counts_every_gradient_and_every_state() -> None:
    plan = Plan(protect="tokens", mechanism="selective", epsilon=1e6, steps=7, record_rate=0.01,
                noise_multiplier=0.7, segments=2)  # fmt: skip
    event = plan.event()
    assert isinstance(event, Selective)
    claim = selective_claim(parts(event, 7) | {Public(what="x"): 1}, 1e-5)
    by_hand = selective(
        noise_multiplier=0.7, record_rate=0.01, gradient_releases=14, state_releases=28, delta=1e-5
    )
    assert claim == by_hand
    assert not claim.is_bound
    # What is proved is far above what is claimed.
    assert price(parts(event, 7), "tokens", 1e-5).epsilon > 2 * claim.epsilon["tokens"]
    assert selective_claim({Public(what="x"): 1}, 1e-5) is None
    assert selective_claim(parts(PASS, 1), 1e-5) is None  # two sizes of noise
