"""Commands that people will copy must work as written, with the figures that were promised."""

import json
import shutil
from pathlib import Path

import pytest

from support.driving import Tacit
from support.runs import make_run

TOLERANCE = 0.005


def near(value: float) -> object:
    return pytest.approx(value, rel=TOLERANCE)


def test_generate_detect_owners(
    tacit: Tacit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for line in (
        "corpus generate customersim --dialogs 300 --seed 5 -o c.jsonl",
        "detect c.jsonl -o mentions.jsonl",
        "owners c.jsonl --mentions mentions.jsonl --plot degrees.png",
    ):
        assert tacit(line).code == 0, line
    assert len((tmp_path / "c.jsonl").read_text().splitlines()) == 300
    assert (tmp_path / "degrees.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in tmp_path.iterdir()} == {
        "c.jsonl", "mentions.jsonl", "mentions.entities.jsonl", "mentions.summary.json",
        "mentions.html", "degrees.png",
    }  # fmt: skip
    texts = {
        row["id"]: row["text"]
        for row in map(json.loads, (tmp_path / "c.jsonl").read_text().splitlines())
    }
    rows = [json.loads(line) for line in (tmp_path / "mentions.jsonl").read_text().splitlines()]
    for row in rows:
        assert 0 <= row["start"] < row["end"] <= len(texts[row["record"]])
        # Where something stands, never the words.
        assert texts[row["record"]][row["start"] : row["end"]] not in row.values()


CONLL = """-DOCSTART- -X- -X- O

Ann NNP B-NP B-PER
sleeps VBZ B-VP O

Bob NNP B-NP B-PER
too RB B-ADVP O

-DOCSTART- -X- -X- O

Rome NNP B-NP B-LOC
"""


def test_a_known_corpus_by_name(tacit: Tacit, tmp_path: Path) -> None:
    (tmp_path / "conll2003").mkdir()
    for split in ("train", "valid", "test"):
        (tmp_path / "conll2003" / f"{split}.txt").write_text(CONLL)
    found = tacit("corpus", "describe", "conll2003", "--data", tmp_path, "--json")
    assert found.code == 0
    assert (found.json["users"], found.json["records"]) == (2, 3)


def test_the_real_conll2003(tacit: Tacit, data_dir: Path) -> None:
    found = tacit("corpus", "describe", "conll2003", "--data", data_dir, "--json")
    assert (found.json["users"], found.json["records"]) == (946, 14041)


def test_the_price_of_users_and_entities(tacit: Tacit) -> None:
    found = tacit(
        "price --protect users+entities --user-rate 0.05 --users-per-entity 2 --entity-share "
        "0.5 --noise-multiplier 8 --steps 500 --delta 1e-5 --json"
    )
    assert found.code == 0
    assert found.json["epsilon"] == {
        "users": near(0.4986), "entities": near(0.5459), "users+entities": near(1.169),
    }  # fmt: skip
    assert found.json["standing"] == "proved"


def test_the_price_of_flat(tacit: Tacit) -> None:
    found = tacit(
        "price --protect users+entities --flat --record-rate 0.05 --records-per-user 4 "
        "--records-per-entity 1 --noise-multiplier 4 --steps 500 --delta 1e-5 --json"
    )
    assert found.json["epsilon"]["users+entities"] == near(6.761)
    assert set(found.json["epsilon"]) == {"users", "entities", "users+entities"}


def test_the_published_price(tacit: Tacit) -> None:
    found = tacit(
        "price --published uedp --estimator f_E+ --users 946 --users-per-step 50 "
        "--entity-rate 0.5 --sensitive 5187 --records 14040 --noise-multiplier 2 --steps 500 "
        "--delta 1e-5 --json"
    )
    assert found.json["epsilon"] == {"users+entities": near(0.603)}
    assert found.json["standing"] == "published"
    assert found.json["is_bound"] is False
    assert found.json["why_not"]
    assert found.json["counterexample"]["epsilon_at_least"] > 0.603


def test_verify(tacit: Tacit, process: Tacit, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    honest = tacit("verify", run)
    assert honest.code == 0
    assert "Recomputed: everything matches" in honest.out
    assert "Vouched for: by nobody" in honest.out
    for what in ("ledger chain", "plan digest", "file model.safetensors"):
        assert what in honest.out
    checks = tacit("verify", run, "--json").json
    assert checks["ok"]
    assert all(check["ok"] for check in checks["checks"])

    edited = shutil.copytree(run, tmp_path / "edited")
    fields = json.loads((edited / "certificate.json").read_text())
    fields["costs"]["users"]["epsilon"] = 0.1
    (edited / "certificate.json").write_text(json.dumps(fields))
    forged = process("verify", edited)
    assert forged.code == 4
    assert "does not hold" in forged.out
    found = tacit("verify", edited, "--json")
    assert found.code == 4
    assert not found.json["ok"]

    # A forger's file name that looks like markup is shown, not obeyed.
    fields["files"] = {"a[/b].safetensors": "0" * 64}
    (edited / "certificate.json").write_text(json.dumps(fields))
    forged = tacit("verify", edited)
    assert forged.code == 4
    assert "a[/b].safetensors" in forged.out


def test_a_run_with_a_fixed_seed_is_not_for_release(tacit: Tacit, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=2, seeded=True)
    assert "Not for release" in tacit("verify", run).out


def test_spent(tacit: Tacit, tmp_path: Path) -> None:
    for name in ("one", "two"):
        make_run(tmp_path / "runs" / name, steps=3)
    found = tacit("spent", tmp_path / "runs", "--json")
    assert found.code == 0
    # Every run here has a salt of its own, so each counts as other data.
    assert [account["releases"] for account in found.json["accounts"]] == [3, 3]
    shown = tacit("spent", tmp_path / "runs")
    assert shown.out.count("3 releases") == 2
    assert "is not known (no account.json" in shown.out


def test_sign(tacit: Tacit, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=3)
    assert tacit("sign", run).code == 2
    assert tacit("sign", "--new-key", tmp_path / "alice").code == 0
    assert tacit("sign", run, "--key", tmp_path / "alice").code == 0
    vouched = tacit("verify", run, "--signed-by", tmp_path / "alice.pub")
    assert vouched.code == 0
    assert "Vouched for by alice.pub" in vouched.out
    (run / "certificate.md").unlink()
    gone = tacit("verify", run, "--signed-by", tmp_path / "alice.pub")
    assert gone.code == 4
    assert "Not vouched for" in gone.out


def test_the_counterexample(tacit: Tacit) -> None:
    found = tacit("price --counterexample --json")
    assert any(row["contradicts"] for row in found.json["rows"])
