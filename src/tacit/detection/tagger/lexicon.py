"""The tagger's word lists: what a marked corpus says of each word, document by document."""

from collections import ChainMap, Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tacit.detection.tagger.lines import (
    Document,
    case_of,
    mention_runs,
    position_in,
    sentence_openings,
)

_LONGEST_PHRASE = 6
_TABLES = ("words", "phrases", "cases")


@dataclass(frozen=True)
class Lexicon:
    """What the training corpus says of a word; every key is lower case.

    `words`: the places and kinds it was marked with. `phrases`: the kinds of whole mentions.
    `longest`: by first word, the most words such a phrase has. `cases`: how the word is
    usually written inside a sentence.
    """

    words: Mapping[str, Sequence[str]]
    phrases: Mapping[str, Sequence[str]]
    longest: Mapping[str, int]
    cases: Mapping[str, str]

    def row(self) -> dict[str, Any]:
        """The lexicon as JSON; what can be counted again is left out."""
        return {
            name: {k: getattr(self, name)[k] for k in sorted(getattr(self, name))}
            for name in _TABLES
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "Lexicon":
        """The lexicon of such a JSON object."""
        return cls(row["words"], row["phrases"], _longest(row["phrases"]), row["cases"])


def _longest(phrases: Iterable[str]) -> dict[str, int]:
    longest: dict[str, int] = {}
    for phrase in phrases:
        words = phrase.split(" ")
        longest[words[0]] = max(len(words), longest.get(words[0], 0))
    return longest


DocumentWords = dict[str, dict[str, set[str]]]
"""What one document says, by table of the lexicon: sets, so that a document counts once."""


def document_words(document: Document) -> DocumentWords:
    """What one document says of its words."""
    found: DocumentWords = {name: defaultdict(set) for name in _TABLES}
    for _, line in document:
        lower = [token.lower() for token in line.tokens]
        if any(token.islower() for token in line.tokens):
            opens = sentence_openings(line.tokens)
            for token, key, first in zip(line.tokens, lower, opens, strict=True):
                case = case_of(token)
                if case == "l" or (case in "TUM" and not first):
                    found["cases"][key].add(case)
        for start, end, kind in mention_runs(line.tags):
            if end - start <= _LONGEST_PHRASE:
                found["phrases"][" ".join(lower[start:end])].add(kind)
            for i in range(start, end):
                found["words"][lower[i]].add(position_in(i, start, end) + kind)
    return found


class Counts:
    """In how many documents a word was seen so."""

    def __init__(self, documents: Iterable[DocumentWords]) -> None:
        self._counts: dict[str, dict[str, Counter[str]]] = {
            n: defaultdict(Counter) for n in _TABLES
        }
        for document in documents:
            for name, sets in document.items():
                for key, values in sets.items():
                    self._counts[name][key].update(values)

    @cached_property
    def lexicon(self) -> Lexicon:
        """What all documents together say."""
        tables = {n: {k: _SAYS[n](c) for k, c in t.items()} for n, t in self._counts.items()}
        return Lexicon(longest=_longest(tables["phrases"]), **tables)

    def without(self, own: DocumentWords) -> Lexicon:
        """What all other documents say.

        A document must not be told its own answers: at detection the lists have not seen the
        text at hand, so in training they must not have either.
        """
        tables: dict[str, Any] = {}
        for name, sets in own.items():
            counts, says = self._counts[name], _SAYS[name]
            others = {key: says(_less(counts[key], values)) for key, values in sets.items()}
            tables[name] = ChainMap(others, getattr(self.lexicon, name))
        return Lexicon(longest=self.lexicon.longest, **tables)


def _less(counts: Counter[str], own: set[str]) -> Counter[str]:
    return Counter({k: n - (k in own) for k, n in counts.items() if n > (k in own)})


def _usual(cases: Counter[str]) -> str:
    """The commonest case, with ~ where there are others too; `?` where nothing is known."""
    if not cases:
        return "?"
    best = max("lTUM", key=lambda c: cases[c])
    return best if len(cases) == 1 else best + "~"


_SAYS: dict[str, Callable[[Counter[str]], Any]] = {
    "words": sorted, "phrases": sorted, "cases": _usual,
}  # fmt: skip
