"""Processes that outlive the server: known by their lock, judged by what they left."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from support.people import somebody
from tacit.privacy.events import SampledGaussian
from tacit.privacy.ledger import Ledger
from tacit.server import child_processes
from tacit.server.child_processes import Child
from tacit.server.errors import NotFound
from tacit.server.records import Draft
from tacit.server.run_requests import RunRequest
from tacit.server.services import Services
from tacit.server.storage import Job


def ended(child: Child) -> bool:
    until = time.monotonic() + 60
    while child.alive() and time.monotonic() < until:
        time.sleep(0.02)
    return not child.alive()


def test_a_lock_tells_whether_a_child_lives(tmp_path: Path) -> None:
    started = child_processes.start(tmp_path, ["price", "--help"], home=tmp_path)
    assert started.process is not None
    os.kill(started.process, signal.SIGSTOP)
    found_again = Child(tmp_path, started.process)  # as another server would see it
    assert started.alive()
    assert found_again.alive()
    found_again.end(signal.SIGKILL)
    assert ended(started)
    assert not found_again.alive()
    assert child_processes.output(tmp_path) is None
    assert child_processes.last_error(tmp_path) is None
    assert not Child(tmp_path / "nowhere", None).alive()


def test_only_the_last_start_says_how_it_ended(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("--- started once\nError: no.\n--- started again\nfine\n")
    assert child_processes.last_error(tmp_path) is None
    (tmp_path / "log.txt").write_text("--- started once\nfine\nError: it cannot be.\n")
    assert child_processes.last_error(tmp_path) == "it cannot be."


def test_progress_that_is_being_written_waits(tmp_path: Path) -> None:
    (tmp_path / "progress.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert [line["step"] for line in child_processes.progress_lines(tmp_path)] == [1, 2]
    assert [line["number"] for line in child_processes.progress_lines(tmp_path, 1)] == [1]


def test_long_progress_is_read_from_where_somebody_was(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    assert child_processes.last_progress(tmp_path) is None
    lines = [f'{{"phase": "{"start" if n < 5 else "train"}", "step": {n}}}\n' for n in range(3500)]
    path.write_text("".join(lines[:2500]) + '{"st')
    seen = child_processes.progress_lines(tmp_path, 100, limit=2000)
    assert [line["number"] for line in seen] == list(range(100, 2100))
    path.write_text("".join(lines))  # the same file, grown
    for after in (0, 999, 1000, 1001, 2400, 3499, 3500):
        seen = child_processes.progress_lines(tmp_path, after)
        assert [line["step"] for line in seen] == list(range(after, 3500))
    first, last = (child_processes.first_progress(tmp_path, "train"),
                   child_processes.last_progress(tmp_path, "train"))  # fmt: skip
    assert first is not None
    assert last is not None
    assert (first["step"], last["step"]) == (5, 3499)
    (tmp_path / "new").write_text('{"step": 0}\n{"step": 1}\n')
    (tmp_path / "new").replace(path)  # begun anew: nothing of the old one counts
    assert [x["step"] for x in child_processes.progress_lines(tmp_path, 1)] == [1]


def test_entries_are_counted_without_those_of_an_earlier_run(tmp_path: Path) -> None:
    event = SampledGaussian(unit="users", rate=1.0, noise_multiplier=9.0)
    with Ledger(tmp_path / "ledger.jsonl", {}) as ledger:
        ledger.charge(event, phase="earlier/train")
        ledger.charge(event)
        ledger.charge(event)
    assert child_processes.entries_seen(tmp_path / "ledger.jsonl") == 2
    assert child_processes.entries_seen(tmp_path / "none.jsonl") == 0


def test_what_is_forgotten_leaves_snapshots_and_findings(tmp_path: Path) -> None:
    lines = [json.dumps({"id": name, "text": f"text {name}"}) for name in "abc"]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "mentions.jsonl").write_text("x")
    (tmp_path / "mentions.html").write_text("x")
    assert child_processes.snapshot_ids(tmp_path) == ["a", "b", "c"]
    assert child_processes.scrub(tmp_path, {"z"}) == 0
    assert (tmp_path / "mentions.html").exists()
    assert child_processes.scrub(tmp_path, {"b"}) == 1
    assert child_processes.snapshot_ids(tmp_path) == ["a", "c"]
    assert not list(tmp_path.glob("mentions*"))


def test_a_job_that_cannot_be_done_has_failed_with_a_sentence(lite: Services) -> None:
    admin = somebody(lite, "admin")
    dataset = lite.datasets.add("diary", admin, limits={"users": 8})["id"]
    lite.records.append(dataset, admin, [Draft("a text without marks", "ann")]).result(30)
    job = lite.jobs.order(dataset, admin, "detect", {"with": "gold"})["id"]
    until = time.monotonic() + 90
    while lite.jobs.get(job)["state"] in ("queued", "running") and time.monotonic() < until:
        time.sleep(0.05)
    found = lite.jobs.get(job)
    assert found["state"] == "failed"
    assert "has no gold labels" in found["message"]
    with pytest.raises(NotFound):
        lite.owners(job, with_names=True)


def test_a_run_whose_ledger_lost_its_settings_is_not_begun_anew(lite: Services) -> None:
    """Releases on disk and nothing to go on with: refused, and all of the plan stays charged."""
    admin = somebody(lite, "admin")
    dataset = lite.datasets.add("diary", admin, limits={"users": 8})["id"]
    lite.records.append(dataset, admin, [Draft("a text", "ann")]).result(30)
    lite.jobs.close()
    plan = {"protect": "users", "epsilon": 3, "steps": 5, "user_rate": 1.0, "users": 50}
    run = lite.jobs.train(dataset, RunRequest(plan=plan), admin)["id"]
    folder = lite.settings.job_folder(run) / "run"
    with Ledger(folder / "ledger.jsonl", {}) as ledger:
        ledger.charge(SampledGaussian(unit="users", rate=1.0, noise_multiplier=99.0))
    with lite.storage.write() as session:
        row = session.get(Job, run)
        assert row is not None
        row.released = 3
    lite.jobs._poll()
    found = lite.jobs.get(run)
    assert found["state"] == "failed"
    assert "Its ledger holds releases" in found["message"]
    assert lite.budgets.status(dataset)["spent"]["users"] == pytest.approx(3, rel=0.01)
