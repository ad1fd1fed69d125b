"""Kills at any moment: nothing acknowledged is lost or doubled, and the books are right."""

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.living import Living
from tacit.corpora import customersim
from tacit.errors import TacitError
from tacit.privacy.accounting.pricing import price
from tacit.privacy.ledger import read_ledger
from tacit.server import child_processes, client
from tacit.server.child_processes import LOCK
from tacit.server.client import Client

LIMIT = 6.0
RUN: dict[str, Any] = {
    "plan": {"protect": "users", "epsilon": 3, "steps": 30, "user_rate": 1.0, "users": 30},
    "model": {"kind": "lstm", "config": {"embedding_size": 8, "hidden_size": 8, "layers": 1}},
    "tokenizer": {"size": 400},
    "context": 24,
}


class Storm:
    """A server with writers and a run, and somebody who kills them."""

    def __init__(self, server: Living, seed: int, *, trains: bool) -> None:
        self.server, self.rng, self.trains = server, random.Random(seed), trains
        self.acknowledged: dict[str, str] = {}
        self.stop = threading.Event()
        with server.client() as admin:
            self.dataset = str(admin.add_dataset("dialogs", limits={"users": LIMIT})["id"])
            admin.add_corpus(self.dataset, customersim.generate(30, 3), key="all")
            self.before = {row["id"] for row in admin.my_records(self.dataset)}
            self.run = str(admin.start_run(self.dataset, RUN, key="run")["id"]) if trains else ""
        self.writers = [threading.Thread(target=self._write, args=(n,)) for n in range(3)]
        for writer in self.writers:
            writer.start()

    def _write(self, writer: int) -> None:
        with self.server.client() as writing:
            writing.patience = 300
            for number in range(10**9):
                if self.stop.is_set():
                    return
                key = f"{writer}.{number}"
                text = f"{key}: some words"
                self.acknowledged[writing.add_record(self.dataset, text, key=key, user="w")] = text

    @property
    def folder(self) -> Path:
        return self.server.job_folder(self.run)

    def kill_server(self) -> None:
        """Some records after it came back, and then at any moment."""
        before, until = len(self.acknowledged), time.monotonic() + 60
        while len(self.acknowledged) < before + 5 and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(self.rng.uniform(0, 0.02))
        self.server.kill()
        if self.trains:
            self.check_books()
        self.server.start()

    def kill_child(self) -> None:
        """And let somebody resume a run whose process died too often."""
        with contextlib.suppress(ProcessLookupError, TypeError):
            os.kill(child_processes._own_number(self.folder / LOCK), signal.SIGKILL)  # type: ignore[arg-type]
        with self.server.client() as admin, contextlib.suppress(TacitError):
            admin.resume(self.run)

    def check_books(self) -> None:
        """The ledger is never behind the model, whatever was killed."""
        place = child_processes.place_of(self.folder / "run")
        if place is not None and place[0] == "train":
            assert child_processes.entries_seen(self.folder / "run" / "ledger.jsonl") >= place[1]

    def end(self) -> None:
        """Let everything come to its end, and count."""
        self.stop.set()
        for writer in self.writers:
            writer.join(300)
        with self.server.client() as admin:
            stored = {row["id"]: row["text"] for row in admin.my_records(self.dataset)}
            stored = {name: text for name, text in stored.items() if name not in self.before}
            assert stored == self.acknowledged, "none lost, none doubled"
            assert len(set(stored.values())) == len(stored)
            if self.trains:
                self.end_run(admin)

    def end_run(self, admin: Client) -> None:
        """Let it end, and price what it released."""
        while admin.run(self.run)["state"] in ("queued", "running"):
            time.sleep(0.1)
        assert admin.start_run(self.dataset, RUN, key="run")["id"] == self.run
        spent = admin.budget(self.dataset)["spent"]["users"]
        self.check_books()
        ledger = read_ledger(self.folder / "run" / "ledger.jsonl")
        exact = price(ledger.releases(), "users", 1e-5, lower=False).epsilon
        assert exact <= spent + 1e-9, "what was released is charged"
        assert spent <= LIMIT


@pytest.mark.parametrize(
    ("kills", "kind"),
    [
        (10, "sqlite"),
        pytest.param(100, "sqlite", marks=pytest.mark.slow),
        pytest.param(100, "postgresql", marks=pytest.mark.slow),
    ],
)
def test_a_storm(
    kills: int, kind: str, tmp_path: Path, request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(client, "_LONGEST_WAIT", 0.05)
    database: Callable[[], str] | None = None
    if kind == "postgresql":
        database = request.getfixturevalue("postgres")
    # A run's process takes its time to start, so only in a long storm there is one to be killed.
    trains = kills > 10
    server = Living(tmp_path / "server", database() if database else None)
    try:
        storm = Storm(server, kills, trains=trains)
        for number in range(kills):
            if trains and number % 4 == 3:
                storm.kill_child()
            else:
                storm.kill_server()
        storm.end()
        assert len(storm.acknowledged) >= 3 * kills
    finally:
        server.stop()
