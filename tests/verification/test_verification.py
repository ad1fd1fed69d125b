"""A certificate holds, or the check says what does not match: every forgery we could think of."""

import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from support.runs import BOTH, BY_DEGREE, PLAN, TOKENS, make_run
from tacit.errors import TacitError
from tacit.planning.plan import Plan
from tacit.privacy.accounting import pricing
from tacit.privacy.certificates.certificate import (
    Certificate,
    Finding,
    Promise,
    amend,
    certify,
    commitment,
    new_salt,
    publish,
    read_certificate,
)
from tacit.privacy.certificates.explanation import certificate_markdown
from tacit.privacy.certificates.scope import Inherited
from tacit.privacy.events import SampledGaussian
from tacit.privacy.ledger import Ledger, events_digest, read_ledger
from tacit.verification.runs import verify


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
        assert forbidden not in certificate_markdown(certificate)


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


def edit_and_bind(run: Path, change: Callable[[dict[str, Any]], None]) -> bool:
    """As a forger who knows how it works: the ledger's last line binds the forged certificate."""
    fields = json.loads((run / "certificate.json").read_text())
    change(fields)
    try:
        publish(Certificate.model_validate_json(json.dumps(fields), strict=True), run)
    except (ValueError, TacitError, OSError, OverflowError):
        return False
    return True


def _older(c: dict[str, Any]) -> None:
    c["provenance"]["tacit"] = "0.0.1"
    c["provenance"]["accounting"] = "0" * 64


def _older_and_better(c: dict[str, Any]) -> None:
    _older(c)
    c["costs"]["users"]["true_positive_rate"] = {"0.01": 0.01, "0.001": 0.001}


def _older_with_an_oracle(c: dict[str, Any]) -> None:
    _older(c)
    c["costs"]["users"]["opinions"] = {"oracle": 0.001}


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
    "other weights": lambda c: c["files"].update({"model.safetensors": "0" * 64}),
    "weights elsewhere": lambda c: c["files"].update({"../secret": "0" * 64}),
    "context": lambda c: c["context"].update(recall=1.0),
    "no weights": lambda c: c.update(files={}),
    "weights by a loop": lambda c: c["files"].update({"a\0b": "0" * 64, "x" * 5000: "0" * 64}),
    "no plan": lambda c: c.update(plan={}, plan_digest=""),
    "a plan with self": lambda c: c["plan"].update(self=1),
    "a plan without noise": lambda c: c["plan"].update(noise_multiplier=None),
    "lines in the context": lambda c: c["context"].update(note="a\n# Privacy certificate"),
    "older and better": _older_and_better,
    "older with an oracle": _older_with_an_oracle,
    "unknown field": lambda c: c.update(extra=1),
    "missing field": lambda c: c.pop("costs"),
    "wrong type": lambda c: c.update(costs=5),
    "no costs": lambda c: c.update(costs={}),
    "format": lambda c: c.update(format=1),
    "accuracy": lambda c: c["costs"]["users"].update(accuracy=0.5),
    "other users": lambda c: c["scope"].update(users="nobody"),
    "entities besides": lambda c: c["scope"].update(entities={"kinds": None}),
    "public": lambda c: c.update(public=[{"what": "base", "name": "x"}]),
    "made by": lambda c: c["provenance"].update(tacit="9.9"),
    "made on": lambda c: c["provenance"].update(created="2001-01-01"),
    "findings": lambda c: c.update(
        findings=[{"kind": "audit", "outcome": "Consistent.", "date": "2026-01-01"}]
    ),
    "huge number": lambda c: c["costs"]["users"].update(epsilon=10**400),
    "text for number": lambda c: c["costs"]["users"].update(epsilon="0.1"),
}


def test_a_run_of_a_version_whose_plans_had_fewer_fields_is_told_so(
    run: Path, tmp_path: Path
) -> None:
    older = copy(run, tmp_path / "older")
    edit(older, lambda c: c.update(plan_digest="0" * 64))
    edit(older, lambda c: c["plan"].pop("precondition"))
    said = {check.what: check for check in verify(older)}["plan digest"]
    assert not said.ok
    assert said.detail.startswith(f"tacit {version('tacit')} wrote this run, whose plans had no ")
    assert said.detail.endswith("no precondition: only that version can verify it")
    edit(older, lambda c: c["plan"].update(precondition=False))
    assert {check.what: check for check in verify(older)}["plan digest"].detail == "differs"


@pytest.mark.parametrize("name", FORGERIES)
def test_every_edit_of_the_certificate_is_found(run: Path, tmp_path: Path, name: str) -> None:
    forged = copy(run, tmp_path / "forged")
    edit(forged, FORGERIES[name])
    assert broken(forged) != set()


STATED = {"context", "made by", "made on", "findings", "other ledger digest"}
"""What no ledger shows: it is bound, and vouched for by whoever signs."""


@pytest.mark.parametrize("name", sorted(FORGERIES.keys() - STATED))
def test_no_figure_or_sentence_survives_that_does_not_follow(
    run: Path, tmp_path: Path, name: str
) -> None:
    forged = copy(run, tmp_path / "forged")
    if edit_and_bind(forged, FORGERIES[name]):
        assert broken(forged) - {"ledger's last line", "ledger digest"} != set()


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
    assert broken(three) == {"plan.yml", "file plan.yml"}
    (three / "plan.yml").write_text("not: a plan")
    assert broken(three) == {"plan.yml", "file plan.yml"}


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
    contents = read_ledger(run / "ledger.jsonl")
    with Ledger(run / "ledger.jsonl", contents.about) as ledger:
        ledger.charge(SampledGaussian(unit="users", rate=0.1, noise_multiplier=50.0))
    assert {"ledger digest", "executed as planned", "number of releases"} <= broken(run)


def test_a_commitment_says_nothing_without_its_salt() -> None:
    first, second = (commitment("same digest", new_salt()) for _ in range(2))
    assert first != second
    assert "same digest" not in first


def test_other_code_may_certify_more_but_not_less(run: Path, tmp_path: Path) -> None:
    older = copy(run, tmp_path / "older")
    assert edit_and_bind(older, _older)
    assert broken(older) == set()


def test_a_thing_said_twice_is_refused(run: Path, tmp_path: Path) -> None:
    twice = copy(run, tmp_path / "twice")
    text = (twice / "certificate.json").read_text()
    (twice / "certificate.json").write_text('{"sentence": "As if nobody.",' + text[1:])
    assert broken(twice) == {"certificate"}


@pytest.mark.parametrize(
    "name",
    ["better.safetensors", "model.pth", "model.onnx", "vocab.txt", "modeling_x.py", "x/y.pt"],
)
def test_files_that_nobody_certified_are_found(run: Path, tmp_path: Path, name: str) -> None:
    more = copy(run, tmp_path / "more")
    (more / name).parent.mkdir(exist_ok=True)
    (more / name).write_bytes(b"other weights")
    assert broken(more) == {"not covered"}


def test_files_that_stay_inside_are_named(run: Path, tmp_path: Path) -> None:
    more = copy(run, tmp_path / "more")
    (more / "metrics.json").write_text("{}")
    (more / "loss.png").write_bytes(b"")
    said = {check.what: check.detail for check in verify(more)}
    assert broken(more) == set()
    assert "metrics.json" in said["not covered"]


def test_weights_behind_a_link_are_not_the_certified_ones(run: Path, tmp_path: Path) -> None:
    link = copy(run, tmp_path / "link")
    (link / "model.safetensors").rename(tmp_path / "else")
    (link / "model.safetensors").symlink_to(tmp_path / "else")
    assert broken(link) == {"file model.safetensors"}


def test_what_is_found_out_later_is_bound_too(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", steps=3)
    found = Finding(kind="audit", outcome="Consistent: at least 0.5.", date="2026-01-02")
    amend(folder, finding=found)
    assert broken(folder) == set()
    assert "2026-01-02, audit: Consistent" in (folder / "certificate.md").read_text()
    edit(folder, lambda c: c.update(findings=[]))
    assert "ledger's last line" in broken(folder)


def test_a_broken_certificate_says_so_whatever_lies_beside(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", steps=3)
    amend(folder, broken=True)
    assert {"audit", "standing"} <= broken(folder)
    assert "Broken" in (folder / "certificate.html").read_text()


def test_public_releases_alone_certify_nothing(tmp_path: Path) -> None:
    """A run whose ledger says that all was public shows no private step, and does not pass."""
    folder = make_run(tmp_path / "run", PLAN, steps=0)
    assert "executed as planned" in broken(folder)


def test_folders_in_place_of_files_are_mismatches(run: Path, tmp_path: Path) -> None:
    for name in ("certificate.json", "certificate.md", "ledger.jsonl"):
        odd = copy(run, tmp_path / name)
        (odd / name).unlink()
        (odd / name).mkdir()
        assert broken(odd) != set()


def test_the_cache_is_never_asked_for_a_certificate(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache file is not signed: whoever writes one must not be able to lower a figure."""

    def asked(*_: object) -> None:
        raise AssertionError("the cache was asked")

    monkeypatch.setattr(pricing, "recall", asked)
    assert broken(run) == set()
    read_ledger(run / "ledger.jsonl")


@pytest.mark.parametrize("before", ["published", "heuristic", "proved"])
def test_a_continued_run_is_no_better_than_the_first(tmp_path: Path, before: Any) -> None:
    event = SampledGaussian(unit="users", rate=0.1, noise_multiplier=5.0)
    earlier = Inherited(
        certificate="c", ledger="l", releases=1, events=events_digest([("train", event)]),
        standing=before, randomness="system", leaks=(), assumptions=("It rained.",),
        not_covered=("What was left open.",),
    )  # fmt: skip
    about: dict[str, Any] = {"config": "c", "data": "d", "randomness": "system"}
    about |= {"earlier": earlier.model_dump(mode="json")}
    with Ledger(tmp_path / "ledger.jsonl", about) as ledger:
        ledger.charge(event, phase="earlier/train")
        ledger.charge(event)
    promise = Promise("users", ("users",), 1e-5, PLAN.model_dump(mode="json"))
    made = certify(read_ledger(tmp_path / "ledger.jsonl"), promise)
    assert made.standing == before
    assert "It rained." in made.assumptions
    assert "What was left open." in made.not_covered
