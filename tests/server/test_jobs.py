"""Real runs in real processes: killed, found again, stopped, resumed, continued, forgotten."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.living import Living
from tacit.corpora import customersim
from tacit.errors import PrivacyRefused
from tacit.privacy.accounting.pricing import price
from tacit.privacy.ledger import read_ledger
from tacit.server.client import Client
from tacit.verification.runs import verify

RUN: dict[str, Any] = {
    "name": "long",
    "plan": {"protect": "users", "epsilon": 3, "steps": 90, "user_rate": 1.0, "users": 30},
    "model": {"kind": "lstm", "config": {"embedding_size": 8, "hidden_size": 8, "layers": 1}},
    "tokenizer": {"size": 400},
    "context": 24,
    "optimizer": {"name": "adam", "learning_rate": 1e-3},  # noise this loud would diverge with SGD
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Living]:
    living = Living(tmp_path_factory.mktemp("living") / "server")
    yield living
    living.stop()


@pytest.fixture(scope="module")
def admin(server: Living) -> Iterator[Client]:
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def dataset(admin: Client) -> str:
    name = str(admin.add_dataset("dialogs", limits={"users": 5})["id"])
    assert admin.add_corpus(name, customersim.generate(30, 3), key="all") == 30
    return name


@pytest.fixture(scope="module")
def stopped(server: Living, admin: Client, dataset: str) -> tuple[str, list[int]]:
    """A run whose child was killed, whose server was killed, and that was cancelled at last."""
    run = str(admin.start_run(dataset, RUN)["id"])
    assert admin.budget(dataset)["spent"]["users"] == pytest.approx(3, rel=0.01), "all reserved"
    numbers: list[int] = []
    deeds = iter([(2, "child"), (10, "server"), (20, "cancel"), (10**9, "")])
    at, deed = next(deeds)
    for kind, fields in admin.events(run):
        if kind == "progress":
            numbers.append(fields["number"])
            if fields["step"] < at:
                continue
            if deed == "child":
                server.kill_child(run)
            else:
                # It stands still meanwhile, so that it does not end by itself first.
                with server.stopped(run):
                    if deed == "server":
                        server.kill()
                        server.start()
                    else:
                        admin.cancel(run)
            at, deed = next(deeds)
    return run, numbers


def spent(admin: Client, dataset: str) -> float:
    return float(admin.budget(dataset)["spent"]["users"])


def test_a_run_survives_its_child_and_its_server(
    server: Living, admin: Client, dataset: str, stopped: tuple[str, list[int]]
) -> None:
    run, numbers = stopped
    found = admin.run(run)
    assert found["state"] == "cancelled"
    assert found["attempts"] == 2, "the child died once and was taken up again"
    # Nothing of the progress was lost or told twice, through both deaths.
    assert numbers == list(range(len(numbers)))
    ledger = read_ledger(server.job_folder(run) / "run" / "ledger.jsonl")
    assert 20 <= len(ledger.entries) < 90
    exact = price(ledger.releases(), "users", 1e-5, lower=False).epsilon
    assert spent(admin, dataset) == pytest.approx(exact), "what was released, and no more"
    assert admin.budget(dataset)["runs"][0]["releases"] == len(ledger.entries)
    log = admin._sent("GET", f"/runs/{run}/log").text
    assert log.count("--- started") == 2
    corpus = [json.loads(line) for line in (server.job_folder(run) / "corpus.jsonl").open()]
    assert not any(row["text"] in log for row in corpus)
    assert server.says_nothing_of_this_machine(dataset, run) > 20
    with pytest.raises(PrivacyRefused, match="over its budget of 5"):
        admin.start_run(dataset, RUN | {"plan": RUN["plan"] | {"epsilon": 4.99}})


def gone_from(server: Living, run: str, user: str) -> bool:
    snapshot = (server.job_folder(run) / "corpus.jsonl").read_text(encoding="utf-8")
    return json.dumps(user) not in snapshot


def leave(server: Living, admin: Client, dataset: str, runs: set[str]) -> None:
    """Whoever wrote leaves: the text goes, also from snapshots; what was spent does not."""
    before = spent(admin, dataset)
    user = next(admin.my_records(dataset))["user"]
    answer = admin.forget(dataset, user)
    assert answer["deleted"] >= 1
    assert {run["run"] for run in answer["runs"]} == runs
    assert all(gone_from(server, run, user) for run in runs)
    assert user not in {row["user"] for row in admin.my_records(dataset)}
    assert spent(admin, dataset) == before


@pytest.mark.slow
def test_it_is_resumed_and_a_model_goes_on_from_it(
    server: Living,
    admin: Client,
    dataset: str,
    stopped: tuple[str, list[int]],
    tmp_path: Path,
) -> None:
    run, _ = stopped
    folder = server.job_folder(run) / "run"
    before = len(read_ledger(folder / "ledger.jsonl").entries)
    admin.resume(run)
    done = admin.wait(run)
    assert [check for check in verify(folder) if not check.ok] == []
    ledger = read_ledger(folder / "ledger.jsonl")
    assert len(ledger.entries) >= before
    exact = price(ledger.releases(), "users", 1e-5, lower=False).epsilon
    assert exact <= 3
    assert spent(admin, dataset) == pytest.approx(exact)
    assert done["result"]["standing"] == "proved"

    admin.add_record(dataset, "One more text to learn from, please.", user="somebody new")
    asked = RUN | {
        "name": "refined",
        "continue_from": run,
        "plan": RUN["plan"] | {"epsilon": 4.5, "steps": 3},
    }
    done = admin.wait(admin.start_run(dataset, asked)["id"])
    ledger = read_ledger(server.job_folder(done["id"]) / "run" / "ledger.jsonl")
    assert list(ledger.phases()) == ["earlier/train", "train"]
    model = next(m for m in admin.models() if m["id"] == done["id"])
    total = float(model["epsilon"]["users"])
    assert exact < total <= 4.5, "the promise covers both runs"
    # Each release is charged once: the sum over the dataset is the price of the model.
    assert spent(admin, dataset) == pytest.approx(total, rel=1e-3)
    assert admin.pull(done["id"], tmp_path / "model") is None
    assert [check for check in verify(tmp_path / "model") if not check.ok] == []
    assert not (tmp_path / "model" / "metrics.json").exists()
    assert not (tmp_path / "model" / "run.yml").exists()
    leave(server, admin, dataset, {run, done["id"]})


def test_who_leaves_is_gone_from_snapshots_and_not_from_the_books(
    server: Living, admin: Client, dataset: str, stopped: tuple[str, list[int]]
) -> None:
    others = {run["id"] for run in admin.call("GET", "/runs")}
    leave(server, admin, dataset, others)


@pytest.mark.slow
def test_a_model_without_promise_is_warned_about_attacked_and_reported(
    server: Living, admin: Client, tmp_path: Path
) -> None:
    corpus = customersim.generate(60, 5)
    dataset = admin.add_dataset("experiments", limits={"users": 1})["id"]
    for number, record in enumerate(corpus.records()):
        split = "valid" if number % 5 == 0 else "test" if number % 5 == 1 else "train"
        admin.add_record(dataset, record.text, user=record.user, split=split, key=f"r{number}")
    public = admin.add_dataset("public", public=True)["id"]
    admin.add_record(public, "Anybody may read this sentence.", user="the public")

    found = admin.detect(dataset, detectors=["patterns"])
    shared = admin.call("GET", f"/detections/{found['id']}/owners")["not_private"]
    assert shared["entities"] == found["result"]["entities"]
    assert shared["most_shared"][0]["name"], "an admin sees names"
    assert "<html" in admin._sent("GET", f"/detections/{found['id']}/page").text

    names = [entity["name"] for entity in shared["most_shared"][:3]]
    path = f"/datasets/{dataset}/entity-lists"
    listed = admin.call("POST", path, json={"name": "few", "names": names})["id"]
    dry = admin.plan(
        dataset,
        RUN
        | {
            "detectors": ["patterns"],
            "entity_list": listed,
            "plan": {"protect": "both", "epsilon": 2, "steps": 3, "user_rate": 1.0},
        },
    )
    assert dry["epsilon"]["users"] < dry["epsilon"]["users+entities"] <= 2
    assert dry["not_private"]["kept"] <= 60
    assert "entity_list: entities.txt" in dry["run"]

    asked = {name: RUN[name] for name in ("model", "tokenizer", "context")}
    asked |= {"method": "plain", "steps": 4, "name": "bare", "keep_checkpoints": 0}
    asked |= {"public_start": {"dataset": public, "steps": 2, "batch": 1}}
    with pytest.raises(PrivacyRefused, match="An admin may allow"):
        admin.start_run(dataset, asked)
    admin.call("PATCH", f"/datasets/{dataset}", json={"unproved_allowed": True})
    run = admin.wait(admin.start_run(dataset, asked)["id"])["id"]
    assert "may give away text" in admin.predict(run, "my order")["warning"]
    assert "may give away text" in str(admin.pull(run, tmp_path / "bare"))
    assert admin.budget(dataset)["unbounded_runs"] == [run]

    attacked = admin.attack(run, "membership")
    assert attacked["result"]["output"]
    made = admin.call("POST", f"/runs/{run}/evaluations", json={"split": "test"})
    assert admin._waited(f"/jobs/{made['id']}")["result"]["output"]["perplexity"] > 1
    assert len(admin.call("GET", f"/runs/{run}/jobs")) == 2
    exact = admin.call("GET", f"/runs/{run}/metrics")["not_private"]
    assert "test" in exact
    assert exact["verdict"]["words"].startswith("Perplexity ")
    page = admin._sent("GET", f"/runs/{run}/report")
    assert "membership" in page.text
    assert "sandbox" in page.headers["content-security-policy"]
    short = admin.call("GET", f"/runs/{run}/report", params={"format": "json", "shareable": True})
    assert "membership" not in json.dumps(short)
