"""The protocol that every detector meets, and the registry that names them.

A new detector is one class: `find`, a `name`, a line of `summary`, and `open`, which makes it from
what follows `name=`. An installed package adds it by an entry point of the group `tacit.detectors`,
code by `DETECTORS.add`. The conformance suite examines it by its being there.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tacit.corpus import Record
from tacit.errors import UsageError
from tacit.registry import Registry


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
    """Finds sensitive spans in records.

    What it finds in a record depends on that record alone. One that looks at other records of the
    same user says `reads_users = True`, and is given whole users; one that was trained says on
    which corpus (`learned_from`, a digest), and of which `version` it is.
    """

    name: str

    def find(self, records: Sequence[Record]) -> Iterable[Sequence[Finding]]:
        """One sequence of findings for each record, in order."""
        ...


class DetectorClass(Protocol):
    """What the registry holds; `option` says what may follow `name=`."""

    name: str
    summary: str
    option: str

    def open(self, option: str | None) -> Detector:
        """The detector, ready to find; `option` is what was written after `name=`."""
        ...


DETECTORS: Registry[DetectorClass] = Registry(
    "detector",
    "tacit.detectors",
    {
        "patterns": "tacit.detection.patterns:Patterns",
        "lists": "tacit.detection.lists:Lists",
        "names": "tacit.detection.names.detector:NamesDetector",
        "gold": "tacit.detection.gold_labels:Gold",
        "tagger": "tacit.detection.tagger.tagger:Tagger",
        "spacy": "tacit.detection.pipelines:SpacyDetector",
        "presidio": "tacit.detection.pipelines:PresidioDetector",
        "stanza": "tacit.detection.pipelines:StanzaDetector",
    },
)


def open_detectors(wanted: str | Sequence[str | Detector]) -> list[Detector]:
    """The detectors that `patterns,lists=terms.txt,tagger=DIR` names, in that order."""
    detectors: list[Detector] = []
    for part in wanted.split(",") if isinstance(wanted, str) else wanted:
        if not isinstance(part, str):
            detectors.append(part)
        elif part.strip():
            name, _, option = part.strip().partition("=")
            detectors.append(DETECTORS[name].open(option or None))
    if not detectors:
        raise UsageError(f"no detector is named; accepted: {', '.join(DETECTORS)}.")
    return detectors
