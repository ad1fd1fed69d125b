"""Workers on other machines: whatever happens to them, the books here are right."""

import io
import os
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.forking import start_python
from support.living import Living
from support.people import somebody
from tacit.corpora import customersim
from tacit.errors import DataError, TacitError
from tacit.privacy.accounting.pricing import price
from tacit.privacy.ledger import Ledger, read_ledger
from tacit.server.client import Client
from tacit.server.errors import Conflict, NotFound
from tacit.server.identity import Caller
from tacit.server.records import Draft
from tacit.server.run_requests import RunRequest
from tacit.server.services import Services
from tacit.verification.runs import verify

PLAN = {"protect": "users", "epsilon": 2, "steps": 5, "user_rate": 1.0, "users": 50}
RUN: dict[str, Any] = {
    "plan": PLAN | {"users": 30},
    "model": {"kind": "lstm", "config": {"embedding_size": 8, "hidden_size": 8, "layers": 1}},
    "tokenizer": {"size": 400},
    "context": 24,
}


class Claimed:
    """A run on a server without processes of its own, and a worker that has claimed it."""

    def __init__(self, services: Services) -> None:
        self.services = services
        services.settings.__dict__["jobs"] = 0
        services.jobs.close()
        self.admin: Caller = somebody(services, "admin")
        self.worker = somebody(services, "worker")
        self.dataset = services.datasets.add("diary", self.admin, limits={"users": 8})["id"]
        services.records.append(self.dataset, self.admin, [Draft("a text", "ann")]).result(30)
        self.run = services.jobs.train(self.dataset, RunRequest(plan=PLAN), self.admin)["id"]
        self.folder = services.settings.job_folder(self.run) / "run"
        self.claim = ""

    def take(self, name: str = "one") -> dict[str, Any] | None:
        found = self.services.remote.claim(name, self.worker)
        self.claim = found["claim"] if found else self.claim
        return found

    def send(self, **files: bytes) -> Any:
        named = {name.replace("__", "/").replace("_dot_", "."): io.BytesIO(c)
                 for name, c in files.items()}  # fmt: skip
        return self.services.remote.beat(self.run, self.claim, named)

    def ledger(self, entries: int, folder: Path) -> bytes:
        """As a worker's process would have written it."""
        plan = self.services.plans.prepare(self.dataset, RunRequest(plan=PLAN)).plan
        assert plan is not None
        path = folder / f"ledger {entries}.jsonl"
        with Ledger(path, {}) as ledger:
            for _ in range(entries):
                ledger.charge(plan.event())
        return path.read_bytes()

    def spent(self) -> float:
        return float(self.services.budgets.status(self.dataset)["spent"]["users"])

    def state(self) -> str:
        return str(self.services.jobs.get(self.run)["state"])


@pytest.fixture
def claimed(lite: Services) -> Claimed:
    return Claimed(lite)


def test_a_job_is_given_to_one_worker(claimed: Claimed) -> None:
    found = claimed.take()
    assert found is not None
    assert (found["job"], found["kind"]) == (claimed.run, "train")
    assert claimed.services.remote.claim("two", claimed.worker) is None
    assert claimed.services.jobs.get(claimed.run)["worker"] == "one"
    packed = io.BytesIO()
    claimed.services.remote.pack(claimed.run, claimed.claim, packed)
    with zipfile.ZipFile(packed) as archive:
        assert {"run.yml", "corpus.jsonl"} <= set(archive.namelist())
        assert str(claimed.services.settings.folder) not in archive.read("run.yml").decode()
    for job, claim in ((claimed.run, "0" * 32), ("nothing", claimed.claim)):
        with pytest.raises((Conflict, NotFound)):
            claimed.services.remote.beat(job, claim, {})


@pytest.mark.parametrize(
    "name",
    ["../x", "/etc/x", "run/../../x", "corpus.jsonl", "run.yml", "job.json", "lost.json",
     "alive.lock", "model.zip", "a/b/c/d", ".hidden", "target/run/x", "", "a\nb"],
)  # fmt: skip
def test_a_worker_writes_only_what_its_process_makes(claimed: Claimed, name: str) -> None:
    claimed.take()
    before = sorted(claimed.services.settings.folder.rglob("*"))
    files = {"log.txt": io.BytesIO(b"x"), name: io.BytesIO(b"x")}
    with pytest.raises(DataError):
        claimed.services.remote.beat(claimed.run, claimed.claim, files)
    assert sorted(claimed.services.settings.folder.rglob("*")) == before


def test_a_lost_worker_leaves_all_charged_that_it_may_have_released(
    claimed: Claimed, tmp_path: Path
) -> None:
    """Two steps are known of, and three more may have been made; a late word counts no more."""
    claimed.take()
    whole = claimed.spent()
    claimed.send(run__ledger_dot_jsonl=claimed.ledger(2, tmp_path))
    claimed.services.jobs._poll()
    assert claimed.state() == "running"
    claimed.services.settings.__dict__["worker_lost_seconds"] = 0.0
    claimed.services.jobs._poll()
    assert claimed.state() == "failed"
    assert "stays charged" in claimed.services.jobs.get(claimed.run)["message"]
    event = next(iter(read_ledger(claimed.folder / "ledger.jsonl").releases()))
    # No checkpoint was sent, so all five may have been made again.
    assert claimed.spent() == pytest.approx(price({event: 2 + 5}, "users", 1e-5).epsilon)
    assert claimed.spent() > whole
    with pytest.raises((NotFound, Conflict)):
        claimed.send(log_dot_txt=b"late")
    claimed.services.jobs.resume(claimed.run)
    assert claimed.spent() == pytest.approx(price({event: 2 + 5 + 5}, "users", 1e-5).epsilon)
    claimed.services.jobs.cancel(claimed.run)
    assert claimed.spent() == pytest.approx(price({event: 2 + 5}, "users", 1e-5).epsilon)


def test_what_was_lost_and_cannot_be_read_frees_nothing(claimed: Claimed) -> None:
    claimed.take()
    claimed.services.settings.__dict__["worker_lost_seconds"] = 0.0
    claimed.services.jobs._poll()
    spent = claimed.spent()
    (claimed.folder.parent / "lost.json").write_text("[")
    with pytest.raises(TacitError, match="lost worker"):
        claimed.services.jobs.resume(claimed.run)
    assert claimed.spent() == spent


def test_a_worker_is_told_to_stop_and_how_it_ended_is_judged_here(
    claimed: Claimed, tmp_path: Path
) -> None:
    claimed.take()
    assert claimed.send() == {"cancel": False}
    claimed.services.jobs.cancel(claimed.run)
    assert claimed.send(run__ledger_dot_jsonl=claimed.ledger(1, tmp_path)) == {"cancel": True}
    claimed.services.remote.end(claimed.run, claimed.claim)
    claimed.services.jobs._poll()
    assert claimed.state() == "cancelled"
    event = next(iter(read_ledger(claimed.folder / "ledger.jsonl").releases()))
    assert claimed.spent() == pytest.approx(price({event: 1}, "users", 1e-5).epsilon)


def test_a_server_that_was_away_does_not_think_its_workers_lost(claimed: Claimed) -> None:
    claimed.take()
    services = claimed.services
    services.storage.change(type(services.jobs._row(claimed.run, None)), claimed.run, heard=None)
    services.jobs._poll()
    assert claimed.state() == "running"


# --- two workers as processes -------------------------------------------------------------------


class Working:
    """`tacit serve worker` in a process of its own."""

    def __init__(self, server: Living, token: str, folder: Path, name: str) -> None:
        words = ["serve", "worker", "--server", server.address, "--folder", str(folder)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TACIT_TOKEN": token}
        self._how = (["-m", "tacit", *words, "--name", name], environment)
        self.folder = folder
        self.start()

    def start(self) -> None:
        words, environment = self._how
        self.process = start_python(*words, env=environment)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def far(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[Living, Client, list[Working]]]:
    """A server that does nothing itself, and two workers."""
    database: Callable[[], str] | None = None
    if request.param == "postgresql":
        database = request.getfixturevalue("postgres")
    address = database() if database else None
    server = Living(tmp_path / "server", address, "--jobs", "0")
    admin = server.client()
    account = admin.add_account("workers", "worker")["id"]
    workers = [Working(server, admin.add_token(account), tmp_path / name, name)
               for name in ("one", "two")]  # fmt: skip
    yield server, admin, workers
    for worker in workers:
        worker.stop()
    admin.close()
    server.stop()


@pytest.mark.slow
def test_two_workers_share_the_runs_of_a_server(
    far: tuple[Living, Client, list[Working]], tmp_path: Path
) -> None:
    """One is stopped in the middle and goes on, and the server is killed and comes back."""
    server, admin, workers = far
    admin.patience = 300
    dataset = admin.add_dataset("dialogs", limits={"users": 8})["id"]
    admin.add_corpus(dataset, customersim.generate(30, 3), key="all")
    runs = [admin.start_run(dataset, RUN | {"name": f"run {n}"})["id"] for n in range(2)]
    until = time.monotonic() + 300
    while not all(admin.run(run)["worker"] for run in runs):
        assert time.monotonic() < until
        time.sleep(0.2)
    assert {admin.run(run)["worker"] for run in runs} == {"one", "two"}
    server.kill()
    workers[0].stop()
    server.start()
    workers[0].start()
    for run in runs:
        done = admin.wait(run)
        folder = server.job_folder(run) / "run"
        assert [check for check in verify(folder) if not check.ok] == []
        assert done["result"]["standing"] == "proved"
    spent = admin.budget(dataset)
    ledgers = [read_ledger(server.job_folder(run) / "run" / "ledger.jsonl") for run in runs]
    assert [run["releases"] for run in spent["runs"]] == [len(one.entries) for one in ledgers]
    attacked = admin.attack(runs[0], "membership")
    assert attacked["worker"] in ("one", "two")
    on = admin.start_run(dataset, RUN | {"continue_from": runs[0], "name": "on",
                                         "plan": RUN["plan"] | {"epsilon": 3}})  # fmt: skip
    assert admin.wait(on["id"])["state"] == "done"
    assert admin.predict(on["id"], "my order")
    assert server.says_nothing_of_this_machine(dataset, on["id"]) > 20
    for worker in workers:
        left = [path for path in worker.folder.rglob("*") if path.is_file()]
        assert not [path for path in left if "home" not in path.parts], "copies are deleted"
