"""Jobs that workers on other machines do: claimed, followed by what they send, lost.

The folder of a job here stays the truth. A worker has a copy, and sends what its process wrote, the
ledger before anything that was made after its entries; so here, too, the ledger is never behind the
model. What a worker released and never told of is not known: when it is lost, all that it may have
released is charged, and stays so.
"""

import hmac
import os
import re
import secrets
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from tacit.errors import DataError
from tacit.files import whole_file
from tacit.server import Json
from tacit.server.child_processes import LOCK
from tacit.server.errors import Conflict, NotFound
from tacit.server.identity import Caller, digest_of
from tacit.server.jobs import Jobs
from tacit.server.storage import Job, now

EARLIER, TARGET = "earlier", "target"
"""In a worker's copy: the model that a run goes on from; the run that an attack is about."""
_LEDGER = "run/ledger.jsonl"
OURS = (
    "corpus.jsonl",
    "public.jsonl",
    "entities.txt",
    "run.yml",
    "job.json",
    "lost.json",
    "model.zip",
    LOCK,
)
"""What a worker has from here and never sends back."""
_NAME = re.compile(r"(target/)?(run/)?([\w-][\w.-]{0,80}/)?[\w-][\w.-]{0,80}")


@dataclass(frozen=True)
class RemoteJobs:
    """The jobs of one server, as its workers see them."""

    jobs: Jobs

    def claim(self, worker: str, caller: Caller) -> Json | None:
        """The job that has waited longest, for a worker to do; None if none waits."""
        for row in self.jobs.waiting(caller.dataset):
            secret = secrets.token_hex(16)
            if self.jobs.give(row, worker, digest_of(secret)):
                arguments = self.jobs.arguments(row)
                about = row.kind not in ("train", "detect")
                return {"job": row.id, "kind": row.kind, "claim": secret,
                        "arguments": arguments, "into": TARGET if about else None}  # fmt: skip
        return None

    def pack(self, job: str, claim: str, out: BinaryIO) -> None:
        """What a worker needs, as a zip."""
        row = self._mine(job, claim)
        settings = self.jobs.settings
        folder = settings.job_folder(row.id)
        with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
            if row.kind not in ("train", "detect"):
                _add(archive, settings.job_folder(str(row.target_id)), f"{TARGET}/")
                return
            _add(archive, folder, "", without=("run.yml",))
            if row.kind == "train":
                archive.writestr("run.yml", _moved(folder / "run.yml"))
            if row.kind == "train" and row.target_id is not None:
                earlier = settings.job_folder(row.target_id) / "run"
                _add(archive, earlier, f"{EARLIER}/")

    def beat(self, job: str, claim: str, files: Mapping[str, BinaryIO]) -> Json:
        """Take what a worker's process wrote; whether it is to stop."""
        with self.jobs.undisturbed:  # else it might be given up in the middle
            row = self._mine(job, claim)
            places = {name: self._place(row, name) for name in files}
            for name in sorted(files, key=lambda name: name != _LEDGER):
                _put(places[name], files[name])
            self.jobs.storage.change(Job, job, heard=now())
        return {"cancel": row.cancelling}

    def end(self, job: str, claim: str) -> None:
        """The process has ended, and all that it wrote is here."""
        with self.jobs.undisturbed:
            row = self._mine(job, claim)
            self.jobs.storage.change(Job, row.id, claim=None)
        self.jobs.look()

    def _mine(self, job: str, claim: str) -> Job:
        row = self.jobs.storage.get(Job, job)
        if row is None or row.state != "running" or row.claim is None:
            raise NotFound("There is no such job, or it is nobody's any more; drop it.")
        if not hmac.compare_digest(row.claim, digest_of(claim)):
            raise Conflict("Another worker has this job now; drop it.")
        return row

    def _place(self, row: Job, name: str) -> Path:
        about = name.startswith(f"{TARGET}/")
        own = name.removeprefix(f"{TARGET}/")
        if not _NAME.fullmatch(name) or own in OURS:
            raise DataError("A worker sends what its process wrote, by plain names.")
        if about and row.kind in ("train", "detect"):
            raise DataError("This job is about no other run.")
        job = str(row.target_id) if about else row.id
        return self.jobs.settings.job_folder(job) / own


def _add(
    archive: zipfile.ZipFile, folder: Path, prefix: str, without: tuple[str, ...] = ()
) -> None:
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden and name not in (LOCK, "model.zip", *without):
            archive.write(path, prefix + name)


def _moved(run: Path) -> str:
    """The settings of a run, with the model that it goes on from where a worker has it."""
    fields: Any = yaml.safe_load(run.read_text(encoding="utf-8"))
    model = fields.get("model")
    if isinstance(model, dict) and model.get("kind") == "folder":
        model["folder"] = EARLIER
    return yaml.safe_dump(fields, sort_keys=False)


def _put(path: Path, content: BinaryIO) -> None:
    """A whole file or none, on the disk before the next one is taken."""
    with whole_file(path) as draft, draft.open("wb") as out:
        shutil.copyfileobj(content, out)
        out.flush()
        os.fsync(out.fileno())
