"""Code of other packages on a certificate: assumed in words, and never above its own standing."""

from pathlib import Path
from typing import Any

import pytest

from support.runs import PLAN, scope_for
from tacit.errors import DataError
from tacit.planning.plan import calibrated
from tacit.privacy.certificates.certificate import Certificate, Promise, certify
from tacit.privacy.ledger import Ledger, read_ledger

PLUGIN = {"what": "method toy", "origin": "toys 1.0", "code": "c0de", "standing": "proved"}


def certified(folder: Path, plugins: list[dict[str, Any]]) -> Certificate:
    plan = calibrated(PLAN)
    about = {
        "plan": plan.digest(), "config": "c", "data": "d", "randomness": "system",
        "scope": scope_for(plan).model_dump(mode="json"), "plugins": plugins,
    }  # fmt: skip
    with Ledger(folder / "ledger.jsonl", about) as ledger:
        ledger.charge(plan.event())
    fields = plan.model_dump(mode="json")
    promise = Promise(plan.protect, plan.units, plan.delta, fields)
    return certify(read_ledger(folder / "ledger.jsonl"), promise)


def test_a_plugin_is_assumed_to_do_what_it_declares(tmp_path: Path) -> None:
    made = certified(tmp_path, [PLUGIN])
    assert made.standing == "proved"
    assert any("method toy of the package toys 1.0" in line for line in made.assumptions)


def test_a_run_stands_no_better_than_its_plugin(tmp_path: Path) -> None:
    assert certified(tmp_path, [PLUGIN | {"standing": "heuristic"}]).standing == "heuristic"


def test_a_plugin_in_an_unknown_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="plug-ins"):
        certified(tmp_path, [{"what": "method toy"}])
