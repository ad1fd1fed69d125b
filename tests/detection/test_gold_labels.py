"""Given marks: spans as they are, tags in every scheme, tokens found in their text."""

import pytest
from hypothesis import given as given_
from hypothesis import settings
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities

from tacit.corpus import Record, Span
from tacit.detection.gold_labels import Gold, gold_spans, tag_pieces, token_places
from tacit.errors import DataError, UsageError

PIECES = [(0, 1, "PER"), (3, 3, "LOC"), (4, 5, "LOC")]


@pytest.mark.parametrize(
    ("scheme", "tags"),
    [
        ("BIO", ["B-PER", "I-PER", "O", "B-LOC", "B-LOC", "I-LOC"]),
        ("IOB1", ["I-PER", "I-PER", "O", "I-LOC", "B-LOC", "I-LOC"]),
        ("BILOU", ["B-PER", "L-PER", "O", "U-LOC", "B-LOC", "L-LOC"]),
        ("BIOES", ["B-PER", "E-PER", "O", "S-LOC", "B-LOC", "E-LOC"]),
    ],
)
def test_schemes(scheme: str, tags: list[str]) -> None:
    assert tag_pieces(tags) == PIECES


@settings(max_examples=1000)
@given_(st.lists(st.sampled_from(["O", *(f"{p}-{k}" for p in "BIES" for k in ("A", "B-C"))])))
def test_pieces_are_those_of_seqeval(tags: list[str]) -> None:
    ours = [(kind, first, last) for first, last, kind in tag_pieces(tags)]
    theirs = [tuple(e) for e in get_entities([t.replace("B-C", "BC") for t in tags])]
    assert [(k.replace("B-C", "BC"), f, e) for k, f, e in ours] == theirs


@pytest.mark.parametrize("tag", ["PER", "B-", "-PER", "X-PER", "B_PER", "b-PER"])
def test_bad_tags(tag: str) -> None:
    with pytest.raises(DataError, match="at token 2") as error:
        tag_pieces(["O", tag], "record 7")
    assert "record 7" in str(error.value)


@pytest.mark.parametrize(
    ("text", "tokens", "expected"),
    [
        ("Ann is here", ["Ann", "is", "here"], ["Ann", "is", "here"]),
        ("Ann isn't  here.", ["Ann", "is", "n't", "here", "."], ["Ann", "is", "n't", "here", "."]),
        ('He said "go (now)"', ["He", "said", "``", "go", "-LRB-", "now", "-RRB-", "''"],
         ["He", "said", '"', "go", "(", "now", ")", '"']),
        ("“Go”…", ['"', "Go", '"', "..."], ["“", "Go", "”", "…"]),
        ("ANN Lee", ["ann", "lee"], ["ANN", "Lee"]),
        ("a\u200bb, c", ["a", "b", "c"], ["a", "b", "c"]),
        ("1 000 km", ["1000", "km"], ["1 000", "km"]),
        ("NewYork", ["New York"], ["NewYork"]),
        ("İ x", ["İ", "x"], ["İ", "x"]),
        ("the the cat", ["the", "the", "cat"], ["the", "the", "cat"]),
        ("a b", ["a", " ", "b"], ["a", "", "b"]),
    ],
)  # fmt: skip
def test_tokens_are_found(text: str, tokens: list[str], expected: list[str]) -> None:
    places = token_places(text, tokens)
    assert [text[s:e] for s, e in places] == expected
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("Ann is here", ["Ann", "here"]), ("Ann", ["Ann", "Lee"]), ("", ["x"]), ("ab", ["b"])],
)
def test_tokens_that_are_not_there(text: str, tokens: list[str]) -> None:
    with pytest.raises(DataError, match="record 3: token") as error:
        token_places(text, tokens, "record 3")
    assert "Ann" not in str(error.value)


@settings(max_examples=300)
@given_(
    st.lists(st.text("aB.é(9", min_size=1, max_size=4), min_size=1, max_size=8),
    st.lists(st.sampled_from(["", " ", "  ", "\n"]), min_size=9, max_size=9),
)
def test_raw_text_gives_its_tokens_back(tokens: list[str], gaps: list[str]) -> None:
    text = gaps[0] + "".join(t + g for t, g in zip(tokens, gaps[1:], strict=False))
    places = token_places(text, tokens)
    assert ["".join(text[s:e].split()) for s, e in places] == tokens


def test_spans_win_over_tags_and_are_sorted() -> None:
    record = Record(
        "1",
        "Ann met Bob",
        tokens=("Ann", "met", "Bob"),
        tags=("B-PER", "O", "O"),
        spans=(Span(8, 11, "per"), Span(0, 3, "PERSON")),
    )
    assert gold_spans(record) == [Span(0, 3, "PERSON"), Span(8, 11, "PERSON")]


def test_none_and_nothing_differ() -> None:
    assert gold_spans(Record("1", "Ann")) is None
    assert gold_spans(Record("1", "Ann", spans=())) == []
    assert gold_spans(Record("1", "Ann", tokens=("Ann",), tags=("O",))) == []


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (Record("r1", "Ann", spans=(Span(0, 9, "PER"),)), "record r1 has a span 0:9"),
        (Record("r1", "Ann", spans=(Span(0, 3, "NOPE"),)), "unknown kind"),
        (Record("r1", "Ann", tags=("B-PER",)), "1 tags and 0 tokens"),
        (Record("r1", "Ann", tokens=("Ann", "x"), tags=("B-PER",)), "1 tags and 2 tokens"),
        (Record("r1", "Ann", tokens=("Bob",), tags=("B-PER",)), "token 1 of 1"),
        (Record("r1", "Ann", tokens=("Ann",), tags=("B-NOPE",)), "unknown kind"),
        (Record("r1", "Ann ", tokens=("Ann", ""), tags=("O", "B-PER")), "token 2, which is empty"),
    ],
)
def test_bad_records(record: Record, message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        gold_spans(record)
    assert "record r1" in str(error.value)
    assert "Ann" not in str(error.value)
    with pytest.raises(DataError, match="record 12"):
        gold_spans(record, 12)


def test_detector() -> None:
    labelled = Record(
        "1", "Ann Lee left", tokens=("Ann", "Lee", "left"), tags=("B-PER", "I-PER", "O")
    )
    first, second = Gold.open(None).find([labelled, Record("2", "Ann")])
    assert [(f.start, f.end, f.kind, f.score, f.why) for f in first] == [
        (0, 7, "PERSON", 1.0, "gold label")
    ]
    assert second == []
    with pytest.raises(UsageError, match="no option"):
        Gold.open("x")
