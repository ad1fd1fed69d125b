"""Plain operators on mentions: redact, mask, pseudonym. They promise nothing.

What a detector finds is replaced; what it misses stands as it was. That is why none of these has
an epsilon, however thorough the result looks.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tacit.corpus import Record
from tacit.detection import Detector, Find
from tacit.detection.kinds import matches
from tacit.detection.mentions import Mention, fold
from tacit.errors import MissingExtra, UsageError
from tacit.privacy.arguments import check_one_of
from tacit.sanitization.mechanisms import MECHANISMS
from tacit.sanitization.random_streams import Streams

Within = Literal["document", "corpus"]


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

    def __init__(self, streams: Streams, within: Within = "document") -> None:
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
    """A made-up stand-in of the kind.

    It is drawn from a generator that is keyed with the folded name, so that the same entity gets
    the same stand-in without a table of names: within one document, or within the corpus. Two
    entities may share a stand-in, as two people may share a name.
    """

    name = "pseudonym"
    summary = "what was found becomes a made-up stand-in of its kind, the same for the same"

    def __init__(self, streams: Streams, within: Within = "document") -> None:
        super().__init__(streams, within)
        self._stand_ins = StandIns()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.streams, self.within)

    def instead(self, record: Record, place: Place) -> str:
        """A name for a name, and so on."""
        words = record.text[place.start : place.end]
        scope = record.id if self.within == "document" else ""
        name = "\0".join(["pseudonym", scope, place.kind, fold(words, place.kind)])
        return self._stand_ins(place.kind, words, self.streams.bytes(name, 16))


class Replacer:
    """Replaces the places that a finder names, by the mechanism of that name."""

    def __init__(
        self,
        method: str,
        finder: Finder,
        *,
        within: Within = "document",
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


_FAKES: Mapping[str, str] = {
    "PERSON": "name",
    "NORP": "country",
    "FAC": "street_name",
    "ORG": "company",
    "GPE": "city",
    "LOC": "city",
    "LANGUAGE": "language_name",
    "DATE": "date",
    "TIME": "time",
    "PII/EMAIL": "safe_email",
    "PII/PHONE": "numerify_phone",
    "PII/ADDRESS": "street_address",
    "PII/URL": "url",
    "PII/IP": "ipv4_private",
}


class StandIns:
    """Made-up words of a kind, from sixteen random bytes."""

    def __init__(self) -> None:
        try:
            from faker import Faker
        except ImportError:
            raise MissingExtra.of("method=pseudonym needs the package Faker", "generate") from None
        self._faker = Faker("en_US", use_weighting=False)

    def __call__(self, kind: str, words: str, drawn: bytes) -> str:
        """A stand-in; what has no names of its kind keeps its shape with other digits and letters.

        A person named by one word gets one word.
        """
        seed = int.from_bytes(drawn, "little")
        made = _FAKES.get(kind)
        if made is None or made == "numerify_phone":
            return _same_shape(words, random.Random(seed))
        self._faker.seed_instance(seed)
        if kind == "PERSON":
            first, last = str(self._faker.first_name()), str(self._faker.last_name())
            return first if len(words.split()) == 1 else f"{first} {last}"
        return str(getattr(self._faker, made)()).replace("\n", ", ")


def _same_shape(words: str, rng: random.Random) -> str:
    """Other digits for digits and other letters for letters; the rest stays.

    >>> shape = _same_shape("AB-12 x", random.Random(1))
    >>> [c.isdigit() for c in shape] == [c.isdigit() for c in "AB-12 x"]
    True
    """
    letters = "abcdefghijklmnopqrstuvwxyz"
    out = []
    for c in words:
        if c.isdigit():
            out.append(rng.choice("0123456789"))
        elif c.isalpha():
            drawn = rng.choice(letters)
            out.append(drawn.upper() if c.isupper() else drawn)
        else:
            out.append(c)
    return "".join(out)
