"""The tagger's word lists: what a marked corpus says of each word, document by document."""

from collections import ChainMap, Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tacit.detection.tagger.lines import (
    Document,
    case_of,
    mention_runs,
    position_in,
    sentence_openings,
)

_LONGEST_PHRASE = 6


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
            for name in ("words", "phrases", "cases")
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


@dataclass(frozen=True, slots=True)
class StepStats:
    """What one document says of its words: sets, so that a document counts once."""

    words: dict[str, set[str]]
    phrases: dict[str, set[str]]
    cases: dict[str, set[str]]


def seen_in(document: Document) -> StepStats:
    """What one document says of its words."""
    words: dict[str, set[str]] = defaultdict(set)
    phrases: dict[str, set[str]] = defaultdict(set)
    cases: dict[str, set[str]] = defaultdict(set)
    for _, line in document:
        lower = [token.lower() for token in line.tokens]
        if any(token.islower() for token in line.tokens):
            for token, key, opens in zip(
                line.tokens, lower, sentence_openings(line.tokens), strict=True
            ):
                case = case_of(token)
                if case == "l" or (case in "TUM" and not opens):
                    cases[key].add(case)
        for first, last, kind in mention_runs(line.tags):
            if last - first <= _LONGEST_PHRASE:
                phrases[" ".join(lower[first:last])].add(kind)
            for i in range(first, last):
                words[lower[i]].add(position_in(i, first, last) + kind)
    return StepStats(words, phrases, cases)


@dataclass(frozen=True)
class Counts:
    """In how many documents a word was seen so."""

    words: dict[str, Counter[str]]
    phrases: dict[str, Counter[str]]
    cases: dict[str, Counter[str]]
    longest: dict[str, int]
    whole: list[Lexicon]

    def lexicon(self) -> Lexicon:
        """What all documents together say."""
        if not self.whole:
            self.whole.append(
                Lexicon(
                    {w: sorted(c) for w, c in self.words.items()},
                    {p: sorted(c) for p, c in self.phrases.items()},
                    self.longest,
                    {w: _usual(c) for w, c in self.cases.items()},
                )
            )
        return self.whole[0]

    def lexicon_without(self, own: StepStats) -> Lexicon:
        """What all other documents say.

        A document must not be told its own answers: at detection the lists have not seen the
        text at hand, so in training they must not have either.
        """
        whole = self.lexicon()
        words = {w: sorted(_less(self.words[w], k)) for w, k in own.words.items()}
        phrases = {p: sorted(_less(self.phrases[p], k)) for p, k in own.phrases.items()}
        cases = {w: _usual(_less(self.cases[w], k)) for w, k in own.cases.items()}
        return Lexicon(
            ChainMap(words, whole.words),  # type: ignore[arg-type]
            ChainMap(phrases, whole.phrases),  # type: ignore[arg-type]
            whole.longest,
            ChainMap(cases, whole.cases),  # type: ignore[arg-type]
        )


def count_documents(documents: Iterable[StepStats]) -> Counts:
    """In how many of the documents each word was seen so."""
    words: dict[str, Counter[str]] = defaultdict(Counter)
    phrases: dict[str, Counter[str]] = defaultdict(Counter)
    cases: dict[str, Counter[str]] = defaultdict(Counter)
    for seen in documents:
        for counts, sets in ((words, seen.words), (phrases, seen.phrases), (cases, seen.cases)):
            for key, values in sets.items():
                counts[key].update(values)
    return Counts(words, phrases, cases, _longest(phrases), [])


def _less(counts: Counter[str], own: set[str]) -> Counter[str]:
    return Counter({k: n - (k in own) for k, n in counts.items() if n > (k in own)})


def _usual(cases: Counter[str]) -> str:
    """The commonest case, with ~ where there are others too; `?` where nothing is known."""
    if not cases:
        return "?"
    best = max("lTUM", key=lambda c: cases[c])
    return best if len(cases) == 1 else best + "~"
