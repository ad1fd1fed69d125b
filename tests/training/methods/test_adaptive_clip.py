"""A clip norm that follows a quantile: the bound of the longer sum, where it goes, going on."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, target
from hypothesis import strategies as st
from safetensors.torch import load_file

from support.small import Record, Two, Vectors, data_of, dialogs, losses
from support.steps import make_step, totals_of
from tacit.errors import UsageError
from tacit.planning.plan import Plan
from tacit.privacy.ledger import Ledger
from tacit.training.dp.gradients import COUNT, with_count
from tacit.training.dp.random_source import RandomSource
from tacit.training.phases import session
from tacit.training.settings import Run
from tacit.verification.runs import verify

USERS: dict[str, Any] = {
    "protect": "users", "user_rate": 1.0, "users": 40, "clip_norm": 0.5, "epsilon": 8, "steps": 4,
}  # fmt: skip
PULLS = st.sampled_from([-9.0, -0.4, 0.0, 0.1, 0.5, 2.0, 1e6])
RECORDS = st.builds(
    Record, user=st.integers(0, 3), entities=st.just(()), pull=st.tuples(PULLS, PULLS)
)


@settings(max_examples=60, deadline=None)
@given(
    more=st.lists(RECORDS, max_size=8),
    user=st.integers(0, 3),
    share=st.sampled_from([0.1, 0.5, 0.9]),
)
def test_a_user_moves_sum_and_count_together_by_at_most_the_clip_norm(
    more: list[Record], user: int, share: float
) -> None:
    vectors = Vectors((*(Record(u, (), (0.1, 0.0)) for u in range(4)), *more))
    total = totals_of("dp-sgd", Two(2), losses, data_of(vectors), Plan(**USERS))
    everybody = np.arange(4)
    flat = [
        torch.cat(
            [t.reshape(-1).double() for t in with_count(total(1, who), share).tensors.values()]
        )
        for who in (everybody, np.delete(everybody, user))
    ]
    moved = float((flat[0] - flat[1]).norm())
    target(moved)
    assert moved <= USERS["clip_norm"] * (1 + 1e-5)
    assert abs(float(flat[0][-1] - flat[1][-1])) == pytest.approx(share * USERS["clip_norm"])


def steps_of(plan: Plan, vectors: Vectors, folder: Path, steps: int) -> tuple[Any, list[Any]]:
    with Ledger(folder / "ledger.jsonl", {}) as ledger:
        method = make_step(
            "dp-sgd", Two(2), losses, data_of(vectors), plan, ledger=ledger,
            randomness=RandomSource(3),
        )  # fmt: skip
        return method, [method.gradient(step) for step in range(1, steps + 1)]


def test_the_clip_norm_goes_to_the_quantile_and_the_noise_with_it(tmp_path: Path) -> None:
    """Norms are 0.01 to 0.4 times sqrt(1.25); half of them are below 0.224."""
    vectors = Vectors(tuple(Record(u, (), (0.01 * (u + 1), 0.0)) for u in range(40)))
    plan = Plan(**USERS | {"noise_multiplier": 1.0, "epsilon": 1e6}, clip_quantile=0.5)
    method, seen = steps_of(plan, vectors, tmp_path, 60)
    assert float(method.extra_state()["clip_norm"]) == pytest.approx(0.224, rel=0.25)
    assert seen[0][1].noise_std == pytest.approx(1.0 * 0.5 / 40)
    assert seen[-1][1].noise_std < 0.7 * seen[0][1].noise_std
    assert all(COUNT not in gradient for gradient, _ in seen)


def test_the_next_clip_norm_is_that_of_the_release(tmp_path: Path) -> None:
    vectors = Vectors(tuple(Record(u, (), (5.0, 0.0)) for u in range(40)))
    plan = Plan(**USERS | {"noise_multiplier": 0.0, "epsilon": 1e6}, clip_quantile=0.7)
    method, [(gradient, stats)] = steps_of(plan, vectors, tmp_path, 1)
    norm = math.sqrt(sum(float(t.square().sum()) for t in gradient.values()))
    assert norm == pytest.approx(0.5 * math.sqrt(1 - 0.1**2))
    assert stats.clipped == 40
    assert float(method.extra_state()["clip_norm"]) == pytest.approx(0.5 * math.exp(0.2 * 0.7))


def test_a_run_goes_on_with_its_clip_norm(tmp_path: Path) -> None:
    plan = {**USERS, "user_rate": 0.5, "clip_quantile": 0.3, "clip_norm": 3.0}
    run = Run(**dialogs(tmp_path, 60), plan=plan, optimizer={"name": "dp-adam"})
    whole = session.train(run, tmp_path / "whole")
    assert whole.certificate.epsilon <= 8

    class Stop(Exception):
        pass

    def stop(at: Any) -> None:
        if at.step == 2:
            raise Stop

    with pytest.raises(Stop):
        session.train(run, tmp_path / "cut", on_progress=stop)
    session.resume(tmp_path / "cut")
    one, other = (load_file(tmp_path / n / "model.safetensors") for n in ("whole", "cut"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert [c.what for c in verify(tmp_path / "cut") if not c.ok] == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"plan": {"protect": "users+entities", "users": None}}, "for users and records"),
        ({"plan": {"user_weight_cap": 2}}, "counts units as equals"),
        ({"method": "dp-fedavg"}, "not done by method=dp-fedavg"),
    ],
)
def test_what_is_not_done_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    plan = USERS | {"clip_quantile": 0.5} | change.pop("plan", {})
    with pytest.raises(UsageError, match=says):
        Run(**dialogs(tmp_path, 20), plan=plan, **change)
