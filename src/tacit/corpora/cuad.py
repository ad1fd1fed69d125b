"""CUAD: contracts of filers; a company is a user, a paragraph of a contract is a record.

Experts copied, for each contract, the text of 41 kinds of clause into a sheet. The sheet gives
strings, not places, so each contract is searched once for all its strings together.
"""

import ast
import re
import unicodedata
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tacit.corpora import NamedCorpus
from tacit.corpora.dealing import deal_splits
from tacit.corpora.sources import (
    bad_line,
    need,
    read_csv,
    read_json,
    read_text,
    require_rows,
    to_table,
)

DATE_CATEGORIES = ("Agreement Date", "Effective Date", "Expiration Date")
_NOT_CLAUSES = ("Filename", "Document Name", "Parties", "Agreement Date")
# Shorter strings (a title, a state) would mark paragraphs that are not the clause.
_SHORTEST_CLAUSE = 20
_LONGEST_DATE = 40
_BLANK_LINES = re.compile(r"\n\s*\n")
_COLLECTED = re.compile(r"[\"“”]([^\"“”]+)[\"“”]")

# What parties call each other. Experts list these as party names too, but "Company" names
# nobody, and would tie hundreds of filers together as one entity.
ROLES = frozenset((files("tacit.corpora") / "cuad_roles.txt").read_text().split())


@dataclass
class Sheet:
    """What the experts gave for one contract."""

    clauses: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    names: dict[str, str] = field(default_factory=dict)


@dataclass
class Found:
    """What was found in one contract: (start, end, category) and (start, end, kind)."""

    clauses: list[tuple[int, int, str]]
    names: list[tuple[int, int, str]]


def read_cuad(folder: Path, seed: int) -> pa.Table:
    """Every paragraph that has a letter, with its clause categories and given names and dates.

    A paragraph ends at a blank line. Its label names the categories whose clauses reach into
    it, in the sheet's order, joined by `; `. Companies are dealt to splits by the seed, 8:1:1.
    """
    clauses = need(folder, "cuad", "master_clauses.csv")
    sheets, order = _read_sheets(clauses)
    contracts, path = _read_contracts(folder)
    splits = deal_splits([company for _, company, _ in contracts], np.random.default_rng([seed, 4]))
    columns: dict[str, list[Any]] = {
        name: [] for name in ("id", "user", "text", "label", "spans", "split")
    }
    for number, (title, company, text) in enumerate(contracts, 1):
        found = _search(text, sheets.get(_key(title), Sheet()))
        for place, (paragraph, labels, spans) in enumerate(_paragraphs(text, found), 1):
            columns["id"].append(f"contract-{number:03d}-{place:04d}")
            columns["user"].append(company)
            columns["text"].append(paragraph)
            columns["label"].append("; ".join(sorted(labels, key=order.__getitem__)) or None)
            columns["spans"].append(spans)
            columns["split"].append(splits[company])
    require_rows(path, columns["id"], "contracts with paragraphs")
    return to_table(columns, path)


def _read_contracts(folder: Path) -> tuple[list[tuple[str, str, str]], Path]:
    """Title, company and text of each contract, from JSON lines or the release's text files."""
    texts = folder / "full_contract_txt"
    if texts.is_dir():
        contracts = []
        for path in sorted(texts.glob("*.txt")):
            # The filer is what a file's name opens with.
            company = re.split(r"_| - ", path.stem, maxsplit=1)[0].strip().lower()
            contracts.append((path.stem, company, read_text(path)))
        require_rows(texts, contracts, "one .txt file for each contract")
        return contracts, texts
    path = need(folder, "cuad", "contracts.jsonl")
    fields = ("title", "company", "text")
    contracts = [(r["title"], r["company"], r["text"]) for _, r in read_json(path, fields)]
    require_rows(path, contracts, "JSON lines with title, company and text")
    return contracts, path


def _key(title: str) -> str:
    """The letters and digits of a file name: the sheet and the files spell some differently."""
    bare = re.sub(r"\.(pdf|txt)'?$", "", title.strip(), flags=re.IGNORECASE)
    folded = unicodedata.normalize("NFKD", bare).casefold()
    return "".join(c for c in folded if c.isascii() and c.isalnum())


def _read_sheets(path: Path) -> tuple[dict[str, Sheet], dict[str, int]]:
    rows = read_csv(path)
    require_rows(path, rows[1:], "a header and one row for each contract")
    number, header = rows[0]
    if "Filename" not in header or "Parties" not in header:
        raise bad_line(path, number, "the header does not name Filename and Parties")
    file_at = header.index("Filename")
    sheets: dict[str, Sheet] = {}
    for number, row in rows[1:]:
        if len(row) != len(header):
            raise bad_line(
                path, number, f"it has {len(row)} columns where {len(header)} are expected"
            )
        sheet = sheets.setdefault(_key(row[file_at]), Sheet())
        for category, cell in zip(header, row, strict=True):
            if category != "Filename" and not category.endswith("Answer") and cell.strip():
                _fill(sheet, category, _strings(path, number, cell))
    return sheets, {category: at for at, category in enumerate(header)}


def _strings(path: Path, number: int, cell: str) -> list[str]:
    """The strings of a cell, which holds a Python list."""
    try:
        values = ast.literal_eval(cell)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        values = None
    if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
        raise bad_line(path, number, "a cell is not a list of quoted strings")
    return values


def _fill(sheet: Sheet, category: str, strings: Iterable[str]) -> None:
    for string in strings:
        if category == "Parties":
            for name in _party_names(string):
                sheet.names.setdefault(name, "ORG")
        elif (
            category in DATE_CATEGORIES
            and len(string) <= _LONGEST_DATE
            and any(c.isdigit() for c in string)
            and not _COLLECTED.search(string)
        ):
            sheet.names[string.strip(" ,.;")] = "DATE"
        elif category not in _NOT_CLAUSES:
            for piece in string.split("<omitted>"):
                if len(piece.strip()) >= _SHORTEST_CLAUSE:
                    sheet.clauses[piece.strip()].add(category)


def _party_names(string: str) -> Iterator[str]:
    """The names in a party string, without quotation marks and without mere roles."""
    for name in _COLLECTED.findall(string) or [string]:
        name = name.strip(" ,;()\"'“”")
        words = re.findall(r"\w+", name.lower())
        if len(name) > 1 and any(word not in ROLES for word in words):
            yield name


def _search(text: str, sheet: Sheet) -> Found:
    """Where the sheet's strings stand in the text: one pass, however many there are."""
    if not sheet.clauses and not sheet.names:
        return Found([], [])
    import ahocorasick

    automaton = ahocorasick.Automaton()
    for string in {*sheet.clauses, *sheet.names}:
        automaton.add_word(string, string)
    automaton.make_automaton()
    found = Found([], [])
    for last, string in automaton.iter(text):
        start, end = last + 1 - len(string), last + 1
        for category in sheet.clauses.get(string, ()):
            found.clauses.append((start, end, category))
        if string in sheet.names and _whole_words(text, start, end):
            found.names.append((start, end, sheet.names[string]))
    found.clauses.sort()
    names, found.names = sorted(found.names, key=lambda s: (s[0], -s[1])), []
    for span in names:  # the leftmost, and of these the longest
        if not found.names or span[0] >= found.names[-1][1]:
            found.names.append(span)
    return found


def _whole_words(text: str, start: int, end: int) -> bool:
    before = start == 0 or not (text[start - 1].isalnum() and text[start].isalnum())
    return before and (end == len(text) or not (text[end - 1].isalnum() and text[end].isalnum()))


def _bounds(text: str) -> Iterator[tuple[int, int]]:
    """Where the stretches between blank lines stand, without white space around them."""
    begin = 0
    for gap in (*_BLANK_LINES.finditer(text), None):
        stop = len(text) if gap is None else gap.start()
        piece = text[begin:stop]
        if piece.strip():
            yield begin + len(piece) - len(piece.lstrip()), begin + len(piece.rstrip())
        begin = stop if gap is None else gap.end()


def _paragraphs(
    text: str, found: Found
) -> Iterator[tuple[str, set[str], list[dict[str, int | str]]]]:
    """Each paragraph with a letter in it, its categories, and its spans."""
    bounds = list(_bounds(text))
    starts = [start for start, _ in bounds]
    labels: list[set[str]] = [set() for _ in bounds]
    spans: list[list[dict[str, int | str]]] = [[] for _ in bounds]
    for start, end, category in found.clauses:
        at = max(0, bisect_right(starts, start) - 1)
        while at < len(bounds) and bounds[at][0] < end:
            if start < bounds[at][1]:
                labels[at].add(category)
            at += 1
    for start, end, kind in found.names:
        at = bisect_right(starts, start) - 1
        # A name that runs over a paragraph's end belongs to neither.
        if at >= 0 and end <= bounds[at][1]:
            spans[at].append({"start": start - starts[at], "end": end - starts[at], "kind": kind})
    for (start, end), categories, marks in zip(bounds, labels, spans, strict=True):
        if any(c.isalpha() for c in text[start:end]):
            yield text[start:end], categories, marks


CUAD = NamedCorpus(
    "contract paragraphs with expert clause labels; a company is a user",
    read_cuad,
)
