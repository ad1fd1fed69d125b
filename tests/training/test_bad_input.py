"""What cannot be trained, through the command line: one sentence, an exit code, nothing lost."""

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tacit import cli
from tacit.corpora import customersim
from tacit.corpus.writing import write
from tacit.detection import detect
from tacit.detection.mentions import write_lines
from tacit.errors import DataError, PrivacyRefused
from tacit.owners import Owners
from tacit.planning.dry_run import apply_caps
from tacit.planning.plan import Plan
from tacit.privacy.ledger import read_ledger
from tacit.training.phases.checkpoints import read_place
from tacit.verification.runs import verify

TINY = {"kind": "lstm", "config": {"embedding_size": 8, "hidden_size": 8, "layers": 1}}
USERS = {
    "protect": "users", "user_rate": 0.3, "users": 50, "epsilon": 2, "noise_multiplier": 2.0,
    "steps": 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("data")
    corpus = customersim.generate(60, 3)
    write(corpus, folder / "c.jsonl")
    write_lines(folder / "m.jsonl", detect(corpus, "gold", kinds=["PERSON"]).mentions)
    return {
        "corpus": str(folder / "c.jsonl"),
        "mentions": str(folder / "m.jsonl"),
        "model": TINY,
        "tokenizer": {"size": 400},
        "context": 24,
    }


def labelled(folder: Path, labels: list[str | None]) -> str:
    rows = [
        {"id": str(i), "user": f"u{i}", "text": "a small text", "label": label}
        for i, label in enumerate(labels)
    ]
    path = folder / "labelled.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def not_a_model(folder: Path) -> dict[str, Any]:
    (folder / "nothing").mkdir()
    (folder / "nothing" / "readme.txt").write_text("no model")
    return {"model": {"kind": "folder", "folder": str(folder / "nothing")}}


def empty(folder: Path) -> dict[str, Any]:
    (folder / "empty.jsonl").write_text("")
    return {"corpus": str(folder / "empty.jsonl"), "mentions": None}


def in_use(folder: Path) -> dict[str, Any]:
    (folder / "run").mkdir()
    (folder / "run" / "x").write_text("x")
    return {}


CASES: dict[str, tuple[Any, int, str]] = {
    "an empty corpus": (empty, 3, "at least one record"),
    "a rate that draws nobody": ({"plan": USERS | {"user_rate": 1e-4}}, 2, "nobody"),
    "published, nobody": (
        {"plan": {}, "method": "uedp", "steps": 2, "uedp": {"user_rate": 1e-4}},
        2,
        "nobody",
    ),
    "a target that no noise reaches": (
        {"plan": {"protect": "users", "user_rate": 1.0, "users": 50, "epsilon": 1e-9,
                  "steps": 10**6, "delta": 1e-12}},
        4,
        "epsilon=1e-09",
    ),
    "noise that misses the target": ({"plan": USERS | {"epsilon": 0.01}}, 4, "over the target"),
    "a record longer than the model reads": (
        {"model": {"kind": "gpt2", "config": {"layers": 1, "hidden_size": 8, "heads": 1,
                                              "context": 4}}},
        2,
        "give context=4",
    ),
    "a label missing": (
        lambda folder: {"task": "classification", "mentions": None,
                        "corpus": labelled(folder, ["good", "bad", None])},
        3,
        "record 3, has no label",
    ),
    "a folder that is not a model": (not_a_model, 3, "holds no tokenizer"),
    "a kind that was not found": (
        {"plan": {}, "method": "uedp", "steps": 2, "uedp": {"kinds": ["ORG"]}},
        4,
        "kinds has ORG, but nothing of that kind was found",
    ),
    "frequencies of private text": (
        {"tokenizer": {"kind": "words"}, "model": TINY | {"public_frequencies": True}},
        2,
        "not public text",
    ),
    "a folder in use": (
        in_use,
        2,
        "not empty",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_one_sentence_and_an_exit_code(
    tmp_path: Path, base: dict[str, Any], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    changes, code, said = CASES[name]
    fields = base | {"plan": USERS} | (changes(tmp_path) if callable(changes) else changes)
    run = tmp_path / "run.yml"
    run.write_text(yaml.safe_dump({k: v for k, v in fields.items() if v is not None}))
    before = sorted(p.name for p in tmp_path.iterdir())
    assert cli.run(["train", str(run), "-o", str(tmp_path / "run")]) == code
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
    assert sorted(p.name for p in tmp_path.iterdir()) == before  # no folder is left behind


def test_caps_that_drop_every_sensitive_record_are_refused() -> None:
    rows = [("r0", "ann", ["e1"]), *((f"r{i}", "ann", []) for i in range(1, 9))]
    owners = Owners.from_rows(rows)
    plan: dict[str, Any] = {
        "protect": "users+entities", "epsilon": 8, "steps": 1, "user_rate": 0.5,
        "records_per_user": 1,
    }  # fmt: skip

    def outcome(seed: int) -> str:
        try:
            apply_caps(Plan(**plan, seed=seed), owners)
        except PrivacyRefused as error:
            return str(error)
        return ""

    refused = [said for said in map(outcome, range(12)) if said]
    assert refused
    assert all("drop every record that names an entity" in said for said in refused)


def test_a_long_record_is_cut_and_counted(tmp_path: Path, base: dict[str, Any]) -> None:
    run = tmp_path / "run.yml"
    run.write_text(yaml.safe_dump(base | {"plan": USERS, "context": 4, "seed": 1}))
    assert cli.run(["train", str(run), "-o", str(tmp_path / "run")]) == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert 0 < metrics["training"]["records_cut"] <= metrics["training"]["records"]


@contextmanager
def small_disk(size: int) -> Iterator[None]:
    """Files cannot grow beyond a size, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize(("size", "place"), [(600, "ledger"), (12_000, "checkpoint")])
def test_a_full_disk_loses_nothing(
    tmp_path: Path,
    base: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    size: int,
    place: str,
) -> None:
    """One sentence; with room again, the run goes on and what was charged stays charged."""
    run, folder = tmp_path / "run.yml", tmp_path / "run"
    run.write_text(yaml.safe_dump(base | {"plan": USERS, "seed": 1}))
    with small_disk(size):
        code = cli.run(["train", str(run), "-o", str(folder)])
    said = capsys.readouterr().err
    assert code in (3, 4), said
    assert "Traceback" not in said
    assert place in said
    if place == "ledger":
        assert not (folder / "model.safetensors").exists()
        return
    entries = len(read_ledger(folder / "ledger.jsonl").entries)
    assert entries >= 1
    assert cli.run(["train", "--resume", str(folder)]) == 0
    assert len(read_ledger(folder / "ledger.jsonl").entries) == entries + 3
    assert [c.what for c in verify(folder) if not c.ok] == []


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    import torch

    from tacit.training.phases.checkpoints import Place, save_checkpoint

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    save_checkpoint(tmp_path, model, optimizer, {}, Place("train", 1, 1))
    with small_disk(100), pytest.raises(DataError, match="is the disk full"):
        save_checkpoint(tmp_path, model, optimizer, {}, Place("train", 2, 2))
    place = read_place(tmp_path)
    assert place is not None
    assert place.step == 1
    assert len(list(tmp_path.iterdir())) == 1
