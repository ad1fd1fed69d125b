"""Continuing a run: it is verified first, and all that clings to it clings to what follows."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tacit.corpora import customersim
from tacit.corpus.writing import write
from tacit.errors import PrivacyRefused, TacitError
from tacit.privacy.accounting.pricing import price
from tacit.privacy.certificates.certificate import amend, publish, read_certificate
from tacit.privacy.ledger import Ledger, read_ledger
from tacit.training.phases import session
from tacit.training.settings import Run
from tacit.verification.runs import verify

PLAN = {"protect": "users", "epsilon": 4, "steps": 3, "user_rate": 0.3, "users": 50}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("data")
    write(customersim.generate(60, 3), folder / "c.jsonl")
    return {
        "corpus": str(folder / "c.jsonl"),
        "model": {"kind": "lstm", "config": {"embedding_size": 8, "hidden_size": 8, "layers": 1}},
        "tokenizer": {"size": 400},
        "context": 24,
    }


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, base: dict[str, Any]) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "first"
    session.train(Run(**base, plan=PLAN), folder)
    return folder


def going_on(base: dict[str, Any], folder: Path, **plan: Any) -> Run:
    model = {"kind": "folder", "folder": str(folder), "carry_ledger": True}
    fields = {k: v for k, v in base.items() if k != "tokenizer"}
    return Run(**fields | {"model": model}, plan=PLAN | plan)


def test_the_promise_covers_both(tmp_path: Path, base: dict[str, Any], first: Path) -> None:
    done = session.train(going_on(base, first, epsilon=6), tmp_path / "second")
    assert [c for c in verify(tmp_path / "second") if not c.ok] == []
    books = read_ledger(tmp_path / "second" / "ledger.jsonl")
    assert list(books.phases()) == ["earlier/train", "train"]
    assert len(books.entries) == 6
    assert sum(books.own_releases().values()) == 3
    assert done.certificate.standing == "proved"
    both = price(books.releases(), "users", 1e-5).epsilon
    own = price(books.own_releases(), "users", 1e-5).epsilon
    assert own < both <= 6
    assert done.certificate.epsilon == pytest.approx(both)
    assert done.certificate.earlier is not None
    assert done.certificate.earlier.releases == 3
    assert "Its 3 releases" in (tmp_path / "second" / "certificate.md").read_text()


def test_what_is_spent_already_cannot_be_promised_again(
    tmp_path: Path, base: dict[str, Any], first: Path
) -> None:
    with pytest.raises(TacitError):
        session.train(going_on(base, first, epsilon=2), tmp_path / "second")
    assert not (tmp_path / "second").exists()


def test_nothing_can_be_promised_after_training_without_protection(
    tmp_path: Path, base: dict[str, Any]
) -> None:
    session.train(Run(**base, method="plain", steps=2), tmp_path / "plain")
    with pytest.raises(TacitError, match="users"):
        session.train(going_on(base, tmp_path / "plain"), tmp_path / "second")


def test_an_earlier_run_is_never_passed_over(
    tmp_path: Path, base: dict[str, Any], first: Path
) -> None:
    model = {"kind": "folder", "folder": str(first)}
    fields = {k: v for k, v in base.items() if k != "tokenizer"}
    silent = Run(**fields | {"model": model}, plan=PLAN)
    with pytest.raises(PrivacyRefused, match="carry_ledger=true to continue it"):
        session.train(silent, tmp_path / "second")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (["PII"], ["PERSON", "PII"], "kinds PII only"),
        (["PII"], None, "kinds PII only"),
        (["PERSON", "PII"], ["PII"], None),
        (None, ["PII"], None),
    ],
)
def test_entities_that_were_not_protected_before_are_not_promised_after(
    tmp_path: Path, base: dict[str, Any], before: Any, after: Any, said: str | None
) -> None:
    plan = {"protect": "users+entities", "epsilon": 8, "steps": 1, "user_rate": 0.3}
    fields = base | {"detect": "gold"}
    session.train(Run(**fields, plan=plan | {"kinds": before}), tmp_path / "first")
    second = going_on(fields, tmp_path / "first").model_copy(
        update={"plan": plan | {"kinds": after, "epsilon": 16}}
    )
    if said is None:
        session.train(second, tmp_path / "second")
        assert [c for c in verify(tmp_path / "second") if not c.ok] == []
    else:
        with pytest.raises(PrivacyRefused, match=said):
            session.train(second, tmp_path / "second")


def copy_of(first: Path, to: Path) -> Path:
    shutil.copytree(first, to, ignore=shutil.ignore_patterns("*.lock"))
    return to


def exchange_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes() + b"0")


def drop_an_entry(folder: Path) -> None:
    lines = (folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "ledger.jsonl").write_bytes(b"".join(lines[:2] + lines[3:]))


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "exchanged weights": (exchange_weights, "file model.safetensors"),
    "a dropped entry": (drop_an_entry, "ledger chain"),
    "broken by an audit": (lambda folder: amend(folder, broken=True), "broken"),
    "no certificate": (lambda folder: (folder / "certificate.json").unlink(), "certificate"),
    "another tokenizer": (lambda folder: (folder / "tokenizer.json").write_text("{}"), "tokenizer"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_what_does_not_verify_cannot_be_continued(
    tmp_path: Path, base: dict[str, Any], first: Path, name: str
) -> None:
    spoil, said = SPOILT[name]
    spoilt = copy_of(first, tmp_path / "spoilt")
    spoil(spoilt)
    with pytest.raises(PrivacyRefused, match=f"does not verify.*{said}"):
        session.train(going_on(base, spoilt, epsilon=6), tmp_path / "second")
    assert not (tmp_path / "second").exists()


def test_weights_of_a_run_are_known_without_their_ledger(
    tmp_path: Path, base: dict[str, Any], first: Path
) -> None:
    stripped = copy_of(first, tmp_path / "stripped")
    for name in ("ledger.jsonl", "certificate.json", "run.yml"):
        (stripped / name).unlink()
    model = {"kind": "folder", "folder": str(stripped)}
    fields = {k: v for k, v in base.items() if k != "tokenizer"}
    with pytest.raises(PrivacyRefused, match="ledger does not exist"):
        session.train(Run(**fields | {"model": model}, plan=PLAN), tmp_path / "second")


@pytest.mark.parametrize(
    ("given", "leak"),
    [
        ({"seed": 3}, None),
        ({"tokenizer": {"kind": "words", "size": 300}}, "vocabulary"),
    ],
    ids=["fixed seed", "counted vocabulary"],
)
def test_the_worst_standing_is_inherited_with_its_reason(
    tmp_path: Path, base: dict[str, Any], given: dict[str, Any], leak: str | None
) -> None:
    plan = PLAN | {"steps": 1}
    before = session.train(Run(**base | given, plan=plan), tmp_path / "first").certificate
    assert before.standing == "heuristic"
    second = going_on(base, tmp_path / "first", epsilon=8, steps=1)
    after = session.train(second, tmp_path / "second").certificate
    assert after.standing == "heuristic"
    assert after.sentence.startswith("Nothing is promised")
    assert after.provenance.randomness == "system"
    assert set(before.not_covered) <= set(after.not_covered)
    assert set(before.assumptions) <= set(after.assumptions)
    if leak is not None:
        assert any(leak in point for point in after.not_covered)
    assert [c for c in verify(tmp_path / "second") if not c.ok] == []
    third = going_on(base, tmp_path / "second", epsilon=20, steps=1)
    assert session.train(third, tmp_path / "third").certificate.standing == "heuristic"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"detect": "gold,patterns"}, "detectors differ"),
        ({"plan": {"users_per_entity": 2}}, "users_per_entity differs"),
        ({"plan": {"entity_share": 1.0}}, "entity_share differs"),
    ],
    ids=["detectors", "holders", "share"],
)
def test_only_what_was_protected_in_the_same_way_is_promised(
    tmp_path: Path, base: dict[str, Any], changed: dict[str, Any], said: str
) -> None:
    plan = {"protect": "users+entities", "epsilon": 4, "steps": 1, "user_rate": 0.3}
    fields = base | {"detect": "gold"}
    session.train(Run(**fields, plan=plan), tmp_path / "first")
    own = plan | {"epsilon": 20} | changed.pop("plan", {})
    second = going_on(fields | changed, tmp_path / "first").model_copy(update={"plan": own})
    with pytest.raises(PrivacyRefused, match=said):
        session.train(second, tmp_path / "second")


def test_dropped_earlier_releases_are_found(
    tmp_path: Path, base: dict[str, Any], first: Path
) -> None:
    """A forger who rewrites the whole chain still has to drop what the first line says."""
    folder = tmp_path / "second"
    session.train(going_on(base, first, epsilon=6), folder)
    books = read_ledger(folder / "ledger.jsonl")
    (folder / "ledger.jsonl").unlink()
    with Ledger(folder / "ledger.jsonl", books.about) as ledger:
        for entry in books.entries:
            if entry.phase == "train":
                ledger.charge(entry.event, phase=entry.phase)
    certificate = read_certificate(folder / "certificate.json")
    cheaper = certificate.model_copy(update={"ledger_entries": 3, "phases": {"train": 3}})
    publish(cheaper, folder)
    assert "earlier run" in {c.what for c in verify(folder) if not c.ok}
