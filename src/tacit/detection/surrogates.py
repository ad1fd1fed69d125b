"""Invented names for each kind, which stand in a text where real ones were marked.

The lists are public and fixed before any text is seen. Which name stands where is a keyed function
of the record's id and the place, and of nothing else: not of the name that stood there, its length
or its case. Names of these lists are *reserved*, as folded names: where one stands in a text, it
is treated as if an invented one stood there.
"""

import hashlib
import string
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from itertools import product
from typing import Any

from tacit.detection.kinds import known_kinds
from tacit.detection.mentions import fold
from tacit.errors import UsageError

_MOST = 4000  # names of a kind; of more, so many are taken at equal distances


@cache
def surrogates(kind: str) -> tuple[str, ...]:
    """The invented names of a kind.

    >>> len(surrogates("PERSON")) >= 500, surrogates("ORG")[0]
    (True, 'Belanaden')
    """
    table = _table()
    parts = {name: _words(given) for name, given in table["parts"].items()}
    return _names(table["kinds"][kind], parts)


@cache
def reserved(kind: str) -> frozenset[str]:
    """The same, folded: names that are never shown."""
    return frozenset(fold(name, kind) for name in surrogates(kind))


def surrogate(kind: str, key: bytes, *place: str | int) -> str:
    """The invented name for a place, by a keyed function of the kind and the place alone."""
    names = surrogates(kind)
    return names[keyed_number(key, "surrogate", kind, *place) % len(names)]


def public_names(given: Sequence[str]) -> dict[str, frozenset[str]]:
    """Names that are always shown, folded for each kind; refused if an invented one is among them.

    Else a neighbour's base text could differ: what is reserved must be replaced everywhere.
    """
    made = {kind: frozenset(fold(name, kind) for name in given) for kind in known_kinds()}
    for kind, names in made.items():
        if both := names & reserved(kind):
            raise UsageError(
                f"public_entities has {sorted(both)[0]!r}, which is one of the invented names "
                f"for {kind}; leave it out."
            )
    return made


def keyed_number(key: bytes, *what: str | int) -> int:
    """A number of 64 bits that looks random to who does not know the key.

    Parts are written with their lengths, so that no two lists of parts are the same bytes.
    """
    text = b"".join(b"%d:%b" % (len(part), part) for part in (str(one).encode() for one in what))
    return int.from_bytes(hashlib.blake2b(text, key=key, digest_size=8).digest(), "big")


@cache
def _table() -> dict[str, Any]:
    text = (files("tacit.detection") / "surrogates.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _words(given: str) -> list[str]:
    first, dots, last = given.partition("..")
    return [str(n) for n in range(int(first), int(last) + 1)] if dots else given.split()


def _names(patterns: list[str], parts: dict[str, list[str]]) -> tuple[str, ...]:
    made = [name for pattern in patterns for name in _filled(pattern, parts)]
    names = list(dict.fromkeys(made))
    if len(names) <= _MOST:
        return tuple(names)
    return tuple(names[i * len(names) // _MOST] for i in range(_MOST))


def _filled(pattern: str, parts: dict[str, list[str]]) -> Iterator[str]:
    """Every way to fill in a pattern; a part that stands twice is filled in twice."""
    pieces = [(text, name) for text, name, *_ in string.Formatter().parse(pattern)]
    for chosen in product(*(parts[name] for _, name in pieces if name)):
        words = iter(chosen)
        yield "".join(text + (next(words) if name else "") for text, name in pieces)
