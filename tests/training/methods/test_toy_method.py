"""A method in its own file, found by its entry point, works everywhere; nothing else changes."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import toys
from support.forking import run_python
from support.living import Living
from tacit.corpora import customersim
from tacit.corpus.writing import write

SMALL: dict[str, Any] = {
    "plan": {"protect": "users", "epsilon": 8, "steps": 3, "user_rate": 0.5, "users": 15},
    "model": {"kind": "lstm", "config": {"embedding_size": 8, "hidden_size": 8, "layers": 1}},
    "tokenizer": {"size": 400},
    "context": 24,
}
Tacit = Callable[..., str]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("toy")
    toys.install(folder, "tacit.methods", "first-record", "FIRST_RECORD", toys.METHOD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", toys.path_with(folder))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield folder


@pytest.fixture(scope="module")
def house(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tacit]:
    folder = tmp_path_factory.mktemp("house")
    write(customersim.generate(60, 1, 15), folder / "dialogs.jsonl")
    settings = SMALL | {"corpus": str(folder / "dialogs.jsonl"), "method": "first-record"}
    (folder / "run.yml").write_text(yaml.safe_dump(settings))

    def tacit(*words: str) -> str:
        done = run_python("-m", "tacit", *words, cwd=folder)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    tacit("train", "run.yml", "-o", "run")
    return folder, tacit


def test_the_command_line_lists_trains_and_verifies_it(house: tuple[Path, Tacit]) -> None:
    folder, tacit = house
    assert "first-record" in tacit("methods")
    tacit("verify", "run")
    certificate = json.loads((folder / "run" / "certificate.json").read_text())
    assert certificate["standing"] == "proved"
    assert certificate["costs"]["users"]["epsilon"] <= 8
    assert any("toy_first_record 1.0" in line for line in certificate["assumptions"])


def test_the_command_line_audits_it(house: tuple[Path, Tacit]) -> None:
    _, tacit = house
    said = tacit("audit", "run", "--canaries", "64", "--json")
    (found,) = json.loads(said)["audits"]
    assert found["unit"] == "users"
    assert found["lower"] <= 8, found


def test_the_command_line_compares_it(house: tuple[Path, Tacit]) -> None:
    folder, tacit = house
    fields = yaml.safe_load((folder / "run.yml").read_text())
    study = {name: value for name, value in fields.items() if name not in ("plan", "method")}
    (folder / "study.yml").write_text(yaml.safe_dump(study))
    (folder / "study-first-record.yml").write_text((folder / "run.yml").read_text())
    plain = yaml.safe_dump(study | {"method": "plain", "steps": 3})
    (folder / "study-plain.yml").write_text(plain)
    tacit("compare", "study.yml", "--methods", "plain,first-record", "-o", "compared")
    assert "first-record" in (folder / "compared" / "report.html").read_text()


def test_python_trains_and_verifies_it(house: tuple[Path, Tacit]) -> None:
    folder, _ = house
    program = (
        "import tacit, yaml; from pathlib import Path;"
        "run = tacit.Run(**yaml.safe_load(Path('run.yml').read_text()));"
        "done = tacit.train(run, folder='again');"
        "assert all(check.ok for check in tacit.verify(done.folder));"
        "print(done.certificate.standing)"
    )
    done = run_python("-c", program, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "proved"


def test_the_server_trains_it(toy: Path, tmp_path: Path) -> None:
    living = Living(tmp_path / "server")
    try:
        with living.client() as admin:
            dataset = str(admin.add_dataset("dialogs", limits={"users": 9})["id"])
            admin.add_corpus(dataset, customersim.generate(30, 3), key="all")
            plan = SMALL["plan"] | {"users": 30}
            asked = SMALL | {"name": "toy", "method": "first-record", "plan": plan}
            run = str(admin.start_run(dataset, asked)["id"])
            states = [fields for kind, fields in admin.events(run) if kind == "state"]
            assert states[-1]["state"] == "done"
            assert admin.run(run)["request"]["method"] == "first-record"
    finally:
        living.stop()
