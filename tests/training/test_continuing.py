"""Going on from an earlier run: its releases stay in the ledger, and the promise covers both."""

from pathlib import Path
from typing import Any

import pytest

from tacit.corpora import customersim
from tacit.errors import PrivacyRefused, TacitError
from tacit.privacy.accounting import price
from tacit.privacy.ledger import read_ledger
from tacit.training import runs
from tacit.training.settings import Run
from tacit.verifying import verify
from tacit.writing import write

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
    runs.train(Run(**base, plan=PLAN), folder)
    return folder


def going_on(base: dict[str, Any], folder: Path, **plan: Any) -> Run:
    model = {"kind": "folder", "folder": str(folder), "carry_ledger": True}
    fields = {k: v for k, v in base.items() if k != "tokenizer"}
    return Run(**fields | {"model": model}, plan=PLAN | plan)


def test_the_promise_covers_both(tmp_path: Path, base: dict[str, Any], first: Path) -> None:
    done = runs.train(going_on(base, first, epsilon=6), tmp_path / "second")
    assert [c for c in verify(tmp_path / "second") if not c.ok] == []
    books = read_ledger(tmp_path / "second" / "ledger.jsonl")
    assert books.phases() == ["earlier/train", "train"]
    assert len(books.entries) == 6
    assert sum(books.own_releases().values()) == 3
    assert done.certificate.standing == "proved"
    both = price(books.releases(), "users", 1e-5).epsilon
    own = price(books.own_releases(), "users", 1e-5).epsilon
    assert own < both <= 6
    assert done.certificate.epsilon == pytest.approx(both)
    assert "3 releases" in done.certificate.context["goes on from"]


def test_what_is_spent_already_cannot_be_promised_again(
    tmp_path: Path, base: dict[str, Any], first: Path
) -> None:
    with pytest.raises(TacitError):
        runs.train(going_on(base, first, epsilon=2), tmp_path / "second")
    assert not (tmp_path / "second").exists()


def test_nothing_can_be_promised_after_training_without_protection(
    tmp_path: Path, base: dict[str, Any]
) -> None:
    runs.train(Run(**base, method="plain", steps=2), tmp_path / "plain")
    with pytest.raises(TacitError, match="users"):
        runs.train(going_on(base, tmp_path / "plain"), tmp_path / "second")


def test_an_earlier_run_is_never_passed_over(
    tmp_path: Path, base: dict[str, Any], first: Path
) -> None:
    run = going_on(base, first)
    silent = run.model_copy(update={"model": run.model.model_copy(update={"carry_ledger": None})})
    with pytest.raises(PrivacyRefused, match=r"carry_ledger=true.*=false"):
        runs.train(silent, tmp_path / "second")
    public = run.model_copy(update={"model": run.model.model_copy(update={"carry_ledger": False})})
    done = runs.train(public, tmp_path / "third")
    assert "said to be public" in done.certificate.context["goes on from"]
    assert [c for c in verify(tmp_path / "third") if not c.ok] == []


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
    fields = base | {"detect": "given"}
    runs.train(Run(**fields, plan=plan | {"kinds": before}), tmp_path / "first")
    second = going_on(fields, tmp_path / "first").model_copy(
        update={"plan": plan | {"kinds": after, "epsilon": 16}}
    )
    if said is None:
        runs.train(second, tmp_path / "second")
        assert [c for c in verify(tmp_path / "second") if not c.ok] == []
    else:
        with pytest.raises(PrivacyRefused, match=said):
            runs.train(second, tmp_path / "second")
