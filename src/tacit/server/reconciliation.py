"""Before a server works: does the database know everything that lies in the ledgers on disk?

A database that was restored from a backup knows less than was released since. What a ledger holds
and no charge covers is charged again. What cannot be said for sure freezes the datasets that it may
be about: nothing is spent on them until an admin has looked and said so.
"""

import json
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from tacit.errors import TacitError
from tacit.files import whole_file
from tacit.privacy.events import Public, whole_passes
from tacit.privacy.ledger import Releases, read_ledger
from tacit.server import Json, child_processes
from tacit.server.budget import Budgets, charged_to
from tacit.server.settings import ServerSettings
from tacit.server.storage import Dataset, Fact, Job, Storage, now

ABOUT = "job.json"
"""What a job's folder says of it, for a database that has forgotten it."""
_FOUND = "found on disk when the server started; the database did not know of it"


def describe_job(folder: Path, row: Job) -> None:
    """Leave in a job's folder what a database would need to know it again."""
    told = {name: getattr(row, name) for name in
            ("id", "kind", "name", "dataset_id", "target_id", "request", "unproved",
             "created_by")}  # fmt: skip
    with whole_file(folder / ABOUT) as draft:
        draft.write_text(json.dumps(told, allow_nan=False), encoding="utf-8")


@dataclass(frozen=True)
class Reconciliation:
    """The ledgers of one folder against the charges of one database."""

    storage: Storage
    settings: ServerSettings
    budgets: Budgets

    def run(self) -> None:
        """Charge what is missing, freeze what cannot be known."""
        for ledger in sorted((self.settings.folder / "jobs").glob("*/run/ledger.jsonl")):
            job = ledger.parent.parent.name
            seen = child_processes.entries_seen(ledger)
            if not seen:
                continue
            charged = self._charged(job)
            if charged is not None and sum(_counted(charged).values()) >= seen:
                continue
            if not self._looked_at(job, ledger):
                self._settle(job, ledger, charged)

    def accept(self, dataset: str) -> None:
        """An admin has looked: what lies on disk now freezes a dataset no more."""
        ledgers = {p.parent.parent.name: p for p in
                   (self.settings.folder / "jobs").glob("*/run/ledger.jsonl")}  # fmt: skip
        with self.storage.write() as session:
            for job, ledger in ledgers.items():
                row = session.get(Job, job)
                if row is None or row.dataset_id == dataset:
                    session.merge(Fact(name=_fact(job), value=_digest(ledger)))

    def _settle(self, job: str, ledger: Path, charged: Releases | None) -> None:
        about = self._about(job, ledger)
        try:
            found = whole_passes(read_ledger(ledger).own_releases())
        except TacitError:
            self._freeze(about, job, "cannot be read")
            return
        if about is None:
            self._freeze(None, job, "belongs to no run that the database knows")
            return
        held = charged or {}
        missing = any(count > held.get(event, 0) for event, count in found.items())
        if missing:
            most = {e: max(found.get(e, 0), held.get(e, 0)) for e in {*found, *held}}
            self._write_back(about, most)

    def _charged(self, job: str) -> Releases | None:
        with self.storage.read() as session:
            return charged_to(session, job)

    def _about(self, job: str, ledger: Path) -> Json | None:
        """What is known of a run: by the database, or else by its folder."""
        row = self.storage.get(Job, job)
        if row is not None:
            return {"id": row.id, "dataset_id": row.dataset_id}
        try:
            told = json.loads((ledger.parent.parent / ABOUT).read_text(encoding="utf-8"))
            known = self.storage.get(Dataset, str(told["dataset_id"])) is not None
            return dict(told) if known and told["id"] == job and told["kind"] == "train" else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _write_back(self, about: Json, releases: Releases) -> None:
        with self.storage.write() as session:
            if session.get(Job, about["id"]) is None:
                session.add(_as_it_was(session, about))
                session.flush()
            self.budgets.charge(session, about["dataset_id"], about["id"], releases, _FOUND)

    def _freeze(self, about: Json | None, job: str, why: str) -> None:
        """Freeze the dataset of a ledger; all that have a budget, where that is not known."""
        said = f"The ledger of run {job} on disk {why}, so what was spent is not known."
        with self.storage.write() as session:
            query = select(Dataset).where(~Dataset.public)
            if about is not None:
                query = query.where(Dataset.id == about["dataset_id"])
            for row in session.scalars(query.with_for_update()):
                row.frozen = row.frozen or said

    def _looked_at(self, job: str, ledger: Path) -> bool:
        fact = self.storage.get(Fact, _fact(job))
        return fact is not None and fact.value == _digest(ledger)


def _fact(job: str) -> str:
    return f"looked:{job}"[:40]


def _digest(ledger: Path) -> str:
    return sha256(ledger.read_bytes()).hexdigest()


def _counted(releases: Releases) -> Releases:
    return {event: n for event, n in releases.items() if not isinstance(event, Public)}


def _as_it_was(session: Session, about: Json) -> Job:
    """A run that the database has forgotten, as one that ended."""
    target = about.get("target_id")
    if target is not None and session.get(Job, target) is None:
        target = None
    dataset = session.get(Dataset, about["dataset_id"])
    assert dataset is not None
    return Job(
        id=about["id"], kind="train", name=about.get("name", ""), dataset_id=about["dataset_id"],
        target_id=target, request=about["request"], state="failed",
        unproved=bool(about.get("unproved")), created_by=dataset.created_by, created=now(),
        ended=now(), message=f"Its releases were {_FOUND}.",
    )  # fmt: skip
