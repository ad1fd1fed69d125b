"""The corpus as a value: checks, views, digest."""

from typing import Any

import pyarrow as pa
import pytest

from tacit.corpus import Corpus, Record, Span
from tacit.errors import DataError

ROWS: list[dict[str, Any]] = [
    {"id": "1", "user": "ann", "text": "héllo", "label": "a", "split": "train"},
    {"id": "2", "user": "bob", "text": "you", "label": None, "split": "test"},
    {"id": "3", "user": "ann", "text": "", "label": "b", "split": "train"},
]


def test_views_share_order_and_name() -> None:
    corpus = Corpus.from_records(ROWS, name="small")
    assert corpus.users() == ["ann", "bob"]
    assert corpus.splits() == ["train", "test"]
    assert [r.id for r in corpus.only("train").records()] == ["1", "3"]
    assert [r.id for r in corpus.take([2, 0]).records()] == ["3", "1"]
    assert [[r.id for r in b] for b in corpus.batches(2)] == [["1", "2"], ["3"]]
    assert corpus.only("test").name == "small"


def test_records_and_rows_are_one_thing() -> None:
    record = Record(
        "1", "Ann left", user="u", tokens=("Ann", "left"), spans=(Span(0, 3, "PERSON"),)
    )
    assert list(Corpus.from_records([record]).records()) == [record]
    assert list(Corpus.from_records([record.row()]).records()) == [record]


def test_digest_sees_values_and_not_chunks() -> None:
    corpus = Corpus.from_records(ROWS)
    chunked = Corpus(pa.concat_tables([corpus.table.slice(i, 1) for i in range(3)]))
    assert chunked.digest() == corpus.digest()
    digests = {corpus.digest()}
    for place, column, value in [
        (0, "text", "hello"),
        (1, "user", "ann"),
        (1, "label", ""),
        (2, "split", None),
    ]:
        rows = [dict(r) for r in ROWS]
        rows[place][column] = value
        digests.add(Corpus.from_records(rows).digest())
    # The border between two texts counts, too.
    rows = [dict(r) for r in ROWS]
    rows[0]["text"], rows[1]["text"] = "hélloy", "ou"
    digests.add(Corpus.from_records(rows).digest())
    assert len(digests) == 6


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], "empty"),
        ([{"id": "1", "text": None}], "record 1, has no text"),
        ([{"id": "1", "text": "a"}, {"id": None, "text": "b"}], "record 2, has no id"),
        ([{"id": "1", "text": "a"}, {"id": "1", "text": "b"}], "records 1 and 2"),
        ([{"id": "1", "text": "a\0b"}], "NUL"),
        ([{"id": "1", "text": 5}], "type"),
        ([{"id": "1", "text": "a b", "tokens": ["a", "b"], "tags": ["O"]}], "2 tokens but 1 tags"),
        ([{"id": "1", "text": "ab", "spans": [{"start": 0, "end": 3, "kind": "X"}]}], "0:3"),
        ([{"id": "1", "text": "ab", "spans": [{"start": 1, "end": 1, "kind": "X"}]}], "1:1"),
        ([{"id": "1", "text": "ab", "spans": [{"start": -1, "end": 1, "kind": "X"}]}], "-1:1"),
        ([{"id": "1", "text": "ab", "spans": [{"start": 0, "end": 1, "kind": None}]}], "kind"),
    ],
)
def test_what_cannot_be_is_named(rows: list[dict[str, object]], expected: str) -> None:
    with pytest.raises(DataError, match=expected):
        Corpus.from_records(rows)


def test_span_length_is_counted_in_characters() -> None:
    span = {"start": 0, "end": 2, "kind": "X"}
    assert len(Corpus.from_records([{"id": "1", "text": "日本", "spans": [span]}])) == 1


def test_users_are_needed_only_where_they_are_asked_for() -> None:
    without = Corpus.from_records([{"id": "1", "text": "a"}])
    with pytest.raises(DataError, match="--user NAME"):
        without.require_users()
    some = Corpus.from_records([{"id": "1", "text": "a", "user": "u"}, {"id": "2", "text": "b"}])
    with pytest.raises(DataError, match="record 2, has no user"):
        some.users()
    with pytest.raises(DataError, match="it has: none"):
        some.only("train")
