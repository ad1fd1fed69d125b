"""From plan and owner graph to a run: the same promise, or none."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tacit.detection.provenance import Provenance, Used
from tacit.errors import DataError, PrivacyRefused, UsageError
from tacit.owners import Owners
from tacit.owners.graph import Origin
from tacit.planning.pipeline import (
    plan_fields_of,
    plan_file,
    read_plan_file,
    require_same_owners,
    require_same_plan,
)
from tacit.planning.plan import Plan, read_plan

PLAN = Plan(
    protect="users+entities", epsilon=8, steps=5, user_rate=0.5, kinds=("PII",),
    noise_multiplier=3.0,
)  # fmt: skip
ROWS = [("r1", "ann", ["e1", "e2"]), ("r2", "bob", ["e1"])]
KINDS = {"e1": "PII/EMAIL", "e2": "DATE"}


def graph(rows: list[tuple[str, str, list[str]]] = ROWS, **origin: Any) -> Owners:
    made = Owners.from_rows(rows, KINDS)
    object.__setattr__(made, "origin", Origin(**origin))
    return made


def test_a_plan_file_is_used_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "plan.yml"
    path.write_text(plan_file(PLAN, graph()))
    plan, owners = read_plan_file(path)
    assert plan == PLAN == read_plan(path)
    assert plan.digest() == PLAN.digest()
    assert owners == graph().of_kinds(["PII"]).digest()
    assert Plan(**plan_fields_of(plan)) == PLAN
    assert plan_fields_of(plan)["noise_multiplier"] == 3.0


def test_a_changed_or_unfinished_plan_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.yml"
    fields = yaml.safe_load(plan_file(PLAN))
    path.write_text(yaml.safe_dump(fields | {"noise_multiplier": 2.0}))
    with pytest.raises(DataError, match="changed after it was calibrated"):
        read_plan_file(path)
    path.write_text("protect: users\nepsilon: 3\nsteps: 20\nuser_rate: 0.1\nusers: 100\n")
    with pytest.raises(UsageError, match="no noise_multiplier; calibrate"):
        read_plan_file(path)
    path.write_text(path.read_text() + "noise_multiplier: 2\ncalibrated: yes\n")
    with pytest.raises(DataError, match="changed after"):
        read_plan_file(path)


@pytest.mark.parametrize(
    ("run", "field"),
    [
        ({"plan": {"epsilon": 2}}, "epsilon=2"),
        ({"plan": {"protect": "users"}}, "protect='users'"),
        ({"plan": {"kinds": ["PERSON"]}}, "kinds="),
        ({"plan": {"noise_multiplier": 1.0}}, "noise_multiplier=1.0"),
        ({"plan": {"record_rate": 0.1}}, "record_rate=0.1"),
        ({"steps": 6}, "steps=6"),
    ],
)
def test_a_run_that_contradicts_its_plan_is_refused(run: dict[str, Any], field: str) -> None:
    with pytest.raises(PrivacyRefused, match=field):
        require_same_plan(run, PLAN, Path("plan.yml"))


def test_a_run_that_agrees_with_its_plan_passes() -> None:
    for plan in ({}, {"epsilon": 8, "kinds": ["PII"]}, {"noise_multiplier": None}):
        require_same_plan({"plan": plan, "steps": 5, "corpus": "c"}, PLAN, Path("plan.yml"))
    with pytest.raises(UsageError, match="'epsilom' is not a field"):
        require_same_plan({"plan": {"epsilom": 3}}, PLAN, Path("plan.yml"))


def test_the_graph_of_the_run_passes_and_others_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "owners.json"
    graph().save(file)
    require_same_owners(PLAN, graph(), file=file, promised=graph().of_kinds(["PII"]).digest())
    more_dates = [*ROWS[:1], ("r2", "bob", ["e1", "e2"])]
    require_same_owners(PLAN, graph(more_dates), file=file)  # dates are not protected
    others: list[tuple[Any, str]] = [
        ([*ROWS, ("r3", "bob", [])], "its records are others .2, and here 3"),
        ([("r1", "zoe", ["e1"]), ROWS[1]], "its users are others"),
        ([("r1", "ann", []), ("r2", "bob", [])], "its entities are others"),
        ([("r1", "ann", ["e2"]), ROWS[1]], "who names whom"),
    ]
    for rows, words in others:
        with pytest.raises(PrivacyRefused, match=words):
            require_same_owners(PLAN, graph(rows), file=file)
        with pytest.raises(PrivacyRefused, match="another owner graph"):
            require_same_owners(PLAN, graph(rows), promised=graph().of_kinds(["PII"]).digest())


def test_other_detectors_are_refused_and_a_plan_without_entities_takes_no_graph(
    tmp_path: Path,
) -> None:
    file = tmp_path / "owners.json"
    by_lists = Provenance((Used("lists", "1"),), ("PII/EMAIL", "DATE"))
    graph(provenance=by_lists).save(file)
    assert Owners.load(file).origin == Origin(by_lists)
    require_same_owners(PLAN, graph(provenance=by_lists), file=file)
    with pytest.raises(PrivacyRefused, match="other detectors"):
        require_same_owners(PLAN, graph(), file=file)
    users = Plan(protect="users", epsilon=3, steps=5, user_rate=0.5, users=100)
    require_same_owners(users, graph())
    with pytest.raises(UsageError, match="leave --owners out"):
        require_same_owners(users, graph(), file=file)
