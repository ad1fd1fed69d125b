"""A server in a process of its own, which can be killed and started again."""

import os
import re
import signal
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.forking import start_python
from support.people import MATRIX
from tacit.server.client import Client


class Living:
    """`tacit serve` on one folder and one port, however often it is started."""

    def __init__(
        self, folder: Path, database: str | None = None, *words: str, pages: bool = False
    ) -> None:
        self.folder = folder
        self._words = [*(["--database", database] if database else []), *words]
        self._words += [] if pages else ["--no-pages"]
        self._pages, self.link = pages, ""
        self._port, self.token, self.address = "0", "", ""
        self.start()

    def start(self) -> None:
        words = ["serve", "--folder", str(self.folder), "--port", self._port, *self._words]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self.process = start_python("-m", "tacit", *words, env=environment)
        for line in self.process.stdout:
            assert "tacit_" not in line, "a log has no token in it"
            if found := re.search(r"http://127.0.0.1:(\d+)", line):
                self.address, self._port = found.group(), found.group(1)
                said = (self.folder / "first-sign-in.txt").read_text()
                self.token = re.search(r"tacit_\S+", said).group()
                if self._pages:
                    self.link = re.search(r"http://\S+", said).group()
                return
        raise AssertionError("the server did not start")

    def kill(self) -> None:
        """As a power cut would."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)

    def client(self, token: str | None = None) -> Client:
        return Client(self.address, token or self.token)

    def child_of(self, job: str) -> int:
        """The number of a job's process, as the database has it."""
        until = time.monotonic() + 30
        while time.monotonic() < until:
            with sqlite3.connect(self.folder / "tacit.db") as connection:
                found = connection.execute("SELECT process FROM jobs WHERE id = ?", (job,))
                (process,) = found.fetchone()
            if process is not None:
                return int(process)
            time.sleep(0.05)
        raise AssertionError("the job has no process")

    def kill_child(self, job: str) -> None:
        """Kill a job's process, and wait until the server has started another one for it."""
        killed = self.child_of(job)
        os.kill(killed, signal.SIGKILL)
        until = time.monotonic() + 30
        while self.child_of(job) == killed:
            assert time.monotonic() < until, "the job is not taken up again"
            time.sleep(0.05)

    @contextmanager
    def stopped(self, job: str) -> Iterator[None]:
        """A job's process stands still for the time of the block."""
        process = self.child_of(job)
        os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(process, signal.SIGCONT)

    def job_folder(self, job: str) -> Path:
        return self.folder / "jobs" / job

    def says_nothing_of_this_machine(self, dataset: str, run: str) -> int:
        """Whether no answer about a dataset and a run names a folder; how many there were."""
        told = 0
        with self.client() as admin:
            for method, path, *_ in MATRIX:
                path = path.removeprefix("/v1").replace("{d}", dataset)
                path = path.replace("/runs/0", f"/runs/{run}").replace(
                    "/models/0", f"/models/{run}"
                )
                if method != "GET" or "/0" in path or path.endswith(("/events", "/download")):
                    continue
                for query in ("", "?shareable=true", "?format=json&shareable=true"):
                    answer = admin._http.get(path + (query if path.endswith("/report") else ""))
                    assert str(self.folder.parent) not in answer.text, path
                    assert sys.prefix not in answer.text, path
                    told += answer.status_code == 200
        return told
