"""Detector `names`: people, organisations and places in English prose and mail, offline."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tacit.corpus import Record
from tacit.detection.detector import Finding
from tacit.detection.lists import read_embedded
from tacit.detection.names import languages, mail
from tacit.detection.names.mail import FIRST, LAST, SMALL, TITLE
from tacit.detection.names.network import KINDS, Network, load
from tacit.detection.names.tokens import TOKEN
from tacit.errors import UsageError

OPEN = 1.0
"""How much less the score of "no name" counts: a name overlooked costs more than one too many."""

LEANING = (1.05, 0.9, -0.6, 0.0)
"""What is added to the scores of each of `KINDS`: people and organisations count as entities."""

FLOOR = 0.2
"""Names less sure than this are not reported."""

LOWER_CASE = 0.6
"""Names in lower case have to be surer than this."""

FIRST_NAME = 2.0
"""How much more likely a name that opens with a first name is a person's."""

_BATCH = 256
_BREAKS = frozenset("\n0123456789")
_JOINS = frozenset(("and", "or"))
_SAID = """okay ok yes no sure thanks hello hi hey please sorry great good right well fine alright
yeah perfect awesome wonderful absolutely certainly unfortunately"""
_ANSWERS = frozenset(_SAID.split())
_VOWELS = frozenset("aeiou")


class NamesDetector:
    """What a small network and the forms of mail tell of names; it comes with the package."""

    name = "names"
    summary = (
        "people, organisations and places in English prose and mail, found offline; people and "
        "organisations in German, Spanish and French by rules"
    )
    option = "de, es, fr, or auto: guessed record by record"
    kinds: tuple[str, ...] = ("LOC", "ORG", "PERSON")

    def __init__(self, network: Network, language: str = "en") -> None:
        """Take a network that `network.load` or `network.read` gave."""
        self._network, self._language = network, language
        if language != "en":  # it stands on certificates
            self.name = f"names={language}"
        if language in languages.LANGUAGES:  # whose rules know no places
            self.kinds = ("ORG", "PERSON")
        self._countries = {term.text.lower() for term in read_embedded("countries")}

    @classmethod
    def open(cls, option: str | None) -> "NamesDetector":
        """The detector of `names`."""
        accepted = ("en", *languages.LANGUAGES, "auto")
        if option is not None and option not in accepted:
            raise UsageError(
                f"names={option} is not a language it knows; accepted: {', '.join(accepted)}."
            )
        return cls(load(), option or "en")

    def find(self, records: Sequence[Record]) -> Iterator[list[Finding]]:
        """The names in each record's text; nothing but that text is looked at."""
        for first in range(0, len(records), _BATCH):
            texts = [r.text for r in records[first : first + _BATCH]]
            english = self._language == "en"
            yield from self._in_english(texts) if english else self._in_languages(texts)

    def _in_languages(self, texts: Sequence[str]) -> Iterator[list[Finding]]:
        """Each text by the rules of its language, or by the network if that is English."""
        for text in texts:
            own = languages.guessed(text) if self._language == "auto" else self._language
            if own == "en":
                yield from self._in_english([text])
            else:
                yield list(languages.find(text, own, self._listed))

    def _in_english(self, texts: Sequence[str]) -> Iterator[list[Finding]]:
        places = [[m.span() for m in TOKEN.finditer(text)] for text in texts]
        words = [[text[s:e] for s, e in spans] for text, spans in zip(texts, places, strict=True)]
        scores = self._network.scores(words)
        for text, spans, given in zip(texts, places, scores, strict=True):
            yield self._findings(text, spans, given)

    def _findings(
        self, text: str, places: list[tuple[int, int]], scores: NDArray[np.float64]
    ) -> list[Finding]:
        found = []
        breaks = [text[s] in _BREAKS for s, _ in places]
        joins = [text[s:e] in _JOINS for s, e in places]
        for first, last, shares in runs(scores, breaks, joins):
            inside = trimmed(text, places[first:last])
            words = [text[s:e] for s, e in inside]
            kind, sure = self._judged(words, shares)
            if words[-1] == "I" or (len(inside) == 1 and self._is_label(text, *inside[0])):
                continue  # "Will I ..." is a question
            if kind == "PERSON" and len(inside) > 1 and self._listed(words[0]) & TITLE:
                del inside[0]
            if kind != "MISC" and sure >= FLOOR:
                start, end = inside[0][0], inside[-1][1]
                found.append(Finding(start, end, kind, round(sure, 4), f"names: {kind}"))
        found += mail.find(text, self._listed)
        people = [f for f in found if f.kind == "PERSON"]
        return found + mail.repeated(text, people, self._listed)

    def _listed(self, word: str) -> int:
        return self._network.listed(word.rstrip(".") or word)

    def _is_label(self, text: str, start: int, end: int) -> bool:
        """Whether a word only looks like a name: "USR:" before a turn, "Okay," at its start."""
        word, known = text[start:end], self._listed(text[start:end])
        before = text[:start].rstrip(" \t>\"'")[-1:]
        if before in ("", "\n") and text[end : end + 1] == ":":
            return not known & (FIRST | LAST) or not set(word.lower()) & _VOWELS
        opens = before in ("", "\n", ".", "!", "?", ":")
        return word.lower() in _ANSWERS or bool(opens and known & SMALL and not known & FIRST)

    def _judged(self, words: list[str], shares: NDArray[np.float64]) -> tuple[str, float]:
        """What the network says of a name, put right where the name itself says more."""
        name = " ".join(words)
        if not any(map(str.isalnum, name)):
            return "MISC", 0.0
        if len(words) > 1 and self._listed(words[0]) & FIRST:
            shares = shares * (FIRST_NAME, 1, 1, 1)
        at = int(shares.argmax())
        kind, sure = KINDS[at], min(float(shares[at]), 1.0)
        if not any(map(str.isupper, name)):
            # Names in lower case are rare, and organisations among them rarer.
            return kind, sure if sure >= LOWER_CASE and kind != "ORG" else 0.0
        return ("LOC" if kind == "ORG" and name.lower() in self._countries else kind), sure


def trimmed(text: str, places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The tokens of a name without the signs and the small words at its ends."""
    capitals = any(text[s].isupper() for s, _ in places)

    def outside(at: int) -> bool:
        start = places[at][0]
        small = capitals and text[start].islower() and text[start - 1 : start] != "-"
        return not text[start].isalnum() or small

    first, last = 0, len(places)
    while last > first + 1 and outside(last - 1):
        last -= 1
    while last > first + 1 and outside(first):
        first += 1
    return places[first:last]


def runs(
    scores: NDArray[np.float64], breaks: Sequence[bool], joins: Sequence[bool]
) -> Iterator[tuple[int, int, NDArray[np.float64]]]:
    """Where names stand among the tokens, and how likely each of `KINDS` is, over all tokens.

    A name goes on while "inside" tags follow, whatever their kind. "Sussex and Surrey" are two.
    """
    if not len(scores):
        return
    shifted = scores - scores.max(axis=1, keepdims=True)
    shifted[:, 0] -= OPEN
    shifted[:, 1:] += np.repeat(LEANING, 2)
    best = shifted.argmax(axis=1)
    best[np.asarray(breaks)] = 0
    places = np.flatnonzero(best).tolist()
    if not places:
        return
    weights = np.exp(shifted)
    shares = weights[:, 1:].reshape(len(scores), len(KINDS), 2).sum(axis=2)
    shares /= weights.sum(axis=1, keepdims=True)
    tags = best.tolist()
    first = places[0]
    for i, at in enumerate(places):
        after = places[i + 1] if i + 1 < len(places) else -1
        if after != at + 1 or tags[after] % 2:  # odd numbers open a name
            # The geometric mean: a kind that one token cannot be is not the kind of the name.
            two = at - first == 2 and joins[first + 1]
            for start, end in [(first, first + 1), (at, at + 1)] if two else [(first, at + 1)]:
                yield start, end, np.exp(np.log(shares[start:end] + 1e-9).mean(axis=0))
            first = after
