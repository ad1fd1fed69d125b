"""Data frames become corpora; corpora become parts to train and to test on."""

from typing import Any

import pytest

from tacit import Corpus
from tacit.corpus.splitting import split_of
from tacit.errors import DataError, UsageError


class Frame(dict[str, list[Any]]):
    """As much of a data frame as is needed."""

    @property
    def columns(self) -> list[str]:
        return list(self)

    def __len__(self) -> int:
        return len(next(iter(self.values())))


MAIL = Frame(From=["ann", "bob", None], Body=["one", "two", "three"], n=[7, 8, 9])


def test_columns_are_named_and_numbers_become_text() -> None:
    corpus = Corpus.from_pandas(MAIL, user="From", text="Body", label="n", name="mail")
    first, _, last = corpus.records()
    assert (first.id, first.user, first.text, first.label) == ("1", "ann", "one", "7")
    assert last.user is None
    assert corpus.name == "mail"


def test_a_real_frame() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"id": ["x", "y"], "text": ["a", "b"], "who": ["u", None]})
    corpus = Corpus.from_pandas(frame[::-1], user="who", id="id")
    assert [(r.id, r.user) for r in corpus.records()] == [("y", None), ("x", "u")]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"user": "Form", "text": "Body"}, "Did you mean 'From'. It has: From, Body, n"),
        ({"text": "Body", "sender": "From"}, "'sender' is no column of a corpus"),
        ({}, "no column 'text' for text. It has: From, Body, n"),
    ],
)
def test_a_column_that_is_not_there_is_named(columns: dict[str, str], said: str) -> None:
    with pytest.raises((DataError, UsageError), match=said):
        Corpus.from_pandas(MAIL, **columns)


def test_values_are_not_quoted() -> None:
    with pytest.raises(DataError, match="mixes types") as raised:
        Corpus.from_pandas(Frame(text=["secret", 3, ["x"]]))
    assert "secret" not in str(raised.value)


def test_ids_that_repeat_are_refused() -> None:
    with pytest.raises(DataError, match="records 1 and 2, share one id"):
        Corpus.from_pandas(Frame(text=["a", "b"], key=["1", "1"]), id="key")


def many(users: int = 40) -> Corpus:
    rows = [{"id": f"{u}-{n}", "user": f"u{u}", "text": "t"} for u in range(users) for n in (1, 2)]
    return Corpus.from_records(rows)


def test_parts_keep_users_together_and_lose_nobody() -> None:
    whole = many()
    train, valid, test = whole.split(test=0.25, valid=0.25, seed=3)
    parts = [set(part.users()) for part in (train, valid, test)]
    assert sum(map(len, parts)) == len(whole.users()) == len(set.union(*parts))
    assert "split" not in train.columns
    for part, name in zip(parts, ("train", "valid", "test"), strict=True):
        assert {split_of(user, 3, valid=0.25, test=0.25) for user in part} == {name}


def test_records_can_be_parted_too() -> None:
    train, test = many().split(by="record", test=0.5)
    assert set(train.users()) & set(test.users())


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"test": 0.0}, "not a split"),
        ({"test": 1.0}, "not a split"),
        ({"by": "label"}, "by=label"),
        ({"test": 1e-9}, "test would be empty"),
    ],
)
def test_what_is_no_split(how: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        many().split(**how)


def test_splits_are_not_split_again() -> None:
    with pytest.raises(UsageError, match="has splits already: train"):
        many().with_splits(["train"] * 80).split()


def test_a_notebook_shows_counts_and_no_text() -> None:
    corpus = Corpus.from_records([{"id": "1", "user": "<ann>", "text": "secret"}], name="<m>")
    shown = corpus._repr_html_()
    assert "secret" not in shown
    assert "<m>" not in shown
    assert "<td>users</td><td>1</td>" in shown
