"""What several runs cost together."""

from pathlib import Path

import pytest

from tacit.errors import DataError
from tacit.privacy.accounting import price
from tacit.privacy.events import SampledGaussian
from tacit.privacy.ledger import Ledger
from tacit.spending import total

STEP = SampledGaussian(unit="users", rate=0.1, noise_multiplier=2.0)


def run(folder: Path, data: str, steps: int) -> None:
    with Ledger(folder / "ledger.jsonl", {"data": data, "plan": folder.name}) as ledger:
        for _ in range(steps):
            ledger.charge(STEP)


def test_runs_over_the_same_data_add_up(tmp_path: Path) -> None:
    run(tmp_path / "one", "mail", 5)
    run(tmp_path / "two", "mail", 7)
    run(tmp_path / "three", "chat", 3)
    found = total([tmp_path, tmp_path / "one"], 1e-5)
    assert found["data"]["mail"]["releases"] == 12
    assert sorted(found["data"]["mail"]["runs"]) == ["one", "two"]
    expected = price({STEP: 12}, "users", 1e-5).epsilon
    assert found["data"]["mail"]["epsilon"]["users"] == expected
    assert found["data"]["chat"]["releases"] == 3


def test_nothing_to_sum_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No ledger"):
        total([tmp_path], 1e-5)
    with pytest.raises(DataError, match="is not there"):
        total([tmp_path / "none"], 1e-5)
