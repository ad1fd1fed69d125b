"""Overlaps, folding, grouping, and reading mentions back."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.corpus import Corpus
from tacit.detection.detector import Finding
from tacit.detection.mentions import (
    Aliases,
    Grouping,
    Mention,
    fold,
    read_entities,
    read_mentions,
    resolve,
    write_lines,
)
from tacit.errors import DataError

TEXT = "abcdefghij klmnopqrst uvwxyz 0123"
SPANS = st.tuples(st.integers(0, len(TEXT) - 1), st.integers(1, 12), st.floats(0, 1))


@given(st.lists(SPANS, max_size=20))
def test_no_overlap_is_left_and_no_marked_letter_is_lost(
    spans: list[tuple[int, int, float]],
) -> None:
    findings = [
        Finding(s, min(s + n, len(TEXT)), "PERSON", score, f"rule {i}")
        for i, (s, n, score) in enumerate(spans)
    ]
    resolved = resolve(findings, TEXT)
    for before, after in pairwise(resolved):
        assert before.end <= after.start
    marked = {i for f in findings for i in range(f.start, f.end) if TEXT[i].isalnum()}
    kept = {i for f in resolved for i in range(f.start, f.end) if TEXT[i].isalnum()}
    assert kept == marked
    longest = max((f.end - f.start for f in findings), default=0)
    assert max((f.end - f.start for f in resolved), default=0) <= longest


def test_the_rule_for_overlaps() -> None:
    long = Finding(0, 10, "ORG", 0.2, "lists: a")
    inside = Finding(2, 5, "PERSON", 0.9, "tagger")
    beyond = Finding(8, 15, "DATE", 0.9, "patterns: date")
    resolved = resolve([inside, beyond, long], TEXT)
    assert [(f.start, f.end, f.kind, f.why) for f in resolved] == [
        (0, 10, "ORG", "lists: a; tagger"),
        (11, 15, "DATE", "patterns: date"),
    ]
    same = [Finding(0, 3, "ORG", 0.5, "first"), Finding(0, 3, "PERSON", 0.5, "second")]
    assert [f.kind for f in resolve(same, TEXT)] == ["ORG"]
    surer = [Finding(0, 3, "ORG", 0.5, "first"), Finding(0, 3, "PERSON", 0.6, "second")]
    assert [f.kind for f in resolve(surer, TEXT)] == ["PERSON"]


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        ("John  Smith", "JOHN SMITH's", "PERSON"),
        ("the Joneses'", "The Joneses", "PERSON"),
        ("“Acme”", "acme.", "ORG"),
        ("Straße", "STRASSE", "LOC"),
        ("+1 (555) 010-9999", "1 555 010 9999", "PII/PHONE"),
        ("ＡＣＭＥ", "acme", "ORG"),
    ],
)
def test_forms_of_one_name_fold_together(one: str, other: str, kind: str) -> None:
    assert fold(one, kind) == fold(other, kind)


def test_folding_keeps_different_things_apart() -> None:
    assert fold("Smith", "PERSON") != fold("Smyth", "PERSON")
    assert fold("...", "MISC") == "..."


def test_grouping_counts_and_types_entities(tmp_path: Path) -> None:
    rules = tmp_path / "aliases.yml"
    rules.write_text("PERSON:\n  angela merkel: [Merkel, chancellor merkel]\nany:\n  usa: [U.S.]\n")
    grouping = Grouping(Aliases.read(rules))
    text = "Merkel met Angela Merkel's aide in the U.S. and USA"
    findings = [
        Finding(0, 6, "PERSON", 1, "w"),
        Finding(11, 26, "PERSON", 1, "w"),
        Finding(39, 43, "GPE", 1, "w"),
        Finding(48, 51, "GPE", 1, "w"),
        Finding(48, 51, "ORG", 1, "w"),
    ]
    mentions = grouping.mentions("r1", text, findings)
    assert [m.entity for m in mentions] == ["e1", "e1", "e2", "e2", "e3"]
    grouping.mentions("r2", "Merkel", [Finding(0, 6, "PERSON", 1, "w")])
    first = grouping.entities()[0]
    assert (first.id, first.kind, first.name, first.mentions, first.records) == (
        "e1",
        "PERSON",
        "angela merkel",
        3,
        2,
    )


def test_mentions_and_entities_come_back_as_they_went(tmp_path: Path) -> None:
    corpus = Corpus.from_records([{"id": "1", "text": "Ann left"}])
    grouping = Grouping()
    mentions = grouping.mentions("1", "Ann left", [Finding(0, 3, "PERSON", 0.5, "tagger")])
    write_lines(tmp_path / "m.jsonl", mentions)
    write_lines(tmp_path / "e.jsonl", grouping.entities())
    assert read_mentions(tmp_path / "m.jsonl", corpus) == mentions
    assert read_entities(tmp_path / "e.jsonl") == grouping.entities()
    assert "ann" not in (tmp_path / "m.jsonl").read_text().lower()


GOOD = {
    "record": "1",
    "start": 0,
    "end": 3,
    "kind": "PERSON",
    "entity": "e1",
    "score": 1.0,
    "why": "x",
}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (json.dumps(GOOD | {"end": 99}), "0:99 is outside"),
        (json.dumps(GOOD | {"start": 3}), "3:3 is outside"),
        (json.dumps(GOOD | {"record": "7"}), "does not have"),
        (json.dumps(GOOD | {"start": "x"}), "not a mention"),
        (json.dumps(GOOD | {"extra": 1}), "not a mention"),
        (json.dumps({"record": "1"}), "not a mention"),
        ("[1]", "JSON lines"),
        ("{", "JSON lines"),
    ],
)
def test_mentions_that_do_not_fit_are_refused(tmp_path: Path, line: str, expected: str) -> None:
    corpus = Corpus.from_records([{"id": "1", "text": "Ann left"}])
    (tmp_path / "m.jsonl").write_text(line + "\n")
    with pytest.raises(DataError, match=expected):
        read_mentions(tmp_path / "m.jsonl", corpus)
    with pytest.raises(DataError, match="does not exist"):
        read_mentions(tmp_path / "none.jsonl", corpus)


@pytest.mark.parametrize("content", ["- a\n- b\n", "PERSON: 5\n", "PERSON: [a]\n", "{", "\xff"])
def test_alias_files_that_are_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.yml").write_bytes(content.encode("latin-1"))
    with pytest.raises(DataError, match="alias file"):
        Aliases.read(tmp_path / "a.yml")


def test_mention_holds_no_text() -> None:
    assert "text" not in Mention.__slots__
    assert "name" not in Mention.__slots__
