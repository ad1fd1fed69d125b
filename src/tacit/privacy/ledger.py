"""What was released: append-only, written ahead, hash-chained.

A ledger is a file of JSON lines. The first names what the ledger is about; each later one is a
release, written and flushed to disk *before* the release leaves the function that makes it. Every
line carries the hash of the line before it, so nothing can be removed, reordered or edited without
a trace. Epsilon is not in it: it is computed from it.

    {"ledger": 2, "about": {...}, "hash": "..."}
    {"entry": 1, "phase": "train", "event": {"event": "user-clip", ...}, "before": "...",
     "hash": "..."}                                        (one line in the file)
    {"closing": {"certificate": "...", "files": {...}}, "before": "...", "hash": "..."}

A closing line binds what was made of the releases: the certificate and every file it speaks for.
The last line of a finished run is one. Whatever changes a certificate later adds another.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from filelock import FileLock, Timeout

from tacit.errors import DataError, PrivacyRefused, UsageError
from tacit.privacy.certificates.documents import canonical_digest, no_repeats
from tacit.privacy.events import AnyEvent, read_event, require_event, write_event

VERSION = 2
_MAX_LINE = 1 << 20

EARLIER = "earlier"
"""Phases of this name, and below it, repeat what an earlier run released."""

Releases = dict[AnyEvent, int]
"""How often each event was carried out; the order does not matter to the price."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One release: its number, the phase it belongs to, and the event as it was executed."""

    number: int
    phase: str
    event: AnyEvent
    hash: str


@dataclass(frozen=True)
class LedgerContents:
    """A ledger as read: what it is about, its entries, and the hash that stands for all of it."""

    about: dict[str, Any]
    entries: tuple[Entry, ...]
    digest: str
    torn: bool
    size: int
    closing: dict[str, Any] | None = None
    """What the last line binds, where that is a closing line."""
    broken: bool = False
    """Whether any closing line says that an audit contradicted the certificate."""

    def releases(self, phase: str | None = None) -> Releases:
        """How often each event was carried out, in one phase or in all."""
        return dict(Counter(e.event for e in self.entries if phase in (None, e.phase)))

    def own_releases(self) -> Releases:
        """The same without what an earlier run released: that run was charged for it."""
        return dict(Counter(e.event for e in self.entries if not is_earlier(e.phase)))

    def earlier_events(self) -> str:
        """A digest of what an earlier run released, as it is repeated here, in its order."""
        repeated = [entry for entry in self.entries if is_earlier(entry.phase)]
        return events_digest((entry.phase.partition("/")[2], entry.event) for entry in repeated)

    def phases(self) -> dict[str, int]:
        """How many releases each phase has, in order of first appearance."""
        return dict(Counter(entry.phase for entry in self.entries))


Allows = Callable[[Releases, AnyEvent], None]
"""Raises `PrivacyRefused` if the event, on top of the releases, would exceed a budget."""


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DataError(
            f"{path} does not exist; a run writes its ledger as ledger.jsonl."
        ) from None
    except OSError:
        raise DataError(f"{path} cannot be read as a file.") from None


def read_ledger(path: Path) -> LedgerContents:
    """Read a ledger and check its chain; anything off is refused, never skipped.

    Only the end may be torn: a last line without its line break was being written when the
    process died. Its release was waiting for that write, so it never left.
    """
    content = _bytes_of(path)
    whole, _, rest = content.rpartition(b"\n")
    torn = bool(rest)
    lines = whole.split(b"\n") if whole else []
    if not lines:
        raise DataError(f"{path} holds no ledger; its first line was never finished.")
    opening = _fields(lines[0], 1, path)
    if opening.get("ledger") != VERSION or not isinstance(opening.get("about"), dict):
        raise DataError(f"{path} is not a ledger of version {VERSION}.")
    last = _checked_hash(opening, {"ledger", "about"}, 1, path)
    entries: list[Entry] = []
    closing, broken = None, False
    for at, line in enumerate(lines[1:], 2):
        fields = _fields(line, at, path)
        closes = "closing" in fields
        wanted = {"closing", "before"} if closes else {"entry", "phase", "event", "before"}
        found = _checked_hash(fields, wanted, at, path)
        in_turn = (
            isinstance(fields["closing"], dict)
            if closes
            else repr(fields["entry"]) == str(len(entries) + 1)
        )
        if fields["before"] != last or not in_turn:
            raise DataError(
                f"{path}, line {at}, does not follow the line before it; an entry was removed, "
                "repeated or moved."
            )
        closing, last = fields.get("closing"), found
        if closing is not None:
            broken = broken or bool(closing.get("broken"))
        else:
            entries.append(_entry(fields, len(entries) + 1, at, path))
    size = len(content) - len(rest)
    return LedgerContents(opening["about"], tuple(entries), last, torn, size, closing, broken)


def _entry(fields: dict[str, Any], number: int, at: int, path: Path) -> Entry:
    if not isinstance(fields["phase"], str):
        raise DataError(f"{path}, line {at}: the phase is not a name.")
    try:
        return Entry(number, fields["phase"], read_event(fields["event"]), fields["hash"])
    except UsageError as error:
        raise DataError(f"{path}, line {at}: {error}") from None


def _fields(line: bytes, at: int, path: Path) -> dict[str, Any]:
    try:
        if len(line) > _MAX_LINE:
            raise ValueError
        fields = json.loads(line, object_pairs_hook=no_repeats, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise DataError(f"{path}, line {at}, is not a line of a ledger.")
    return fields


def _no_constant(_: str) -> None:
    raise ValueError


def _checked_hash(fields: dict[str, Any], wanted: set[str], at: int, path: Path) -> str:
    """The hash of a line that has these fields and no others, if it fits them."""
    if set(fields) != wanted | {"hash"}:
        raise DataError(
            f"{path}, line {at}, has other fields than a ledger ({', '.join(sorted(wanted))})."
        )
    found = canonical_digest({k: v for k, v in fields.items() if k != "hash"})
    if fields["hash"] != found:
        raise DataError(f"{path}, line {at}, was changed: its hash does not fit its content.")
    return found


def _line(fields: dict[str, Any]) -> bytes:
    return (
        json.dumps(fields | {"hash": canonical_digest(fields)}, allow_nan=False) + "\n"
    ).encode()


class _Chain:
    """The file behind a ledger: read once, appended to, known by its size."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self.path = path
        self.about = json.loads(json.dumps(dict(about), allow_nan=False))
        self.size = -1
        self.closing: dict[str, Any] | None = None

    def load(self) -> None:
        """Begin the file, or read it and cut off a torn last line."""
        if not self.path.exists() or b"\n" not in _head(self.path):
            # Nothing, or a first line that was never finished: no release came after it.
            if self.path.exists() and not b'{"ledger"'.startswith(_head(self.path)[:9]):
                raise DataError(f"{self.path} holds something else than a ledger; it is kept.")
            self._begin()
        contents = read_ledger(self.path)
        if contents.about != self.about:
            raise PrivacyRefused(
                f"{self.path} was begun for another plan, corpus or run; continue with those, or "
                "give a new folder."
            )
        if contents.torn:
            # The torn line announced a release that never left.
            os.truncate(self.path, contents.size)
        self.count, self.last, self.size = len(contents.entries), contents.digest, contents.size
        self.releases = contents.releases()
        self.closing = contents.closing

    def _begin(self) -> None:
        try:
            with self.path.open("wb") as file:
                _write(file, _line({"ledger": VERSION, "about": self.about}))
            _sync_folder(self.path.parent)
        except OSError as problem:
            raise _unwritten(self.path, problem) from None

    def current(self) -> bool:
        """Whether the file is still as we left it."""
        return self.size >= 0 and self.path.exists() and self.path.stat().st_size == self.size

    def append(self, event: AnyEvent, phase: str) -> Entry:
        """Put one entry on disk; on failure nothing may follow until the file is read again."""
        fields = {
            "entry": self.count + 1,
            "phase": phase,
            "event": write_event(event),
            "before": self.last,
        }
        self._put(fields)
        self.count += 1
        self.closing = None
        self.releases[event] = self.releases.get(event, 0) + 1
        return Entry(self.count, phase, event, self.last)

    def close(self, binds: dict[str, Any]) -> None:
        """Put a closing line on disk, unless the last line is the same one."""
        if self.closing != binds:
            self._put({"closing": binds, "before": self.last})
            self.closing = binds

    def _put(self, fields: dict[str, Any]) -> None:
        line = _line(fields)
        size, self.size = self.size, -1
        try:
            with self.path.open("ab") as file:
                _write(file, line)
        except OSError as problem:
            raise _unwritten(self.path, problem) from None
        self.size = size + len(line)
        self.last = canonical_digest(fields)


def _unwritten(path: Path, problem: OSError) -> PrivacyRefused:
    return PrivacyRefused(
        f"{path} could not be written ({problem.strerror}); nothing was released. Make room and "
        "resume."
    )


class Ledger:
    """An open ledger, held by one writer; use it as a context manager.

    `allows` is asked before every entry and raises if a budget would be exceeded.

    *Guarantee*: when `charge` returns, the entry is on disk; when it raises, nothing may be
    released.
    """

    def __init__(
        self, path: Path, about: Mapping[str, Any], *, allows: Allows | None = None
    ) -> None:
        self.path = Path(path)
        self._chain = _Chain(self.path, about)
        self._allows = allows
        self._lock = FileLock(f"{self.path}.lock")

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            raise PrivacyRefused(
                f"{self.path} is being written by another process; a ledger has one writer. "
                "Wait for it, or stop it."
            ) from None
        try:
            self._chain.load()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def charge(self, event: AnyEvent, *, phase: str = "train") -> Entry:
        """Write one release ahead of its happening; raises `PrivacyRefused` over budget."""
        event = require_event(event)
        self._require_current()
        if self._allows:
            self._allows(self._chain.releases, event)
        return self._chain.append(event, phase)

    def _require_current(self) -> None:
        if not self._lock.is_locked or not self._chain.current():
            raise PrivacyRefused(
                f"{self.path} is not open, or somebody else changed it; nothing may be released."
            )

    def carry(self, contents: "LedgerContents") -> None:
        """Enter what the run that this one goes on from released, as far as it is not here yet.

        These are facts, so no budget is asked; what follows is asked with them counted.
        """
        known = sum(1 for entry in read_ledger(self.path).entries if is_earlier(entry.phase))
        for entry in contents.entries[known:]:
            self._chain.append(entry.event, f"{EARLIER}/{entry.phase}")

    def close(self, binds: Mapping[str, Any]) -> str:
        """Bind what was made of the releases by a last line; the digest of the whole ledger."""
        self._require_current()
        self._chain.close(json.loads(json.dumps(dict(binds), allow_nan=False)))
        return self.digest

    def require_entries(self, count: int, last: str) -> None:
        """Refuse a ledger that does not begin with so many entries, ending in this hash.

        Whoever goes on from weights needs the whole ledger of what they were made of.
        """
        contents = read_ledger(self.path)
        if count > len(contents.entries) or (count and contents.entries[count - 1].hash != last):
            raise PrivacyRefused(
                f"{self.path} is not the ledger of the checkpoint beside it, which knows {count:,} "
                "releases; put that ledger back, or begin in a new folder."
            )

    @property
    def digest(self) -> str:
        """The hash that stands for everything written so far."""
        return self._chain.last

    @property
    def releases(self) -> Releases:
        """How often each event was carried out so far."""
        return dict(self._chain.releases)

    def __len__(self) -> int:
        return self._chain.count


def events_digest(events: Iterable[tuple[str, AnyEvent]]) -> str:
    """A digest of releases in their order, each with its phase."""
    return canonical_digest([[phase, write_event(event)] for phase, event in events])


def is_earlier(phase: str) -> bool:
    """Whether entries of a phase repeat those of an earlier run.

    >>> is_earlier("earlier/train"), is_earlier("train")
    (True, False)
    """
    return phase.partition("/")[0] == EARLIER


def _write(file: IO[bytes], line: bytes) -> None:
    file.write(line)
    file.flush()
    os.fsync(file.fileno())


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_MAX_LINE)


def _sync_folder(folder: Path) -> None:
    # A new file survives a power cut only once its folder is on disk, too.
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
