"""Requests as settings of a run: the methods that may be named, and where their settings go."""

from typing import Any

import pytest

from tacit.detection.detector import DETECTORS
from tacit.errors import UsageError
from tacit.server.run_requests import RunRequest, settings_of
from tacit.training.methods import DEFAULT_METHOD, METHODS
from tacit.training.methods.uedp import UEDP
from tacit.training.models.registries import MODELS


def test_the_default_method_keeps_a_plan_and_every_method_has_a_title() -> None:
    assert METHODS[DEFAULT_METHOD].planned
    assert all(spec.title and spec.summary for spec in METHODS.values())


def test_an_unknown_method_is_refused_with_what_is_near() -> None:
    with pytest.raises(UsageError, match="Did you mean 'dp-sgd'"):
        settings_of(RunRequest(method="dpsgd"))


def test_a_list_goes_to_the_plan_or_to_the_methods_own_settings() -> None:
    without = RunRequest(method="uedp", steps=3, entity_list="a1", detectors=("patterns",))
    run = settings_of(without)
    assert str(UEDP.options(run).entity_list) == "entities.txt"
    plan = {"protect": "both", "epsilon": 1, "steps": 3, "user_rate": 0.5}
    run = settings_of(RunRequest(plan=plan, entity_list="a1", detectors=("patterns",)))
    assert run.plan["entity_list"] == "entities.txt"
    with pytest.raises(UsageError, match="no settings of its own"):
        settings_of(RunRequest(method="plain", steps=3, method_settings={"user_rate": 0.1}))


def test_names_are_looked_for_by_default_and_public_ones_may_have_spaces() -> None:
    plan: dict[str, Any] = {"protect": "users+names", "epsilon": 1, "steps": 3, "user_rate": 0.5,
                            "users": 10}  # fmt: skip
    run = settings_of(RunRequest(plan=plan | {"public_entities": ["Acme & Sons, Ltd."]}))
    assert run.detect == "patterns,lists,names"
    assert run.plan["public_entities"] == ["Acme & Sons, Ltd."]
    assert settings_of(RunRequest(plan=plan, detectors=("gold",))).detect == "gold"
    assert settings_of(RunRequest(plan=plan | {"protect": "users"})).detect is None
    for field, value in (("public_entities", ["a\nb"]), ("kinds", ["../etc"])):
        with pytest.raises(UsageError, match="not a plain word"):
            settings_of(RunRequest(plan=plan | {field: value}))


def test_a_classifier_is_chosen_from_labels_and_declared_numbers() -> None:
    """The method is the recipe's, too, unless the request names one."""
    pytest.importorskip("wordllama")
    plan: dict[str, Any] = {"protect": "users", "epsilon": 8, "users": 5000, "records": 50_000}
    asked: dict[str, Any] = {"recipe": "auto", "task": "classification", "labels": ("work", "home")}
    quiet = settings_of(RunRequest(**asked, plan=plan))
    assert (quiet.method, quiet.model.kind, quiet.labels) == (
        "dp-sgd", "features", ("work", "home"),
    )  # fmt: skip
    loud = plan | {"epsilon": 0.5, "users": 300, "records": 600}
    assert settings_of(RunRequest(**asked, plan=loud)).method == "statistics"
    assert settings_of(RunRequest(**asked, plan=loud, method="dp-sgd")).method == "dp-sgd"
    with pytest.raises(UsageError, match="needs the labels"):
        settings_of(RunRequest(**asked | {"labels": None}, plan=plan))


def test_a_family_and_a_detector_of_a_package_are_offered_and_files_are_not() -> None:
    for registry, field, files in (
        (MODELS, "model", ("folder", "features", "states")),
        (DETECTORS, "detectors", ("tagger", "spacy")),
    ):
        for name in (*files, "toy"):
            with pytest.raises(ValueError, match="is not offered here"):
                RunRequest.model_validate(_naming(field, name))
        registry.add("toy", "toy_package:TOY")
        try:
            RunRequest.model_validate(_naming(field, "toy"))
        finally:
            registry.remove("toy")


def _naming(field: str, name: str) -> dict[str, object]:
    return {field: {"kind": name} if field == "model" else [name]}
