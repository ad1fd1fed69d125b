"""One neighbour apart, same coins, no noise: a step moves by no more than was declared.

Hypothesis looks for corpora that move it further, such as records that pull against each other so
that clipping turns an update around.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, target
from hypothesis import strategies as st

from support.small import Record, Vectors, curved, data_of, losses, step_of, uedp_event
from tacit.planning.plan import Plan
from tacit.privacy.events import UserClip
from tacit.training.dp.random_source import RandomSource
from tacit.training.dp.sampling import PoissonRecords, PoissonUsers, UserEntitySampler
from tacit.training.methods.dp_fedavg import LocalSettings
from tacit.training.methods.dp_sgd import denominator
from tacit.training.methods.uedp import UedpSettings, Weights

SLACK = 1 + 1e-5
QUIET: dict[str, Any] = {"epsilon": 1e9, "steps": 1, "noise_multiplier": 0.0}
USERS = Plan(protect="users", user_rate=0.7, users=4, clip_norm=0.5, **QUIET)
RECORDS = Plan(protect="records", record_rate=0.7, records=9, clip_norm=0.5, **QUIET)
BOTH = Plan(
    protect="users+entities", user_rate=0.7, clip_norm=0.5, users_per_entity=2,
    entity_share=0.5, records_per_user_entity=2, **QUIET,
)  # fmt: skip
TURNED = Plan(**BOTH.model_dump() | {"entity_share": 2.0, "records_per_step": 3})
DEGREE = Plan(**TURNED.model_dump() | {"adjacency": "by-degree", "users": 4})
FLAT = Plan(
    protect="users+entities", mechanism="flat", record_rate=0.7, clip_norm=0.5,
    records_per_user=2, records_per_entity=2, **QUIET,
)  # fmt: skip
WEIGHED = Plan(**USERS.model_dump() | {"user_weight_cap": 3, "records_per_step": 2})
LOCAL = LocalSettings(local_epochs=2, local_batch=2, local_learning_rate=0.7)
PAPER = UedpSettings(user_rate=0.7, entity_rate=0.6, clip_norm=0.5, noise_multiplier=0.0)
SIMPLE = UedpSettings(
    **PAPER.model_dump()
    | {"estimator": "f_E", "entity_rule": "all", "local_learning_rate": 0.3, "entity_weight_cap": 3,
       "user_weight_cap": 4, "noise": "patent"}
)  # fmt: skip

# Sizes around the clip norm, and far above it: what turns an update around.
PULLS = st.sampled_from([-9.0, -1.0, -0.4, 0.0, 0.1, 0.5, 2.0, 1e6])
RECORD = st.builds(
    Record,
    user=st.integers(0, 3),
    entities=st.frozensets(st.integers(0, 2), max_size=2).map(lambda e: tuple(sorted(e))),
    pull=st.tuples(PULLS, PULLS),
)
EVERYBODY = [Record(user, (0,), (0.1, 0.0)) for user in range(4)]
"""Four users who name entity 0, so that it and all of them are always there."""
CORPORA = st.lists(RECORD, max_size=9).map(lambda more: Vectors((*EVERYBODY, *more)))


def drawn_users(rate: float, seed: int) -> set[int]:
    return set(PoissonUsers(4, rate).draw(RandomSource(seed).stream("coins", 1)).tolist())


def gap(
    method: str, vectors: Vectors, plan: Any, user: int | None, entity: int | None, folder: Path,
    seed: int,
) -> float:  # fmt: skip
    """How far the direction of a step is from its neighbour's."""
    by = curved if method == "dp-fedavg" else losses
    one, other = (
        step_of(method, each, plan, folder, local=LOCAL, randomness=RandomSource(seed), by=by)[0]
        for each in (vectors, vectors.without(user, entity))
    )
    return float(np.linalg.norm(one - other))


def allowed(vectors: Vectors, plan: Plan, user: int | None, entity: int | None, seed: int) -> float:
    """What the event declares for those who were drawn, in units of the clip norm."""
    kept = data_of(vectors, plan).rows
    mine = [vectors.records[i] for i in kept]
    if plan.user_rate is None:
        coins = PoissonRecords(len(kept), float(plan.record_rate or 0))
        drawn = [mine[i] for i in coins.draw(RandomSource(seed).stream("coins", 1))]
        return sum(r.user == user or entity in r.entities for r in drawn)
    came = drawn_users(plan.user_rate, seed)
    holders = {r.user for r in mine if entity in r.entities} & came
    event = plan.event()
    if isinstance(event, UserClip):
        assert plan.by_degree or len(holders) <= event.users_per_entity
        return (user in came) + event.entity_share * len(holders)
    return float(user in came)


NAMED = {
    "users": USERS, "weighed": WEIGHED, "both": BOTH, "turned": TURNED, "degree": DEGREE,
    "flat": FLAT,
}  # fmt: skip
CASES = [
    pytest.param(method, NAMED[name], unit, id=f"{method} {name} {unit}")
    for method, name, units in [
        ("dp-sgd", "users", ["user"]),
        ("dp-sgd", "weighed", ["user"]),
        ("dp-fedavg", "users", ["user"]),
        ("dp-fedavg", "weighed", ["user"]),
        ("dp-sgd", "both", ["user", "entity", "both"]),
        ("dp-sgd", "turned", ["user", "entity", "both"]),
        ("dp-sgd", "degree", ["user", "entity", "both"]),
        ("dp-sgd", "flat", ["user", "entity", "both"]),
        ("dp-fedavg", "turned", ["user", "entity", "both"]),
    ]
    for unit in units
]


@pytest.mark.parametrize(("method", "plan", "unit"), CASES)
def test_a_neighbour_moves_a_step_no_further_than_declared(
    tmp_path: Path, method: str, plan: Plan, unit: str
) -> None:
    @settings(max_examples=25)
    @given(vectors=CORPORA, user=st.integers(0, 3), seed=st.integers(0, 50))
    def search(vectors: Vectors, user: int, seed: int) -> None:
        who = user if unit != "entity" else None
        what = 0 if unit != "user" else None
        most = allowed(vectors, plan, who, what, seed) * plan.clip_norm
        public = denominator(plan, data_of(vectors, plan))
        moved = gap(method, vectors, plan, who, what, tmp_path, seed) * public
        target(moved)
        assert moved <= most * SLACK + 1e-7

    search()


def test_one_record_moves_a_step_by_at_most_the_clip_norm(tmp_path: Path) -> None:
    @settings(max_examples=40)
    @given(vectors=CORPORA, record=st.integers(0, 3), seed=st.integers(0, 50))
    def search(vectors: Vectors, record: int, seed: int) -> None:
        less = Vectors(vectors.records, frozenset({record}))
        one, other = (
            step_of("dp-sgd", each, RECORDS, tmp_path, randomness=RandomSource(seed))[0]
            for each in (vectors, less)
        )
        moved = float(np.linalg.norm(one - other)) * denominator(RECORDS, data_of(vectors))
        target(moved)
        assert moved <= RECORDS.clip_norm * SLACK

    search()


@pytest.mark.parametrize("paper", [PAPER, SIMPLE], ids=["f_E+ any", "f_E all"])
@pytest.mark.parametrize("unit", ["user", "entity", "both"])
def test_the_published_step_moves_by_what_is_charged_and_not_by_what_is_claimed(
    tmp_path: Path, paper: UedpSettings, unit: str
) -> None:
    @settings(max_examples=25)
    @given(vectors=CORPORA, user=st.integers(0, 3), seed=st.integers(0, 50))
    def search(vectors: Vectors, user: int, seed: int) -> None:
        who = user if unit != "entity" else None
        what = 0 if unit != "user" else None
        training_data = data_of(vectors)
        assert training_data.owners is not None
        weights = Weights.count(training_data, training_data.owners, paper)
        came = drawn_users(paper.user_rate, seed)
        holders = {r.user for r in vectors.records if what in r.entities} & came
        event = uedp_event(training_data, paper)
        assert len(holders) <= event.users_per_entity
        unit_norm = paper.clip_norm * weights.users.max()
        most = ((who in came) + event.entity_share * len(holders)) * unit_norm
        public = weights.denominator(paper)
        moved = gap("uedp", vectors, paper, who, what, tmp_path, seed) * public
        target(moved)
        assert moved <= most * SLACK + 1e-7

    search()


def turning() -> Vectors:
    """Four users whose plain record pulls one way, and whose other record turns them around."""
    there = [Record(u, (), (-0.5, 0.0)) for u in range(4)]
    back = [Record(u, (0,), (5.0, 0.0)) for u in range(4)]
    return Vectors((*there, *back))


def test_an_entity_can_turn_clipped_users_around(tmp_path: Path) -> None:
    """The bound of two clip norms for each holder is attained, so nothing less may be declared."""
    plan = Plan(**DEGREE.model_dump() | {"user_rate": 1.0, "records_per_step": None})
    public = denominator(plan, data_of(turning(), plan))
    moved = gap("dp-sgd", turning(), plan, None, 0, tmp_path, 1) * public
    assert moved == pytest.approx(2 * 4 * plan.clip_norm, rel=1e-4)
    paper = UedpSettings(**PAPER.model_dump() | {"user_rate": 1.0, "entity_rate": 1.0})
    weights = Weights.count(data_of(turning()), turning().owners(), paper)
    moved = gap("uedp", turning(), paper, None, 0, tmp_path, 1) * weights.denominator(paper)
    assert moved == pytest.approx(2 * 4 * paper.clip_norm, rel=1e-4)
    # The lemma's sensitivity, users in a step + 1, is less than that: it is no bound.
    assert moved > (1.0 * 4 + 1) * paper.clip_norm


def test_really_removing_a_user_leaves_the_others_as_they_were(tmp_path: Path) -> None:
    """The denominator is public: it does not shrink when somebody is not there."""
    everybody = Vectors(tuple(Record(u, (), (0.1 * (u + 1), 0.2)) for u in range(4)))
    fewer = Vectors(everybody.records[:3])
    plan = Plan(**USERS.model_dump() | {"user_rate": 1.0})
    for method in ("dp-sgd", "dp-fedavg"):
        one, other = (
            step_of(method, each, plan, tmp_path, local=LOCAL)[0] for each in (everybody, fewer)
        )
        alone = step_of(method, Vectors((Record(0, (), (0.4, 0.2)),)), plan, tmp_path, local=LOCAL)[
            0
        ]
        assert np.allclose(one - other, alone, atol=1e-6)
        assert np.linalg.norm(one - other) * 4 <= plan.clip_norm * SLACK


def test_the_caps_decide_what_an_entity_reaches() -> None:
    """Without caps, more users than the event says would hold the entity."""
    crowd = Vectors(tuple(Record(u, (0,), (1.0, 1.0)) for u in range(4)))
    kept = data_of(crowd, BOTH).rows
    assert len(kept) == BOTH.users_per_entity
    again = Vectors(tuple(Record(0, (0,), (1.0, 1.0)) for _ in range(5)))
    assert len(data_of(again, BOTH).rows) == BOTH.records_per_user_entity


def test_published_coins_fall_at_their_rates() -> None:
    coins = UserEntitySampler(30, 0.2, 20, 0.5, 40, 0.9, "any")
    drawn = [coins.draw(RandomSource(3).stream("coins", step)) for step in range(4000)]
    users = np.zeros(30)
    for one in drawn:
        users[one.users] += 1
    entities, plain = (
        np.mean([getattr(d, n) for d in drawn], axis=0) for n in ("entities", "plain")
    )
    for rates, rate in ((users / 4000, 0.2), (entities, 0.5), (plain, 0.9)):
        assert np.all(np.abs(rates - rate) < 5 * np.sqrt(rate * (1 - rate) / 4000))
    together = np.corrcoef(np.array([d.entities for d in drawn]).T) - np.eye(20)
    assert np.abs(together).max() < 0.1
