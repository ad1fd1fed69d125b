"""Public starts: built from public text, kept by name, compared with private text, used by runs."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import tacit.cli as cli
from tacit import packaged_models
from tacit.corpora import customersim
from tacit.corpus import Corpus
from tacit.corpus.overlap import load_pieces, read_pieces, shares
from tacit.corpus.writing import write
from tacit.errors import DataError, PrivacyRefused, UsageError
from tacit.packaged_models import located, starts
from tacit.privacy.certificates.manifest import file_digest
from tacit.training.data.starts import read_start
from tacit.training.models.shared import load_shared
from tacit.training.phases import session
from tacit.training.phases.starts import StartSettings, build, fits, score, start_settings
from tacit.training.settings import Run, read_run
from tacit.verification.runs import verify

MODEL = {"config": {"embedding_size": 8, "hidden_size": 12, "projection": True}}
SMALL: dict[str, Any] = {
    "tokenizer": {"size": 300}, "model": MODEL, "context": 16, "steps": 3, "batch": 8,
    "licence": "CC0",
}  # fmt: skip
USERS = {"protect": "users", "epsilon": 4, "steps": 1, "user_rate": 0.5, "users": 50}


def waves(name: str, count: int = 120) -> list[str]:
    return [f"wave {i} of the sea {name} rolls on and ends at rock {i * 7}" for i in range(count)]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with one start, made from two texts."""
    root = tmp_path_factory.mktemp("starts")
    for name in ("north", "south"):
        (root / f"{name}.txt").write_text("\n".join(waves(name)))
    files = (str(root / "north.txt"), str(root / "south.txt"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TACIT_CACHE", str(root / "cache"))
        build("sea", StartSettings(corpus=files, **SMALL))
    return root


@pytest.fixture
def root(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(kept, tmp_path / "kept")
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "kept" / "cache"))
    return tmp_path / "kept"


def private(folder: Path, texts: list[str] | None = None) -> dict[str, Any]:
    corpus = customersim.generate(60, 3)
    if texts is not None:
        rows = [{"id": str(i), "user": f"u{i}", "text": t} for i, t in enumerate(texts)]
        corpus = Corpus.from_records(rows)
    write(corpus, folder / "c.jsonl")
    model = {"kind": "folder", "folder": "start:sea"}
    return {"corpus": str(folder / "c.jsonl"), "model": model, "context": 16, "plan": USERS}


def test_a_start_is_named_on_the_certificate_and_verifies(root: Path, tmp_path: Path) -> None:
    done = session.train(Run(**private(tmp_path)), tmp_path / "run")
    named = {one.what: one for one in done.certificate.public}
    weights = named["the base weights"]
    assert weights.name == "public start sea, which read north.txt, south.txt"
    assert weights.sha256 == file_digest(located("start:sea") / "model.safetensors")
    assert "were found in the other" in str(weights.checked)
    assert named["the tokenizer"].name == "public start sea"
    assert [c.what for c in verify(tmp_path / "run") if not c.ok] == []


def test_a_start_that_read_private_text_is_refused(root: Path, tmp_path: Path) -> None:
    fields = private(tmp_path, waves("south")[:40])
    with pytest.raises(PrivacyRefused, match=r"start:sea holds private text"):
        session.train(Run(**fields), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    # Neither does another name help: what it read is written beside the weights.
    shutil.copytree(located("start:sea"), tmp_path / "copy")
    fields["model"] = {"kind": "folder", "folder": str(tmp_path / "copy")}
    with pytest.raises(PrivacyRefused, match="holds private text"):
        session.train(Run(**fields), tmp_path / "run")


@pytest.mark.parametrize("name", ["model.safetensors", "pieces.npz"])
def test_a_changed_start_is_refused(root: Path, tmp_path: Path, name: str) -> None:
    file = located("start:sea") / name
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(DataError, match=r"not what start\.json names"):
        session.train(Run(**private(tmp_path)), tmp_path / "run")


def test_the_same_text_gives_the_same_start(root: Path) -> None:
    files = (str(root / "north.txt"), str(root / "south.txt"))
    again = build("again", StartSettings(corpus=files, **SMALL))
    first = load_file(located("start:sea") / "model.safetensors")
    assert all(torch.equal(first[n], t) for n, t in load_file(again / "model.safetensors").items())
    assert read_start(again) == read_start(located("start:sea"))


def test_saved_pieces_find_what_they_found(tmp_path: Path) -> None:
    whole = read_pieces(waves("north"))
    whole.save(tmp_path / "p.npz")
    loaded = load_pieces(tmp_path / "p.npz")
    other = read_pieces(waves("north")[:30] + waves("west"))
    assert shares(other, loaded) == shares(other, whole)
    assert (loaded.digest, loaded.texts) == (whole.digest, whole.texts)
    whole.save(tmp_path / "few.npz", 64)  # a random part of both is compared then
    assert shares(other, load_pieces(tmp_path / "few.npz"))["runs of the public"] > 0.05
    (tmp_path / "p.npz").write_bytes(b"no")
    with pytest.raises(DataError, match="does not hold the hashes"):
        load_pieces(tmp_path / "p.npz")


def test_the_start_that_read_such_text_fits_best(root: Path) -> None:
    (root / "land.txt").write_text("\n".join(f"{i * 31} 7x{i} QQ ZZ!! {i}" for i in range(200)))
    how = SMALL | {"steps": 40}
    build("sea", StartSettings(corpus=str(root / "south.txt"), **how))
    build("land", StartSettings(corpus=str(root / "land.txt"), **how))
    rows = [{"id": str(i), "text": text} for i, text in enumerate(waves("east", 20))]
    found = fits(Corpus.from_records(rows))
    assert next(iter(found)) != "land"
    assert found["sea"]["bits_per_character"] < found["land"]["bits_per_character"]


def test_commands(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tmp_path / "start.yml"
    settings.write_text(json.dumps({k: v for k, v in SMALL.items() if k != "licence"}))
    words = ["start", "build", "north", "--corpus", str(root / "north.txt"), "--settings",
             str(settings)]  # fmt: skip
    assert cli.run(words) == 2
    assert "licence of north.txt is not known" in capsys.readouterr().err
    assert cli.run([*words, "--licence", "CC0"]) == 0
    assert cli.run([*words, "--licence", "CC0"]) == 2
    assert "a start north already" in capsys.readouterr().err
    assert cli.run(["start", "list", "--json", "--sample", str(root / "north.txt")]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {"sea", "north"} <= set(listed)
    assert cli.run(["start", "list"]) == 0
    assert "start:sea" in capsys.readouterr().out
    assert cli.run(["start", "show", "sea"]) == 0
    shown = capsys.readouterr().out
    assert "CC0" in shown
    assert str(listed["sea"]["files"]["model.safetensors"]) in shown


def test_what_cannot_be_a_start_is_refused(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match=r"no public start 'seas'.*Did you mean 'sea'"):
        located("start:seas")
    with pytest.raises(UsageError, match="cannot name a start"):
        build("../up", StartSettings(corpus="generated", **SMALL))
    with pytest.raises(UsageError, match="give no folder"):
        start_settings(None, corpus="generated", model={"kind": "folder", "folder": "x"})
    with pytest.raises(UsageError, match="corpus is not accepted"):
        start_settings(None)
    (tmp_path / "few.txt").write_text("one\ntwo\n")
    with pytest.raises(DataError, match="a start needs 50"):
        build("few", StartSettings(corpus=str(tmp_path / "few.txt"), **SMALL))
    assert "few" not in starts()
    monkeypatch.setattr(packaged_models, "SHIPPED", root / "cache" / "starts")
    with pytest.raises(UsageError, match="start of this package"):
        build("sea", StartSettings(corpus="generated", **SMALL))
    monkeypatch.setenv("TACIT_CACHE", "off")
    with pytest.raises(UsageError, match="no place for starts"):
        build("new", StartSettings(corpus="generated", **SMALL))


def test_own_data_begins_from_the_start_that_comes_with_the_package(tmp_path: Path) -> None:
    folder = located("start:english")
    start = read_start(folder)
    assert start is not None
    assert start.corpus == ("wikitext2.jsonl", "qnli.jsonl", "cuad.jsonl")
    assert "CC BY-SA" in start.licence
    assert sum(file.stat().st_size for file in folder.iterdir()) < 5_000_000
    shared = load_shared(folder)
    assert {p.dtype for p in shared.model.parameters()} == {torch.float32}
    english = ["The city was the largest in the country at the beginning of the century."]
    told = [{"id": "1", "text": english[0]}, {"id": "2", "text": english[0][::-1]}]
    bits = [score(folder, Corpus.from_records([one]), 64)["bits_per_character"] for one in told]
    assert bits[0] < 2.5 < bits[1]
    assert read_run(Path("preset:own-data-lstm")).model.folder == "start:english"
