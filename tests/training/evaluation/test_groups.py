"""Groups of users: who is in which, and their perplexities against slow truth."""

from pathlib import Path

import numpy as np
import pytest

from tacit.corpus import Corpus
from tacit.errors import DataError, UsageError
from tacit.training.evaluation.groups import (
    FEWEST,
    MOST,
    UNNAMED,
    Groups,
    compare_groups,
    ends_of,
    group_names,
    read_groups,
)


def corpus(counts: list[int], **more: object) -> Corpus:
    return Corpus.from_records(
        {"id": f"{user}-{i}", "user": f"u{user}", "text": "t", **more}
        for user, count in enumerate(counts)
        for i in range(count)
    )


BY_COUNT = {
    "quarters": (
        [1, 2, 3, 4, 5, 6, 7, 8],
        {0: "1 to 2 records", 2: "3 to 4 records", 5: "5 to 6 records", 7: "7 to 8 records"},
    ),
    "all alike": ([3, 3, 3], {0: "3 records", 2: "3 records"}),
    "many small": ([1, 1, 1, 1, 1, 9], {0: "1 record", 5: "2 to 9 records"}),
}


@pytest.mark.parametrize("name", BY_COUNT)
def test_users_are_cut_into_quarters_by_what_they_wrote(name: str) -> None:
    counts, wanted = BY_COUNT[name]
    whole = corpus(counts)
    found = dict(zip(whole.column("user").to_pylist(), group_names(whole, whole, "records"),
                     strict=True))  # fmt: skip
    for user, group in wanted.items():
        assert found[f"u{user}"].strip() == group


def test_labels_and_files_name_groups(tmp_path: Path) -> None:
    whole = corpus([1, 1, 1], label="x")
    assert group_names(whole, whole, "label") == ["x"] * 3
    file = tmp_path / "dialects.csv"
    file.write_text("user,group\nu0,north\nu2,south\n")
    assert group_names(whole, whole, str(file)) == ["north", UNNAMED, "south"]


def bad_columns(folder: Path) -> str:
    (folder / "x.csv").write_text("name,kind\na,b\n")
    return str(folder / "x.csv")


BAD = {
    "unknown": (lambda _: "colour", UsageError, "records, label"),
    "no labels": (lambda _: "label", DataError, "labels"),
    "no file": (lambda folder: str(folder / "no.csv"), DataError, "does not exist"),
    "columns": (bad_columns, DataError, "user and group"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_names_no_groups_gets_one_sentence(name: str, tmp_path: Path) -> None:
    make, error, said = BAD[name]
    whole = corpus([1, 2])
    with pytest.raises(error, match=said):
        group_names(whole, whole, make(tmp_path))


def test_perplexities_are_those_of_all_tokens_together(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    names = rng.choice(["a", "b"], 60).tolist()
    users = [f"{name}{i % 7}" for i, name in enumerate(names)]
    tokens = rng.integers(1, 9, 60)
    losses = rng.gamma(2.0, 1.0, 60) * tokens
    found = compare_groups(names, users, losses, tokens, rng=np.random.default_rng(1))
    for group in found:
        rows = [i for i, name in enumerate(names) if name == group.name]
        assert group.perplexity == pytest.approx(np.exp(losses[rows].sum() / tokens[rows].sum()))
        assert group.users == len({users[i] for i in rows})
        assert group.records == len(rows)
        assert group.low is not None
        assert group.high is not None
        assert group.low < group.perplexity < group.high
    made = Groups("records", "test", found)
    values = [group.perplexity for group in found]
    assert made.gap == pytest.approx(max(values) / min(values))
    made.write(tmp_path / "groups.json")
    assert read_groups(tmp_path / "groups.json") == made


def test_groups_of_a_model_that_ran_away_can_be_kept(tmp_path: Path) -> None:
    """No interval is NaN, and the file is read again: a report shows such a model, too."""
    losses, tokens = np.array([1e5, 2e5, 3.0]), np.array([10, 10, 10])
    found = compare_groups(["a"] * 3, ["u", "v", "w"], losses, tokens, rng=np.random.default_rng(0))
    Groups("records", "test", found).write(tmp_path / "groups.json")
    (group,) = read_groups(tmp_path / "groups.json").groups
    assert group.low is not None
    assert group.high is not None
    assert 1 < group.low <= group.perplexity <= group.high < np.inf
    assert group.perplexity > 1e290


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """Users differ, records of one user do not: the interval must know."""
    rng, held = np.random.default_rng(0), 0
    for _ in range(200):
        own = rng.normal(2.0, 0.3, 40)
        users = [f"u{i}" for i in range(40) for _ in range(5)]
        losses = np.repeat(own, 5)
        (group,) = compare_groups(["g"] * 200, users, losses, np.ones(200, dtype=int), rng=rng)
        held += bool(group.low <= np.exp(2.0) <= group.high)
    assert held / 200 > 0.88


def test_the_ends_are_means_over_five_users_and_name_nobody(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    wrote = {f"u{n:02d}": 3 * n for n in range(14)}
    users = [user for user in wrote for _ in range(2)]
    losses, tokens = rng.random(len(users)) * 30, rng.integers(1, 9, len(users))
    tokens[:2] = 0  # who has no words has no perplexity
    found = ends_of(wrote, users, losses, tokens, "test")
    assert found is not None
    of = {
        user: np.exp(sum(losses[rows]) / sum(tokens[rows]))
        for user in list(wrote)[1:]
        for rows in [[i for i, own in enumerate(users) if own == user]]
    }
    for group, own in zip(found.groups, (list(of)[-5:], list(of)[:5]), strict=True):
        assert group.perplexity == pytest.approx(np.mean([of[user] for user in own]))
        assert (group.users, group.records) == (5, 10)
    assert [group.name for group in found.groups] == [MOST, FEWEST]
    found.write(tmp_path / "ends.json")
    assert read_groups(tmp_path / "ends.json") == found
    assert not any(user in (tmp_path / "ends.json").read_text() for user in wrote)
    assert ends_of(wrote, users[:18], losses[:18], tokens[:18], "test") is None
