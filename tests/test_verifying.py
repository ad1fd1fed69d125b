"""A certificate holds, or the check says what does not match: every forgery we could think of."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tacit.plan import Plan, calibrated, plan_yaml
from tacit.privacy.certificate import (
    commitment,
    file_digest,
    issue,
    new_salt,
    read_certificate,
    render,
    write_certificate,
)
from tacit.privacy.events import SampledGaussian
from tacit.privacy.ledger import Ledger, read_ledger
from tacit.verifying import verify

PLAN = Plan(protect="users", epsilon=3, steps=20, user_rate=0.1, users=500)
BOTH = Plan(protect="users+entities", epsilon=4, targets={"users": 3}, steps=10, user_rate=0.1)
BY_DEGREE = Plan(
    protect="entities", epsilon=6, steps=10, user_rate=0.1, users=500,
    adjacency="by-degree", entity_share=2, users_per_entity=3,
)  # fmt: skip
TOKENS = Plan(protect="tokens", epsilon=5, steps=10, record_rate=0.05)


def make_run(
    folder: Path, plan: Plan = PLAN, *, steps: int | None = None, seeded: bool = False
) -> Path:
    """A run as training will leave it: plan, ledger, a file of weights, certificate."""
    folder.mkdir(parents=True)
    plan = calibrated(plan)
    data = commitment("digest of the corpus", new_salt())
    randomness = "fixed seed" if seeded else "system"
    about = {"plan": plan.digest(), "config": "c", "data": data, "randomness": randomness}
    with Ledger(folder / "ledger.jsonl", about) as ledger:
        for event, count in plan.releases().items():
            for _ in range(count if steps is None or count == 1 else steps):
                ledger.charge(event)
    (folder / "plan.yml").write_text(plan_yaml(plan))
    (folder / "model.safetensors").write_bytes(b"weights")
    units = (
        (plan.protect,)
        if plan.protect in ("users", "tokens")
        else ("users", "entities", "users+entities")
    )
    certificate = issue(
        read_ledger(folder / "ledger.jsonl"),
        protect=plan.protect,
        units=units,  # type: ignore[arg-type]
        delta=plan.delta,
        plan=plan.model_dump(mode="json"),
        plan_digest=plan.digest(),
        config_digest="c",
        data=data,
        randomness=randomness,  # type: ignore[arg-type]
        by_degree=plan.by_degree,
        context={"detectors": ["patterns"], "recall": 0.93},
        weights={"model.safetensors": file_digest(folder / "model.safetensors")},
    )
    write_certificate(certificate, folder)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "one")


def broken(run: Path) -> set[str]:
    return {check.what for check in verify(run) if not check.ok}


@pytest.mark.parametrize("plan", [PLAN, BOTH, BY_DEGREE, TOKENS], ids=lambda p: p.protect)
def test_an_honest_run_holds(tmp_path: Path, plan: Plan) -> None:
    run = make_run(tmp_path / "run", plan)
    assert broken(run) == set()
    certificate = read_certificate(run / "certificate.json")
    assert certificate.standing == "proved"
    assert certificate.epsilon <= plan.epsilon
    for forbidden in ("never been in the data", "hides whether"):
        assert forbidden not in render(certificate)


def test_a_stopped_run_holds_and_costs_less(tmp_path: Path, run: Path) -> None:
    half = make_run(tmp_path / "half", steps=7)
    assert broken(half) == set()
    full, part = (read_certificate(r / "certificate.json") for r in (run, half))
    assert part.epsilon < full.epsilon
    assert part.ledger_entries == 7


def test_the_sentence_says_what_is_not_protected(tmp_path: Path) -> None:
    both = read_certificate(make_run(tmp_path / "run", BOTH) / "certificate.json")
    assert "contributed nothing to any training step" in both.sentence
    assert "That table is not protected" in both.sentence
    assert set(both.costs) == {"users", "entities", "users+entities"}
    degree = read_certificate(make_run(tmp_path / "deg", BY_DEGREE) / "certificate.json")
    assert "if at most 3 users name that entity" in degree.sentence
    assert "table" not in degree.sentence


def test_a_fixed_seed_is_marked(tmp_path: Path) -> None:
    seeded = make_run(tmp_path / "run", steps=2, seeded=True)
    assert broken(seeded) == set()
    assert "Not for release" in (seeded / "certificate.md").read_text()


def copy(run: Path, to: Path) -> Path:
    to.mkdir()
    for file in run.iterdir():
        if file.suffix != ".lock":
            (to / file.name).write_bytes(file.read_bytes())
    return to


def edit(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    file = run / "certificate.json"
    fields = json.loads(file.read_text())
    change(fields)
    file.write_text(json.dumps(fields))


FORGERIES: dict[str, Callable[[dict[str, Any]], None]] = {
    "smaller epsilon": lambda c: c["costs"]["users"].update(epsilon=0.1),
    "larger epsilon": lambda c: c["costs"]["users"].update(epsilon=9.0),
    "other lower bound": lambda c: c["costs"]["users"].update(no_less_than=0.0),
    "other opinion": lambda c: c["costs"]["users"]["opinions"].update(rdp=0.1),
    "smaller gain": lambda c: c["costs"]["users"]["true_positive_rate"].update({"0.01": 0.01}),
    "other accountant": lambda c: c["costs"]["users"].update(accountant="oracle"),
    "other neighbours": lambda c: c["costs"]["users"].update(adjacency="replace"),
    "another unit": lambda c: c["costs"].update({"entities": c["costs"]["users"]}),
    "protects more": lambda c: c.update(protect="records"),
    "other delta": lambda c: c.update(delta=1e-9),
    "standing": lambda c: c.update(standing="published"),
    "sentence": lambda c: c.update(sentence="As if nobody had ever been in the data."),
    "assumptions": lambda c: c.update(assumptions=[]),
    "nothing uncovered": lambda c: c.update(not_covered=[]),
    "other plan": lambda c: c["plan"].update(steps=1),
    "looser plan": lambda c: c["plan"].update(epsilon=30.0),
    "plan with more noise": lambda c: c["plan"].update(noise_multiplier=99.0),
    "other plan digest": lambda c: c.update(plan_digest="0" * 64),
    "other ledger digest": lambda c: c.update(ledger_digest="0" * 64),
    "fewer entries": lambda c: c.update(ledger_entries=3),
    "other phases": lambda c: c.update(phases={"train": 3}),
    "other data": lambda c: c["provenance"].update(data="hmac-sha256:00"),
    "other settings": lambda c: c["provenance"].update(config="d"),
    "seed hidden": lambda c: c["provenance"].update(randomness="fixed seed"),
    "other weights": lambda c: c["weights"].update({"model.safetensors": "0" * 64}),
    "weights elsewhere": lambda c: c["weights"].update({"../secret": "0" * 64}),
    "context": lambda c: c["context"].update(recall=1.0),
    "unknown field": lambda c: c.update(extra=1),
    "missing field": lambda c: c.pop("costs"),
    "wrong type": lambda c: c.update(costs=5),
    "no costs": lambda c: c.update(costs={}),
    "format": lambda c: c.update(format=2),
    "huge number": lambda c: c["costs"]["users"].update(epsilon=10**400),
    "text for number": lambda c: c["costs"]["users"].update(epsilon="0.1"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_every_edit_of_the_certificate_is_found(run: Path, tmp_path: Path, name: str) -> None:
    forged = copy(run, tmp_path / "forged")
    edit(forged, FORGERIES[name])
    assert broken(forged) != set()


def test_files_that_changed_are_found(run: Path, tmp_path: Path) -> None:
    def forged(name: str) -> Path:
        return copy(run, tmp_path / name)

    one = forged("weights")
    (one / "model.safetensors").write_bytes(b"other weights")
    assert broken(one) == {"file model.safetensors"}
    (one / "model.safetensors").unlink()
    assert broken(one) == {"file model.safetensors"}

    two = forged("markdown")
    (two / "certificate.md").write_text("epsilon 0")
    assert broken(two) == {"certificate.md"}

    three = forged("plan")
    (three / "plan.yml").write_text((three / "plan.yml").read_text().replace("20", "21"))
    assert broken(three) == {"plan.yml"}
    (three / "plan.yml").write_text("not: a plan")
    assert broken(three) == {"plan.yml"}


def test_a_ledger_that_changed_is_found(run: Path, tmp_path: Path) -> None:
    lines = (run / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    for name, content in {
        "shorter": lines[:-1],
        "torn": [*lines, b'{"entry": 21'],
        "middle": [*lines[:5], *lines[6:]],
        "swapped": [*lines[:5], lines[6], lines[5], *lines[7:]],
        "empty": [],
    }.items():
        forged = copy(run, tmp_path / name)
        (forged / "ledger.jsonl").write_bytes(b"".join(content))
        assert broken(forged) != set(), name
    gone = copy(run, tmp_path / "gone")
    (gone / "ledger.jsonl").unlink()
    assert broken(gone) == {"ledger chain"}
    (gone / "certificate.json").unlink()
    assert broken(gone) == {"ledger chain", "certificate"}


def test_releases_other_than_planned_are_found(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    books = read_ledger(run / "ledger.jsonl")
    with Ledger(run / "ledger.jsonl", books.about) as ledger:
        ledger.charge(SampledGaussian(unit="users", rate=0.1, noise_multiplier=50.0))
    assert {"ledger digest", "executed as planned", "number of releases"} <= broken(run)


def test_a_commitment_says_nothing_without_its_salt() -> None:
    first, second = (commitment("same digest", new_salt()) for _ in range(2))
    assert first != second
    assert "same digest" not in first
