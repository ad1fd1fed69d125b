"""Everything a server does, without HTTP: what the API and the pages both stand on."""

import secrets
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from sqlalchemy import delete

from tacit.corpus import Corpus
from tacit.corpus.reading import read
from tacit.detection import DEFAULT, detect
from tacit.detection.mentions import read_entities, read_mentions
from tacit.errors import UsageError
from tacit.owners import Owners
from tacit.owners import describe as describe_owners
from tacit.server import Json
from tacit.server.budget import Budgets
from tacit.server.datasets import Datasets
from tacit.server.errors import NotFound
from tacit.server.health import Health
from tacit.server.identity import AuditLog, Caller, Identity, Sessions
from tacit.server.jobs import Jobs
from tacit.server.lease import Lease
from tacit.server.models import Models
from tacit.server.plans import Plans
from tacit.server.predictions import Predictions
from tacit.server.reconciliation import Reconciliation
from tacit.server.records import Records
from tacit.server.remote_jobs import RemoteJobs
from tacit.server.settings import ServerSettings
from tacit.server.storage import Fact, Storage, reaching

_WIPE = "wipe"
"""A fact that is there while the database may still keep deleted text."""


@dataclass(frozen=True)
class Services:
    """The parts of one server, opened in order and closed in the reverse."""

    settings: ServerSettings
    storage: Storage
    identity: Identity
    sessions: Sessions
    log: AuditLog
    datasets: Datasets
    records: Records
    budgets: Budgets
    reconciliation: Reconciliation
    plans: Plans
    jobs: Jobs
    predictions: Predictions
    models: Models
    lease: Lease
    health: Health
    remote: RemoteJobs
    _lock: FileLock

    @classmethod
    def open(cls, settings: ServerSettings) -> "Services":
        """Take the folder and the database, bring them up to date, and begin to work the queue."""
        settings.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = FileLock(str(settings.folder / "server.lock"))
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise UsageError(
                f"{settings.folder} is in use by another server; stop that one, or give another "
                "folder."
            ) from None
        with ExitStack() as undo:
            undo.callback(lock.release)
            lease = Lease(settings)
            undo.callback(lease.close)
            storage = _leased(settings, lease)
            undo.callback(storage.close)
            _belong_together(storage, settings.folder)
            _wipe_whole(storage)
            undo.pop_all()
        identity, datasets = Identity(storage), Datasets(storage)
        records, budgets = Records(storage, settings), Budgets(storage)
        plans = Plans(storage, settings, datasets, records, budgets)
        jobs = Jobs(storage, settings, datasets, records, budgets, plans)
        reconciliation = Reconciliation(storage, settings, budgets)
        reconciliation.run()
        jobs.start()
        lease.keep(storage, jobs.abandon)
        predictions = Predictions(settings)
        return cls(
            settings, storage, identity, Sessions(storage, identity), AuditLog(storage), datasets,
            records, budgets, reconciliation, plans, jobs, predictions, 
            Models(settings, jobs, predictions), lease,
            Health(settings, storage, records, jobs, lease), RemoteJobs(jobs), lock,
        )  # fmt: skip

    def close(self) -> None:
        """Write what waits; children go on by themselves."""
        self.predictions.close()
        self.jobs.close()
        self.records.close()
        self.lease.close()
        self.storage.close()
        self._lock.release()

    def note(self, caller: Caller, what: str, target: str = "", outcome: str = "done") -> None:
        """A line of the audit log."""
        self.log.note(caller.name, what, target, outcome, caller.token or "")

    # --- what needs several parts -------------------------------------------------------------

    def forget(
        self, dataset: str, caller: Caller, *, user: str | None = None, record: str | None = None
    ) -> Json:
        """Delete records for good, also from the snapshots of runs, and say what that changes."""
        self.datasets.require(dataset)
        owner = None if caller.may("records:any") and (user or record) else caller
        self._will_wipe()
        names = self.records.forget(dataset, owner=owner, user=user, record=record)
        self.storage.wipe()
        touched = self.jobs.scrub_all(names)
        runs = [
            {"run": job["id"], "state": job["state"], "records": job["records"]}
            | {name: (job["result"] or {}).get(name) for name in ("standing", "epsilon")}
            for job in touched
            if job["kind"] == "train"
        ]
        self.note(caller, "delete records", dataset, f"{len(names)} records")
        return {
            "deleted": len(names),
            "runs": runs,
            "consequence": "The records are gone from the dataset, from the snapshots of earlier "
            "runs and from what detectors found in them; no future run sees them. Models that "
            "were trained with them stay as they are: what those give away is bounded by their "
            "certificates, where they have one, and what was spent on them stays spent. A run "
            "that was stopped and had seen them cannot be resumed.",
        }

    def delete_list(self, dataset: str, entity_list: str) -> None:
        """Forget a list of entities, also on the disk."""
        self._will_wipe()
        self.datasets.delete_list(dataset, entity_list)
        self.storage.wipe()

    def _will_wipe(self) -> None:
        """What the database still keeps of deleted text goes at the next start."""
        if self.storage.get(Fact, _WIPE) is None:
            with self.storage.write() as session:
                session.merge(Fact(name=_WIPE, value="yes"))

    def thaw(self, dataset: str) -> Json:
        """An admin has looked at what was spent: the dataset may be used again."""
        self.reconciliation.accept(self.datasets.require(dataset))
        return self.datasets.change(dataset, frozen="")

    def describe(self, dataset: str) -> Json:
        """Exact counts over a dataset: for those inside."""
        self.datasets.require(dataset)
        if not self.records.counts(dataset)["records"]:
            return {"records": 0, "users": 0}
        return self.records.described(dataset)

    def preview(self, dataset: str, text: str) -> Json:
        """A text that was not sent yet, with the marks that protection of names would go by."""
        kept = self.datasets.get(dataset)
        return {
            "marks": self.marks(text),
            "protected": kept["protected"],
            "protection": kept["protection"],
        }

    def marks(self, text: str) -> list[Json]:
        """What detectors find in a text; nothing of it is kept."""
        found = detect(Corpus.from_records([{"id": "1", "user": "you", "text": text}]), DEFAULT)
        return [{"start": m.start, "end": m.end, "kind": m.kind} for m in found.mentions]

    def owners(self, detection: str, *, with_names: bool) -> Json:
        """Who shares what, by a detection; names for those who may read text."""
        folder = self._detected(detection)
        corpus = read(folder / "corpus.jsonl")
        found = describe_owners(
            Owners.from_mentions(corpus, read_mentions(folder / "mentions.jsonl", corpus))
        )
        if with_names:
            names = {e.id: e.name for e in read_entities(folder / "mentions.entities.jsonl")}
            for entity in found["most_shared"]:
                entity["name"] = names.get(entity["entity"])
        return found

    def detection_page(self, detection: str) -> str:
        """The page of a detection, with the text: for admins."""
        return (self._detected(detection) / "mentions.html").read_text(encoding="utf-8")

    def _detected(self, detection: str) -> Path:
        state = self.jobs.get(detection, "detect")["state"]
        folder = self.settings.job_folder(detection)
        if state != "done" or not (folder / "mentions.jsonl").exists():
            raise NotFound("The detection has not finished, or records of it were deleted since.")
        return folder


def _wipe_whole(storage: Storage) -> None:
    """Write tables anew that text was deleted from: now, when nobody waits for them."""
    if storage.get(Fact, _WIPE) is not None:
        storage.wipe(whole=True)
        with storage.write() as session:
            session.execute(delete(Fact).where(Fact.name == _WIPE))


def _leased(settings: ServerSettings, lease: Lease) -> Storage:
    """The database, which no other server has, and none will change under this one."""
    with reaching():
        lease.take()
    storage = Storage(settings)
    try:
        lease.guard(storage)
    except BaseException:
        storage.close()
        raise
    return storage


def _belong_together(storage: Storage, folder: Path) -> None:
    """A database knows the folder of its runs, so that no other one is taken for it."""
    mark = folder / "identity"
    with storage.write() as session:
        fact = session.get(Fact, "folder")
        if fact is None:
            fact = Fact(name="folder", value=secrets.token_hex(16))
            session.add(fact)
            mark.write_text(fact.value, encoding="utf-8")
        elif not mark.exists() or mark.read_text(encoding="utf-8") != fact.value:
            raise UsageError(
                f"The database belongs to another folder than {folder}; give that folder, or "
                "another database."
            )
