"""`tacit canaries`, `tacit attack`, `tacit audit`, `tacit report`, as a person meets them."""

import json
import math
import shutil
from pathlib import Path

import pytest

from support.driving import Tacit, contents
from support.forking import run_python
from tacit.attacks.attack import read_scores, read_series
from tacit.attacks.running import at_step, steps_of
from tacit.attacks.target import open_target
from tacit.privacy.ledger import read_ledger
from tacit.training.dp.random_source import RandomSource

RUN = """
corpus: {corpus}
method: plain
steps: 3
batch: 8
context: 32
seed: 1
keep_checkpoints: 1
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


UNKNOWN = """
corpus: {corpus}
method: plain
steps: 2
batch: 8
context: 32
seed: 1
model: {{kind: lstm, config: {{hidden_size: 16, embedding_size: 16}}}}
tokenizer: {{kind: words, size: 2000, punctuation: true, public_text: generated}}
"""


def test_canaries_of_unknown_words_are_refused_before_training(
    tacit: Tacit, tmp_path: Path
) -> None:
    """The tokenizer of a shipped preset; `compare` ended in a TypeError after all was trained."""
    planted, settings = tmp_path / "p.jsonl", tmp_path / "small.yml"
    assert tacit("canaries plant", records(tmp_path), "-o", planted).code == 0
    settings.write_text(UNKNOWN.format(corpus=planted))
    (tmp_path / "small-plain.yml").write_text("base: small.yml\n")
    call = ("compare", settings, "--methods", "plain", "-o", tmp_path / "out")
    for using in ((), ("--using", "tab,membership")):
        refused = tacit(*call, *using)
        assert refused.code == 3
        assert "tacit canaries plant --for RUN.yml" in refused.err
        assert not (tmp_path / "out").exists()
    assert tacit(*call, "--using", "membership").code == 0
    run = tmp_path / "out" / "plain"
    for using in ((), ("--using", "exposure")):
        refused = tacit("attack", run, *using)
        assert refused.code == 3
        assert "cannot tell them apart" in refused.err
    assert set(json.loads((run / "attacks.json").read_text())) == {
        "format", "version", "membership",
    }  # fmt: skip


def test_a_shipped_tokenizer_and_canaries_of_words_make_a_report(
    tacit: Tacit, tmp_path: Path
) -> None:
    planted, settings = tmp_path / "p.jsonl", tmp_path / "small.yml"
    plant = ("canaries plant", records(tmp_path), "--each", 2, "--template", "words")
    assert tacit(*plant, "-o", planted).code == 0
    settings.write_text(UNKNOWN.format(corpus=planted))
    (tmp_path / "small-plain.yml").write_text("base: small.yml\n")
    call = ("compare", settings, "--methods", "plain", "-o", tmp_path / "out")
    done = tacit(*call, "--using", "exposure,tab,secrets,membership")
    assert done.code == 0, done.err
    for name in ("report.json", "plain/attacks.json", "plain/metrics.json"):
        text = (tmp_path / "out" / name).read_text()
        assert "Infinity" not in text
        assert "NaN" not in text
    scores = {s.attack: s for s in read_scores(tmp_path / "out" / "plain" / "attacks.json")}
    low, high = scores["exposure"].intervals["control_bits"]
    assert low <= scores["exposure"].figures["chance_bits"] <= high
    assert scores["tab"].figures["controls_reproduced"] == 0
    page = (tmp_path / "out" / "report.md").read_text()
    assert "## What attacks show" in page
    shown = tacit("attack", tmp_path / "out" / "plain", "--using", "secrets")
    assert "no leak shows" in shown.out


def test_secrets_are_made_of_what_a_tokenizer_spells(tacit: Tacit, tmp_path: Path) -> None:
    settings, planted = tmp_path / "run.yml", tmp_path / "p.jsonl"
    settings.write_text(UNKNOWN.format(corpus=planted).replace("public_text: generated", ""))
    call = ("canaries plant", records(tmp_path), "-o", planted, "--for", settings)
    refused = tacit(*call)
    assert refused.code == 2
    assert "tokenizer.digits: true" in refused.err
    own = tmp_path / "words.txt"
    own.write_text("order came late whisper")
    refused = tacit(*call, "--template", "words", "--words", own)
    assert refused.code == 2
    assert "(such as whisper)" in refused.err
    assert not planted.exists()
    done = tacit(*call, "--template", "words")  # four words are too few to choose from
    assert done.code == 2
    assert "--words FILE" in done.err
    settings.write_text(UNKNOWN.format(corpus=planted))
    assert tacit(*call, "--template", "words").code == 0
    assert "tacit" not in tacit("canaries plant", records(tmp_path), "-o", tmp_path / "q.jsonl",
                                "--for", tmp_path / "nowhere").out  # fmt: skip
    assert not (tmp_path / "q.jsonl").exists()


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
    "one file for a series": (["RUN", "--over-checkpoints", "-o", "x.json"], 2, "several models"),
    "masks without text": (["RUN", "--using", "masks"], 2, "--sanitize METHOD"),
    "no text to sanitize": (["RUN", "--sanitize", "random"], 2, "--corpus"),
    "an epsilon for nothing": (["RUN", "--epsilon-per-distance", "3"], 2, "--sanitize"),
    "masks of a model without": (
        ["RUN", "--sanitize", "random", "--corpus", "CORPUS", "--using", "masks"], 3, "holds no",
    ),
    "no canaries": (["BARE", "--using", "exposure"], 3, "tacit canaries plant"),
    "no canaries, secrets": (["BARE", "--using", "secrets"], 3, "tacit canaries plant"),
    "no canaries, tab": (["BARE", "--using", "tab"], 3, "tacit canaries plant"),
    "nothing kept": (["BARE", "--over-checkpoints"], 3, "keep_checkpoints"),
    "not a model": (["EMPTY"], 3, "no trained model"),
    "pickled": (["PICKLED", "--corpus", "CORPUS"], 3, "pickled weights are never loaded"),
    "pickled reference": (["RUN", "--reference", "PICKLED"], 3, "pickled weights"),
    "models of no run": (
        ["MODEL", "--corpus", "CORPUS", "--using", "membership", "--over-checkpoints"], 2,
        "is not a run",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def odd(attacked: Path) -> dict[str, str]:
    """Folders that are not what an attack wants."""
    from tacit.cli import run

    texts = attacked / "texts.jsonl"
    (attacked / "bare.yml").write_text(
        RUN.format(corpus=texts).replace("keep_checkpoints: 1\n", "")
    )
    assert run(["train", str(attacked / "bare.yml"), "-o", str(attacked / "no-canaries")]) == 0
    (attacked / "empty").mkdir()
    for name in ("pickled", "model"):
        folder = attacked / name
        folder.mkdir()
        for file in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            (folder / file).write_bytes((attacked / "run" / file).read_bytes())
    # Would end the process, if anybody loaded it.
    (attacked / "pickled" / "pytorch_model.bin").write_bytes(b"cos\n_exit\n(I9\ntR.")
    weights = (attacked / "run" / "model.safetensors").read_bytes()
    (attacked / "model" / "model.safetensors").write_bytes(weights)
    return {
        "RUN": str(attacked / "run"),
        "CORPUS": str(attacked / "planted.jsonl"),
        "BARE": str(attacked / "no-canaries"),
        "EMPTY": str(attacked / "empty"),
        "PICKLED": str(attacked / "pickled"),
        "MODEL": str(attacked / "model"),
    }


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_one_sentence(tacit: Tacit, odd: dict[str, str], name: str) -> None:
    words, code, said = BAD[name]
    done = tacit("attack", *[odd.get(word, word) for word in words])
    assert done.code == code, done.err
    assert any(part in done.err for part in said.split("|"))
    assert "Traceback" not in done.err


def test_pickled_weights_are_refused_everywhere(
    tacit: Tacit, attacked: Path, odd: dict[str, str], tmp_path: Path
) -> None:
    start = RUN.format(corpus=attacked / "planted.jsonl").replace(
        "{kind: lstm, config: {hidden_size: 16, embedding_size: 16}}",
        f"{{kind: folder, folder: {odd['PICKLED']}}}",
    )
    (tmp_path / "start.yml").write_text(start)
    trained = tacit("train", tmp_path / "start.yml", "-o", tmp_path / "run")
    spoilt = tmp_path / "spoilt"
    shutil.copytree(attacked / "run", spoilt)
    (spoilt / "model.safetensors").unlink()
    (spoilt / "pytorch_model.bin").write_bytes(b"cos\n_exit\n(I9\ntR.")
    for done in (
        trained,
        tacit("evaluate", spoilt),
        tacit("predict", spoilt, "order"),
        tacit("attack", spoilt),
    ):
        assert done.code == 3
        assert "pickled weights are never loaded" in done.err
        assert "Traceback" not in done.err
    assert not (tmp_path / "run").exists()


def test_models_on_the_way_are_attacked_and_reported(
    tacit: Tacit, attacked: Path, tmp_path: Path
) -> None:
    run = tmp_path / "kept"
    shutil.copytree(attacked / "run", run)
    done = tacit("attack", run, "--over-checkpoints", "--using", "exposure,membership")
    assert done.code == 0, done.err
    assert "test perplexity" in done.out or "perplexity" in done.out
    kept = json.loads((run / "attacks-over-steps.json").read_text())
    assert [model["step"] for model in kept["models"]] == [2, 3]
    last = {s["attack"]: s for s in kept["models"][-1]["scores"]}
    ended = json.loads((run / "attacks.json").read_text())
    assert last["exposure"] == ended["exposure"]
    assert last["membership"] == ended["membership"]
    shown = tacit("attack", run, "--over-checkpoints", "--using", "exposure", "--json").json
    assert [model["step"] for model in shown[str(run)]] == [2, 3]
    assert tacit("report", run, "-o", tmp_path / "r.html").code == 0
    assert "Leakage against perplexity" in (tmp_path / "r.html").read_text()


def test_groups_are_compared_and_kept_for_the_report(
    tacit: Tacit, attacked: Path, tmp_path: Path
) -> None:
    run = tmp_path / "grouped"
    shutil.copytree(attacked / "run", run)
    done = tacit("evaluate", run, "--by", "records", "--json")
    assert done.code == 0, done.err
    groups = done.json["groups"]
    assert sum(group["records"] for group in groups) == 40
    whole = tacit("evaluate", run, "--json").json
    assert sum(group["tokens"] for group in groups) == whole["tokens"]
    total = sum(math.log(group["perplexity"]) * group["tokens"] for group in groups)
    assert math.exp(total / whole["tokens"]) == pytest.approx(whole["perplexity"], rel=1e-4)
    assert "largest over smallest" in tacit("evaluate", run, "--by", "records").out
    assert tacit("report", run, "-o", tmp_path / "r.html").code == 0
    assert "Who pays: groups" in (tmp_path / "r.html").read_text()
    assert tacit("evaluate", run, "--by", "colour").code == 2


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


def test_a_private_run_is_audited(
    tacit: Tacit, attacked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = RUN.replace("method: plain\nsteps: 3\nbatch: 8\n", "method: dp-sgd\n") + (
        "plan: {{protect: users, epsilon: 3, steps: 4, user_rate: 0.5, users: 20}}\n"
    )
    (attacked / "private.yml").write_text(settings.format(corpus=attacked / "planted.jsonl"))
    assert tacit("train", attacked / "private.yml", "-o", attacked / "private").code == 0
    done = tacit("audit", attacked / "private", "--canaries", 512, "--json")
    assert done.code == 0, done.err
    audit = done.json["audits"][0]
    assert audit["unit"] == "users"
    assert audit["lower"] <= audit["upper"] <= 3
    assert all(check["passed"] for check in audit["checks"])
    assert (attacked / "private" / "audit.json").exists()
    assert tacit("audit", attacked / "private", "--unit", "tokens").code == 2
    shown = tacit("audit", attacked / "private", "--canaries", 128, "--steps", 2)
    assert shown.code == 0, shown.err
    assert "draws of two steps are independent" in " ".join(shown.out.split())
    assert "what was audited costs" in " ".join(shown.out.split())
    step = tacit("audit", attacked / "private", "--using", "white-box", "--canaries", 128, "--json")
    (found,) = step.json["audits"]
    assert "white box" in found["evidence"]["how"]
    assert "at_best" in found["evidence"]["details"]
    black = tacit("audit", attacked / "private", "--using", "black-box")
    assert black.code == 2
    assert "--coins" in black.err
    fewer = tacit(
        "audit", attacked / "private", "--using", "white-box", "--canaries", 64, "--steps", 1
    )
    assert "what was audited costs" in " ".join(fewer.out.split())
    unknown = tacit("audit", attacked / "private", "--using", "grey-box")
    assert unknown.code == 2
    assert "in-situ, white-box, black-box" in unknown.err
    monkeypatch.setattr(RandomSource, "key", lambda self, step, part=0: bytes(32))
    broken = tacit("audit", attacked / "private", "--canaries", 128)
    assert broken.code == 4
    assert "Broken: it does not hold that noise of different steps is independent" in " ".join(
        broken.out.split()
    )
    assert "does not hold; its standing is now broken" in broken.err


def test_a_model_of_classes_is_audited_and_not_attacked(tacit: Tacit, tmp_path: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    rows = [
        {"id": str(i), "user": f"u{i % 20}", "text": f"order {i}", "label": "ab"[i % 2]}
        for i in range(60)
    ]
    texts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = COINS.format(corpus=texts) + "task: classification\n"
    (tmp_path / "run.yml").write_text(settings.replace("epsilon: 0.5", "epsilon: 3"))
    assert tacit("train", tmp_path / "run.yml", "-o", tmp_path / "run").code == 0
    done = tacit("audit", tmp_path / "run", "--canaries", 128, "--confidence", 0.99, "--json")
    assert done.code == 0, done.err
    assert [audit["unit"] for audit in done.json["audits"]] == ["users"]
    refused = tacit("attack", tmp_path / "run")
    assert refused.code == 2
    assert "next words" in refused.err


COINS = """
corpus: {corpus}
method: dp-sgd
plan: {{protect: users, epsilon: 0.5, steps: 4, user_rate: 0.5, users: 60, delta: 1.0e-5}}
context: 32
model: {{kind: lstm, config: {{hidden_size: 32, embedding_size: 16}}}}
tokenizer: {{kind: bpe, size: 300}}
"""


def test_a_model_that_was_not_trained_as_certified_is_found_out(
    tacit: Tacit, tmp_path: Path
) -> None:
    """Canaries by coins: the honest model is not contradicted, one put in its place is broken."""
    planted, run = tmp_path / "planted.jsonl", tmp_path / "run"
    plant = tacit(
        "canaries plant --template name --coins --each 80 --held-out 0 --repetitions 10",
        records(tmp_path), "-o", planted,
    )  # fmt: skip
    assert plant.code == 0, plant.err
    (tmp_path / "run.yml").write_text(COINS.format(corpus=planted))
    assert tacit("train", tmp_path / "run.yml", "-o", run).code == 0
    assert tacit("verify", run).code == 0
    few = ("--canaries", 128, "--confidence", 0.99)
    honest = tacit("audit", run, *few, "--json")
    assert honest.code == 0, honest.err
    own, black = honest.json["audits"]
    assert "in situ" in own["evidence"]["how"]
    assert "128 canaries for users can show epsilon" in honest.err
    assert "80 planted canaries can show epsilon" in honest.err
    assert "black box" in black["evidence"]["how"]
    assert (black["unit"], black["evidence"]["canaries"]) == ("users", 80)
    assert black["lower"] <= black["upper"] <= 0.5
    checked = tacit("verify", run)
    assert checked.code == 0
    assert "contradicts nothing" in " ".join(checked.out.split())

    (tmp_path / "plain.yml").write_text(
        COINS.format(corpus=planted)
        .replace("method: dp-sgd\n", "method: plain\nsteps: 150\nbatch: 16\n")
        .replace("plan:", "# plan:")
        + "optimizer: {name: adam, learning_rate: 0.01}\ncheckpoint_every: 150\nseed: 1\n"
    )
    assert tacit("train", tmp_path / "plain.yml", "-o", tmp_path / "plain").code == 0
    weights = (tmp_path / "plain" / "model.safetensors").read_bytes()
    (run / "model.safetensors").write_bytes(weights)
    found = tacit("audit", run, *few)
    assert found.code == 4
    assert "Contradicted" in found.out
    assert "broken" in found.err
    verified = tacit("verify", run)
    assert verified.code == 4
    assert "The certificate is broken: an audit found" in " ".join(verified.out.split())
    # Nor does it help to write another standing into the certificate.
    certificate = run / "certificate.json"
    certificate.write_text(certificate.read_text().replace('"broken"', '"proved"'))
    assert "The certificate is broken" in " ".join(tacit("verify", run).out.split())


def test_methods_are_compared_and_finished_ones_left_alone(
    tacit: Tacit, attacked: Path, tmp_path: Path
) -> None:
    shared = RUN.replace("method: plain\nsteps: 3\n", "")
    (tmp_path / "small.yml").write_text(shared.format(corpus=attacked / "planted.jsonl"))
    (tmp_path / "small-plain.yml").write_text("base: small.yml\nmethod: plain\nsteps: 2\n")
    (tmp_path / "small-users.yml").write_text(
        "base: small.yml\nmethod: dp-sgd\n"
        "plan: {protect: users, epsilon: 3, steps: 2, user_rate: 0.5, users: 20}\n"
    )
    call = ("compare", tmp_path / "small.yml", "--methods", "plain,users", "-o", tmp_path / "out")
    done = tacit(*call, "--using", "exposure,membership")
    assert done.code == 0, done.err
    page = (tmp_path / "out" / "report.html").read_text()
    for title in (
        "What is promised: users", "Utility", "Leakage against perplexity", "Who pays: groups",
        "Side by side",
    ):  # fmt: skip
        assert title in page, title
    assert (tmp_path / "out" / "users" / "canaries.json").exists()
    assert tacit(*call).code == 2
    again = tacit(*call, "--overwrite", "--using", "exposure")
    assert again.code == 0, again.err
    assert again.err.count("not trained again") == 2
    # As if it had been stopped before its last word: what was begun goes on, and costs no more.
    stopped = tmp_path / "out" / "users"
    before = read_ledger(stopped / "ledger.jsonl").entries
    (stopped / "certificate.json").unlink()
    resumed = tacit(*call, "--overwrite", "--using", "exposure")
    assert resumed.code == 0, resumed.err
    assert resumed.err.count("not trained again") == 1
    assert (stopped / "certificate.json").exists()
    assert read_ledger(stopped / "ledger.jsonl").entries == before
    two = ["--using", "exposure", "--workers", "2"]  # processes, which a forked one starts quickly
    beside = run_python("-m", "tacit", *map(str, call[:-1]), str(tmp_path / "both"), *two)
    assert beside.returncode == 0, beside.stderr
    for name in ("plain", "users"):
        for file in ("certificate.json", "attacks.json"):
            assert (tmp_path / "both" / name / file).exists()
    other = tacit(*call, "--overwrite", "--set", "context=16")
    assert other.code == 2
    assert "other settings" in other.err
    sweep = ("--sweep", "plain:steps=1,2", "--methods", "plain", "--using", "exposure")
    swept = tacit("compare", tmp_path / "small.yml", *sweep, "-o", tmp_path / "swept")
    assert swept.code == 0, swept.err
    for steps in ("1", "2"):
        settings = (tmp_path / "swept" / f"plain-steps-{steps}" / "run.yml").read_text()
        assert f"steps: {steps}\n" in settings
    for wrong in ("users:steps=1", "plain", "plain:steps", "plain:steps=1,1"):
        refused = tacit(*call[:2], "--methods", "plain", "--sweep", wrong, "-o", tmp_path / "x")
        assert refused.code == 2, wrong
    missing = tacit("compare", tmp_path / "small.yml", "--methods", "magic", "-o", tmp_path / "x")
    assert missing.code == 3
    assert "plain, users" in missing.err


def test_of_many_kept_models_few_are_attacked(tacit: Tacit, attacked: Path, tmp_path: Path) -> None:
    """One is near to what the worse run reached, as if all had been scored."""
    shared = RUN.replace(
        "method: plain\nsteps: 3\n", "optimizer: {{name: adam, learning_rate: 0.01}}\n"
    )
    (tmp_path / "small.yml").write_text(shared.format(corpus=attacked / "planted.jsonl"))
    for name, steps in {"long": 24, "short": 8}.items():
        own = f"base: small.yml\nmethod: plain\nsteps: {steps}\n"
        (tmp_path / f"small-{name}.yml").write_text(own)
    call = ("compare", tmp_path / "small.yml", "--methods", "long,short", "--using", "exposure",
            "--attack-kept", "2", "-o", tmp_path / "out")  # fmt: skip
    bare = tacit(*call, "--set", "keep_checkpoints=0")
    assert bare.code == 2
    assert "--set keep_checkpoints=60" in bare.err
    assert not (tmp_path / "out").exists()
    done = tacit(*call, "--set", "keep_checkpoints=7")
    assert done.code == 0, done.err
    series = {
        name: read_series(tmp_path / "out" / name / "attacks-over-steps.json")
        for name in ("long", "short")
    }
    assert all(len(found) == 3 for found in series.values())  # two, and the last
    level = series["short"][8]["exposure"].perplexity
    target = open_target(tmp_path / "out" / "long")
    every = {step or 24: at_step(target, step).perplexity for step in steps_of(target)}
    nearest = min(every, key=lambda step: abs(math.log(every[step] / level)))
    assert nearest < 24
    assert nearest in series["long"]
    assert "## At like perplexity" in (tmp_path / "out" / "report.md").read_text()


def test_models_of_classes_are_compared_without_attacks(tacit: Tacit, tmp_path: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    rows = [
        {"id": str(i), "user": f"u{i % 20}", "text": f"order {i}", "label": "ab"[i % 2],
         "split": "test" if i % 20 > 14 else "train"}
        for i in range(80)
    ]  # fmt: skip
    texts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    private = COINS.format(corpus=texts).replace("epsilon: 0.5", "epsilon: 3")
    private += "task: classification\n"
    plan = [line for line in private.splitlines() if line.startswith(("method:", "plan:"))]
    (tmp_path / "c.yml").write_text("\n".join(set(private.splitlines()) - set(plan)))
    (tmp_path / "c-users.yml").write_text("\n".join(["base: c.yml", *plan]))
    (tmp_path / "c-plain.yml").write_text("base: c.yml\nmethod: plain\nsteps: 2\n")
    call = ("compare", tmp_path / "c.yml", "--methods", "plain,users", "-o", tmp_path / "out")
    for asked in (("--using", "membership"), ("--attack-kept", "2")):
        refused = tacit(*call, *asked)
        assert refused.code == 2
        assert "next words" in refused.err
        assert not (tmp_path / "out").exists()
    done = tacit(*call)
    assert done.code == 0, done.err
    side = (tmp_path / "out" / "report.md").read_text().split("## Side by side")[1].split("##")[0]
    assert "error rate" in side
    assert "| users |" in side


@pytest.mark.slow
def test_seven_methods_stand_side_by_side_and_a_weight_is_swept(
    tacit: Tacit, attacked: Path, tmp_path: Path
) -> None:
    shared = RUN.replace("method: plain\nsteps: 3\n", "detect: patterns\n")
    (tmp_path / "small.yml").write_text(shared.format(corpus=attacked / "planted.jsonl"))
    own = {
        "plain": "method: plain\nsteps: 2\n",
        "deidentify": "method: deidentify\nsteps: 2\n",
        "records": "plan: {protect: records, epsilon: 3, steps: 2, record_rate: 0.5, records: 9}\n",
        "selective": "method: selective\npolicy: digits\nselective: {state_clip: 1.0}\n"
        "plan: {epsilon: 60, steps: 2, record_rate: 0.1, clip_norm: 0.01}\n",
        "redact-then-private": "method: redact-then-private\npolicy: digits\nredacted: {steps: 2}\n"
        "plan: {epsilon: 3, steps: 2, record_rate: 0.1}\n",
        "adversarial": "method: adversarial\nsteps: 2\nadversarial: {hidden_size: 8}\n",
        "triplet": "method: triplet\nsteps: 2\n",
    }
    for name, text in own.items():
        (tmp_path / f"small-{name}.yml").write_text(f"base: small.yml\n{text}")
    done = tacit(
        "compare", tmp_path / "small.yml", "--methods", ",".join(own),
        "--sweep", "triplet:triplet.privacy_weight=0.1,1", "-o", tmp_path / "out",
        "--using", "exposure,membership,tab,linkage",
    )  # fmt: skip
    assert done.code == 0, done.err
    text = (tmp_path / "out" / "report.md").read_text()
    side = text.split("## Side by side")[1].split("##")[0]
    swept = {f"triplet-privacy_weight-{weight}" for weight in ("0.1", "1")}
    for name in set(own) - {"triplet"} | swept:
        assert f"| {name} |" in side, name
    for heading in ("exposure", "membership accuracy", "tab accuracy", "time"):
        assert heading in side, heading
    for name in ("adversarial", *swept):
        assert "measured by attacks" in (tmp_path / "out" / name / "certificate.md").read_text()
