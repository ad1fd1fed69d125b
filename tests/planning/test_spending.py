"""What several runs cost together."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from tacit.errors import DataError
from tacit.planning.spending import total
from tacit.privacy.accounting.pricing import price
from tacit.privacy.events import SampledGaussian
from tacit.privacy.ledger import Ledger
from tacit.training.data.account import write_names

STEP = SampledGaussian(unit="users", rate=0.1, noise_multiplier=2.0)


SALT = bytes(32)


def run(
    folder: Path, data: str, steps: int, users: Iterable[str] = (), texts: Iterable[str] = ()
) -> None:
    with Ledger(folder / "ledger.jsonl", {"data": data, "plan": folder.name}) as ledger:
        for _ in range(steps):
            ledger.charge(STEP)
    write_names(folder, users, texts, SALT)


def test_runs_over_the_same_data_add_up(tmp_path: Path) -> None:
    run(tmp_path / "one", "mail", 5)
    run(tmp_path / "two", "mail", 7)
    run(tmp_path / "three", "chat", 3)
    mail, chat = total([tmp_path, tmp_path / "one"], 1e-5)["accounts"]
    mail, chat = (mail, chat) if len(mail["runs"]) == 2 else (chat, mail)
    assert mail["releases"] == 12
    assert sorted(mail["runs"]) == ["one", "two"]
    assert mail["epsilon"]["users"] == price({STEP: 12}, "users", 1e-5).epsilon
    assert chat["releases"] == 3


def test_an_account_follows_people_not_files(tmp_path: Path) -> None:
    """Relabelling one user, or adding a record, makes another corpus of the same people."""
    run(tmp_path / "one", "mail", 5, ["ann", "bob", "eve"], ["a b c"])
    run(tmp_path / "two", "mail with eve renamed", 7, ["ann", "bob", "mallory"], ["a b c"])
    found = total([tmp_path], 1e-5)
    (account,) = found["accounts"]
    assert (account["releases"], account["users"]) == (12, 4)
    assert found["overlaps"] == []


def test_the_same_texts_under_other_names_are_pointed_out(tmp_path: Path) -> None:
    run(tmp_path / "one", "mail", 5, ["ann"], ["hello there", "good bye"])
    run(tmp_path / "two", "renamed", 7, ["u1"], ["hello there", "something else"])
    found = total([tmp_path], 1e-5)
    assert len(found["accounts"]) == 2
    (overlap,) = found["overlaps"]
    assert (overlap["texts"], sorted(overlap["runs"])) == (1, ["one", "two"])
    assert overlap["epsilon"]["users"] == price({STEP: 12}, "users", 1e-5).epsilon


def test_a_run_without_names_is_said_to_be_unknown(tmp_path: Path) -> None:
    run(tmp_path / "one", "mail", 5, ["ann"])
    (tmp_path / "one" / "account.json").unlink()
    assert total([tmp_path], 1e-5)["unknown"] == ["one"]


def test_nothing_to_sum_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No ledger"):
        total([tmp_path], 1e-5)
    with pytest.raises(DataError, match="does not exist"):
        total([tmp_path / "none"], 1e-5)
