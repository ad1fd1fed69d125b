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
import threading
import time
from collections.abc import Callable, Iterable
from typing import Literal

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tacit.errors import DataError, PrivacyRefused, TacitError
from tacit.privacy.certificates.certificate import read_certificate
from tacit.privacy.certificates.manifest import CERTIFICATE_FILES, SIGNATURE
from tacit.privacy.ledger import Releases, read_ledger
from tacit.server import Json, child_processes
from tacit.server.budget import Budgets
from tacit.server.child_processes import Child
from tacit.server.datasets import Datasets
from tacit.server.errors import Busy, Conflict, NotFound
from tacit.server.identity import Caller
from tacit.server.plans import Plans
from tacit.server.records import Records
from tacit.server.run_requests import (
    RunRequest,
    entities_of,
    planned_releases,
    shape_of,
    unproved_reason,
)
from tacit.server.settings import ServerSettings
from tacit.server.sharing import promise_of, vouch
from tacit.server.storage import Job, Storage, new_id, now
from tacit.training.settings import Run, read_run, run_yaml

Kind = Literal["train", "detect", "attack", "audit", "evaluate"]
LIVE = ("queued", "running")
ENDED = ("done", "failed", "cancelled", "deleted")
_KEPT = (*CERTIFICATE_FILES, SIGNATURE, "plan.yml")
"""What says what a deleted run had released; no weights and no text are in it."""


class Jobs:
    """The queue of one server."""

    def __init__(
        self,
        storage: Storage,
        settings: ServerSettings,
        datasets: Datasets,
        records: Records,
        budgets: Budgets,
        plans: Plans,
    ) -> None:
        self.storage, self.settings = storage, settings
        self.datasets, self.records = datasets, records
        self.budgets, self.plans = budgets, plans
        self._children: dict[str, Child] = {}
        self._asked_to_end: dict[str, float] = {}
        self._turning = threading.Lock()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self.trouble: Callable[[str], None] = lambda sentence: None

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

    # --- asking for work --------------------------------------------------------------------

    def train(self, dataset: str, asked: RunRequest, caller: Caller) -> Json:
        """Reserve what a run may release, and queue it; refused before anything is started."""
        self.datasets.require(dataset)
        ready = self.plans.prepare(dataset, asked)
        if not self.records.counts(dataset)["records"]:
            raise DataError("The dataset has no record to train on; add some first.")
        entities = entities_of(ready.run, asked.entity_list)
        job = Job(
            id=new_id(),
            kind="train",
            name=asked.name,
            dataset_id=dataset,
            request=asked.model_dump(mode="json", exclude_defaults=True)
            | {"method": asked.method, "run": run_yaml(ready.run), "entities": entities},
            state="queued",
            unproved=ready.unproved is not None,
            created_by=caller.account,
            target_id=asked.continue_from,
            created=now(),
        )
        self._need_room()
        self.budgets.reserve(
            dataset,
            job.id,
            ready.releases,
            unproved=ready.unproved,
            entities=entities,
            also=lambda session: self._add(session, job),
        )
        self._wake.set()
        return self.get(job.id)

    def order(
        self, dataset: str, caller: Caller, kind: Kind, options: Json, target: str | None = None
    ) -> Json:
        """Queue work that releases nothing: a command on the dataset, or on a run, the target.

        Options are those of the command; one without a value is left out.
        """
        self.datasets.require(dataset)
        given = {name: str(value) for name, value in options.items() if value}
        command = ["detect", "run", "corpus.jsonl", "-o", "mentions.jsonl", "--overwrite"]
        arguments = command if kind == "detect" else [kind, "run"]
        arguments += [word for name, value in given.items() for word in (f"--{name}", value)]
        job = Job(
            id=new_id(), kind=kind, name=next(iter(given.values()), ""), dataset_id=dataset,
            target_id=target, request={"arguments": [*arguments, "--json"]}, state="queued",
            created_by=caller.account, created=now(),
        )  # fmt: skip
        with self.storage.write() as session:
            self._add(session, job)
        self._wake.set()
        return self.get(job.id)

    def _need_room(self) -> None:
        with self.storage.read() as session:
            waiting = session.scalar(
                select(func.count()).select_from(Job).where(Job.state == "queued")
            )
        if (waiting or 0) >= self.settings.queue:
            raise Busy(f"{waiting} jobs wait already, and no more may; try again later.")

    def _add(self, session: Session, job: Job) -> None:
        # Again, where nobody can come in between.
        waiting = session.scalar(select(func.count()).select_from(Job).where(Job.state == "queued"))
        if (waiting or 0) >= self.settings.queue:
            raise Busy(f"{waiting} jobs wait already, and no more may; try again later.")
        session.add(job)

    def cancel(self, job: str) -> Json:
        """Stop a job; what its ledger holds stays charged."""
        with self.storage.write() as session:
            row = self._locked(session, job)
            if row.state not in LIVE:
                raise Conflict(f"The job is {row.state} already.")
            row.cancelling = True
        self._wake.set()
        self._turn(only=job)
        return self.get(job)

    def resume(self, job: str) -> Json:
        """Go on with a run that failed or was cancelled, if the budget still has room for it."""
        with self.storage.read() as session:
            row = session.get(Job, job)
        if row is None or row.kind != "train":
            raise NotFound("There is no such run.")
        if row.state not in ("failed", "cancelled"):
            raise Conflict(f"The run is {row.state}; only what failed or was cancelled is resumed.")
        self._need_room()
        self._reserve_again(row, by_hand=True)
        self._wake.set()
        return self.get(job)

    def _reserve_again(self, row: Job, *, by_hand: bool) -> None:
        """Charge what a run released and what is left of it, and queue it."""
        run = self._run_of(row)

        def requeue(session: Session) -> None:
            locked = self._locked(session, row.id)
            if locked.state not in ("failed", "cancelled", "running"):
                raise Conflict(f"The run is {locked.state} by now.")
            locked.state, locked.cancelling = "queued", False
            locked.resuming, locked.ended = self._has_begun(row.id), None
            locked.message = ""
            if by_hand:
                locked.attempts = 0

        self.budgets.reserve(
            row.dataset_id,
            row.id,
            self._still_to_release(row.id, run),
            unproved=unproved_reason(run),
            entities=row.request.get("entities"),
            also=requeue,
            note="to go on",
        )

    def _has_begun(self, job: str) -> bool:
        return (self.settings.job_folder(job) / "run" / "run.yml").exists()

    def _run_of(self, row: Job) -> Run:
        path = self.settings.job_folder(row.id) / "run.yml"
        if not path.exists():
            self._write_settings(row)
        return read_run(path)

    def _still_to_release(self, job: str, run: Run) -> Releases:
        """What the ledger holds, and every step after the checkpoint once more."""
        plan = run.made_plan()
        planned = planned_releases(run, plan)
        folder = self.settings.job_folder(job) / "run"
        if plan is None or not (folder / "ledger.jsonl").exists():
            return planned
        place = child_processes.place_of(folder)
        done = place[1] if place is not None and place[0] == "train" else 0
        releases = read_ledger(folder / "ledger.jsonl").own_releases()
        event = plan.event()
        releases[event] = releases.get(event, 0) + max(0, plan.steps - done)
        return releases

    # --- looking ------------------------------------------------------------------------------

    def get(self, job: str, kind: str | None = None) -> Json:
        """One job."""
        with self.storage.read() as session:
            row = session.get(Job, job)
        if row is None or (kind is not None and row.kind != kind):
            raise NotFound(f"There is no such {kind or 'job'}.")
        return self._as_json(row)

    def all(
        self,
        kind: str | None = None,
        dataset: str | None = None,
        target: str | None = None,
        limit: int = 200,
    ) -> list[Json]:
        """Jobs, the latest first."""
        query = select(Job).order_by(Job.id.desc()).limit(limit)
        if kind is not None:
            query = query.where(Job.kind == kind)
        if dataset is not None:
            query = query.where(Job.dataset_id == dataset)
        if target is not None:
            query = query.where(Job.target_id == target)
        with self.storage.read() as session:
            return [self._as_json(row) for row in session.scalars(query)]

    def counts(self) -> dict[str, int]:
        """How many jobs are in each state."""
        with self.storage.read() as session:
            rows = session.execute(select(Job.state, func.count()).group_by(Job.state))
            return {state: count for state, count in rows}

    def _as_json(self, row: Job) -> Json:
        latest = child_processes.progress_lines(self.settings.job_folder(row.id))[-1:]
        return {
            "id": row.id,
            "kind": row.kind,
            "name": row.name,
            "dataset": row.dataset_id,
            "target": row.target_id,
            "state": "cancelling" if row.cancelling and row.state in LIVE else row.state,
            "unproved": row.unproved,
            "attempts": row.attempts,
            "released": row.released,
            "message": row.message,
            "result": row.result,
            "request": {k: v for k, v in row.request.items() if k not in ("run", "entities")},
            "progress": latest[0] if latest else None,
            "created": row.created.isoformat(),
            "started": row.started.isoformat() if row.started else None,
            "ended": row.ended.isoformat() if row.ended else None,
        }

    # --- working ------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                self._turn()
            except Exception as error:  # the queue must not die of one job
                self.trouble(f"The queue stumbled ({type(error).__name__}); it goes on.")
                time.sleep(1)
            self._wake.wait(self.settings.poll_seconds)
            self._wake.clear()

    def _turn(self, only: str | None = None) -> None:
        """Look at every live job once, and start what may start."""
        with self._turning:
            with self.storage.read() as session:
                query = select(Job).where(Job.state.in_(LIVE)).order_by(Job.id)
                rows = session.scalars(query).all()
            running = 0
            for row in rows:
                if row.state == "running" and only in (None, row.id):
                    running += self._minding(row, self._watch)
                elif row.state == "running":
                    running += 1
            for row in rows:
                if row.state != "queued" or only not in (None, row.id):
                    continue
                if row.cancelling:
                    self._end(row, "cancelled", "Cancelled before it began.")
                elif running < self.settings.jobs and only is None:
                    running += self._minding(row, self._begin)

    def _minding(self, row: Job, look: Callable[[Job], bool]) -> bool:
        """Whether a job runs after a look at it; one that cannot be looked at has failed."""
        try:
            return look(row)
        except (TacitError, OSError, ValueError, KeyError, TypeError) as error:
            said = str(error) if isinstance(error, TacitError) else "What it left cannot be read."
            # As long as its process lives it may release more, so it is not at its end.
            if self._child(row).alive():
                return True
            self._end(row, "failed", said)
            return False

    def _watch(self, row: Job) -> bool:
        """Whether a running job still runs; if not, it is brought to its end."""
        child = self._child(row)
        ledger = child.folder / "run" / "ledger.jsonl"
        # First whether it lives, then what it wrote: else a last entry could be overlooked.
        alive = child.alive()
        seen = child_processes.entries_seen(ledger) if row.kind == "train" else 0
        if seen > row.released:
            with self.storage.write() as session:
                self._locked(session, row.id).released = seen
        if alive:
            if row.cancelling:
                since = self._asked_to_end.setdefault(row.id, time.monotonic())
                late = time.monotonic() - since > self.settings.kill_after_seconds
                child.end(signal.SIGKILL if late else signal.SIGTERM)
            return True
        self._judge(row, child)
        return False

    def _child(self, row: Job) -> Child:
        if row.id not in self._children:
            folder = self.settings.job_folder(row.id)
            self._children[row.id] = Child(folder, row.process)
        return self._children[row.id]

    def _judge(self, row: Job, child: Child) -> None:
        """Say how a job ended, by what it left in its folder."""
        error = child_processes.last_error(child.folder)
        # Printed last, after everything was written.
        if child_processes.output(child.folder) is not None:
            self._end(row, "done", "", self._result(row, child))
        elif row.cancelling:
            self._end(row, "cancelled", "Cancelled; what was released stays charged.")
        elif error is not None:
            self._end(row, "failed", error)
        elif row.attempts > self.settings.resumes:
            self._end(row, "failed", f"Its process died {row.attempts} times; resume it by hand.")
        else:
            self._again(row)

    def _again(self, row: Job) -> None:
        """Take up a job whose process died."""
        if row.kind != "train":
            with self.storage.write() as session:
                self._locked(session, row.id).state = "queued"
            return
        try:
            self._reserve_again(row, by_hand=False)
        except (PrivacyRefused, Busy) as refused:
            self._end(row, "failed", f"Its process died, and it may not go on: {refused}")

    def _result(self, row: Job, child: Child) -> Json:
        if row.kind in ("train", "audit", "attack"):
            place = row.id if row.kind == "train" else str(row.target_id)
            vouch(self.settings.folder, self.settings.job_folder(place) / "run")
        if row.kind == "train":
            return _trained(child, self._run_of(row))
        if row.kind == "detect":
            return dict(child_processes.output(child.folder))
        return {"output": child_processes.output(child.folder)}

    def _end(self, row: Job, state: str, message: str, result: Json | None = None) -> None:
        folder = self.settings.job_folder(row.id)
        if row.kind == "train":
            self.budgets.settle(row.id, folder / "run" / "ledger.jsonl")
        self._scrub(row.id)
        with self.storage.write() as session:
            locked = self._locked(session, row.id)
            locked.state, locked.message, locked.ended = state, message, now()
            locked.cancelling, locked.process = False, None
            if result is not None:
                locked.result = result
            if state == "done" and row.kind in ("audit", "attack"):
                self._say_again(session, str(row.target_id))
        self._children.pop(row.id, None)
        self._asked_to_end.pop(row.id, None)

    def _say_again(self, session: Session, run: str) -> None:
        """Take over what a certificate says now: an audit may have contradicted it."""
        target = self._locked(session, run)
        place = self.settings.job_folder(run) / "run" / "certificate.json"
        if target.result and place.exists():
            target.result = {**target.result, **promise_of(read_certificate(place))}

    def _begin(self, row: Job) -> bool:
        """Start a job's process; a job that cannot be started has failed."""
        folder = self.settings.job_folder(row.id)
        # A child of an earlier server may live whose number was never written down.
        if Child(folder, None).alive():
            return True
        try:
            self._lay_out(row)
            with self.storage.write() as session:
                locked = self._locked(session, row.id)
                if locked.state != "queued" or locked.cancelling:
                    return False
                locked.state, locked.started = "running", now()
                locked.attempts += 1
            arguments, into = self._command(row)
            where = self.settings.job_folder(into) if into is not None else None
            child = child_processes.start(
                folder, arguments, home=self.settings.folder / "home", into=where
            )
        except (TacitError, OSError) as error:
            said = str(error) if isinstance(error, TacitError) else "The disk did not take it."
            self._end(row, "failed", said)
            return False
        self._children[row.id] = child
        with self.storage.write() as session:
            self._locked(session, row.id).process = child.process
        return True

    def _lay_out(self, row: Job) -> None:
        """Put what a child reads into its folder."""
        folder = self.settings.job_folder(row.id)
        if row.kind == "train" and row.resuming:
            return
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if row.kind not in ("train", "detect"):
            return
        if child_processes.entries_seen(folder / "run" / "ledger.jsonl"):
            raise PrivacyRefused("Its ledger holds releases, but not the settings to go on with.")
        shutil.rmtree(folder / "run", ignore_errors=True)
        (folder / child_processes.PROGRESS).unlink(missing_ok=True)
        if not self.records.snapshot(row.dataset_id, folder / "corpus.jsonl"):
            raise DataError("The dataset has no record any more.")
        if row.kind == "train":
            self._write_settings(row)
            if row.request.get("entity_list"):
                self.datasets.write_list(
                    row.dataset_id, row.request["entity_list"], folder / "entities.txt"
                )
            start = row.request.get("public_start")
            if start and not self.records.snapshot(start["dataset"], folder / "public.jsonl"):
                raise DataError("The public dataset has no record.")

    def _write_settings(self, row: Job) -> None:
        path = self.settings.job_folder(row.id) / "run.yml"
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_text(row.request["run"], encoding="utf-8")

    def _command(self, row: Job) -> tuple[list[str], str | None]:
        """The arguments, and the job in whose folder the child works, if not its own."""
        if row.kind == "train":
            what = ["--resume", "run"] if row.resuming else ["run.yml", "-o", "run"]
            return ["train", *what, "--progress", child_processes.PROGRESS, "--json"], None
        return list(row.request["arguments"]), row.target_id

    # --- forgetting ---------------------------------------------------------------------------

    def delete(self, job: str) -> Json:
        """Delete what a run made, and what attacks on it found; its ledger and charges stay.

        Asked for again, it deletes what a crash may have left.
        """
        with self.storage.write() as session:
            row = self._locked(session, job)
            if row.kind != "train":
                raise NotFound("There is no such model.")
            others = session.scalars(select(Job).where(Job.target_id == job)).all()
            if row.state in LIVE or any(other.state in LIVE for other in others):
                raise Conflict("It is still at work, or something works on it; stop that first.")
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
            if not (folder / "corpus.jsonl").exists():
                continue
            if job["state"] in ENDED:
                removed = child_processes.scrub(folder, gone)
            else:
                removed = len(gone.intersection(child_processes.snapshot_ids(folder)))
            if removed:
                touched.append(job | {"records": removed})
        return touched

    def _scrub(self, job: str) -> None:
        folder = self.settings.job_folder(job)
        gone = self.records.forgotten_among(child_processes.snapshot_ids(folder))
        if gone:
            child_processes.scrub(folder, gone)

    def _locked(self, session: Session, job: str) -> Job:
        row = session.get(Job, job, with_for_update=True)
        if row is None:
            raise NotFound("There is no such job.")
        return row


def _trained(child: Child, run: Run) -> Json:
    """What may be said of a finished run: its promise, and how fast it was."""
    certificate = read_certificate(child.folder / "run" / "certificate.json")
    result: Json = {
        **promise_of(certificate),
        "task": run.task,
        "model_kind": run.model.kind,
        "shape": shape_of(run),
    }
    lines = [
        line
        for line in child_processes.progress_lines(child.folder)
        if line.get("phase") == "train"
    ]
    plan = run.made_plan()
    if len(lines) > 1 and plan is not None:
        seconds = float(lines[-1]["at"]) - float(lines[0]["at"])
        steps = int(lines[-1]["step"]) - int(lines[0]["step"])
        rate = plan.user_rate if plan.user_rate is not None else plan.record_rate or 0
        records = json.loads((child.folder / "run" / "metrics.json").read_text("utf-8"))
        touched = steps * float(rate) * float(records["training"]["records"])
        if seconds > 0 and touched > 0:
            result |= {"seconds": seconds, "records_per_second": touched / seconds}
    return result
