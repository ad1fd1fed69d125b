"""Plain operators on mentions: redact, mask, pseudonym. They promise nothing.

What a detector finds is replaced; what it misses stands as it was. That is why none of these has
an epsilon, however thorough the result looks.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from tacit.corpus import Record
from tacit.detection import Detector, Find
from tacit.detection.kinds import known_kinds, matches
from tacit.detection.mentions import Mention, fold
from tacit.detection.surrogates import surrogates
from tacit.errors import DataError, UsageError
from tacit.privacy.arguments import check_one_of
from tacit.sanitization.mechanisms import MECHANISMS
from tacit.sanitization.random_streams import Streams

Within = Literal["record", "user", "corpus"]


@dataclass(frozen=True, slots=True)
class Place:
    """A stretch of a text that is to be replaced."""

    start: int
    end: int
    kind: str


class FromDetectors:
    """Finds what to replace as the records come."""

    def __init__(self, using: str | Sequence[Detector], kinds: Sequence[str] | None = None) -> None:
        self._find, self._kinds = Find(using), kinds

    def __call__(self, records: Sequence[Record]) -> list[list[Place]]:
        """The places of each record, in order, without overlaps."""
        return [
            [
                Place(f.start, f.end, f.kind)
                for f in findings
                if self._kinds is None or matches(f.kind, self._kinds)
            ]
            for findings in self._find(records)
        ]


class FromMentions:
    """Takes what to replace from a file of mentions that was made before."""

    def __init__(self, mentions: Iterable[Mention], kinds: Sequence[str] | None = None) -> None:
        self._by_record: dict[str, list[Place]] = {}
        for m in mentions:
            if kinds is None or matches(m.kind, kinds):
                self._by_record.setdefault(m.record, []).append(Place(m.start, m.end, m.kind))

    def __call__(self, records: Sequence[Record]) -> list[list[Place]]:
        """The places of each record, in order."""
        return [
            sorted(self._by_record.get(record.id, ()), key=lambda p: p.start) for record in records
        ]


Finder = Callable[[Sequence[Record]], list[list[Place]]]


class MentionMechanism:
    """Says what stands in place of a mention; it promises nothing.

    Whatever is to be the same for the same name is drawn from `streams`, by a name of its own.
    """

    name: str
    summary: str

    def __init__(self, streams: Streams, within: Within = "record") -> None:
        self.streams, self.within = streams, within

    def instead(self, record: Record, place: Place) -> str:
        """What the place becomes."""
        raise NotImplementedError


class Redact(MentionMechanism):
    """The name of the kind."""

    name = "redact"
    summary = "what was found becomes the name of its kind: [PERSON]"

    def instead(self, record: Record, place: Place) -> str:
        """`[PERSON]`."""
        return f"[{place.kind}]"


class Mask(MentionMechanism):
    """The shape, without letters and digits."""

    name = "mask"
    summary = "letters and digits of what was found become *, so its shape stays"

    def instead(self, record: Record, place: Place) -> str:
        """`*** *****`."""
        words = record.text[place.start : place.end]
        return "".join("*" if c.isalnum() else c for c in words)


class Pseudonym(MentionMechanism):
    """An invented name of the kind, of the lists that `protect: users+names` trains with.

    Which one is drawn from a generator that is keyed with the folded name, so that the same name
    gets the same one without a table of names: within a record, a user's records, or the corpus.
    It is not matched to the name in length, gender or case. Two names may share one, as two people
    may.
    """

    name = "pseudonym"
    summary = "what was found becomes an invented name of its kind, the same for the same"

    def instead(self, record: Record, place: Place) -> str:
        """A name for a name, and so on."""
        if place.kind not in known_kinds():
            raise DataError(
                "A mention is of a kind that has no invented names; accepted are the kinds that "
                "`tacit detect list` shows, or take --method redact."
            )
        words = fold(record.text[place.start : place.end], place.kind)
        name = "\0".join(["pseudonym", *self._scope(record), place.kind, words])
        invented = surrogates(place.kind)
        return invented[int.from_bytes(self.streams.bytes(name, 16), "little") % len(invented)]

    def _scope(self, record: Record) -> tuple[str, str]:
        if self.within == "user" and record.user is None:
            raise DataError("same_within=user needs users, and a record has none; give record.")
        own = {"record": record.id, "user": record.user or "", "corpus": ""}
        return self.within, own[self.within]


LEAKS: dict[Within, str] = {
    "record": "which mentions of one record are of the same name",
    "user": "which mentions in all of one user's records are of the same name, and so how often "
    "that user names whom",
    "corpus": "which records of everybody name the same one: how often a name stands where, and "
    "beside which others, by which well-known ones can be told",
}
"""What somebody who reads nothing but the result learns of names, beside their kinds and places."""


def told_by(within: Within) -> dict[str, str]:
    """What pseudonyms give away, for whoever gets the text."""
    return {
        "the same invented name within": f"one {within}" if within != "corpus" else "the corpus",
        "what that tells": LEAKS[within],
    }


class Replacer:
    """Replaces the places that a finder names, by the mechanism of that name."""

    def __init__(
        self,
        method: str,
        finder: Finder,
        *,
        within: Within = "record",
        seed: int | None = None,
    ) -> None:
        check_one_of("same_within", within, get_args(Within))
        found = MECHANISMS[method]
        if not issubclass(found, MentionMechanism):
            raise UsageError(f"method={method} replaces every word, and not what detectors find.")
        self.method, self._finder, self.streams = method, finder, Streams(seed)
        self._mechanism = found(self.streams, within)

    def __call__(self, records: Sequence[Record]) -> tuple[list[str], int]:
        """The new texts, and how many places were replaced."""
        texts, count = [], 0
        for record, places in zip(records, self._finder(records), strict=True):
            parts, at = [], 0
            for place in places:
                parts += [record.text[at : place.start], self._mechanism.instead(record, place)]
                at = place.end
                count += 1
            texts.append("".join([*parts, record.text[at:]]))
        return texts, count
