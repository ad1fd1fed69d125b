"""`tacit plan`: the dry run of a promise."""

import json
from pathlib import Path

import pytest
import yaml

from support.driving import Tacit
from tacit.cli.recipes import few_words
from tacit.owners import Owners

SMALL = "--set protect=users --set epsilon=3 --set steps=20 --set user_rate=0.1 --set users=100"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.yml"
    path.write_text("protect: users\nepsilon: 3\nsteps: 20\nuser_rate: 0.1\nusers: 100\n")
    return path


def test_a_file_and_flags_agree(tacit: Tacit, file: Path) -> None:
    by_file, by_flags = tacit("plan", file, "--json").json, tacit(f"plan {SMALL} --json").json
    assert by_file == by_flags
    assert by_file["standing"] == "proved"
    assert 2.9 < by_file["epsilon"]["users"] <= 3


def test_flags_override_the_file(tacit: Tacit, file: Path) -> None:
    plain, strict = (
        tacit("plan", file, *change, "--json").json for change in ([], ["--set", "epsilon=1"])
    )
    assert strict["epsilon"]["users"] <= 1
    assert strict["plan"]["noise_multiplier"] > plain["plan"]["noise_multiplier"]
    assert strict["plan_digest"] != plain["plan_digest"]


def test_prose(tacit: Tacit, file: Path) -> None:
    shown = tacit("plan", file)
    assert shown.code == 0
    for words in ("promises", "assumed", "not covered", "adversary", "indistinguishable"):
        assert words in shown.out


def test_schema(tacit: Tacit) -> None:
    found = tacit("plan", "--schema")
    assert found.code == 0
    assert {"protect", "epsilon", "users_per_entity"} <= set(found.json["properties"])
    assert found.json["additionalProperties"] is False


def test_a_calibrated_plan_is_a_plan(tacit: Tacit, file: Path, tmp_path: Path) -> None:
    target = tmp_path / "calibrated.yml"
    assert tacit("plan", file, "-o", target).code == 0
    assert yaml.safe_load(target.read_text())["noise_multiplier"] > 0
    assert tacit("plan", target, "--json").json["epsilon"]["users"] <= 3


SEARCH = (
    "plan --set protect=users+entities --set epsilon=8 --set steps=10 --set user_rate=0.2 "
    "--set kinds=[PERSON,PII]"
)


def test_search_on_an_owner_graph(tacit: Tacit, made: Path) -> None:
    found = tacit(SEARCH, "--owners", made / "owners.json", "--search", "--json")
    assert found.code == 0
    tried = found.json["tried"]
    assert tried[0]["noise_to_signal"] == min(
        t["noise_to_signal"] for t in tried if t["noise_to_signal"] != "infinity"
    )
    assert found.json["plan"]["users_per_entity"] == tried[0]["users_per_entity"]
    assert found.json["bounding"]
    assert found.json["epsilon"]["users+entities"] <= 8


BOTH = SEARCH.removeprefix("plan ")
BY_DEGREE = (
    "--set protect=entities --set epsilon=6 --set steps=5 --set user_rate=0.1 --set users=500 "
    "--set adjacency=by-degree --set entity_share=2 --search --owners OWNERS"
)


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (f"{SMALL} --set epsilom=1", 2, "Did you mean 'epsilon'"),
        (f"{SMALL} --set epsilon", 2, "NAME=VALUE"),
        (f"{SMALL} --set steps=many", 2, "steps"),
        (f"{SMALL} --search", 2, "--owners"),
        (f"{SMALL} --rates 0.1", 2, "--search"),
        (f"{SMALL} --search --owners OWNERS --rates a", 2, "--rates"),
        ("", 2, "--set"),
        ("none.yml", 3, "none.yml"),
        (f"{SMALL} --owners none.json", 3, "none.json"),
        (f"{SMALL} --set noise_multiplier=0.1", 4, "over the target"),
        (BY_DEGREE, 4, "by-degree"),
        (f"{SMALL} --set users=null", 2, "needs users, the public denominator"),
        (f"{SMALL} --set users=5", 2, "draws 0.5 in a step"),
        (f"{SMALL} --set users=200 --set delta=0.01", 2, "is above 1/users"),
        (f"{SMALL} --set kinds=[PII]", 2, "kinds is about entities"),
        (f"{BOTH} --set entity_rate=0.5", 2, "priced but not trained"),
        (f"{BOTH} --set user_rate=0.001 --owners OWNERS", 2, "in a step"),
        (f"{BOTH} --set kinds=null --owners OWNERS", 4, "of the kinds PERSON, PII only"),
        (f"{BOTH} --set kinds=[DATE] --owners OWNERS", 4, "of the kinds PERSON, PII only"),
    ],
)
def test_refusals(tacit: Tacit, made: Path, options: str, code: int, words: str) -> None:
    found = tacit("plan " + options.replace("OWNERS", str(made / "owners.json")))
    assert (found.code, found.out) == (code, "")
    assert words in found.err
    assert len(found.err.splitlines()) == 1


def test_a_plan_that_is_not_one(tacit: Tacit, tmp_path: Path) -> None:
    for name, text in {
        "list": "- 1\n- 2\n", "broken": "a: [\n", "empty": "", "deep": "[" * 1500, "nul": "a: \0",
    }.items():  # fmt: skip
        (tmp_path / f"{name}.yml").write_text(text)
        found = tacit("plan", tmp_path / f"{name}.yml")
        assert (found.code, found.out) == (3, ""), name
        assert len(found.err.splitlines()) == 1


def test_a_graph_that_was_changed(tacit: Tacit, made: Path, tmp_path: Path) -> None:
    graph = json.loads((made / "owners.json").read_text())
    graph["users"][0] = "somebody else"
    (tmp_path / "owners.json").write_text(json.dumps(graph))
    assert tacit(f"plan {SMALL} --owners", tmp_path / "owners.json").code == 3


def test_a_plan_reads_of_a_graph_what_it_protects(tacit: Tacit, tmp_path: Path) -> None:
    rows = [(f"r{i}", f"u{i}", ["date", f"mail{i}"]) for i in range(20)]
    kinds = {"date": "DATE"} | {f"mail{i}": "PII/EMAIL" for i in range(20)}
    Owners.from_rows(rows, kinds=kinds).save(tmp_path / "owners.json")
    plan = (
        "plan --set protect=users+entities --set epsilon=8 --set steps=2 --set user_rate=1 "
        f"--owners {tmp_path}/owners.json"
    )
    assert tacit(f"{plan} --json").json["bounding"]["kept"] == 1  # all share the date
    assert tacit(f"{plan} --set kinds=[PII] --json").json["bounding"]["kept"] == 20
    said = " ".join(tacit(f"{plan} --set kinds=[PII]").out.split())
    assert "any one entity of the kind PII was detected" in said
    assert "Found and not protected: DATE." in said
    refused = tacit(f"{plan} --set kinds=[PERSON]")
    assert refused.code == 4
    assert "the owner graph has no entity of that kind" in refused.err
    assert "An entity is what a file of mentions (whose detectors are not known) marked." in said


def test_a_plan_names_the_detectors_of_its_graph(tacit: Tacit, made: Path) -> None:
    said = " ".join(tacit(SEARCH, "--owners", made / "owners.json").out.split())
    assert "An entity is what patterns (tacit" in said
    assert "gold (tacit" in said


def test_a_list_restricts_the_graph_if_it_has_ids(tacit: Tacit, tmp_path: Path) -> None:
    rows = [(f"r{i}", f"u{i}", ["all", f"own{i}"]) for i in range(20)]
    Owners.from_rows(rows).save(tmp_path / "owners.json")
    (tmp_path / "list").write_text("# ids\nown3\n")
    plan = f"{SEARCH} --set kinds=null --set entity_list={tmp_path}/list"
    plan += f" --owners {tmp_path}/owners.json"
    assert tacit(f"{plan} --json").json["bounding"]["kept"] == 20
    (tmp_path / "list").write_text("Ann Smith\n")
    refused = tacit(plan)
    assert refused.code == 4
    assert "ids and no names" in refused.err


RUN = """
corpus: {corpus}
mentions: {mentions}
model: {{kind: lstm, config: {{hidden_size: 8, embedding_size: 8}}}}
tokenizer: {{size: 300}}
context: 16
"""


def test_what_was_planned_is_what_is_trained(tacit: Tacit, made: Path, tmp_path: Path) -> None:
    plan, graph, run = (tmp_path / name for name in ("plan.yml", "owners.json", "run.yml"))
    mentions = ("--mentions", made / "mentions.jsonl")
    assert tacit("owners", made / "c.jsonl", *mentions, "-o", graph).code == 0
    asked = SEARCH.replace("steps=10", "steps=2")
    planned = tacit(asked, "--owners", graph, "--search", "-o", plan, "--json").json
    run.write_text(RUN.format(corpus=made / "c.jsonl", mentions=made / "mentions.jsonl"))
    train = ("train", run, "--plan", plan, "--owners", graph)
    refused = tacit(*train, "--set", "plan.epsilon=2", "-o", tmp_path / "no")
    assert (refused.code, "epsilon=2" in refused.err) == (4, True)
    every = tmp_path / "all.json"
    assert tacit("owners", made / "c.jsonl", *mentions, "--split", "all", "-o", every).code == 0
    refused = tacit("train", run, "--plan", plan, "--owners", every, "-o", tmp_path / "no")
    assert (refused.code, "its records are others" in refused.err) == (4, True)
    on_all = tmp_path / "on_all.yml"
    assert tacit(asked, "--owners", every, "-o", on_all).code == 0
    refused = tacit("train", run, "--plan", on_all, "-o", tmp_path / "no")
    assert (refused.code, "on another owner graph" in refused.err) == (4, True)
    assert not (tmp_path / "no").exists()
    assert tacit("train", "--resume", tmp_path / "no", "--plan", plan).code == 2

    assert tacit(*train, "-o", tmp_path / "run").code == 0
    certificate = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert certificate["plan"] == planned["plan"]
    assert certificate["plan_digest"] == planned["plan_digest"]
    assert tacit("verify", tmp_path / "run").code == 0


def test_many_labels_are_a_list_and_not_a_path_that_is_too_long() -> None:
    names = [f"folder {number}" for number in range(200)]
    assert few_words(labels=",".join(names)) == {"labels": names}
