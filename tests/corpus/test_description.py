"""Counts by the slow way, and near-copies that are there by construction."""

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.corpus import Corpus
from tacit.corpus.description import describe, find_near_duplicates, histogram

WORDS = [f"w{i}" for i in range(500)]


def rows(rng: random.Random, count: int) -> list[dict[str, str]]:
    return [
        {"id": str(i), "user": f"u{rng.randrange(9)}", "text": " ".join(rng.choices(WORDS, k=12))}
        for i in range(count)
    ]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.text(alphabet="xy \n\t", max_size=9)), min_size=1)
)
def test_counts_equal_the_slow_way(given_rows: list[tuple[str, str]]) -> None:
    corpus = Corpus.from_records(
        {"id": str(i), "user": u, "text": t} for i, (u, t) in enumerate(given_rows)
    )
    summary = describe(corpus, near_duplicates=False)
    per_user = Counter(u for u, _ in given_rows)
    assert summary["users"] == len(per_user)
    assert summary["records"] == len(given_rows)
    assert summary["tokens"] == sum(len(t.split()) for _, t in given_rows)
    assert summary["records_per_user"]["max"] == max(per_user.values())
    bars = summary["records_per_user"]["histogram"]
    assert sum(bars.values()) == len(per_user)


@pytest.mark.parametrize(
    ("values", "counts"),
    [
        ([], {}),
        ([0, 0], {"0": 2}),
        ([1], {"1": 1}),
        ([1, 2, 2, 3, 4, 5, 9], {"1": 1, "2": 2, "3-4": 2, "5-8": 1, "9-16": 1}),
        ([2, 2, 3, 4, 5, 8, 9], {"1": 0, "2": 2, "3-4": 2, "5-8": 2, "9-16": 1}),
    ],
)
def test_histogram_doubles_its_buckets(values: list[int], counts: dict[str, int]) -> None:
    assert histogram(np.array(values, dtype=np.int64)) == counts


@given(st.lists(st.integers(0, 10_000)))
def test_histogram_counts_everything_once(values: list[int]) -> None:
    assert sum(histogram(np.array(values, dtype=np.int64)).values()) == len(values)


def test_near_copies_count_across_users_only() -> None:
    rng = random.Random(3)
    base = rows(rng, 400)
    original = " ".join(rng.choices(WORDS, k=40))
    edited = original.upper().replace(" ", ",  ", 5)  # case and punctuation do not hide a copy
    swapped = original.rsplit(" ", 1)[0] + " changed"
    extra = [
        {"id": "x1", "user": "p", "text": original},
        {"id": "x2", "user": "q", "text": edited},
        {"id": "x3", "user": "r", "text": swapped},
        {"id": "y1", "user": "s", "text": " ".join(WORDS[:20])},
        {"id": "y2", "user": "s", "text": " ".join(WORDS[:20])},  # the same user: no harm
        {"id": "z1", "user": "t", "text": "thank you"},
        {"id": "z2", "user": "v", "text": "thank you"},  # too short to be a copy
        {"id": "e1", "user": "t", "text": ""},
        {"id": "e2", "user": "v", "text": ""},
    ]
    found = find_near_duplicates(Corpus.from_records(base + extra))
    assert found["records"] == 3
    assert found["users"] == 3


def test_many_copies_by_many_users_are_all_found() -> None:
    rng = random.Random(4)
    copy = " ".join(rng.choices(WORDS, k=15))
    copies = [{"id": f"c{i}", "user": f"v{i % 7}", "text": copy} for i in range(60)]
    found = find_near_duplicates(Corpus.from_records(rows(rng, 300) + copies))
    assert found["records"] == 60


def test_tags_spans_and_labels_are_counted() -> None:
    corpus = Corpus.from_records(
        [
            {
                "id": "1",
                "text": "Ann Lee left Rome",
                "tokens": ["Ann", "Lee", "left", "Rome"],
                "tags": ["B-PER", "I-PER", "O", "B-LOC"],
                "spans": [{"start": 0, "end": 7, "kind": "PERSON"}],
                "label": "x",
            }
        ]
    )
    summary = describe(corpus)
    assert summary["users"] is None
    assert summary["tagged_spans"] == {"PER": 1, "LOC": 1}
    assert summary["gold_spans"] == {"PERSON": 1}
    assert summary["labels"] == {"x": 1}
