"""How well the detector `names` does: CoNLL-2003 by kind, and the places of names in mail.

    python tools/names_score.py DATA [--split test]

CoNLL-2003: exact match, and mentions wholly covered by findings of their kind, or of any.
20 Newsgroups: what is left of "... wrote:" and "From:" lines once addresses, dates and article
numbers are taken away is taken for the name (one to five words); names of two to four words so
found anywhere in the corpus are then looked for in the last eight lines of posts. A name counts
as covered if every letter of it is.
"""

import argparse
import re
import time
from collections import Counter
from pathlib import Path

from tacit import corpora
from tacit.corpus import Record
from tacit.detection import Finding, open_detectors, resolve
from tacit.detection.gold_labels import Gold

_ID = re.compile(r"<[^<>\s]*>|\S*@\S*|\b(?:In|in)\s+(?:article|message|<)\S*|\b[Ii]n\b\s*[,(]?$")
_DATE = re.compile(
    r"\b(?:On|on)\b[^A-Za-z]*(?=\b)|\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|"
    r"Oct|Nov|Dec)[a-z]*\b\.?,?|\b[A-Z]{3}\b(?=[\s,)])|\d[\d:/.-]*(?:st|nd|rd|th)?\b"
)
_WROTE = re.compile(r"^(.*?)\b(?:wrote|writes)\s*:\s*$", re.MULTILINE)
_FROM = re.compile(r"^[>|:\s]*From:\s*(\S.*)$", re.MULTILINE)
_PARTS = re.compile(r"[^\W\d_][\w'.-]*")


def left_over(line: str) -> str:
    """A line without addresses, dates, numbers and signs: the name, if it holds one."""
    line = re.sub(r"^[>|:}\s]+", "", line)
    line = _DATE.sub(" ", _ID.sub(" ", _ID.sub(" ", line)))
    parts = _PARTS.findall(re.sub(r"[()\[\]\"<>,|]", " ", line))
    good = 0 < len(parts) <= 5 and not {p.lower() for p in parts} & _NOT_NAMES
    return " ".join(parts) if good and any(len(p) > 1 for p in parts) else ""


_OTHER_WORDS = """i he she they you we who that the article says someone it previously also then and
but so this of has was as my a to in message originally once recently poster"""
_NOT_NAMES = frozenset(_OTHER_WORDS.split())


def covered(text: str, start: int, end: int, findings: list[Finding]) -> bool:
    """Whether every letter between two places is inside some finding."""
    near = [f for f in findings if f.start < end and start < f.end]
    return all(
        any(f.start <= i < f.end for f in near) for i in range(start, end) if text[i].isalnum()
    )


def stated_names(text: str) -> list[tuple[str, str, int, int]]:
    """The names of attributions and From lines: form, name, and where its line stands."""
    found = []
    for form, rule in (("before wrote:", _WROTE), ("after From:", _FROM)):
        for line in rule.finditer(text):
            name = left_over(line[1])
            at = text.find(name, *line.span(1)) if name else -1
            if at >= 0:
                found.append((form, name, at, at + len(name)))
    return found


def mail(data: Path, split: str, posts: int) -> None:
    """Print the share of names covered, by where they stand."""
    (names,) = open_detectors("names")
    whole = corpora.load("newsgroups20", data)
    known: set[str] = set()
    for batch in whole.batches(1024):
        for r in batch:
            known |= {n for _, n, _, _ in stated_names(r.text) if 1 < n.count(" ") + 1 < 5}
    every = {n.lower(): n for n in known if all(len(p.strip(".")) > 0 for p in n.split())}
    counts: Counter[str] = Counter()
    right: Counter[str] = Counter()
    people: Counter[str] = Counter()
    records = [r for batch in whole.only(split).batches(1024) for r in batch][:posts]
    start = time.process_time()
    given = [list(f) for f in names.find(records)]
    print(f"{len(records) / (time.process_time() - start):,.0f} posts a second")
    for r, findings in zip(records, given, strict=True):
        for form, _, first, last in [*stated_names(r.text), *_signed(r, every)]:
            counts[form] += 1
            right[form] += covered(r.text, first, last, findings)
            some = [f for f in findings if f.kind == "PERSON"]
            people[form] += covered(r.text, first, last, some)
    for form, n in counts.items():
        own = people[form] / n
        print(f"{form:15} {n:6,} names, covered {right[form] / n:.3f}, as PERSON {own:.3f}")


def _signed(r: Record, known: dict[str, str]) -> list[tuple[str, str, int, int]]:
    lines = list(re.finditer(r"[^\n]*\S[^\n]*", r.text))[-8:]
    found = []
    for line in lines:
        if line[0].lstrip()[:1] in (">", "|", ":") or re.search(r"(?:wrote|writes)\s*:", line[0]):
            continue
        words = list(_PARTS.finditer(line[0]))
        for i in range(len(words)):
            for size in (4, 3, 2):
                text = " ".join(w[0] for w in words[i : i + size])
                if len(words) - i >= size and known.get(text.lower()) == text:
                    first, last = words[i].start(), words[i + size - 1].end()
                    found.append(("in signatures", text, line.start() + first, line.start() + last))
                    break
            else:
                continue
            break
    return found


def conll(data: Path, split: str) -> None:
    """Print precision and recall by kind."""
    (names,) = open_detectors("names")
    records = [r for b in corpora.load("conll2003", data).only(split).batches(1024) for r in b]
    start = time.process_time()
    found = [list(f) for f in names.find(records)]
    print(f"{len(records) / (time.process_time() - start):,.0f} records a second")
    n: Counter[str] = Counter()
    right, said, own, some = Counter(n), Counter(n), Counter(n), Counter(n)
    for r, gold, findings in zip(records, Gold().find(records), found, strict=True):
        kept = resolve(findings, r.text)
        marks = {(g.start, g.end, g.kind) for g in gold}
        for f in kept:
            said[f.kind] += 1
            right[f.kind] += (f.start, f.end, f.kind) in marks
        for g in gold:
            n[g.kind] += 1
            own[g.kind] += covered(r.text, g.start, g.end, [f for f in kept if f.kind == g.kind])
            some[g.kind] += covered(r.text, g.start, g.end, kept)
    for kind in ("PERSON", "ORG", "LOC", "MISC"):
        precision, recall = right[kind] / max(said[kind], 1), right[kind] / n[kind]
        print(
            f"{kind:7} {n[kind]:6,} marks: precision {precision:.3f}, recall {recall:.3f}, covered "
            f"by its kind {own[kind] / n[kind]:.3f}, by any {some[kind] / n[kind]:.3f}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--split", default="test")
    parser.add_argument("--posts", type=int, default=2000, help="posts of mail to look at")
    given = parser.parse_args()
    print("CoNLL-2003", given.split if given.split != "train" else "valid")
    conll(given.data, given.split if given.split != "train" else "valid")
    print("20 Newsgroups", given.split)
    mail(given.data, given.split, given.posts)
