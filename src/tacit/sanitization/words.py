"""Text as words that a vocabulary knows, and back.

The rules, all of them public:

- White space separates. A stretch that the vocabulary knows as a whole is one word; any other is
  cut at punctuation ("well-made," becomes "well", "-", "made", ",").
- A word is looked up as written, then in lower case; what comes out is written as the vocabulary
  has it, so that capitals are never carried over.
- Punctuation and numbers are words like any other: replaced if the vocabulary has them, unknown
  if not. A number with separators inside ("1,000", "3.5") is one word if known, else cut.
- One blank stands between words of the result: how the original was spaced is not carried over.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tacit.errors import DataError
from tacit.files import require_file

_WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")
_BARE = re.compile(r"\w+|[^\w\s]")
_REMEMBERED = 1 << 20
UNKNOWN = -1


class Words:
    """Splits text into places of a vocabulary; -1 stands for an unknown word."""

    def __init__(self, places: Mapping[str, int]) -> None:
        self._places = places
        self._seen: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {}

    def encode(self, text: str) -> tuple[list[int], list[str]]:
        """The places of the words, and the unknown words in their order.

        >>> Words({"a": 0, "b": 1, ",": 2}).encode("A, b x")
        ([0, 2, 1, -1], ['x'])
        """
        found: list[int] = []
        strange: list[str] = []
        for part in text.split():
            known = self._seen.get(part)
            if known is None:
                known = self._look_up(part)
            found += known[0]
            strange += known[1]
        return found, strange

    def join(self, words: Sequence[str]) -> str:
        """Words as text."""
        return " ".join(words)

    def place(self, word: str) -> int:
        """Where a word stands, as written or in lower case; -1 if nowhere."""
        found = self._places.get(word)
        return self._places.get(word.lower(), UNKNOWN) if found is None else found

    def _look_up(self, part: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
        whole = self.place(part)
        if whole >= 0:
            result: tuple[tuple[int, ...], tuple[str, ...]] = ((whole,), ())
        else:
            found: list[int] = []
            strange: list[str] = []
            for word in _WORD.findall(part):
                self._cut(word, found, strange)
            result = (tuple(found), tuple(strange))
        if len(self._seen) >= _REMEMBERED:
            self._seen.clear()
        self._seen[part] = result
        return result

    def _cut(self, word: str, found: list[int], strange: list[str]) -> None:
        """A word that may hold an apostrophe: whole, in two ("it" "'s"), or unknown."""
        place = self.place(word)
        at = max(word.rfind("'"), word.rfind("’"))
        if place < 0 and at > 0:
            halves = [self.place(word[:at]), self.place("'" + word[at + 1 :])]
            if min(halves) >= 0:
                found += halves
                return
        found.append(place)
        if place < 0:
            strange.append(word)


def read_word_list(path: Path) -> list[str]:
    """The words of a public list, one a line; blank lines and lines that begin with # are left out.

    A second column (a count, after a tab) is allowed and ignored here.
    """
    seen: dict[str, int] = {}
    try:
        lines = require_file(path).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8; convert it.") from None
    for number, line in enumerate(lines, 1):
        word = line.split("\t")[0].strip()
        if not word or line.startswith("#"):
            continue
        if word in seen:
            raise DataError(
                f"{path}, lines {seen[word]} and {number}, hold the same word; name each once."
            )
        seen[word] = number
    if not seen:
        raise DataError(f"{path} holds no words; write one a line.")
    return list(seen)


def read_frequencies(path: Path) -> list[str]:
    """The words of a public frequency list, most frequent first.

    Lines are `word<TAB>count` in any order, or words alone in order of frequency.
    """
    words = read_word_list(path)
    counts: dict[str, float] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        cells = line.split("\t")
        if len(cells) < 2 or line.startswith("#"):
            continue
        try:
            counts[cells[0].strip()] = float(cells[1])
        except ValueError:
            raise DataError(
                f"{path}, line {number}: the count is not a number; write word, tab, count."
            ) from None
    if not counts:
        return words
    if len(counts) < len(words):
        raise DataError(f"{path}: {len(words) - len(counts)} words have no count; give each one.")
    return sorted(words, key=lambda word: -counts[word])


def bare_words(text: str) -> list[str]:
    """The words and marks of a text without any vocabulary, for lists made of public text."""
    return _BARE.findall(text)
