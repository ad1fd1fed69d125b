"""Names in German, Spanish and French: rules of each language, and lists of first names.

A name begins with a title, a greeting or a first name that lists know; capitalised words and the
particles of the language go on with it. Organisations end in a legal form. The network is English,
and is not asked.
"""

import re
import tomllib
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from tacit.detection.detector import Finding
from tacit.detection.names.mail import FIRST

LANGUAGES = ("de", "es", "fr")
_CAPITAL = r"[A-ZÀ-ÖØ-ÞŒŠŽ][\w'’-]*+"
_WORD = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True)
class Rules:
    """The words of a language that stand before, in and after names."""

    titles: re.Pattern[str]
    greetings: re.Pattern[str]
    closings: re.Pattern[str]
    name: re.Pattern[str]
    organisations: re.Pattern[str]
    stop_words: frozenset[str]
    never: frozenset[str]
    first_names: frozenset[str] = frozenset()


@cache
def rules(language: str) -> Rules:
    """The rules of a language, as names/languages.toml has them."""
    text = (files("tacit.detection.names") / "languages.toml").read_text(encoding="utf-8")
    own = tomllib.loads(text)[language]

    def any_of(name: str) -> str:
        words = sorted(own[name], key=len, reverse=True)
        return "|".join(re.escape(word).replace(r"\ ", r"\s+") for word in words)

    more = rf"(?:[ \t]+(?:(?:{any_of('particles')})[ \t]+){{0,2}}(?:{_CAPITAL}|[A-Z]\.)){{0,3}}"
    name = rf"(?:{_CAPITAL}|[A-Z]\.){more}"
    return Rules(
        re.compile(rf"\b(?:(?:{any_of('titles')})[ \t]+){{1,3}}({name})"),
        re.compile(rf"(?:^|\n)[ \t>]*(?:{any_of('greetings')})[ \t]+({name})"),
        re.compile(rf"(?i:{any_of('closings')})[ \t]*[,.!]?[ \t]*\n\s*+({name})[ \t]*(?=\n|$)"),
        re.compile(rf"\b{name}"),
        re.compile(
            rf"\b{_CAPITAL}(?:[ \t]+(?:{_CAPITAL}|&|{any_of('inside')}))"
            rf"{{0,4}}[ \t]+(?:{any_of('forms')})(?![\w])"
        ),
        frozenset(own["stop_words"]),
        frozenset(own["never"]),
        _first_names(language),
    )


def _first_names(language: str) -> frozenset[str]:
    source = files("tacit.detection.names") / "first_names" / f"{language}.txt"
    return (
        frozenset(source.read_text(encoding="utf-8").split()) if source.is_file() else frozenset()
    )


def find(text: str, language: str, listed: Callable[[str], int]) -> Iterator[Finding]:
    """Names in a text of a language, by `listed`, which says what lists know of a word."""
    own = rules(language)
    firms = [found.span() for found in own.organisations.finditer(text)]
    firms = [(_begin(text, start, own), end) for start, end in firms]
    for span in firms:
        yield Finding(*span, "ORG", 0.8, f"names: {language}, legal form")
    for one in _people(text, language, own, listed):
        if not any(one.start < end and start < one.end for start, end in firms):
            yield one


def _people(
    text: str, language: str, own: Rules, listed: Callable[[str], int]
) -> Iterator[Finding]:
    for what, pattern in (
        ("title", own.titles), ("greeting", own.greetings), ("closing", own.closings),
    ):  # fmt: skip
        for found in pattern.finditer(text):
            if (span := _kept(found[1], found.start(1), own)) is not None:
                yield Finding(*span, "PERSON", 0.85, f"names: {language}, {what}")
    for found in own.name.finditer(text):
        words = re.finditer(r"\S+", found[0])
        at = next((w.start() for w in words if _first(w[0], own, listed)), None)
        if at is not None and (span := _kept(found[0][at:], found.start() + at, own)) is not None:
            yield Finding(*span, "PERSON", 0.7, f"names: {language}, first name")


def _first(word: str, own: Rules, listed: Callable[[str], int]) -> bool:
    """Whether a word is a first name: also the first part of one that is joined."""
    forms = {word, word.split("-")[0]}
    forms |= {_plain(form) for form in forms}
    known = any(form in own.first_names or listed(form) & FIRST for form in forms)
    return known and word.lower() not in own.never


def _plain(word: str) -> str:
    """Without accents, as some lists have it.

    >>> _plain("Jürgen"), _plain("José")
    ('Jurgen', 'Jose')
    """
    parts = unicodedata.normalize("NFD", word)
    return "".join(c for c in parts if not unicodedata.combining(c))


def _begin(text: str, start: int, own: Rules) -> int:
    """Where a firm's name begins, past a small word that begins a sentence."""
    word = re.compile(r"(\w+)[ \t]+").match(text, start)
    return word.end() if word is not None and word[1].lower() in own.never else start


def _kept(name: str, start: int, own: Rules) -> tuple[int, int] | None:
    """The place of a name, up to the first word that is never part of one."""
    end = 0
    for word in re.finditer(r"\S+", name):
        if not word[0][0].isupper():
            continue  # a particle, if another name follows
        if word[0].lower().strip(".") in own.never:
            break
        end = word.end()
    return (start, start + end) if end else None


def guessed(text: str) -> str:
    """The language of a text by its small words: de, es or fr where one has most, else en."""
    words = [word.lower() for word in _WORD.findall(text)]
    counts = {one: sum(w in rules(one).stop_words for w in words) for one in ("en", *LANGUAGES)}
    return max(counts, key=lambda one: counts[one])
