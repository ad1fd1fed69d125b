"""Real runs in real processes: killed, found again, stopped, resumed, continued, forgotten."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from living import Living

from tacit.corpora import customersim
from tacit.errors import PrivacyRefused
from tacit.privacy.accounting import price
from tacit.privacy.ledger import read_ledger
from tacit.server.client import Client
from tacit.verifying import verify

RUN: dict[str, Any] = {
    "name": "long",
    "plan": {"protect": "users", "epsilon": 3, "steps": 90, "user_rate": 1.0, "users": 30},
    "model": {"kind": "lstm", "config": {"embedding_size": 8, "hidden_size": 8, "layers": 1}},
    "tokenizer": {"size": 400},
    "context": 24,
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
def finished(server: Living, admin: Client, dataset: str) -> dict[str, Any]:
    """A run that was killed, whose server was killed, that was cancelled and resumed, and ended."""
    run = admin.start_run(dataset, RUN)["id"]
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
    # Nothing of the progress was lost or told twice, through both deaths.
    assert numbers == list(range(len(numbers)))
    stopped = admin.run(run)
    assert stopped["state"] == "cancelled"
    assert stopped["attempts"] == 2, "the child died once and was taken up again"
    ledger = read_ledger(server.job_folder(run) / "run" / "ledger.jsonl")
    released = len(ledger.entries)
    assert 20 <= released < 90
    spent = admin.budget(dataset)
    exact = price(ledger.releases(), "users", 1e-5, lower=False).epsilon
    assert spent["spent"]["users"] == pytest.approx(exact), "what was released, and no more"
    assert spent["runs"][0]["releases"] == released
    admin.resume(run)
    return admin.wait(run) | {"before": released}


def test_a_run_survives_its_child_its_server_and_its_owner(
    server: Living, admin: Client, dataset: str, finished: dict[str, Any]
) -> None:
    folder = server.job_folder(finished["id"]) / "run"
    assert [check for check in verify(folder) if not check.ok] == []
    ledger = read_ledger(folder / "ledger.jsonl")
    assert len(ledger.entries) >= finished["before"]
    exact = price(ledger.releases(), "users", 1e-5, lower=False).epsilon
    assert exact <= 3
    found = admin.budget(dataset)
    assert found["spent"]["users"] == pytest.approx(exact)
    assert finished["result"]["standing"] == "proved"
    log = admin._sent("GET", f"/runs/{finished['id']}/log").text
    assert log.count("--- started") == 3
    corpus = [json.loads(line) for line in (folder.parent / "corpus.jsonl").open()]
    assert not any(row["text"] in log for row in corpus)


def test_what_is_left_of_the_budget_is_all_that_can_be_had(
    admin: Client, dataset: str, finished: dict[str, Any]
) -> None:
    with pytest.raises(PrivacyRefused, match="over its budget of 5"):
        admin.start_run(dataset, RUN | {"plan": RUN["plan"] | {"epsilon": 4.5}})


def test_a_model_goes_on_and_its_ledger_with_it(
    server: Living, admin: Client, dataset: str, finished: dict[str, Any], tmp_path: Path
) -> None:
    admin.add_record(dataset, "One more text to learn from, please.", user="somebody new")
    before = admin.budget(dataset)["spent"]["users"]
    asked = RUN | {
        "name": "refined",
        "continue_from": finished["id"],
        "plan": RUN["plan"] | {"epsilon": 4.5, "steps": 3},
    }
    done = admin.wait(admin.start_run(dataset, asked)["id"])
    ledger = read_ledger(server.job_folder(done["id"]) / "run" / "ledger.jsonl")
    assert ledger.phases() == ["earlier/train", "train"]
    model = next(m for m in admin.models() if m["id"] == done["id"])
    assert before < model["epsilon"]["users"] <= 4.5, "the promise covers both runs"
    # Each release is charged once: the sum over the dataset is the price of the model.
    assert admin.budget(dataset)["spent"]["users"] == pytest.approx(
        float(model["epsilon"]["users"]), rel=1e-3
    )
    assert admin.pull(done["id"], tmp_path / "model") is None
    assert [check for check in verify(tmp_path / "model") if not check.ok] == []
    assert not (tmp_path / "model" / "metrics.json").exists()
    assert not (tmp_path / "model" / "run.yml").exists()
    # Whoever wrote leaves: the text goes, also from the snapshots; what was spent does not.
    user = next(admin.my_records(dataset))["user"]
    answer = admin.forget(dataset, user)
    assert answer["deleted"] >= 1
    assert {run["run"] for run in answer["runs"]} == {finished["id"], done["id"]}
    for run in (finished["id"], done["id"]):
        snapshot = (server.job_folder(run) / "corpus.jsonl").read_text(encoding="utf-8")
        assert json.dumps(user) not in snapshot
    assert user not in {row["user"] for row in admin.my_records(dataset)}
    assert admin.budget(dataset)["spent"]["users"] == pytest.approx(
        float(model["epsilon"]["users"]), rel=1e-3
    )
