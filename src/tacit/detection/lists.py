"""Detector `lists`: terms of the user's own, and a few lists that come with the package.

A list is a plain text file, UTF-8, plain or `.gz`, one term on each line::

    # A line that begins with a hash sign is a remark, except these three settings,
    # which hold for the lines below them:
    # kind: PII/DIAGNOSIS
    # case: any
    # score: 0.9
    gout
    Lake Powell<TAB>LOC

`kind` says what the terms are (until it is set: PII), and a tab and a kind say it for one term
alone. `case` is `any`, `proper` (as written, or all in capitals) or `exact`. `score` is how
sure a match is. A term that begins with a hash sign is written with a backslash before it.

Thousands of terms are matched in one pass. Letters match in any case unless the list says
otherwise, white space matches white space, and a term stands only as whole words.
"""

import gzip
import re
import unicodedata
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import ahocorasick

from tacit.corpus import Record
from tacit.detection.detector import Finding
from tacit.detection.kinds import kind_in
from tacit.detection.mentions import lowered
from tacit.errors import DataError, UsageError
from tacit.files import require_file

LONGEST_TERM = 1000
CASES = ("any", "proper", "exact")


@dataclass(frozen=True, slots=True)
class Term:
    """One entry of a list; `source` is the list's name, for `why`."""

    text: str
    kind: str
    source: str
    case: str = "any"
    score: float = 0.9


# --- reading ------------------------------------------------------------------------------

_SETTING = re.compile(r"#\s*(kind|case|score)\s*:\s*(.*?)\s*\Z")


def read_list(path: Path) -> list[Term]:
    """The terms of a file; what is wrong is named by file and line, never quoted."""
    raw = require_file(path).read_bytes()
    if raw.startswith(b"\x1f\x8b"):
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error):
            raise DataError(
                f"{path} is a damaged gzip file; compress it again, or give it plain."
            ) from None
    return list(_parse(BytesIO(raw), path.name.removesuffix(".gz"), str(path)))


def embedded() -> tuple[str, ...]:
    """The names of the lists that come with the package."""
    folder = files("tacit.detection") / "terms"
    return tuple(sorted(f.name[:-4] for f in folder.iterdir() if f.name.endswith(".txt")))


def read_embedded(name: str) -> list[Term]:
    """The terms of a list that comes with the package."""
    source = files("tacit.detection") / "terms" / f"{name}.txt"
    return list(_parse(BytesIO(source.read_bytes()), name, f"{name}.txt"))


def _parse(lines: BinaryIO, name: str, shown: str) -> Iterator[Term]:
    kind, case, score, terms = "PII", "any", 0.9, 0
    for number, raw in enumerate(lines, 1):
        where = f"{shown}, line {number}"
        line = _decoded(raw, shown, number)
        if not line.strip():
            continue
        if line.startswith("#"):
            setting = _SETTING.match(line)
            if setting is None:
                continue
            value = setting[2].lower()
            if setting[1] == "kind":
                kind = kind_in(value, f"{where},")
            elif setting[1] == "case":
                if value not in CASES:
                    raise DataError(
                        f"{where}, names an unknown case; accepted: {', '.join(CASES)}."
                    )
                case = value
            else:
                try:
                    score = float(value)
                except ValueError:
                    score = -1.0
                if not 0 <= score <= 1:
                    raise DataError(f"{where}: a score is a number from 0 to 1.")
            continue
        text, tab, own = line.partition("\t")
        text = " ".join(text.removeprefix("\\").split())
        if not any(c.isalnum() for c in text) or len(text) > LONGEST_TERM:
            raise DataError(
                f"{shown}, line {number}, is not a term; accepted: up to {LONGEST_TERM} "
                "characters with a letter or a digit in them, then at most a tab and a kind."
            )
        terms += 1
        yield Term(text, kind_in(own, f"{where},") if tab else kind, name, case, score)
    if not terms:
        raise DataError(f"{shown} has no term; give one on each line.")


def _decoded(raw: bytes, shown: str, number: int) -> str:
    try:
        # A byte-order mark may open the file, and only there.
        line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        raise DataError(
            f"{shown}, line {number}, is not UTF-8; save the file as UTF-8 text."
        ) from None
    if "\0" in line:
        raise DataError(f"{shown}, line {number}, has a NUL character; give a text file.")
    return line


# --- folding: one character for one, so that offsets stay true -----------------------------

_ALIKE = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u02bc\uff07", "'"),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"),
        "ς": "σ",
        "\u0131": "i",
    }
)


def _fold(text: str) -> str:
    """Lower case, typewriter quotes and dashes; as long as the text."""
    return lowered(text) if text.isascii() else lowered(text).translate(_ALIKE)


_GAP = re.compile(r"\s+")
_WIDE = re.compile(r"\s\s|[^\S ]")


def _single_spaced(text: str) -> tuple[str, list[int] | None]:
    """The text with each stretch of white space as one space, and where its characters were."""
    if not _WIDE.search(text):
        return text, None
    pieces: list[str] = []
    places: list[int] = []
    at = 0
    for gap in _GAP.finditer(text):
        pieces += (text[at : gap.start()], " ")
        places.extend(range(at, gap.start() + 1))
        at = gap.end()
    pieces.append(text[at:])
    places.extend(range(at, len(text)))
    return "".join(pieces), places


# --- matching -----------------------------------------------------------------------------


def _in_word(char: str) -> bool:
    # A combining mark belongs to the letter before it.
    return char.isalnum() or char == "_" or unicodedata.category(char)[0] == "M"


class Lists:
    """Finds the terms of lists, all in one pass over a text."""

    name = "lists"
    summary = "gazetteers: your own lists, or places, nationalities, illnesses and companies"
    option = "files or names of embedded lists, joined by +"

    def __init__(self, terms: Iterable[Term]) -> None:
        """Build the automaton that holds every term."""
        self._automaton = ahocorasick.Automaton()
        entries: dict[str, list[Term]] = {}
        for term in terms:
            # The same letters may be stored whole or as letter and mark.
            for form in {unicodedata.normalize(f, term.text) for f in ("NFC", "NFD")}:
                entries.setdefault(_fold(form), []).append(
                    Term(form, term.kind, term.source, term.case, term.score)
                )
        self.kinds = tuple(sorted({term.kind for same in entries.values() for term in same}))
        for folded, same in entries.items():
            self._automaton.add_word(folded, (len(folded), tuple(same)))
        self._automaton.make_automaton()

    @classmethod
    def open(cls, option: str | None) -> "Lists":
        """The detector for `lists` (all that come with the package), names of those, or files."""
        if option is None:
            return _all_embedded()
        # A file whose own name has a plus sign is taken whole.
        parts = [option] if Path(option).is_file() else [p.strip() for p in option.split("+")]
        terms: list[Term] = []
        for part in filter(None, parts):
            if part in embedded():
                terms += read_embedded(part)
            elif Path(part).suffix or Path(part).exists() or "/" in part:
                terms += read_list(Path(part))
            else:
                raise UsageError(
                    f"lists={part} is neither a file nor a list that comes with tacit; accepted: "
                    f"files with a suffix (terms.txt, terms.txt.gz), {', '.join(embedded())}."
                )
        if not terms:
            raise UsageError(
                f"lists={option} names no list; accepted: files, {', '.join(embedded())}."
            )
        return cls(terms)

    def __len__(self) -> int:
        return len(self._automaton)

    def find(self, records: Sequence[Record]) -> Iterator[list[Finding]]:
        """The terms in each record's text."""
        for record in records:
            yield self.find_in(record.text)

    def find_in(self, text: str) -> list[Finding]:
        """The terms in one text, in order; of terms that overlap the longest.

        >>> lists = Lists([Term("York", "GPE", "x"), Term("New York", "GPE", "x")])
        >>> [(f.start, f.end, f.why) for f in lists.find_in("in New  York's bay")]
        [(3, 12, 'lists: x')]
        """
        spaced, places = _single_spaced(text)
        folded = _fold(spaced)
        found: list[tuple[int, int, Term]] = []
        for last, (length, terms) in self._automaton.iter(folded):
            start, end = last + 1 - length, last + 1
            if _whole_words(folded, start, end):
                term = _fitting(terms, spaced[start:end])
                if term is not None:
                    found.append((start, end, term))
        if len(found) > 1:
            found = _longest(found)
        if places is not None:
            found = [(places[start], places[end - 1] + 1, term) for start, end, term in found]
        return [
            Finding(start, end, term.kind, term.score, f"lists: {term.source}")
            for start, end, term in found
        ]


def _whole_words(text: str, start: int, end: int) -> bool:
    if start and _in_word(text[start - 1]) and _in_word(text[start]):
        return False
    return not (end < len(text) and _in_word(text[end]) and _in_word(text[end - 1]))


def _fitting(terms: tuple[Term, ...], written: str) -> Term | None:
    """The first of the terms whose case fits how it is written."""
    for term in terms:
        if term.case == "any" or written == term.text:
            return term
        if term.case == "proper" and written == term.text.upper():
            return term
    return None


def _longest(found: list[tuple[int, int, Term]]) -> list[tuple[int, int, Term]]:
    """Of those that overlap the longest, then the first."""
    kept: list[tuple[int, int, Term]] = []
    starts: list[int] = []
    for match in sorted(found, key=lambda m: (m[0] - m[1], m[0])):
        at = bisect_left(starts, match[1])
        if at == 0 or kept[at - 1][1] <= match[0]:
            kept.insert(at, match)
            starts.insert(at, match[0])
    return kept


@cache
def _all_embedded() -> Lists:
    return Lists(term for name in embedded() for term in read_embedded(name))
