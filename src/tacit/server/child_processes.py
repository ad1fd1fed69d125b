"""Child processes that outlive the server: started, found again, stopped, judged by what they left.

A child holds a lock on a file of its job for as long as it lives, inherited from the server that
started it. Whoever can take that lock knows that the child is gone, also after a restart, when the
child is nobody's any more; and while the lock is held, the process number is still the child's.
"""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.files import whole_file
from tacit.server import Json
from tacit.server.storage import now

LOCK, LOG, OUT, PROGRESS = "alive.lock", "log.txt", "out.json", "progress.jsonl"
NOT_PASSED_ON = ("TACIT_DEBUG", "TACIT_TOKEN", "TACIT_DATABASE")
"""Tracebacks may quote text, and a child needs neither a token nor the database."""
_LOG_TAIL = 16_384
_STARTED = "--- started"


@dataclass
class Child:
    """The process of a job; `own` is None where an earlier server started it."""

    folder: Path
    process: int | None
    own: subprocess.Popen[bytes] | None = None

    def alive(self) -> bool:
        """Whether the process still runs."""
        if self.own is not None:
            self.own.poll()  # else it would stay in the table of processes for ever
        return not _lock_is_free(self.folder / LOCK)

    def end(self, number: signal.Signals) -> None:
        """Send it a signal, if it is still there."""
        if self.process is not None and self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process, number)


def start(folder: Path, arguments: Sequence[str], *, home: Path, into: Path | None = None) -> Child:
    """Run `tacit ARGUMENTS` in its own session; results, log and lock go to the job's folder.

    `into` is where it works, if that is not the folder itself.
    """
    environment = {k: v for k, v in os.environ.items() if k not in NOT_PASSED_ON}
    environment |= {"TACIT_HOME": str(home), "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    held = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with (folder / LOG).open("ab") as log, (folder / OUT).open("wb") as out:
            log.write(f"{_STARTED} {now():%Y-%m-%d %H:%M:%S} UTC\n".encode())
            log.flush()
            process = subprocess.Popen(
                [sys.executable, "-m", "tacit", *arguments], cwd=into or folder, env=environment,
                stdin=subprocess.DEVNULL, stdout=out, stderr=log, start_new_session=True,
                pass_fds=(held,),
            )  # fmt: skip
    finally:
        os.close(held)
    return Child(folder, process.pid, process)


def _lock_is_free(path: Path) -> bool:
    try:
        held = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(held)


def last_error(folder: Path) -> str | None:
    """The sentence with which the command line ended, if it ended with one."""
    this_time = log_text(folder).rpartition(_STARTED)[2]
    lines = [line for line in this_time.splitlines() if line.strip()]
    for line in reversed(lines[-3:]):
        if line.startswith(("Error: ", "Internal error")):
            return line.removeprefix("Error: ")
    return None


def log_text(folder: Path) -> str:
    """The end of a job's log; commands never quote text of a corpus."""
    try:
        with (folder / LOG).open("rb") as log:
            log.seek(max(0, (folder / LOG).stat().st_size - _LOG_TAIL))
            return log.read().decode("utf-8", "replace")
    except OSError:
        return ""


def output(folder: Path) -> Any:
    """What the command printed as JSON; None if it did not."""
    try:
        return json.loads((folder / OUT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def progress_lines(folder: Path, after: int = 0) -> list[Json]:
    """The lines of progress from number `after` on; a line that is being written waits."""
    try:
        text = (folder / PROGRESS).read_text(encoding="utf-8")
    except OSError:
        return []
    found = []
    for number, line in list(enumerate(text.split("\n")[:-1]))[after:]:
        try:
            found.append({"number": number} | json.loads(line))
        except ValueError:
            found.append({"number": number})
    return found


def entries_seen(ledger: Path) -> int:
    """How many releases of its own a ledger holds, without checking its chain."""
    try:
        lines = ledger.read_bytes().split(b"\n")[1:-1]
    except OSError:
        return 0
    own = (line for line in lines if b'"phase": "earlier/' not in line)
    return sum(line.startswith(b'{"entry"') for line in own)


def place_of(run: Path) -> tuple[str, int] | None:
    """The phase and step of a run's checkpoint; None before the first."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(run / "checkpoint.safetensors", "np") as file:
            place = json.loads(file.metadata()["tacit"])["place"]
            return str(place["phase"]), int(place["step"])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return None


def scrub(folder: Path, forgotten: set[str]) -> int:
    """Take deleted records out of a job's snapshots and findings; how many were in them.

    What a detection found holds names and offsets of all records together, so it goes as a whole.
    """
    removed = 0
    for path, lines in _snapshots(folder):
        kept = [line for line in lines if json.loads(line)["id"] not in forgotten]
        if len(kept) < len(lines):
            removed += len(lines) - len(kept)
            with whole_file(path) as draft:
                draft.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
    if removed:
        for path in folder.glob("mentions*"):
            path.unlink()
    return removed


def snapshot_ids(folder: Path) -> list[str]:
    """The names of the records in a job's snapshots."""
    return [json.loads(line)["id"] for _, lines in _snapshots(folder) for line in lines]


def _snapshots(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    for path in (folder / "corpus.jsonl", folder / "public.jsonl"):
        if path.exists():
            yield path, path.read_text(encoding="utf-8").split("\n")[:-1]
