"""The dry run on an owner graph: search, prose, and what is refused."""

import numpy as np
import pytest

from tacit.errors import PrivacyRefused, UsageError
from tacit.owners import Owners
from tacit.planning.dry_run import apply_caps, explain, noise_to_signal, search_caps
from tacit.planning.plan import Plan, calibrated

PLAN = Plan(protect="users+entities", epsilon=4, steps=10, user_rate=0.2)


@pytest.fixture(scope="module")
def owners() -> Owners:
    rng = np.random.default_rng(3)
    rows = []
    for record in range(300):
        entities = {f"e{int(e)}" for e in rng.zipf(1.6, size=rng.integers(0, 3)) if e < 80}
        rows.append((f"r{record}", f"u{rng.integers(40)}", sorted(entities)))
    return Owners.from_rows(rows)


def test_caps_of_the_plan_hold_on_what_is_kept(owners: Owners) -> None:
    bounded = apply_caps(PLAN, owners)
    kept = owners.subset(bounded.kept)
    assert kept.users_per_entity.max() <= PLAN.users_per_entity
    assert kept.records_per_user_entity.max() <= PLAN.records_per_user_entity


def test_search_meets_the_target_and_ranks(owners: Owners) -> None:
    found = search_caps(
        PLAN, owners, users_per_entity=(1, 2), entity_share=(0.5, 1.0), records_per_user_entity=(1,)
    )
    assert len(found) == 4
    assert [c.noise_to_signal for c in found] == sorted(c.noise_to_signal for c in found)
    best = found[0].plan
    assert calibrated(best) == best  # its noise already meets the target


def test_search_reads_the_graph_so_by_degree_refuses_it(owners: Owners) -> None:
    hidden = Plan(
        protect="users+entities", epsilon=4, steps=10, user_rate=0.2, users=40,
        adjacency="by-degree", entity_share=2,
    )  # fmt: skip
    with pytest.raises(PrivacyRefused, match="by-degree"):
        search_caps(hidden, owners)
    with pytest.raises(UsageError, match="Only userclip"):
        search_caps(Plan(protect="users", epsilon=4, steps=10, user_rate=0.2), owners)


def test_the_noise_model_follows_noise_and_data(owners: Owners) -> None:
    everything = np.ones(len(owners), dtype=bool)
    half = everything.copy()
    half[::2] = False
    low, high = (PLAN.model_copy(update={"noise_multiplier": z}) for z in (1.0, 2.0))
    ratio = noise_to_signal(high, owners, everything) / noise_to_signal(low, owners, everything)
    assert ratio == pytest.approx(2)
    assert noise_to_signal(low, owners, half) > noise_to_signal(low, owners, everything)
    assert noise_to_signal(low, owners, ~everything) == float("inf")


def test_the_noise_model_equals_a_slow_loop(owners: Owners) -> None:
    """Draw gradients of the model in a large space and measure the progress of a step."""
    rng = np.random.default_rng(1)
    plan = PLAN.model_copy(update={"noise_multiplier": 1.0})
    common = np.zeros(4000)
    common[0] = 1.0
    total = 0.0
    for user in range(len(owners.users)):
        own = int((owners.record_user == user).sum())
        draws = rng.normal(size=(own, 4000))
        draws[:, 0] = 0
        draws *= np.sqrt(1 - 0.1**2) / np.linalg.norm(draws, axis=1, keepdims=True)
        gradients = 0.1 * common + draws
        update = (plan.record_clip or 1.0) * gradients.sum(axis=0)
        update *= min(1.0, plan.clip_norm / np.linalg.norm(update))
        total += update[0]
    slow = plan.clip_norm / ((plan.user_rate or 0) * total)
    everything = np.ones(len(owners), dtype=bool)
    assert noise_to_signal(plan, owners, everything) == pytest.approx(slow, rel=0.02)


def test_prose_tells_promise_assumption_and_loss(owners: Owners) -> None:
    plan = calibrated(PLAN)
    text = explain(plan, owners, apply_caps(plan, owners), records_per_second=100)
    for part in (
        "promises",
        "That table is not protected",
        "What is not covered",
        "records a second",
    ):
        assert part in text
    assert "hides whether" not in text


def test_caps_that_leave_nothing_are_refused() -> None:
    crowd = Owners.from_rows([("r1", "a", ["e"]), ("r2", "b", ["e"])])
    assert apply_caps(PLAN, crowd).records_kept == 1
    empty = Owners.from_rows([])
    with pytest.raises(PrivacyRefused, match="keep no record"):
        apply_caps(PLAN, empty)
