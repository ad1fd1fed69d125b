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
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

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
    """Its number; None where the server died before the database had it."""
    own: subprocess.Popen[bytes] | None = None

    def alive(self) -> bool:
        """Whether the process still runs."""
        if self.own is not None:
            self.own.poll()  # else it would stay in the table of processes for ever
        return not _lock_is_free(self.folder / LOCK)

    def end(self, number: signal.Signals) -> None:
        """Send it a signal, if it is still there."""
        process = _own_number(self.folder / LOCK) or self.process
        if process is not None and self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)


_NOTE_AND_RUN = 'echo $$ > "$0" && exec "$@"'
"""A child writes its number into the file that it has locked, before it becomes the command."""


def _own_number(lock: Path) -> int | None:
    try:
        return int(lock.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def start(folder: Path, arguments: Sequence[str], *, home: Path, into: Path | None = None) -> Child:
    """Run `tacit ARGUMENTS` in its own session; results, log and lock go to the job's folder.

    `into` is where it works, if that is not the folder itself.
    """
    environment = {k: v for k, v in os.environ.items() if k not in NOT_PASSED_ON}
    environment |= {"TACIT_HOME": str(home), "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    held = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(held, 0)
        with (folder / LOG).open("ab") as log, (folder / OUT).open("wb") as out:
            log.write(f"{_STARTED} {now():%Y-%m-%d %H:%M:%S} UTC\n".encode())
            log.flush()
            process = subprocess.Popen(
                ["/bin/sh", "-c", _NOTE_AND_RUN, str(folder / LOCK),
                 sys.executable, "-m", "tacit", *arguments],
                cwd=into or folder, env=environment, stdin=subprocess.DEVNULL, stdout=out,
                stderr=log, start_new_session=True, pass_fds=(held,),
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


def progress_lines(folder: Path, after: int = 0, limit: int = 10_000) -> list[Json]:
    """The lines of progress from number `after` on; a line that is being written waits.

    Where a line begins is known from the last time that somebody asked, so that nobody reads a long
    file from its beginning again and again.
    """
    path = folder / PROGRESS
    place = _PLACES.before(path, after)
    found: list[Json] = []
    try:
        with path.open("rb") as file:
            file.seek(place.offset)
            number = place.number
            while len(found) < limit and (line := file.readline()).endswith(b"\n"):
                if number >= after:
                    found.append({"number": number} | _fields(line))
                number += 1
                if number % _EVERY == 0:
                    _PLACES.note(path, _Place(number, file.tell()))
    except OSError:
        return []
    return found


def last_progress(folder: Path, phase: str | None = None) -> Json | None:
    """The last whole line, or the last one of a phase, read from the end of the file."""
    try:
        with (folder / PROGRESS).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LINE_TAIL))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return None
    found = map(_fields, reversed(lines))
    return next((x for x in found if phase is None or x.get("phase") == phase), None)


def first_progress(folder: Path, phase: str) -> Json | None:
    """The first line of a phase."""
    try:
        with (folder / PROGRESS).open("rb") as file:
            return next((x for x in map(_fields, file) if x.get("phase") == phase), None)
    except OSError:
        return None


def _fields(line: bytes) -> Json:
    try:
        return dict(json.loads(line))
    except ValueError:
        return {}


_EVERY, _LINE_TAIL, _MOST_FILES = 1000, 8192, 64


class _Place(NamedTuple):
    number: int
    offset: int


class _Places:
    """Where every thousandth line of some files begins; files of progress only grow."""

    def __init__(self) -> None:
        self._of: dict[Path, tuple[int, list[_Place]]] = {}
        self._lock = threading.Lock()

    def before(self, path: Path, number: int) -> _Place:
        """The last known place that is not after a line."""
        with self._lock:
            known, places = self._of.get(path, (0, []))
        reached = places[: number // _EVERY]
        return reached[-1] if reached and known == _file_number(path) else _Place(0, 0)

    def note(self, path: Path, place: _Place) -> None:
        """A place that was seen."""
        current = _file_number(path)
        with self._lock:
            known, places = self._of.get(path, (0, []))
            places = places if known == current else []
            if len(places) != place.number // _EVERY - 1:
                return
            if path not in self._of and len(self._of) >= _MOST_FILES:
                del self._of[next(iter(self._of))]
            self._of[path] = (current, [*places, place])


def _file_number(path: Path) -> int:
    """A run that begins anew has a new file."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0


_PLACES = _Places()


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
