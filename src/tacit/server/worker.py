"""A worker: claims jobs of a server on another machine, does them here, and sends what came of it.

It has a copy of a job's folder for as long as it has the job. What it sends is read in an order
in which a ledger holds at least what a checkpoint knows of, and it deletes the copy at the end.
Stopped and started again, it goes on with the job that it had.
"""

import json
import shutil
import signal
import socket
import threading
import time
import zipfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tacit.errors import DataError, TacitError
from tacit.files import whole_file
from tacit.server import Json, child_processes
from tacit.server.child_processes import Child
from tacit.server.client import Client
from tacit.server.errors import Busy, Conflict, NotFound
from tacit.server.remote_jobs import OURS

_CLAIM = "claim.json"
_LEDGER = "run/ledger.jsonl"
_ASK_SECONDS = 2.0
_BEAT_SECONDS = 2.0
_KILL_SECONDS = 10.0


@dataclass
class Worker:
    """One worker with a folder of its own, which does one job at a time."""

    client: Client
    folder: Path
    name: str = field(default_factory=socket.gethostname)
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self, *, until_idle: bool = False) -> None:
        """Do jobs until somebody says stop; a job under way is finished by whoever comes next."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for claimed in sorted(self.folder.glob(f"*/{_CLAIM}")):
            self._do(json.loads(claimed.read_text(encoding="utf-8")), again=True)
        while not self.stop.is_set():
            found = self._claim()
            if found is not None:
                self._do(found, again=False)
            elif until_idle:
                return
            else:
                self.stop.wait(_ASK_SECONDS)

    def _claim(self) -> Json | None:
        try:
            found: Json = self.client.call(
                "POST", "/claims", json={"worker": self.name}, again=False
            )
        except Busy:
            return None  # the server is away; it is asked again
        return found if found["job"] is not None else None

    def _do(self, claimed: Json, *, again: bool) -> None:
        job = _Job(self.client, self.folder / claimed["job"], claimed)
        try:
            if not again:
                job.fetch()
            job.do(self.stop)
        except (Conflict, NotFound):
            job.drop()  # it is somebody else's now, or nobody's
        except Busy:
            if not self.stop.is_set():
                job.drop()  # the server has counted it as lost by now


@dataclass
class _Job:
    """One job, in a folder."""

    client: Client
    folder: Path
    claimed: Json
    _sent: dict[str, tuple[int, int]] = field(default_factory=dict)

    def fetch(self) -> None:
        """Take the files, and note whose job it is before anything is done."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, mode=0o700)
        packed = self.folder / "files.zip"
        self.client.save("GET", f"{self._path}/files", packed, headers=self._head)
        try:
            with zipfile.ZipFile(packed) as archive:
                archive.extractall(self.folder)
        except (zipfile.BadZipFile, EOFError, ValueError):
            raise DataError("The files of a job arrived damaged.") from None
        packed.unlink()
        self._note_all()
        with whole_file(self.folder / _CLAIM) as draft:
            draft.write_text(json.dumps(self.claimed, allow_nan=False), encoding="utf-8")

    def do(self, stop: threading.Event) -> None:
        """Run its process to the end, and tell the server all the while."""
        child = Child(self.folder, None)
        begun = (self.folder / child_processes.LOCK).exists()
        if not begun:
            into = self.claimed["into"]
            child = child_processes.start(
                self.folder, self.claimed["arguments"], home=self.folder.parent / "home",
                into=self.folder / into if into else None,
            )  # fmt: skip
        told = 0.0
        while child.alive():
            cancel = self._beat()["cancel"]
            if cancel:
                told = told or time.monotonic()
                late = time.monotonic() - told > _KILL_SECONDS
                child.end(signal.SIGKILL if late else signal.SIGTERM)
            if stop.wait(_BEAT_SECONDS if not cancel else 0.2):
                return  # the process goes on; the next worker here finds it
        self._beat()
        self.client.call("POST", f"{self._path}/end", headers=self._head)
        shutil.rmtree(self.folder, ignore_errors=True)

    def drop(self) -> None:
        """Stop it, and leave nothing of it."""
        child = Child(self.folder, None)
        child.end(signal.SIGKILL)
        while child.alive():
            time.sleep(0.05)
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _path(self) -> str:
        return f"/claims/{self.claimed['job']}"

    @property
    def _head(self) -> dict[str, str]:
        return {"X-Tacit-Claim": self.claimed["claim"]}

    def _beat(self) -> Json:
        changed = {
            name: mark for name, mark in self._files().items() if self._sent.get(name) != mark
        }
        with ExitStack() as opened:
            # The ledger is opened last: it holds at least what the others know of.
            files: list[tuple[str, Any]] = []
            for name in sorted(changed, key=lambda name: name == _LEDGER):
                try:
                    file = opened.enter_context((self.folder / name).open("rb"))
                except FileNotFoundError:
                    continue
                if name == _LEDGER:
                    files.append(("files", (name, _whole_lines(file.read()))))
                else:
                    files.append(("files", (name, file)))
            options: Json = {"files": files} if files else {}
            found = self.client.call("POST", f"{self._path}/beat", headers=self._head, **options)
        self._sent |= changed
        return dict(found)

    def _files(self) -> dict[str, tuple[int, int]]:
        """What may be sent, and by what a change is known."""
        found = {}
        for path in self.folder.rglob("*"):
            name = path.relative_to(self.folder)
            hidden = any(part.startswith((".", "tmp")) for part in name.parts)
            own = str(name).removeprefix("target/")
            if hidden or own in OURS or own in (_CLAIM, "files.zip") or name.parts[0] == "earlier":
                continue
            try:
                if path.is_file():
                    kept = path.stat()
                    found[str(name)] = (kept.st_mtime_ns, kept.st_size)
            except FileNotFoundError:
                continue
        return found

    def _note_all(self) -> None:
        self._sent = self._files()


def _whole_lines(content: bytes) -> bytes:
    """A ledger without the line that is being written."""
    return content[: content.rfind(b"\n") + 1]


def work(
    url: str, token: str, folder: Path, *, name: str | None = None, patience: float = 30.0
) -> None:
    """Be a worker of a server until told to stop."""
    with Client(url, token, patience=patience) as client:
        worker = Worker(client, folder.absolute(), name or socket.gethostname())

        def stop(*_: object) -> None:
            worker.stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        if "work" not in client.me()["permissions"]:
            raise TacitError("The token is not a worker's; an admin of the server gives one out.")
        worker.run()
