"""The words of a record and their tags, where names in it are replaced by others of other lengths.

A place has one tag, that of its first word: an annotation that is held fixed, as the mark itself
is. All words of an invented name have it; after `B-X` come `I-X`. So the tags of a base text do not
know of how many words the name was that stood there, nor what tags its other words had.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tacit.errors import DataError

_WORD = re.compile(r"\S+")


@dataclass(frozen=True, slots=True)
class TaggedWords:
    """The words of a text, one after the other with nothing but white space between, and tags."""

    words: tuple[str, ...]
    tags: tuple[str, ...]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where each word stands; refused where they are not all of the text.

        What is between them would else have no tag, and where the next word stands could hang on
        a name.
        """
        found, at = [], 0
        for word in self.words:
            while at < len(text) and text[at].isspace():
                at += 1
            if not word or not text.startswith(word, at):
                raise DataError(
                    "A record's tokens are not its text, word for word, so nobody can tell which "
                    "tags belong to a name; give tokens that cover the text."
                )
            found.append((at, at + len(word)))
            at += len(word)
        if text[at:].strip():
            raise DataError(
                "A record's text goes on after its last token, so a name there has no tag; give "
                "tokens that cover the text."
            )
        return found


@dataclass(frozen=True, slots=True)
class Replaced:
    """A stretch of a text and what stands there instead; `kept` if that is what was written."""

    start: int
    end: int
    text: str
    kept: bool


def retagged(text: str, own: TaggedWords, replaced: Sequence[Replaced]) -> TaggedWords:
    """The words and tags of a text with its names replaced.

    Words that a name stands in are replaced together: "Zimmermann's" may become "Adam Abbott's".

    >>> own = TaggedWords(("ask", "Bo", "Li", "."), ("O", "B-PER", "I-PER", "O"))
    >>> retagged("ask Bo Li.", own, [Replaced(4, 9, "Ann", False)])
    TaggedWords(words=('ask', 'Ann', '.'), tags=('O', 'B-PER', 'O'))
    """
    spans, words, tags = own.spans(text), [], []
    number = at = 0
    while number < len(spans):
        start, end = spans[number]
        first, at = at, _next(replaced, at, end)
        if at == first:
            words.append(own.words[number])
            tags.append(own.tags[number])
            number += 1
            continue
        after = number + 1
        end = max(end, replaced[at - 1].end)
        while after < len(spans) and spans[after][0] < end:
            end = max(end, spans[after][1])
            at = _next(replaced, at, end)
            end = max(end, replaced[at - 1].end)
            after += 1
        group = replaced[first:at]
        if all(one.kept for one in group):
            words += own.words[number:after]
            tags += own.tags[number:after]
        else:
            before = min(start, group[0].start)
            fresh = _WORD.findall(filled(text[:end], group)[before:])
            words += fresh
            tags += _spread(own.tags[number], len(fresh))
        number = after
    return TaggedWords(tuple(words), tuple(tags))


def _next(replaced: Sequence[Replaced], at: int, end: int) -> int:
    """The number of the first stretch that begins at or after `end`."""
    while at < len(replaced) and replaced[at].start < end:
        at += 1
    return at


def filled(text: str, replaced: Sequence[Replaced]) -> str:
    """A text with stretches of it replaced."""
    parts, at = [], 0
    for one in replaced:
        parts += [text[at : one.start], one.text]
        at = one.end
    return "".join([*parts, text[at:]])


def _spread(tag: str, words: int) -> list[str]:
    """One tag for so many words: a name begins once.

    >>> _spread("B-ORG", 3), _spread("NNP", 2)
    (['B-ORG', 'I-ORG', 'I-ORG'], ['NNP', 'NNP'])
    """
    inside = "I-" + tag[2:] if tag.startswith("B-") else tag
    return [tag, *[inside] * (words - 1)]
