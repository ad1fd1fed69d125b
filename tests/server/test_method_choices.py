"""The methods that a request may name, and where their settings go."""

import pytest
from tacit.server.method_choices import DEFAULT_METHOD, method_choice, method_choices

from tacit.errors import UsageError
from tacit.server.run_requests import RunRequest, settings_of
from tacit.training.settings import METHODS, PLANNED


def test_every_method_is_offered_as_it_is() -> None:
    choices = method_choices()
    assert set(choices) == set(METHODS)
    assert next(iter(choices)) == DEFAULT_METHOD
    for name, choice in choices.items():
        assert (choice.standing, choice.summary) == METHODS[name]
        assert choice.planned == (name in PLANNED) == bool(choice.protects)


def test_an_unknown_method_is_refused_with_what_is_near() -> None:
    with pytest.raises(UsageError, match="Did you mean 'private'"):
        method_choice("privat")


def test_a_list_goes_to_the_plan_or_to_the_methods_own_settings() -> None:
    without = RunRequest(method="uedp", steps=3, entity_list="a1", detectors=("patterns",))
    run = settings_of(without)
    assert str(run.uedp.entity_list) == "entities.txt"
    plan = {"protect": "both", "epsilon": 1, "steps": 3, "user_rate": 0.5}
    run = settings_of(RunRequest(plan=plan, entity_list="a1", detectors=("patterns",)))
    assert run.plan["entity_list"] == "entities.txt"
    with pytest.raises(UsageError, match="no settings of its own"):
        settings_of(RunRequest(method="plain", steps=3, method_settings={"user_rate": 0.1}))
