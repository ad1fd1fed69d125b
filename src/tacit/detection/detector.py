"""The protocol that every detector meets, and the registry that names them.

A new detector is one file: a class with `name` and `find`, a function that makes it from an
option string, and a `register` line. The conformance suite examines it by its being there.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from tacit.corpus import Record
from tacit.errors import UsageError


@dataclass(frozen=True, slots=True)
class Finding:
    """What one detector saw: `text[start:end]` is of a kind, how sure, and why it fired.

    `why` names the rule, never the text.
    """

    start: int
    end: int
    kind: str
    score: float
    why: str


class Detector(Protocol):
    """Finds sensitive spans in records."""

    name: str

    def find(self, records: Sequence[Record]) -> Iterable[Sequence[Finding]]:
        """One sequence of findings for each record, in order."""
        ...


Maker = Callable[[str | None], Detector]


@dataclass(frozen=True)
class Entry:
    """A detector's line in the registry; `option` says what may follow `name=`."""

    name: str
    make: Maker
    summary: str
    option: str = ""


_REGISTRY: dict[str, Entry] = {}
_OURS = ("patterns", "lists", "gold_labels", "tagger.tagger", "pipelines")


def register(name: str, make: Maker, summary: str, option: str = "") -> None:
    """Make a detector known under a name."""
    _REGISTRY[name] = Entry(name, make, summary, option)


def registered() -> dict[str, Entry]:
    """Every detector, by name, in order of registration."""
    # Importing a module of detectors is what registers them.
    for name in _OURS:
        import_module(f"tacit.detection.{name}")
    return dict(_REGISTRY)


def open_detectors(wanted: str | Sequence[str]) -> list[Detector]:
    """The detectors that `patterns,lists=terms.txt,tagger=DIR` names, in that order."""
    parts = wanted.split(",") if isinstance(wanted, str) else list(wanted)
    known = registered()
    detectors = []
    for part in filter(None, (p.strip() for p in parts)):
        name, _, option = part.partition("=")
        if name not in known:
            raise UsageError(f"detector {name!r} is unknown; accepted: {', '.join(sorted(known))}.")
        detectors.append(known[name].make(option or None))
    if not detectors:
        raise UsageError(f"no detector named; accepted: {', '.join(sorted(known))}.")
    return detectors
