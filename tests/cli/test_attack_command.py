"""`tacit canaries`, `tacit attack`, `tacit audit`, `tacit report`, as a person meets them."""

import json
from pathlib import Path

import pytest
from driving import Tacit, contents

RUN = """
corpus: {corpus}
method: plain
steps: 3
batch: 8
context: 32
seed: 1
model: {{kind: lstm, config: {{hidden_size: 16, embedding_size: 16}}}}
tokenizer: {{kind: bpe, size: 300}}
"""


def records(folder: Path) -> Path:
    path = folder / "texts.jsonl"
    rows = [
        {"id": str(i), "user": f"{split}{i % 8}", "text": f"order {i} came late", "split": split}
        for i, split in enumerate(["train"] * 40 + ["test"] * 40)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a planted corpus and a run of three steps on it."""
    from tacit.cli import run

    folder = tmp_path_factory.mktemp("attacked")
    planted = folder / "planted.jsonl"
    plant = ["canaries", "plant", str(records(folder)), "-o", str(planted), "--template", "name"]
    assert run([*plant, "--each", "2", "--held-out", "4", "--repetitions", "1,3"]) == 0
    (folder / "run.yml").write_text(RUN.format(corpus=planted))
    assert run(["train", str(folder / "run.yml"), "-o", str(folder / "run")]) == 0
    return folder


def test_planting_says_what_it_did_and_keeps_the_plan(tacit: Tacit, tmp_path: Path) -> None:
    planted = tmp_path / "p.jsonl"
    done = tacit("canaries plant", records(tmp_path), "-o", planted, "--json")
    assert done.code == 0
    assert done.json["planted"] == 30
    assert done.json["records added"] == 10 * (1 + 5 + 20)
    assert done.json["held out"] == 20
    assert len(planted.read_text().splitlines()) == 80 + 260
    before = contents(tmp_path)
    again = tacit("canaries plant", records(tmp_path), "-o", planted)
    assert again.code == 2
    assert "--overwrite" in again.err
    assert contents(tmp_path) == before


def test_attacks_are_run_shown_and_kept(tacit: Tacit, attacked: Path) -> None:
    done = tacit("attack", attacked / "run", "--using", "exposure,membership")
    assert done.code == 0, done.err
    assert "mean bits" in done.out
    assert "not private" in done.err
    kept = json.loads((attacked / "run" / "attacks.json").read_text())
    assert {"exposure", "membership"} <= set(kept)
    shown = tacit("attack", attacked / "run", "--using", "tab", "--json").json
    assert shown[str(attacked / "run")][0]["attack"] == "tab"
    kept = json.loads((attacked / "run" / "attacks.json").read_text())
    assert {"exposure", "membership", "tab"} <= set(kept)


def test_any_model_folder_is_attacked_with_its_corpus(tacit: Tacit, attacked: Path) -> None:
    bare = attacked / "bare"
    bare.mkdir()
    for file in (attacked / "run").iterdir():
        if file.name not in ("run.yml", "attacks.json") and file.is_file():
            (bare / file.name).write_bytes(file.read_bytes())
    done = tacit("attack", bare, "--corpus", attacked / "planted.jsonl", "--using", "membership")
    assert done.code == 0, done.err
    refused = tacit("attack", bare, "--using", "exposure")
    assert refused.code == 3
    assert "tacit canaries plant" in refused.err


BAD = {
    "no folder": (["nowhere"], 3, "not a folder"),
    "no attack": (["RUN", "--using", "telepathy"], 2, "exposure"),
    "two corpora": (["RUN", "--corpus", "CORPUS"], 2, "its own corpus"),
    "one file for two": (["RUN", "RUN", "-o", "x.json"], 2, "several models"),
    "no reference": (["RUN", "--reference", "nowhere"], 3, "not a folder"),
    "no mentions in it": (["RUN", "--using", "extraction"], 3, "tacit|mentions"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_one_sentence(tacit: Tacit, attacked: Path, name: str) -> None:
    words, code, said = BAD[name]
    known = {"RUN": str(attacked / "run"), "CORPUS": str(attacked / "planted.jsonl")}
    done = tacit("attack", *[known.get(word, word) for word in words])
    assert done.code == code, done.err
    assert any(part in done.err for part in said.split("|"))
    assert "Traceback" not in done.err


def test_a_report_is_written_once(tacit: Tacit, attacked: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    done = tacit("report", attacked / "run", "-o", page)
    assert done.code == 0, done.err
    assert {p.name for p in tmp_path.iterdir()} == {"report.html", "report.md", "report.json"}
    assert tacit("report", attacked / "run", "-o", page).code == 2
    assert tacit("report", attacked / "run", "-o", tmp_path / "x.pdf").code == 2
    assert tacit("report", tmp_path, "-o", tmp_path / "y.html").code == 3


def test_what_promises_nothing_is_not_audited(tacit: Tacit, attacked: Path) -> None:
    done = tacit("audit", attacked / "run")
    assert done.code == 2
    assert "tacit attack" in done.err
    assert tacit("audit", attacked).code == 3


def test_a_private_run_is_audited(tacit: Tacit, attacked: Path) -> None:
    settings = RUN.replace("method: plain\nsteps: 3\nbatch: 8\n", "method: private\n") + (
        "plan: {{protect: users, epsilon: 3, steps: 4, user_rate: 0.5, users: 20}}\n"
    )
    (attacked / "private.yml").write_text(settings.format(corpus=attacked / "planted.jsonl"))
    assert tacit("train", attacked / "private.yml", "-o", attacked / "private").code == 0
    done = tacit("audit", attacked / "private", "--canaries", 512, "--json")
    assert done.code == 0, done.err
    audit = done.json["audits"][0]
    assert audit["unit"] == "users"
    assert audit["lower"] <= audit["upper"] <= 3
    assert (attacked / "private" / "audit.json").exists()
    assert tacit("audit", attacked / "private", "--unit", "tokens").code == 2


def test_methods_are_compared_and_finished_ones_left_alone(
    tacit: Tacit, attacked: Path, tmp_path: Path
) -> None:
    shared = RUN.replace("method: plain\nsteps: 3\n", "")
    (tmp_path / "small.yml").write_text(shared.format(corpus=attacked / "planted.jsonl"))
    (tmp_path / "small-plain.yml").write_text("base: small.yml\nmethod: plain\nsteps: 2\n")
    (tmp_path / "small-users.yml").write_text(
        "base: small.yml\nmethod: private\n"
        "plan: {protect: users, epsilon: 3, steps: 2, user_rate: 0.5, users: 20}\n"
    )
    call = ("compare", tmp_path / "small.yml", "--methods", "plain,users", "-o", tmp_path / "out")
    done = tacit(*call, "--using", "exposure,membership")
    assert done.code == 0, done.err
    page = (tmp_path / "out" / "report.html").read_text()
    assert "What is promised: users" in page
    assert tacit(*call).code == 2
    again = tacit(*call, "--overwrite", "--using", "exposure")
    assert again.code == 0, again.err
    assert again.err.count("not trained again") == 2
    other = tacit(*call, "--overwrite", "--set", "context=16")
    assert other.code == 2
    assert "other settings" in other.err
    missing = tacit("compare", tmp_path / "small.yml", "--methods", "magic", "-o", tmp_path / "x")
    assert missing.code == 3
    assert "plain, users" in missing.err
