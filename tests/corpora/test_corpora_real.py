"""The counts of the real releases; runs where TACIT_DATA names a folder that holds them."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tacit import corpora
from tacit.corpus import Corpus


def load(name: str, data_dir: Path) -> Corpus:
    if not (data_dir / name).is_dir():
        pytest.skip(f"TACIT_DATA has no folder {name}")
    return corpora.load(name, data_dir)


# Records and users of each split; None where users are dealt and the number is not a fact.
COUNTS: dict[str, dict[str, tuple[int, int | None]]] = {
    "conll2003": {"train": (14_041, 946), "valid": (3_250, 216), "test": (3_453, 231)},
    "ag_news": {"train": (19_587, None), "test": (7_600, None)},
    "wikitext2": {"train": (2_461, 60), "test": (2_891, 60)},
    "sst2": {"train": (67_349, None), "valid": (872, None)},
    "qnli": {"train": (4_371, None), "test": (1_092, None)},
    "stsb": {"train": (5_749, None), "valid": (1_500, None), "test": (1_379, None)},
    "newsgroups20": {"train": (11_314, 5_754), "test": (7_532, 4_205)},
}


@pytest.mark.parametrize("name", COUNTS)
def test_records_and_users_of_every_split(name, data_dir):
    corpus = load(name, data_dir)
    assert set(corpus.splits()) == set(COUNTS[name])
    for split, (records, users) in COUNTS[name].items():
        part = corpus.only(split)
        assert len(part) == records
        if users is not None:
            assert len(part.users()) == users


def test_conll_tokens(data_dir):
    corpus = load("conll2003", data_dir)
    tokens = {
        split: sum(len(t) for t in corpus.only(split).column("tokens").to_pylist())
        for split in corpus.splits()
    }
    assert tokens == {"train": 203_621, "valid": 51_362, "test": 46_435}
    tags = {tag for row in corpus.column("tags").to_pylist() for tag in row}
    assert tags == {"O"} | {f"{p}-{k}" for p in "BI" for k in ("PER", "LOC", "ORG", "MISC")}


def test_ag_news_classes_and_users(data_dir):
    corpus = load("ag_news", data_dir)
    assert Counter(corpus.only("train").column("label").to_pylist()) == {
        "World": 5_786,
        "Sports": 3_892,
        "Business": 3_970,
        "Sci-Tech": 5_939,
    }
    assert set(Counter(corpus.only("test").column("label").to_pylist()).values()) == {1_900}
    sizes = np.array(list(Counter(corpus.only("train").column("user").to_pylist()).values()))
    assert abs(sizes.mean() - 15) < 0.3
    assert abs(sizes.std() - 2) < 0.3


def test_wikitext_words(data_dir):
    corpus = load("wikitext2", data_dir)
    words = {
        split: sum(len(text.split()) for text in corpus.only(split).column("text").to_pylist())
        for split in corpus.splits()
    }
    assert words == {"train": 213_886, "test": 241_211}


def test_newsgroups_busy_authors(data_dir):
    corpus = load("newsgroups20", data_dir)
    for split, five, ten in (("train", 390, 121), ("test", 262, 59)):
        posts = Counter(corpus.only(split).column("user").to_pylist()).values()
        assert sum(n >= 5 for n in posts) == five
        assert sum(n >= 10 for n in posts) == ten
    assert len(set(corpus.column("label").to_pylist())) == 20


def test_cuad_companies_contracts_and_labels(data_dir):
    corpus = load("cuad", data_dir)
    assert len(corpus.users()) == 459
    assert len({id_.rsplit("-", 1)[0] for id_ in corpus.column("id").to_pylist()}) == 510
    labels = Counter(
        part for label in corpus.column("label").to_pylist() if label for part in label.split("; ")
    )
    assert len(labels) == 38
    assert labels["Governing Law"] > 400
    kinds = Counter(span["kind"] for spans in corpus.column("spans").to_pylist() for span in spans)
    assert set(kinds) == {"ORG", "DATE"}
    # Nearly every contract names its parties.
    with_party = {
        id_.rsplit("-", 1)[0]
        for id_, spans in zip(
            corpus.column("id").to_pylist(), corpus.column("spans").to_pylist(), strict=True
        )
        if spans
    }
    assert len(with_party) > 490
