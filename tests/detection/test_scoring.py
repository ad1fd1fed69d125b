"""Scores: seqeval's numbers on tagged data, and the coverage of characters and records."""

import json
from io import StringIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from seqeval.metrics import classification_report

from tacit.corpus import Corpus, Record, Span
from tacit.detection.detector import Finding
from tacit.detection.gold_labels import gold_spans
from tacit.detection.mentions import Mention
from tacit.detection.scoring import coverage, score, table
from tacit.errors import DataError, UsageError

TAGS = st.lists(
    st.sampled_from(["O", "O", "B-PERSON", "I-PERSON", "B-ORG", "I-ORG", "B-GPE"]),
    min_size=1,
    max_size=12,
)


def tagged(id_: str, tags: list[str]) -> Record:
    tokens = tuple(f"w{i}" for i in range(len(tags)))
    return Record(id_, " ".join(tokens), tokens=tokens, tags=tuple(tags))


def as_found(record: Record) -> list[Finding]:
    return [Finding(s.start, s.end, s.kind, 1.0, "x") for s in gold_spans(record) or ()]


@st.composite
def two_taggings(draw: st.DrawFn) -> list[tuple[list[str], list[str]]]:
    pairs = []
    for _ in range(draw(st.integers(1, 6))):
        gold = draw(TAGS)
        guess = [t if draw(st.booleans()) else "O" for t in gold]
        other = draw(
            st.lists(st.sampled_from(["O", "B-ORG"]), min_size=len(gold), max_size=len(gold))
        )
        pairs.append((gold, [a if a != "O" else b for a, b in zip(guess, other, strict=True)]))
    return pairs


@settings(max_examples=150, deadline=None)
@given(two_taggings())
def test_numbers_are_those_of_seqeval(pairs: list[tuple[list[str], list[str]]]) -> None:
    gold = [tagged(str(i), g) for i, (g, _) in enumerate(pairs)]
    found = {r.id: as_found(tagged(r.id, p)) for r, (_, p) in zip(gold, pairs, strict=True)}
    ours = score(Corpus.from_records(gold), found)
    if not ours.kinds:
        return  # seqeval refuses data without any entity
    theirs = classification_report(
        [g for g, _ in pairs], [p for _, p in pairs], output_dict=True, zero_division=0
    )
    lines = {**ours.kinds, "micro avg": ours.micro, "macro avg": ours.macro}
    assert {k for k in theirs if k != "weighted avg"} == set(lines)
    for name, line in lines.items():
        assert line.precision == pytest.approx(theirs[name]["precision"])
        assert line.recall == pytest.approx(theirs[name]["recall"])
        assert line.f1 == pytest.approx(theirs[name]["f1-score"])
        assert line.support == theirs[name]["support"]


TEXT = "Ann Lee wrote ann@x.org from Oslo"
GOLD = (Span(0, 7, "PERSON"), Span(14, 23, "PII/EMAIL"), Span(29, 33, "GPE"))


def corpus(*gold: tuple[Span, ...] | None) -> Corpus:
    return Corpus.from_records(Record(str(i), TEXT, spans=g) for i, g in enumerate(gold))


def mention(record: str, start: int, end: int, kind: str) -> Mention:
    return Mention(record, start, end, kind, "e1", 1.0, "x")


def test_by_hand() -> None:
    found = [
        mention("0", 0, 7, "PERSON"),
        mention("0", 14, 23, "PII/URL"),
        mention("0", 29, 31, "GPE"),
        mention("1", 0, 3, "PERSON"),
        mention("1", 4, 7, "PERSON"),
        mention("2", 0, 33, "MISC"),
    ]
    s = score(corpus(GOLD, GOLD, (), None), found)
    assert (s.records, s.sensitive_records) == (3, 2)
    assert (s.micro.support, s.micro.found, s.micro.correct) == (6, 6, 1)
    assert s.micro.recall == pytest.approx(1 / 6)
    # 20 given characters a record: 7 + 9 + 2 covered in the first, 6 in the second.
    assert s.micro.characters == pytest.approx(24 / 40)
    assert s.kinds["PII/EMAIL"].characters == pytest.approx(9 / 18)
    assert s.kinds["PII/EMAIL"].recall == 0
    assert s.kinds["MISC"].characters is None
    assert (s.records_all, s.records_any) == (0.0, 0.5)


def test_f2_weighs_recall() -> None:
    found = [mention("0", *s) for s in ((0, 7, "PERSON"), (8, 13, "ORG"), (24, 28, "ORG"))]
    s = score(corpus(GOLD), found).micro
    assert s.f1 == pytest.approx(1 / 3)
    assert s.f2 == pytest.approx(1 / 3)
    s = score(corpus(GOLD), found[:1]).micro
    assert [s.precision, s.recall] == pytest.approx([1.0, 1 / 3])
    assert s.f2 == pytest.approx(5 * (1 / 3) / (4 + 1 / 3))


def test_adjacent_mentions_cover_together() -> None:
    found = [mention("0", 0, 4, "PERSON"), mention("0", 4, 7, "ORG"), mention("0", 10, 33, "GPE")]
    s = score(corpus(GOLD), found)
    assert s.micro.characters == 1.0
    assert s.records_all == 1.0
    assert s.micro.correct == 0


def test_families_and_renaming() -> None:
    found = [mention("0", 14, 23, "PII/URL"), mention("0", 29, 33, "LOC")]
    assert score(corpus(GOLD), found).micro.correct == 0
    assert score(corpus(GOLD), found, by="family").kinds["PII"].correct == 1
    assert score(corpus(GOLD), found, kinds={"GPE": "LOC"}).kinds["LOC"].correct == 1
    with pytest.raises(UsageError, match="accepted: kind, family"):
        score(corpus(GOLD), found, by="colour")


def test_without_marks() -> None:
    with pytest.raises(DataError, match="no gold labels"):
        score(Corpus.from_records([{"id": "1", "text": TEXT}]), {})
    s = score(corpus(()), {})
    assert (s.records_all, s.micro.characters, s.micro.f1) == (None, None, 0.0)
    assert "None of 1" in coverage(s)


def test_json_and_table() -> None:
    s = score(corpus(GOLD), [mention("0", 0, 7, "PERSON")])
    row = json.loads(json.dumps(s.row()))
    assert row["kinds"]["PERSON"]["f1"] == 1.0
    assert row["micro"]["support"] == 3
    console = Console(width=120, record=True, file=StringIO())
    console.print(table(s))
    shown = console.export_text()
    assert "PERSON" in shown
    assert "100.0% at least" in " ".join(shown.split())
    assert "Ann" not in shown


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_coverage_equals_counting_characters(data: st.DataObject) -> None:
    ends = st.tuples(st.integers(0, 32), st.integers(1, 10))
    spans = [
        [Span(s, min(33, s + n), "PERSON") for s, n in data.draw(st.lists(ends, max_size=5))]
        for _ in range(2)
    ]
    gold, found = spans
    s = score(corpus(tuple(gold)), [mention("0", f.start, f.end, f.kind) for f in found])
    marked = {i for g in gold for i in range(g.start, g.end)}
    seen = {i for f in found for i in range(f.start, f.end)}
    expected = len(marked & seen) / len(marked) if marked else None
    assert s.micro.characters == (None if expected is None else pytest.approx(expected))
    if gold:
        whole = [set(range(g.start, g.end)) <= seen for g in gold]
        assert (s.records_all, s.records_any) == (float(all(whole)), float(any(whole)))
