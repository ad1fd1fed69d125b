"""The question before every release: fits, does not fit, and never by accident."""

import pytest

from tacit.errors import PrivacyRefused, UsageError
from tacit.privacy.accounting.pricing import price
from tacit.privacy.budget import Budget
from tacit.privacy.events import NotPrivate, Public, SampledGaussian

STEP = SampledGaussian(unit="users", rate=0.1, noise_multiplier=1.5)
OTHER = SampledGaussian(unit="users", rate=0.2, noise_multiplier=2.0)


def allowed(budget: Budget, releases: dict, event: object) -> bool:
    try:
        budget.allows(releases, event)  # type: ignore[arg-type]
    except PrivacyRefused:
        return False
    return True


@pytest.mark.parametrize("hint", [0, 10, 400])
def test_it_stops_exactly_where_the_price_exceeds_the_limit(hint: int) -> None:
    budget = Budget({"users": 2.0}, 1e-5, steps=hint)
    last = next(n for n in range(400) if not allowed(budget, {STEP: n}, STEP))
    assert price({STEP: last}, "users", 1e-5).epsilon <= 2.0
    assert price({STEP: last + 1}, "users", 1e-5).epsilon > 2.0
    with pytest.raises(PrivacyRefused, match="nothing was released"):
        budget.allows({STEP: last}, STEP)


def test_what_others_spent_counts() -> None:
    budget = Budget({"users": 2.0}, 1e-5)
    alone = next(n for n in range(400) if not allowed(budget, {STEP: n}, STEP))
    beside = next(n for n in range(400) if not allowed(budget, {STEP: n, OTHER: 20}, STEP))
    assert beside < alone


def test_public_is_free_and_unprotected_is_never_allowed() -> None:
    budget = Budget({"users": 0.5}, 1e-5)
    assert allowed(budget, {}, Public(what="a public corpus"))
    assert not allowed(budget, {}, NotPrivate(what="plain training"))
    assert not allowed(budget, {}, SampledGaussian(unit="records", rate=0.1, noise_multiplier=9.0))
    assert not allowed(budget, {}, SampledGaussian(unit="users", rate=0.1, noise_multiplier=0.0))


@pytest.mark.parametrize(
    ("limits", "delta"),
    [({}, 1e-5), ({"users": 0}, 1e-5), ({"users": float("nan")}, 1e-5), ({"people": 1}, 1e-5),
     ({"users": "3"}, 1e-5), ({"users": True}, 1e-5), ({"users": 1}, 0.0), ({"users": 1}, 2)],
)  # fmt: skip
def test_what_is_no_budget(limits: dict, delta: float) -> None:
    with pytest.raises(UsageError):
        Budget(limits, delta)
