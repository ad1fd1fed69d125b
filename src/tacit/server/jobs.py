"""A bounded queue, and a child process for each run, detection, attack, audit, evaluation.

The database says what is to be done; the folder of a job says what was done. Between two looks
either may have changed: the server or the child may have died at any moment, and a job goes on from
what is there.

    queued -> running -> done
                      -> failed      it ended with an error, or its process died too often
                      -> cancelled   somebody asked for it
    failed, cancelled -> queued      resumed by hand; what its ledger holds is charged already
    done, failed, cancelled -> deleted   its weights are gone; what it released stays charged
"""

import json
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Literal

from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from tacit.errors import DataError, PrivacyRefused, TacitError
from tacit.privacy.certificates.certificate import read_certificate
from tacit.privacy.certificates.manifest import CERTIFICATE_FILES, SIGNATURE
from tacit.privacy.ledger import Releases, read_ledger
from tacit.server import Json, child_processes
from tacit.server.budget import Budgets, PlannedCharge, together
from tacit.server.child_processes import Child
from tacit.server.datasets import Datasets
from tacit.server.errors import Busy, Conflict, LeaseLost, NotFound, Unavailable, without_paths
from tacit.server.identity import Caller
from tacit.server.lost_releases import lost_of, note_lost
from tacit.server.plans import Plans
from tacit.server.reconciliation import ABOUT, describe_job
from tacit.server.records import Records
from tacit.server.run_requests import (
    CORPUS_FILE,
    ENTITIES_FILE,
    PUBLIC_FILE,
    RunRequest,
    planned_releases,
    shape_of,
    unproved_reason,
)
from tacit.server.settings import ServerSettings
from tacit.server.sharing import promise_of, vouch
from tacit.server.storage import Account, Job, Storage, fields_of, new_id, now, require
from tacit.training.settings import Run, read_run, run_yaml

Kind = Literal["train", "detect", "attack", "audit", "evaluate"]
LIVE = ("queued", "running")
ENDED = ("done", "failed", "cancelled", "deleted")
_KEPT = (*CERTIFICATE_FILES, SIGNATURE, "plan.yml", ABOUT)
"""What says what a deleted run had released; no weights and no text are in it."""
_KIND_WORDS = {"train": "run", "detect": "detection"}
_WORKER_LOST = (
    "Its worker is gone; all that it may have released stays charged. If the budget has room for "
    "it, resume it by hand."
)
_SHOWN = ("id", "kind", "name", "dataset", "target", "unproved", "attempts", "released", "message",
          "worker", "result", "created", "started", "ended")  # fmt: skip


class Jobs:
    """The queue of one server."""

    def __init__(
        self, storage: Storage, settings: ServerSettings, datasets: Datasets, records: Records,
        budgets: Budgets, plans: Plans,
    ) -> None:  # fmt: skip
        self.storage, self.settings = storage, settings
        self.datasets, self.records = datasets, records
        self.budgets, self.plans = budgets, plans
        self._names: dict[str, str] = {}
        self._children: dict[str, Child] = {}
        self._asked_to_end: dict[str, float] = {}
        self._opened = now()
        self.undisturbed = threading.Lock()
        """Whoever holds it: nobody else looks at a job, or changes its state."""
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to work the queue; children of an earlier server are found again."""
        self._thread = threading.Thread(target=self._work, name="jobs", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop looking; children go on, and the next server finds them."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def works(self) -> bool:
        """Whether the queue is worked."""
        return self._thread is not None and self._thread.is_alive()

    def abandon(self) -> None:
        """Stop all that this server started: another one has the database, and does it anew."""
        self._stop.set()
        self._wake.set()
        for child in list(self._children.values()):
            child.end(signal.SIGKILL)

    # --- asking for work --------------------------------------------------------------------

    def train(
        self, dataset: str, asked: RunRequest, caller: Caller, key: str | None = None
    ) -> Json:
        """Reserve what a run may release, and queue it; refused before anything is started.

        The same `key` with the same request of the same caller is the same run.
        """
        self.datasets.require(dataset)
        keyed = _keyed(key, caller, "train", dataset, asked.model_dump(mode="json"))
        if (found := self._asked_before(keyed)) is not None:
            return found
        ready = self.plans.prepare(dataset, asked)
        if not self.records.counts(dataset)["records"]:
            raise DataError("The dataset has no records to train on; add some first.")
        request = asked.model_dump(mode="json", exclude_defaults=True)
        request |= {
            "method": ready.run.method,
            "run": run_yaml(ready.run),
            "entities": ready.charge.entities,
        }
        job = Job(
            id=new_id(), kind="train", name=asked.name, dataset_id=dataset, request=request,
            state="queued", unproved=ready.charge.unproved is not None, created_by=caller.account,
            target_id=asked.continue_from, created=now(), **keyed,
        )  # fmt: skip
        self._require_room()
        try:
            self.budgets.reserve(dataset, job.id, ready.charge, also=lambda s: self._add(s, job))
        except IntegrityError:
            return self._other_of(keyed)
        self._wake.set()
        return self.get(job.id)

    def _asked_before(self, keyed: Mapping[str, str]) -> Json | None:
        """The job of an earlier call with the same key; refused if it asked for something else."""
        if not keyed:
            return None
        query = select(Job).where(Job.request_key == keyed["request_key"])
        row = next(iter(self.storage.scalars(query)), None)
        if row is None:
            return None
        if row.request_digest != keyed["request_digest"]:
            raise Conflict(
                "This idempotency key was used before for another request; nothing was started."
            )
        return self._as_json(row) | {"repeated": True}

    def _other_of(self, keyed: Mapping[str, str]) -> Json:
        """The job of a call with the same key that was a moment faster."""
        found = self._asked_before(keyed)
        if found is None:
            raise Busy("Something else changed at the same moment; try again.")
        return found

    def order(
        self, dataset: str, caller: Caller, kind: Kind, options: Json,
        target: str | None = None, key: str | None = None,
    ) -> Json:  # fmt: skip
        """Queue work that releases nothing: a command on the dataset, or on a run, the target.

        Options are those of the command; one without a value is left out.
        """
        self.datasets.require(dataset)
        given = {name: str(value) for name, value in options.items() if value}
        keyed = _keyed(key, caller, kind, target or dataset, given)
        if (found := self._asked_before(keyed)) is not None:
            return found
        command = ["detect", "run", CORPUS_FILE, "-o", "mentions.jsonl", "--overwrite"]
        arguments = command if kind == "detect" else [kind, "run"]
        arguments += [word for name, value in given.items() for word in (f"--{name}", value)]
        job = Job(
            id=new_id(), kind=kind, name=next(iter(given.values()), ""), dataset_id=dataset,
            target_id=target, request={"arguments": [*arguments, "--json"]}, state="queued",
            created_by=caller.account, created=now(), **keyed,
        )  # fmt: skip
        try:
            with self.storage.write() as session:
                self._add(session, job)
        except IntegrityError:
            return self._other_of(keyed)
        self._wake.set()
        return self.get(job.id)

    def _require_room(self, session: Session | None = None) -> None:
        """Refuse what would wait behind too many others."""
        waiting = self.counts(session).get("queued", 0)
        if waiting >= self.settings.queue:
            raise Busy(f"The queue is full ({waiting} jobs wait already); try again later.")

    def _add(self, session: Session, job: Job) -> None:
        self._require_room(session)  # again, where nobody can come in between
        session.add(job)

    def cancel(self, job: str) -> Json:
        """Stop a job; what its ledger holds stays charged."""
        with self.storage.write() as session:
            row = require(session, Job, job, lock=True)
            if row.state not in LIVE:
                raise Conflict(f"The job is {row.state} already.")
            row.cancelling = True
        self._wake.set()
        self._poll(only=job)
        return self.get(job)

    def resume(self, job: str) -> Json:
        """Go on with a run that failed or was cancelled, if the budget still has room for it."""
        row = self._row(job, "train")
        if row.state not in ("failed", "cancelled"):
            raise Conflict(f"The run is {row.state}; only what failed or was cancelled is resumed.")
        self._require_room()
        self._reserve_again(row, by_hand=True)
        self._wake.set()
        return self.get(job)

    def _reserve_again(self, row: Job, *, by_hand: bool) -> None:
        """Charge what a run released and what is left of it, and queue it."""
        run = self._run_of(row)

        def requeue(session: Session) -> None:
            locked = require(session, Job, row.id, lock=True)
            if locked.state not in ("failed", "cancelled", "running"):
                raise Conflict(f"The run is now {locked.state}, so it cannot be resumed.")
            begun = (self.settings.job_folder(row.id) / "run" / "run.yml").exists()
            locked.state, locked.cancelling, locked.message = "queued", False, ""
            locked.resuming, locked.ended = begun, None
            if by_hand:
                locked.attempts = 0

        releases = self._still_to_release(row.id, run)
        charge = PlannedCharge(releases, unproved_reason(run), row.request.get("entities"))
        self.budgets.reserve(row.dataset_id, row.id, charge, also=requeue, note="to go on")

    def _run_of(self, row: Job) -> Run:
        path = self.settings.job_folder(row.id) / "run.yml"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.write_text(row.request["run"], encoding="utf-8")
        return read_run(path)

    def _still_to_release(self, job: str, run: Run) -> Releases:
        """What was released, or may have been, and every step after the checkpoint once more."""
        ledger = self.settings.job_folder(job) / "run" / "ledger.jsonl"
        released = read_ledger(ledger).own_releases() if ledger.exists() else {}
        return together(released, self._left(job, run), self._lost(job))

    def _left(self, job: str, run: Run) -> Releases:
        """What whoever goes on from the last checkpoint may release."""
        plan = run.made_plan()
        folder = self.settings.job_folder(job) / "run"
        if plan is None or not (folder / "ledger.jsonl").exists():
            return planned_releases(run, plan)
        place = child_processes.place_of(folder)
        done = place[1] if place is not None and place[0] == "train" else 0
        left = {plan.event(): max(0, plan.steps - done)}
        selection = plan.selection()
        if selection is not None:
            left[selection] = left.get(selection, 0) + 1
        return left

    def _lost(self, job: str) -> Releases:
        return lost_of(self.settings.job_folder(job))

    # --- looking ------------------------------------------------------------------------------

    def get(self, job: str, kind: str | None = None) -> Json:
        """One job."""
        return self._as_json(self._row(job, kind))

    def _row(self, job: str, kind: str | None) -> Job:
        row = self.storage.get(Job, job)
        if row is None or (kind is not None and row.kind != kind):
            raise NotFound(f"There is no such {_KIND_WORDS.get(kind or '', 'job')}.")
        return row

    def all(
        self, kind: str | None = None, dataset: str | None = None, target: str | None = None,
        state: str | None = None, after: str = "", limit: int = 200,
    ) -> list[Json]:  # fmt: skip
        """Jobs, the latest first; `after` the last one of the page before."""
        wanted = {"kind": kind, "dataset_id": dataset, "target_id": target, "state": state}
        query = select(Job).order_by(Job.id.desc()).limit(limit)
        if after:
            query = query.where(Job.id < after)
        query = query.filter_by(**{name: v for name, v in wanted.items() if v is not None})
        return [self._as_json(row) for row in self.storage.scalars(query)]

    def counts(self, session: Session | None = None) -> dict[str, int]:
        """How many jobs are in each state."""
        if session is None:
            with self.storage.read() as session:
                return self.counts(session)
        rows = session.execute(select(Job.state, func.count()).group_by(Job.state))
        return {state: count for state, count in rows}

    def _as_json(self, row: Job) -> Json:
        return fields_of(row, *_SHOWN) | {
            "author": self._name_of(row.created_by),
            "state": "cancelling" if row.cancelling and row.state in LIVE else row.state,
            "request": {k: v for k, v in row.request.items() if k not in ("run", "entities")},
            "progress": child_processes.last_progress(self.settings.job_folder(row.id)),
        }

    def _name_of(self, account: str) -> str:
        """Who ordered a job; names do not change."""
        if account not in self._names:
            found = self.storage.get(Account, account)
            self._names[account] = found.name if found is not None else account
        return self._names[account]

    # --- working ------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                self._poll()
            except LeaseLost:
                self.abandon()
                return
            except Exception as error:  # the queue must not die of one job
                kind = type(error).__name__
                print(f"Polling the job queue failed ({kind}); trying again.", file=sys.stderr)  # noqa: T201
                time.sleep(1)
            self._wake.wait(self.settings.poll_seconds)
            self._wake.clear()

    def _poll(self, only: str | None = None) -> None:
        """Look at every live job once, and start what may start."""
        with self.undisturbed:
            live = select(Job).where(Job.state.in_(LIVE)).order_by(Job.id)
            rows, running = self.storage.scalars(live), 0
            for row in rows:
                if row.state == "running":
                    there = self._attempt(row, self._watch) if only in (None, row.id) else True
                    running += there and row.claim is None
            for row in rows:
                if row.state != "queued" or only not in (None, row.id):
                    continue
                if row.cancelling and self._child(row).alive():
                    running += self._attempt(row, self._watch)
                elif row.cancelling:
                    self._end(row, "cancelled", "Cancelled before it began.")
                elif running < self.settings.jobs and only is None and _may_go(row, remote=False):
                    running += self._attempt(row, self._begin)

    def _attempt(self, row: Job, step: Callable[[Job], bool]) -> bool:
        """Whether a job runs after a step; one whose files cannot be handled has failed."""
        try:
            return step(row)
        except Unavailable:
            raise  # no fault of the job's
        except (TacitError, OSError, ValueError, KeyError, TypeError) as error:
            # As long as its process lives it may release more, so it is not at its end.
            if self._alive(row):
                return True
            own = isinstance(error, TacitError)
            self._end(row, "failed", str(error) if own else "Its files cannot be read or written.")
            return False

    def _watch(self, row: Job) -> bool:
        """Whether a running job still runs; if not, it is brought to its end."""
        child = self._child(row)
        ledger = child.folder / "run" / "ledger.jsonl"
        # First whether it lives, then what it wrote: else a last entry could be overlooked.
        alive = self._alive(row)
        seen = child_processes.entries_seen(ledger) if row.kind == "train" else 0
        if seen > row.released:
            self.storage.change(Job, row.id, released=seen)
        if not alive and row.claim is not None:
            self._lose(row)
        elif not alive:
            self._conclude(row, child.folder)
        elif row.cancelling:
            since = self._asked_to_end.setdefault(row.id, time.monotonic())
            late = time.monotonic() - since > self.settings.kill_after_seconds
            child.end(signal.SIGKILL if late else signal.SIGTERM)
        return alive

    def _child(self, row: Job) -> Child:
        if row.id not in self._children:
            self._children[row.id] = Child(self.settings.job_folder(row.id), row.process)
        return self._children[row.id]

    def _alive(self, row: Job) -> bool:
        """Whether its process runs, or a worker was heard of that has it."""
        if row.claim is None:
            return self._child(row).alive()
        heard = max(row.heard or self._opened, self._opened)
        return now() - heard < timedelta(seconds=self.settings.worker_lost_seconds)

    def _lose(self, row: Job) -> None:
        """A worker is gone: what it may have released and never told of stays charged."""
        with self.storage.write() as session:
            require(session, Job, row.id, lock=True).claim = None  # whatever it still sends is late
        if row.kind == "train":
            note_lost(self.settings.job_folder(row.id), self._left(row.id, self._run_of(row)))
            self._end(row, "failed", _WORKER_LOST)
        elif row.cancelling or row.attempts > self.settings.resumes:
            self._end(row, "cancelled" if row.cancelling else "failed", "Its worker is gone.")
        else:
            self.storage.change(Job, row.id, state="queued")

    def _conclude(self, row: Job, folder: Path) -> None:
        """Say how a job ended, by what it left in its folder."""
        error = child_processes.last_error(folder)
        # Printed last, after everything was written.
        output = child_processes.output(folder)
        if output is not None:
            if row.kind in ("train", "audit", "attack"):
                place = row.id if row.kind == "train" else str(row.target_id)
                vouch(self.settings.folder, self.settings.job_folder(place) / "run")
            results = {
                "train": lambda: _trained(folder, self._run_of(row)),
                "detect": lambda: output,
            }
            result = results.get(row.kind, lambda: {"output": output})
            self._end(row, "done", "", dict(result()))
        elif row.cancelling:
            self._end(row, "cancelled", "Cancelled; what was released stays charged.")
        elif error is not None:
            self._end(row, "failed", error)
        elif row.attempts > self.settings.resumes:
            self._end(row, "failed", f"Its process died {row.attempts} times; resume it by hand.")
        elif row.kind != "train":
            self.storage.change(Job, row.id, state="queued")
        else:
            try:
                self._reserve_again(row, by_hand=False)
            except (PrivacyRefused, Busy) as refused:
                self._end(row, "failed", f"Its process died, and it may not go on: {refused}")

    def _end(self, row: Job, state: str, message: str, result: Json | None = None) -> None:
        folder = self.settings.job_folder(row.id)
        message = without_paths(message)
        if row.kind == "train":
            self.budgets.settle(row.id, folder / "run" / "ledger.jsonl", self._lost(row.id))
        gone = self.records.forgotten_among(child_processes.snapshot_ids(folder))
        if gone:
            child_processes.scrub(folder, gone)
        with self.storage.write() as session:
            locked = require(session, Job, row.id, lock=True)
            locked.state, locked.message, locked.ended = state, message, now()
            locked.cancelling, locked.process, locked.claim = False, None, None
            if result is not None:
                locked.result = result
            if state == "done" and row.kind in ("audit", "attack"):
                self._refresh_promise(session, str(row.target_id))
        self._children.pop(row.id, None)
        self._asked_to_end.pop(row.id, None)

    def _refresh_promise(self, session: Session, run: str) -> None:
        """Take over what a certificate says now: an audit may have contradicted it."""
        target = require(session, Job, run, lock=True)
        place = self.settings.job_folder(run) / "run" / "certificate.json"
        if target.result and place.exists():
            target.result = {**target.result, **promise_of(read_certificate(place))}

    def _begin(self, row: Job) -> bool:
        """Start a job's process; whether it runs."""
        folder = self.settings.job_folder(row.id)
        # A child of an earlier server may live whose number was never written down.
        if Child(folder, None).alive():
            return True
        self._prepare_folder(row, folder)
        with self.storage.write() as session:
            locked = require(session, Job, row.id, lock=True)
            if locked.state != "queued" or locked.cancelling:
                return False
            locked.state, locked.started = "running", now()
            locked.attempts += 1
            locked.process = None  # until the new one is there, it would be the last one's
        about = row.kind not in ("train", "detect")
        into = self.settings.job_folder(str(row.target_id)) if about else None
        child = child_processes.start(
            folder, self.arguments(row), home=self.settings.folder / "home", into=into
        )
        self._children[row.id] = child
        self.storage.change(Job, row.id, process=child.process)
        return True

    def arguments(self, row: Job) -> list[str]:
        """The command that does a job, in its folder or in that of the run that it is about."""
        if row.kind != "train":
            return list(row.request["arguments"])
        begin = ["--resume", "run"] if row.resuming else ["run.yml", "-o", "run"]
        return ["train", *begin, "--progress", child_processes.PROGRESS, "--json"]

    # --- workers ------------------------------------------------------------------------------

    def waiting(self, dataset: str | None = None) -> list[Job]:
        """What a worker may do, the oldest first."""
        query = select(Job).where(Job.state == "queued", ~Job.cancelling).order_by(Job.id)
        if dataset is not None:
            query = query.where(Job.dataset_id == dataset)
        return [row for row in self.storage.scalars(query) if _may_go(row, remote=True)]

    def give(self, row: Job, worker: str, claim: str) -> bool:
        """Let a worker have a job; whether it still could be had."""

        def hand_over(row: Job) -> bool:
            if self._child(row).alive():
                return False
            self._prepare_folder(row, self.settings.job_folder(row.id))
            with self.storage.write() as session:
                locked = require(session, Job, row.id, lock=True)
                if locked.state != "queued" or locked.cancelling:
                    return False
                locked.state, locked.started, locked.process = "running", now(), None
                locked.worker, locked.claim, locked.heard = worker, claim, now()
                locked.attempts += 1
            return True

        with self.undisturbed:
            return self._attempt(row, hand_over)

    def look(self) -> None:
        """See at once what has changed."""
        self._wake.set()

    # --- files --------------------------------------------------------------------------------

    def _prepare_folder(self, row: Job, folder: Path) -> None:
        """Put what a child reads into its folder."""
        if row.kind == "train" and row.resuming:
            return
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if row.kind not in ("train", "detect"):
            return
        if child_processes.entries_seen(folder / "run" / "ledger.jsonl"):
            raise PrivacyRefused("Its ledger holds releases, but its settings are missing.")
        shutil.rmtree(folder / "run", ignore_errors=True)
        (folder / child_processes.PROGRESS).unlink(missing_ok=True)
        if not self.records.snapshot(row.dataset_id, folder / CORPUS_FILE):
            raise DataError("The dataset has no records any more.")
        if row.kind == "train":
            describe_job(folder, row)
            (folder / "run.yml").write_text(row.request["run"], encoding="utf-8")
            entities, start = row.request.get("entity_list"), row.request.get("public_start")
            if entities:
                self.datasets.write_list(row.dataset_id, entities, folder / ENTITIES_FILE)
            if start and not self.records.snapshot(start["dataset"], folder / PUBLIC_FILE):
                raise DataError("The public dataset has no records.")

    # --- forgetting ---------------------------------------------------------------------------

    def delete(self, job: str) -> Json:
        """Delete what a run made, and what attacks on it found; its ledger and charges stay.

        Asked for again, it deletes what a crash may have left.
        """
        with self.storage.write() as session:
            row = require(session, Job, job, lock=True)
            if row.kind != "train":
                raise NotFound("There is no such model.")
            others = session.scalars(select(Job).where(Job.target_id == job)).all()
            if row.state in LIVE or any(other.state in LIVE for other in others):
                raise Conflict("The run, or a job about it, is still running; stop that first.")
            row.state, row.message = "deleted", "Deleted; what it released stays charged."
            about = [other for other in others if other.kind != "train"]
            for other in about:
                other.state, other.result = "deleted", None
        for other in about:
            shutil.rmtree(self.settings.job_folder(other.id), ignore_errors=True)
        folder = self.settings.job_folder(job)
        for path in [*folder.glob("*"), *(folder / "run").glob("*")]:
            if path.is_dir() and path.name != "run":
                shutil.rmtree(path)
            elif path.is_file() and path.name not in (*_KEPT, child_processes.LOCK):
                path.unlink()
        return self.get(job)

    def scrub_all(self, names: Iterable[str]) -> list[Json]:
        """Take deleted records out of all snapshots; the jobs that had them.

        A running child has read them already; its snapshot is scrubbed when it ends.
        """
        gone, touched = set(names), []
        for job in self.all(limit=1_000_000):
            folder = self.settings.job_folder(job["id"])
            if not (folder / CORPUS_FILE).exists():
                continue
            if job["state"] in ENDED:
                removed = child_processes.scrub(folder, gone)
            else:
                removed = len(gone.intersection(child_processes.snapshot_ids(folder)))
            if removed:
                touched.append(job | {"records": removed})
        return touched


def _may_go(row: Job, *, remote: bool) -> bool:
    """Whether a job may go to a worker, or be done here.

    A run that goes on from a model knows where that lies, which is not the same there as here.
    """
    begun_there = row.worker is not None
    return not (row.resuming and row.target_id is not None) or remote == begun_there


def _keyed(key: str | None, caller: Caller, kind: str, place: str, asked: Json) -> dict[str, str]:
    """Columns by which a call is known again: who made it where, and what it asked for."""
    if key is None:
        return {}
    words = json.dumps([caller.account, kind, place, key], allow_nan=False)
    content = json.dumps(asked, sort_keys=True, allow_nan=False)
    return {
        "request_key": sha256(words.encode()).hexdigest(),
        "request_digest": sha256(content.encode()).hexdigest(),
    }


def _trained(folder: Path, run: Run) -> Json:
    """What may be said of a finished run: its promise, and how fast it was."""
    certificate = read_certificate(folder / "run" / "certificate.json")
    result: Json = {**promise_of(certificate), "task": run.task, "model_kind": run.model.kind,
                    "shape": shape_of(run)}  # fmt: skip
    first = child_processes.first_progress(folder, "train")
    last = child_processes.last_progress(folder, "train")
    plan = run.made_plan()
    if first is not None and last is not None and plan is not None:
        seconds = float(last["at"]) - float(first["at"])
        steps = int(last["step"]) - int(first["step"])
        metrics = json.loads((folder / "run" / "metrics.json").read_text("utf-8"))
        touched = steps * plan.sampling_rate * float(metrics["training"]["records"])
        if seconds > 0 and touched > 0:
            result |= {"seconds": seconds, "records_per_second": touched / seconds}
    return result
