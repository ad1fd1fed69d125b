"""The graph record - user - entities: built, counted, cut, saved and read back."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.corpora import customersim
from tacit.corpus import Corpus
from tacit.detection import detect
from tacit.detection.mentions import Mention
from tacit.detection.provenance import UNKNOWN
from tacit.errors import DataError, UsageError
from tacit.owners import Owners, describe, most_shared


def corpus() -> Corpus:
    return Corpus.from_records(
        [
            {"id": "r1", "user": "ann", "text": "x" * 50},
            {"id": "r2", "user": "bob", "text": "x" * 50},
            {"id": "r3", "user": "ann", "text": "x" * 50},
            {"id": "r4", "user": "cleo", "text": "x" * 50},
        ]
    )


def mention(record: str, entity: str, kind: str = "PERSON", score: float = 1.0) -> Mention:
    return Mention(record, 0, 4, kind, entity, score, "test")


MENTIONS = [
    mention("r1", "e10", "ORG"),
    mention("r1", "e2"),
    mention("r1", "e2"),
    mention("r2", "e2", score=0.4),
    mention("r3", "e2"),
    mention("r3", "e3", "PII/EMAIL"),
]

rows = st.lists(
    st.tuples(st.integers(0, 4), st.lists(st.integers(0, 5), max_size=4)), max_size=12
).map(lambda found: [(f"r{i}", f"u{u}", [f"e{e}" for e in es]) for i, (u, es) in enumerate(found)])


def test_graph_of_mentions() -> None:
    owners = Owners.from_mentions(corpus(), MENTIONS)
    assert owners.record_ids == ("r1", "r2", "r3", "r4")
    assert owners.users == ("ann", "bob", "cleo")
    assert owners.entities == ("e2", "e3", "e10")
    assert owners.kinds == ("PERSON", "PII/EMAIL", "ORG")
    assert owners.record_user.tolist() == [0, 1, 0, 2]
    assert [owners.entities_of(i).tolist() for i in range(4)] == [[0, 2], [0], [0, 1], []]
    assert owners.sensitive.tolist() == [True, True, True, False]
    assert owners.users_per_entity.tolist() == [2, 1, 1]
    assert owners.records_per_user.tolist() == [2, 1, 1]
    assert owners.records_per_entity.tolist() == [3, 1, 1]
    assert owners.records_per_user_entity.max() == 2


@pytest.mark.parametrize(
    ("options", "entities"),
    [
        ({"kinds": ["PER"]}, ("e2",)),
        ({"kinds": ["PII"]}, ("e3",)),
        ({"kinds": ["PII/EMAIL", "ORG"]}, ("e3", "e10")),
        ({"kinds": []}, ()),
        ({"entities": {"e3", "e2"}}, ("e2", "e3")),
        ({"entities": {"e3", "e2"}, "kinds": ["PERSON"]}, ("e2",)),
        ({"minimum_score": 1.0}, ("e2", "e3", "e10")),
    ],
)
def test_wanted_entities(options: dict[str, Any], entities: tuple[str, ...]) -> None:
    owners = Owners.from_mentions(corpus(), MENTIONS, **options)
    assert owners.entities == entities
    assert len(owners) == 4


def test_weak_mentions_make_no_edge() -> None:
    owners = Owners.from_mentions(corpus(), MENTIONS, minimum_score=0.5)
    assert owners.users_per_entity.tolist() == [1, 1, 1]
    assert not owners.sensitive[1]


def test_order_of_mentions_does_not_matter() -> None:
    shuffled = random.Random(1).sample(MENTIONS, len(MENTIONS))
    assert Owners.from_mentions(corpus(), shuffled) == Owners.from_mentions(corpus(), MENTIONS)


def test_no_mentions() -> None:
    owners = Owners.from_mentions(corpus(), [])
    assert owners.entities == ()
    assert not owners.sensitive.any()
    assert describe(owners)["most_shared"] == []


@pytest.mark.parametrize(
    ("mentions", "options", "error", "says"),
    [
        ([mention("r9", "e1")], {}, DataError, "mention 1 names a record"),
        ([mention("r1", "e1"), mention("r2", "e1", "ORG")], {}, DataError, "one kind"),
        ([mention("r1", "e1")], {"entities": {"e7"}}, UsageError, "'e7'"),
        ([mention("r1", "e1")], {"kinds": ["WIZARD"]}, UsageError, "WIZARD"),
        ([mention("r1", "e1")], {"minimum_score": 1.5}, UsageError, "minimum_score=1.5"),
        ([mention("r1", "e1")], {"minimum_score": float("nan")}, UsageError, "minimum_score=nan"),
    ],
)
def test_bad_mentions(
    mentions: list[Mention], options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        Owners.from_mentions(corpus(), mentions, **options)


def test_a_record_without_user_is_refused() -> None:
    without = Corpus.from_records([{"id": "1", "text": "a", "user": "u"}, {"id": "2", "text": "b"}])
    with pytest.raises(DataError, match="record 2, has no user"):
        Owners.from_mentions(without, [])


def test_chunked_corpus_counts_each_user_once() -> None:
    table = pa.concat_tables([corpus().table, corpus().table.set_column(0, "id", [list("abcd")])])
    owners = Owners.from_mentions(Corpus(table), [])
    assert owners.users == ("ann", "bob", "cleo")
    assert owners.records_per_user.tolist() == [4, 2, 2]


@given(rows)
def test_counts_agree_with_a_slow_count(found: list[tuple[str, str, list[str]]]) -> None:
    owners = Owners.from_rows(found)
    for code, entity in enumerate(owners.entities):
        naming = [(id_, user) for id_, user, named in found if entity in named]
        assert owners.records_per_entity[code] == len(naming)
        assert owners.users_per_entity[code] == len({user for _, user in naming})
    for code, user in enumerate(owners.users):
        assert owners.records_per_user[code] == sum(u == user for _, u, _ in found)
    slow = [
        sum(u == user and entity in named for _, u, named in found)
        for entity in owners.entities
        for user in owners.users
    ]
    assert sorted(owners.records_per_user_entity) == sorted(filter(None, slow))


@given(rows, st.randoms(use_true_random=False))
def test_subset_is_the_graph_of_those_rows(
    found: list[tuple[str, str, list[str]]], chance: random.Random
) -> None:
    owners = Owners.from_rows(found)
    mask = np.array([chance.random() < 0.5 for _ in found], dtype=np.bool_)
    part = owners.subset(mask)
    wanted = Owners.from_rows([row for row, kept in zip(found, mask, strict=True) if kept])

    def edges(graph: Owners) -> list[tuple[str, str, set[str]]]:
        return [
            (id_, graph.users[u], {graph.entities[e] for e in graph.entities_of(i)})
            for i, (id_, u) in enumerate(zip(graph.record_ids, graph.record_user, strict=True))
        ]

    assert edges(part) == edges(wanted)
    assert set(part.users) == set(wanted.users)
    assert set(part.entities) == set(wanted.entities)


@pytest.mark.parametrize("mask", [np.ones(3, bool), np.ones(4, int), np.ones((4, 1), bool)])
def test_bad_masks(mask: np.ndarray) -> None:
    with pytest.raises(UsageError, match="each of the 4 records"):
        Owners.from_mentions(corpus(), MENTIONS).subset(mask)


def test_arrays_are_read_only() -> None:
    owners = Owners.from_mentions(corpus(), MENTIONS)
    with pytest.raises(ValueError, match="read-only"):
        owners.record_user[0] = 1


@pytest.mark.parametrize("name", ["owners.json", "deep/owners.json.gz"])
def test_save_and_load(tmp_path: Path, name: str) -> None:
    owners = Owners.from_mentions(corpus(), MENTIONS)
    owners.save(tmp_path / name)
    again = Owners.load(tmp_path / name)
    assert again == owners
    assert hash(again) == hash(owners)
    assert again.digest() == owners.digest()
    assert again.record_user.dtype == np.int32
    owners.save(tmp_path / f"again-{Path(name).name}")
    assert (tmp_path / f"again-{Path(name).name}").read_bytes() == (tmp_path / name).read_bytes()


@given(rows)
def test_save_and_load_any_graph(
    tmp_path_factory: pytest.TempPathFactory, found: list[tuple[str, str, list[str]]]
) -> None:
    path = tmp_path_factory.mktemp("owners") / "o.json"
    owners = Owners.from_rows(found)
    owners.save(path)
    assert Owners.load(path) == owners


def test_digest_sees_every_part() -> None:
    base = [("r1", "ann", ["e1", "e2"]), ("r2", "bob", ["e1"])]
    others = [
        [("r9", "ann", ["e1", "e2"]), ("r2", "bob", ["e1"])],
        [("r1", "zoe", ["e1", "e2"]), ("r2", "bob", ["e1"])],
        [("r1", "ann", ["e1", "e3"]), ("r2", "bob", ["e1"])],
        [("r1", "ann", ["e1", "e2"]), ("r2", "bob", ["e2"])],
        [("r1", "ann", ["e1", "e2"]), ("r2", "ann", ["e1"])],
    ]
    graphs = [Owners.from_rows(base, {"e1": "ORG"}), *map(Owners.from_rows, [base, *others])]
    assert len({g.digest() for g in graphs}) == len(graphs)


def _changed(**changes: object) -> dict[str, object]:
    fields: dict[str, object] = {
        "format": "tacit owners",
        "version": 2,
        "digest": Owners.from_rows([("r1", "ann", ["e1", "e2"]), ("r2", "bob", [])]).digest(),
        "users": ["ann", "bob"],
        "entities": ["e1", "e2"],
        "kinds": ["MISC", "MISC"],
        "records": ["r1", "r2"],
        "user_of_record": [0, 1],
        "entities_of_record": [[0, 1], []],
        "origin": {"provenance": UNKNOWN.as_json(), "kinds": None},
    }
    return {k: v for k, v in {**fields, **changes}.items() if v is not ...}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"format": "a novel"}, "is not a file of tacit owners"),
        ({"version": 1}, "has version 1 of tacit owners; this tacit reads"),
        ({"users": ...}, "lacks a field"),
        ({"users": ["ann", 3]}, "lacks a field"),
        ({"users": "ann"}, "lacks a field"),
        ({"users": ["ann", "ann"]}, "two user ids are the same"),
        ({"records": ["r1", "r1"]}, "two record ids"),
        ({"kinds": ["MISC"]}, "1 kinds for 2 entities"),
        ({"user_of_record": [0]}, "1 users of records for 2 records"),
        ({"user_of_record": [0, 2]}, "beyond the 2 users"),
        ({"user_of_record": [0, -1]}, "below 0"),
        ({"user_of_record": [0, 0.5]}, "not a list of whole numbers"),
        ({"user_of_record": [0, [1]]}, "not a list of whole numbers"),
        ({"user_of_record": [0, 2**80]}, "not a list of whole numbers"),
        ({"user_of_record": None}, "not a list of whole numbers"),
        ({"entities_of_record": [[0, 1]]}, "entity lists do not fit"),
        ({"entities_of_record": [[0, 5], []]}, "beyond the 2 entities"),
        ({"entities_of_record": [[1, 0], []]}, "ascending and each once"),
        ({"entities_of_record": [[1, 1], []]}, "ascending and each once"),
        ({"entities_of_record": [0, 1]}, "lacks a field"),
        ({"entities_of_record": [[0], []]}, "changed after it was written"),
        ({"digest": ...}, "changed after it was written"),
        ({"origin": ...}, "lacks a field"),
        ({"origin": {"provenance": {}, "kinds": None}}, "of another version"),
    ],
)
def test_bad_files(tmp_path: Path, changes: dict[str, object], says: str) -> None:
    path = tmp_path / "owners.json"
    path.write_text(json.dumps(_changed(**changes)))
    with pytest.raises(DataError, match=says) as caught:
        Owners.load(path)
    assert str(path) in str(caught.value)


def test_the_unchanged_file_is_good(tmp_path: Path) -> None:
    (tmp_path / "owners.json").write_text(json.dumps(_changed()))
    assert len(Owners.load(tmp_path / "owners.json")) == 2


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{",
        b"\xff\xfe",
        b"\x1f\x8bjunk",
        gzip.compress(b"{}", mtime=0)[:-9],
        b"[" * 100_000,
    ],
)
def test_files_that_are_no_json(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "owners.json"
    path.write_bytes(data)
    with pytest.raises(DataError, match="is not a file of tacit owners"):
        Owners.load(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        Owners.load(tmp_path / "none.json")


def test_describe() -> None:
    facts = describe(Owners.from_mentions(corpus(), MENTIONS), shared=2)
    json.dumps(facts)
    assert facts["records"] == 4
    assert facts["sensitive_records"] == 3
    assert facts["users"] == 3
    assert facts["entities"] == 3
    assert facts["shared_entities"] == 1
    assert facts["kinds"] == {"ORG": 1, "PERSON": 1, "PII/EMAIL": 1}
    assert facts["users_per_entity"]["histogram"] == {"1": 2, "2": 1}
    assert facts["records_per_user_entity"]["max"] == 2
    assert facts["most_shared"][0] == {"entity": "e2", "kind": "PERSON", "users": 2, "records": 3}
    assert len(facts["most_shared"]) == 2


def test_describe_the_empty_graph() -> None:
    facts = describe(Owners.from_rows([]))
    assert facts["records"] == 0
    assert facts["records_per_user"]["histogram"] == {}
    assert most_shared(Owners.from_rows([]), 3) == []


def test_the_part_of_some_kinds_is_the_graph_of_their_mentions() -> None:
    corpus = customersim.generate(60, 3)
    mentions = detect(corpus, "gold").mentions
    whole = Owners.from_mentions(corpus, mentions)
    for kinds in (["PII"], ["PERSON", "PII/EMAIL"], ["DATE"], ["PII/IBAN"]):
        assert whole.of_kinds(kinds) == Owners.from_mentions(corpus, mentions, kinds=kinds)
    assert whole.of_kinds(None) is whole
