"""Plans: what is accepted, what is refused and how, and that the noise meets the targets."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import DataError, PrivacyRefused, TacitError, UsageError
from tacit.planning.plan import (
    Plan,
    calibrated,
    parse_overrides,
    plan_yaml,
    prices,
    public_denominator,
    read_plan,
    require_trainable,
)
from tacit.privacy.accounting.pricing import price
from tacit.privacy.events import Flat, ReplaceOne, SampledGaussian, Selective, UserClip

USERS: dict[str, Any] = {"protect": "users", "epsilon": 3, "steps": 20, "user_rate": 0.1}
BOTH: dict[str, Any] = {"protect": "users+entities", "epsilon": 4, "steps": 20, "user_rate": 0.1}
FLAT: dict[str, Any] = {
    "protect": "users+entities", "mechanism": "flat", "epsilon": 8, "steps": 20,
    "record_rate": 0.05, "records_per_user": 4, "records_per_entity": 1,
}  # fmt: skip
RECORDS: dict[str, Any] = {"protect": "records", "epsilon": 3, "steps": 20, "record_rate": 0.1}
TOKENS: dict[str, Any] = {"protect": "tokens", "epsilon": 5, "steps": 5, "record_rate": 0.1}
ALL = [USERS, BOTH, FLAT, RECORDS, TOKENS, TOKENS | {"mechanism": "selective"}]
EVENTS = [SampledGaussian, UserClip, Flat, SampledGaussian, ReplaceOne, Selective]


@pytest.mark.parametrize(
    ("fields", "kind"),
    list(zip(ALL, EVENTS, strict=True)),
)
def test_each_plan_has_its_event_and_meets_its_target(fields: dict[str, Any], kind: type) -> None:
    plan = calibrated(Plan(**fields))
    assert isinstance(plan.event(), kind)
    cost = price(plan.releases(), plan.protect, plan.delta, fresh=True)
    assert cost.epsilon <= plan.epsilon
    # Not needlessly noisy: a tenth less noise would break the promise.
    less = {plan.event((plan.noise_multiplier or 0) * 0.9): plan.steps}
    assert price(less, plan.protect, plan.delta).epsilon > plan.epsilon
    assert Plan(**yaml.safe_load(plan_yaml(plan))) == plan
    assert Plan(**plan.model_dump(mode="json")).digest() == plan.digest()


def test_several_targets_are_all_met() -> None:
    plan = calibrated(Plan(**BOTH, targets={"users": 0.5, "entities": 3}))
    costs = prices(plan)
    assert costs["users"].epsilon <= 0.5
    assert costs["entities"].epsilon <= 3
    assert costs["users+entities"].epsilon <= 4
    alone = calibrated(Plan(**BOTH))
    assert (plan.noise_multiplier or 0) > (alone.noise_multiplier or 0)


def test_given_noise_that_is_too_small_is_refused() -> None:
    with pytest.raises(PrivacyRefused, match="over the target 3"):
        calibrated(Plan(**USERS, noise_multiplier=0.3))
    plan = Plan(**USERS, noise_multiplier=50)
    assert calibrated(plan) == plan


def test_an_entity_moves_a_user_by_no_more_than_its_share() -> None:
    plan = Plan(
        **BOTH, users_per_entity=2, entity_share=0.5, records_per_user_entity=4, clip_norm=2.0
    )
    assert plan.record_clip == 0.25
    assert plan.caps == {"users_per_entity": 2, "records_per_user_entity": 4}
    loose = Plan(**BOTH, entity_share=2)
    assert loose.record_clip is None
    assert loose.caps == {"users_per_entity": 1}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (USERS | {"protect": "user"}, "'records', 'users'"),
        (USERS | {"user_rat": 0.1}, "Did you mean 'user_rate'"),
        (USERS | {"epsilom": 1}, "Did you mean 'epsilon'"),
        (USERS | {"user_rate": 1.5}, "user_rate=1.5"),
        (USERS | {"user_rate": 0}, "user_rate=0"),
        (USERS | {"epsilon": -1}, "epsilon=-1"),
        (USERS | {"epsilon": float("nan")}, "epsilon=nan"),
        (USERS | {"epsilon": float("inf")}, "epsilon=inf"),
        (USERS | {"delta": 0}, "delta=0"),
        (USERS | {"delta": 1}, "delta=1"),
        (USERS | {"delta": 0.05}, "delta=0.05"),
        (USERS | {"delta": 1e-3, "users": 2000}, "above 1/users"),
        (BOTH | {"delta": 1e-3, "users": 2000}, "above 1/users = 0.0005: at that, one user may"),
        (FLAT | {"delta": 1e-3, "users": 2000}, "above 1/users"),
        (RECORDS | {"delta": 1e-3, "records": 2000}, "above 1/records"),
        (RECORDS | {"delta": 1e-3, "users": 2000}, "above 1/users"),
        (TOKENS | {"delta": 1e-3, "records": 2000}, "one record may be given away altogether"),
        (USERS | {"targets": {"users": 30}}, "targets repeats users"),
        (USERS | {"records_per_user": 3}, "does not hold the graph fixed"),
        (RECORDS | {"records_per_user": 1}, "does not hold the graph fixed"),
        (USERS | {"steps": 0}, "steps=0"),
        (USERS | {"steps": 2.5}, "steps=2.5"),
        ({"protect": "users", "epsilon": 1, "steps": 5}, "needs user_rate"),
        ({"protect": "users", "epsilon": 1, "user_rate": 0.1}, "needs steps"),
        (USERS | {"record_rate": 0.1}, "record_rate has no meaning"),
        (USERS | {"mechanism": "flat"}, "does not protect users"),
        (USERS | {"targets": {"entities": 3}}, "leave out the target for entities"),
        (USERS | {"targets": {"people": 3}}, "targets"),
        (USERS | {"adjacency": "by-degree"}, "about entities"),
        (BOTH | {"mechanism": "flat"}, "user_rate has no meaning|needs record_rate"),
        (BOTH | {"mechanism": "selective"}, "userclip or flat"),
        (BOTH | {"users_per_entity": 0}, "users_per_entity=0"),
        (BOTH | {"entity_share": 2.5}, "entity_share=2.5"),
        (BOTH | {"adjacency": "by-degree"}, "by-degree"),
        (BOTH | {"adjacency": "by-degree", "entity_share": 2}, "needs users"),
        (BOTH | {"adjacency": "by-degree", "entity_share": 2, "users": 9, "records_per_user": 3},
         "records_per_user drops"),
        ({k: v for k, v in FLAT.items() if k != "records_per_user"}, "needs records_per_user"),
        (FLAT | {"entity_rate": 0.5}, "entity_rate"),
        (TOKENS | {"mechanism": "userclip"}, "redact-then-private or residual-tokens or selective"),
        (USERS | {"kinds": ["PII"]}, "kinds is about entities"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_sentence(fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=expected) as caught:
        Plan(**fields)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "counted", "expected"),
    [
        (USERS, None, "needs users, the public denominator"),
        (USERS, 500, "may not be counted from the data"),
        (USERS | {"users": 9}, None, "of 9 users draws 0.9 in a step"),
        (BOTH | {"entity_rate": 0.5}, None, "priced but not trained"),
        (BOTH, 9, "of 9 users draws 0.9"),
        (BOTH | {"delta": 0.005}, 201, "delta=0.005 is above 1/users"),
        (TOKENS | {"delta": 0.005}, 201, "delta=0.005 is above 1/records"),
        ({"protect": "records", "epsilon": 3, "steps": 2, "record_rate": 0.1}, None,
         "needs records, the public denominator"),
    ],
)  # fmt: skip
def test_what_training_would_refuse_is_refused_of_the_plan(
    fields: dict[str, Any], counted: int | None, expected: str
) -> None:
    with pytest.raises(UsageError, match=expected):
        require_trainable(Plan(**fields), counted)


def test_the_denominator_is_declared_or_counted_where_the_graph_is_fixed() -> None:
    assert public_denominator(Plan(**USERS | {"users": 1000}), 700) == 100
    assert public_denominator(Plan(**BOTH), 700) == 70
    require_trainable(Plan(**BOTH))


def test_a_target_that_no_noise_reaches_is_refused() -> None:
    with pytest.raises(TacitError, match="for users"):
        calibrated(Plan(**USERS | {"epsilon": 1e-9, "steps": 10**6, "user_rate": 1}))


def test_files_and_overrides(tmp_path: Path) -> None:
    file = tmp_path / "plan.yml"
    file.write_text("protect: users\nepsilon: 3\nsteps: 20\nuser_rate: 0.1\n")
    assert read_plan(file) == Plan(**USERS)
    changed = read_plan(file, parse_overrides(["steps=7", "users=900"]))
    assert (changed.steps, changed.users) == (7, 900)
    for content in ("- a\n", "{", "\xff", "", "5"):
        file.write_bytes(content.encode("latin-1"))
        with pytest.raises(DataError, match="plan"):
            read_plan(file)
    with pytest.raises(DataError, match="does not exist"):
        read_plan(tmp_path / "none.yml")
    for pair in ("steps", "steps={"):
        with pytest.raises(UsageError):
            parse_overrides([pair])


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.sampled_from(["users", "flat", "by-degree", 0.1, 1, 10**400]),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)  # fmt: skip


@settings(max_examples=1000)
@given(
    st.sampled_from(ALL),
    st.dictionaries(st.sampled_from([*Plan.model_fields, "x"]), VALUES, max_size=4),
)
def test_odd_plans_are_made_or_refused_in_our_words(
    base: dict[str, Any], odd: dict[str, Any]
) -> None:
    try:
        plan = Plan(**base | odd)
    except UsageError:
        return
    assert Plan(**plan.model_dump(mode="json")) == plan


def test_the_schema_describes_every_field() -> None:
    schema = Plan.model_json_schema()
    assert set(schema["properties"]) == set(Plan.model_fields)
    assert schema["additionalProperties"] is False
