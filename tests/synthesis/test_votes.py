"""Votes: what a record says is its own, and nobody moves the sum by more than the event says."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.topics import tiny_encoder
from tacit.planning.plan import Plan
from tacit.synthesis.choosing import smoothed
from tacit.synthesis.space import SCALE, Space, nearest, whole
from tacit.synthesis.votes import Columns, Voters, ballots, bounded, counted

PLAN: dict[str, Any] = {"epsilon": 8, "steps": 1, "user_rate": 1, "users": 50}
USERS = Plan(protect="users", **PLAN)
BOTH = Plan(protect="users+entities", entity_share=0.5, records_per_user_entity=2, **PLAN)
LABELS = (0, 1, None, 1, 0, None)


def points(rng: np.random.Generator, count: int, width: int = 6) -> np.ndarray:
    return np.stack([whole(one) for one in rng.normal(size=(count, width))])


def voters(rng: np.random.Generator, users: list[int]) -> Voters:
    """Records of these users, in their order."""
    owner, rows = np.array(users), np.arange(len(users))
    own = tuple(rows[owner == user] for user in dict.fromkeys(users))
    label = rng.integers(2, size=len(users))
    return Voters(points(rng, len(users)), label, rng.integers(1, 40, len(users)), rows, own)


def naive(
    them: Voters, candidates: np.ndarray, columns: Columns, count: int, plan: Plan
) -> np.ndarray:
    """The same sum, one record and one candidate after the other, in whole numbers of Python."""
    total = np.zeros(len(columns))
    for rows in them.rows_of_user:
        user = np.zeros(len(columns))
        for row in rows.tolist():
            own = [c for c in range(len(columns)) if columns.label[c] == them.label[row]]
            alike = {
                c: sum(
                    int(a) * int(b)
                    for a, b in zip(them.points[row], candidates[columns.candidate[c]], strict=True)
                )
                for c in own
            }
            best = sorted(own, key=lambda c: (-alike[c], c))[:count]
            share = plan.record_clip or 1.0
            for column in best:
                user[column] += min(1.0, share) / math.sqrt(len(best))
        total += user * min(1.0, plan.clip_norm / max(np.linalg.norm(user), 1e-12))
    return total


@pytest.mark.parametrize("plan", [USERS, BOTH], ids=["users", "entities"])
@settings(max_examples=25)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=9), st.integers(1, 2), st.integers(0, 99))
def test_sums_equal_a_loop(plan: Plan, users: list[int], count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    them, columns = voters(rng, users), Columns.of(LABELS, 2)
    candidates = points(rng, len(LABELS))
    said = ballots(them, candidates, columns, count)
    total = bounded(plan, them, said)
    wanted = naive(them, candidates, columns, count, plan)
    found = total.tensors["weight"].double().numpy()[0]
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert total.clip_norm == plan.clip_norm


def without(them: Voters, user: int) -> Voters:
    """The corpus as if a user had never been there: records are numbered anew."""
    gone = them.rows_of_user[user]
    left = np.setdiff1d(them.rows, gone)
    at = {int(row): number for number, row in enumerate(left)}
    own = tuple(
        np.array([at[int(row)] for row in rows])
        for number, rows in enumerate(them.rows_of_user)
        if number != user
    )
    kept = (them.points[left], them.label[left], them.words[left], np.arange(len(left)), own)
    return Voters(*kept)


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 4), min_size=2, max_size=12).filter(lambda u: len(set(u)) > 1),
    st.integers(1, 3),
    st.booleans(),
    st.integers(0, 99),
)
def test_nobody_moves_the_sum_by_more_than_the_clip_norm(
    users: list[int], count: int, histogram: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    them, columns = voters(rng, users), Columns.of(LABELS, 2)
    candidates = points(rng, len(LABELS))

    def of(some: Voters) -> np.ndarray:
        votes = ballots(some, candidates, columns, count)
        said = counted(some, 2, (8, 16)) if histogram else votes
        return bounded(USERS, some, said).tensors["weight"].double().numpy()[0]

    for user in range(len(them.rows_of_user)):
        assert np.linalg.norm(of(them) - of(without(them, user))) <= 1 + 1e-5


def test_a_histogram_counts_labels_and_lengths() -> None:
    them = Voters(
        np.zeros((3, 1), np.float32), np.array([0, 1, 1]), np.array([7, 8, 900]), np.arange(3),
        tuple(np.array([row]) for row in range(3)),
    )  # fmt: skip
    found = bounded(USERS, them, counted(them, 2, (8, 16))).tensors["weight"].numpy()[0]
    assert found == pytest.approx([1, 0, 0, 0, 1, 1])


def test_products_are_exact_whatever_is_multiplied_with_them() -> None:
    """Blocks of other sizes give the same bits: so nobody's nearest depends on who else is read."""
    rng = np.random.default_rng(0)
    some, others = points(rng, 700, 512), points(rng, 65, 512)
    exact = some.astype(np.int64) @ others.astype(np.int64).T
    assert np.abs(exact).max() < 2**24
    assert (some @ others.T == exact).all()
    alone = np.concatenate([nearest(one[None], others, 3) for one in some])
    assert (nearest(some, others, 3) == alone).all()
    assert np.abs(np.linalg.norm(some, axis=1) - SCALE).max() < 12


def test_equals_are_settled_by_their_order() -> None:
    same = np.ones((4, 3), dtype=np.float32)
    for count in (1, 2, 3):
        assert nearest(same[:2], same, count).tolist() == [list(range(count))] * 2


@pytest.mark.parametrize("kind", ["static vectors", "an encoder"])
def test_a_text_has_its_point_whoever_else_is_read(kind: str, tmp_path: Path) -> None:
    static = kind == "static vectors"
    space = Space("wordllama" if static else tiny_encoder(tmp_path / "encoder"), 32)
    texts = ["my lamp is broken", "where is my parcel", "", "x " * 300]
    together = space.points(texts, "texts")
    alone = np.concatenate([space.points([text], "texts") for text in reversed(texts)])[::-1]
    assert (together == alone).all()
    assert (together == np.rint(together)).all()
    assert not static or not together[2].any()
    assert (together == space.points(texts, "texts")).all()  # kept, where that is worth it


@pytest.mark.parametrize("power", [0.0, 2.0])
def test_shared_votes_are_those_of_a_loop_and_no_noisier(power: float) -> None:
    rng = np.random.default_rng(5)
    columns, at = Columns.of(LABELS, 2), points(rng, len(LABELS))
    votes = rng.normal(size=(4000, len(columns)))
    found = np.stack([smoothed(at, columns, one, power) for one in votes])
    assert np.abs(found.std(0) - 1).max() < 0.06
    for column in range(len(columns)):
        own = np.flatnonzero(columns.label == columns.label[column])
        here = at[columns.candidate[column]].astype(float)
        shares = np.array(
            [max(0.0, float(here @ at[columns.candidate[o]]) / SCALE**2) ** power for o in own]
        )
        if power == 0:
            shares = (own == column).astype(float)
        wanted = votes[0][own] @ shares / np.sqrt((shares**2).sum())
        assert found[0][column] == pytest.approx(wanted, abs=1e-6)
