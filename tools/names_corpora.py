"""Read the public corpora that the detector `names` learns from; `names_model.py` trains on them.

A folder holds what the makers of each corpus publish, under these names:

    gmb.csv                 Groningen Meaning Bank as the table "entity annotated corpus"
                            (texts in the public domain; table ODbL 1.0)
    wikigold.conll.txt      WikiGold (CC BY 4.0)
    ewt-*.iob2              Universal NER on the English Web Treebank, dev and test (CC BY-SA 4.0)
    btc-*.conll             Broad Twitter Corpus (CC BY 4.0)
    wnut17.conll            WNUT 2017 (CC BY 4.0)
    wikiann-*               WikiANN English (text: Wikipedia, CC BY-SA)
"""

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tacit.detection.names.tokens import TOKEN

KINDS = ("PERSON", "ORG", "LOC", "MISC")
_KINDS = {
    "per": "PERSON", "person": "PERSON", "org": "ORG", "organization": "ORG",
    "corporation": "ORG", "group": "ORG", "loc": "LOC", "location": "LOC", "geo": "LOC",
    "misc": "MISC", "gpe": "MISC", "art": "MISC", "eve": "MISC", "nat": "MISC",
    "creative-work": "MISC", "product": "MISC",
}  # fmt: skip

# In GMB a person's title is part of the name, as in no other corpus.
_TITLE_WORDS = """president prime minister secretary general foreign mr. mrs. ms. dr. sen. senator
rep. representative gov. governor judge justice king queen prince princess pope ambassador
chancellor vice former attorney chief colonel lieutenant captain admiral major sheikh premier
speaker deputy spokesman spokeswoman army interior defense finance mayor congressman reverend rev.
saint sir lord lady ayatollah commander professor press state u.s. white house treasury chairman
leader director executive officer crown health trade energy police"""
_TITLES = frozenset(_TITLE_WORDS.split())


@dataclass
class Sentence:
    """Tokens with BIO tags; `misc` tells whether named things of no other kind are marked, too."""

    tokens: list[str]
    tags: list[str]
    misc: bool
    source: str


def read_all(folder: Path, places: frozenset[str]) -> list[Sentence]:
    """Every corpus of a folder; `places` are words in lower case that name a place."""
    found: list[Sentence] = []
    found += gmb(folder / "gmb.csv", places)
    found += _columns(folder / "wikigold.conll.txt", "wikigold", misc=True)
    found += _columns(folder / "wnut17.conll", "wnut", misc=True)
    for path in sorted(folder.glob("btc-*.conll")):
        found += _columns(path, "btc", misc=False)
    for path in sorted(folder.glob("ewt-*.iob2")):
        found += _columns(path, "ewt", misc=False, word=1, tag=2)
    for path in sorted(folder.glob("wikiann-*")):
        found += _columns(path, "wikiann", misc=False)
    return found


def gmb(path: Path, places: frozenset[str]) -> Iterator[Sentence]:
    """The Groningen Meaning Bank: nationalities and countries share a kind there."""
    words: list[str] = []
    tags: list[str] = []
    with path.open(encoding="latin-1", newline="") as rows:
        for row in csv.DictReader(rows):
            if row["Sentence #"] and words:
                yield _sentence(words, _gmb_tags(words, tags, places), "gmb", True)
                words, tags = [], []
            words.append(row["Word"])
            tags.append(row["Tag"])
    yield _sentence(words, _gmb_tags(words, tags, places), "gmb", True)


def _gmb_tags(words: list[str], tags: list[str], places: frozenset[str]) -> list[str]:
    tags = list(tags)
    for i, tag in enumerate(tags):
        kind = tag[2:]
        if kind == "gpe" and words[i].lower() in places:
            tags[i] = tag[:2] + "geo"
        elif kind in ("geo", "gpe", "org") and words[i] in ("U.N.", "UN", "EU", "NATO"):
            tags[i] = tag[:2] + "org"
        elif kind == "tim":
            tags[i] = "O"
        elif (
            kind == "per" and words[i].lower() in _TITLES and (tag[0] == "B" or tags[i - 1] == "O")
        ):
            tags[i] = "O"  # a title at the front is cut off; what follows then opens the name
        if i and tags[i] == "I-per" and tags[i - 1] == "O":
            tags[i] = "B-per"
    return tags


def _columns(
    path: Path, source: str, *, misc: bool, word: int = 0, tag: int = -1
) -> Iterator[Sentence]:
    words: list[str] = []
    tags: list[str] = []
    for line in [*path.read_text(encoding="utf-8", errors="replace").split("\n"), ""]:
        if line.startswith("# ") and source == "ewt":
            continue
        parts = line.rstrip("\r").split("\t") if "\t" in line else line.split()
        if len(parts) < 2 or parts[0] == "-DOCSTART-":
            if words:
                yield _sentence(words, tags, source, misc)
            words, tags = [], []
            continue
        text = parts[word].removeprefix("en:") if source == "wikiann" else parts[word]
        if text:
            words.append(text)
            tags.append(parts[tag])


def _sentence(words: list[str], tags: Iterable[str], source: str, misc: bool) -> Sentence:
    """The corpus's tokens cut into ours; a kind that is none of ours becomes O."""
    tokens: list[str] = []
    said: list[str] = []
    before = None
    for word, tag in zip(words, tags, strict=True):
        kind = _KINDS.get(tag[2:].lower()) if tag != "O" else None
        opens = tag[0] in "BS" or kind != before
        for piece in TOKEN.findall(
            {"``": '"', "''": '"', "-LRB-": "(", "-RRB-": ")"}.get(word, word)
        ):
            tokens.append(piece)
            said.append("O" if kind is None else f"{'B' if opens else 'I'}-{kind}")
            opens = False
        before = kind
    return Sentence(tokens, said, misc, source)
