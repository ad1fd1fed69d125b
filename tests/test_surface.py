"""The public surface: small, sorted, and quick to load."""

import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import tacit
import tacit.cli
from tacit.errors import MissingExtra, require_package

HEAVY = {
    "datasets", "dp_accounting", "faker", "jinja2", "matplotlib", "pandas", "presidio_analyzer",
    "scipy", "spacy", "stanza", "torch", "transformers",
}  # fmt: skip


def test_the_names_are_sorted_and_few() -> None:
    assert list(tacit.__all__) == sorted(set(tacit.__all__))
    assert dir(tacit) == sorted([*tacit.__all__, *tacit._ROOMS])
    assert len(tacit.__all__) <= 33


@pytest.mark.parametrize("name", tacit._ROOMS)
def test_rooms_are_loaded_when_they_are_asked_for(name: str) -> None:
    room = getattr(tacit, name)
    assert room is importlib.import_module(f"tacit.{name}")
    assert list(room.__all__) == sorted(room.__all__)
    for own in room.__all__:
        assert (inspect.getdoc(getattr(room, own)) or "").strip()


@pytest.mark.parametrize("name", tacit.__all__)
def test_every_name_is_there_and_says_what_it_is(name: str) -> None:
    found = getattr(tacit, name)
    assert (inspect.getdoc(found) or "").strip()
    assert found.__module__.startswith("tacit")


def test_what_type_checkers_see_is_what_there_is() -> None:
    """The names that are imported for type checkers are those that are loaded on demand."""
    homes = tacit._HOMES
    assert set(homes) == set(tacit.__all__)
    source = inspect.getsource(tacit)
    for name, home in homes.items():
        assert getattr(importlib.import_module(home), name) is getattr(tacit, name)
        lines = [line for line in source.splitlines() if f"from {home} import" in line]
        assert any(name in line.split("import")[1].replace(",", " ").split() for line in lines)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tacit.nothing  # noqa: B018


def loaded_by(code: str) -> set[str]:
    script = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    return {name.partition(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}


def test_importing_tacit_loads_nothing_else() -> None:
    alone = loaded_by("import importlib, typing")
    assert loaded_by("import tacit") - alone == {"tacit"}


@pytest.mark.parametrize(
    "code",
    [
        "import tacit.cli",
        "import tacit.cli; tacit.cli.run(['--help'])",
        "import tacit.cli; tacit.cli.run(['price', '--help'])",
        "import tacit.corpus.reading, tacit.corpus.writing, tacit.corpus.description, tacit.owners",
    ],
)
def test_the_command_line_starts_light(code: str) -> None:
    assert loaded_by(code) & HEAVY == set()


OPTIONAL = {
    "datasets", "faker", "matplotlib", "presidio_analyzer", "pycrfsuite", "spacy", "stanza",
    "torch", "transformers",
}  # fmt: skip


def test_a_server_starts_without_the_libraries_that_train() -> None:
    code = "import tacit.cli.serve, tacit.server.api, tacit.server.pages"
    assert loaded_by(code) & {"torch", "transformers", "peft"} == set()


def test_no_module_loads_an_optional_package() -> None:
    """Whoever has not installed an extra can import every module but those that run models."""
    root = Path(tacit.__file__).parent
    files = [path.relative_to(root.parent) for path in root.rglob("*.py")]
    models = {
        "training", "attacks", "audits", "server", "federated", "synthesis", *tacit._ROOMS,
    }  # fmt: skip
    names = [
        ".".join(file.with_suffix("").parts).removesuffix(".__init__")
        for file in files
        if not models & set(file.parts)
        and file.stem != "__main__"
        and file.parts[-2:] != ("python", "runs.py")
    ]
    code = f"import importlib\nfor name in {sorted(names)!r}:\n    importlib.import_module(name)\n"
    assert loaded_by(code) & OPTIONAL == set()


def test_marks_and_owners_are_had_without_the_libraries_that_train(tmp_path: Path) -> None:
    corpus, marks = tmp_path / "c.jsonl", tmp_path / "m.jsonl"
    corpus.write_text('{"id": "1", "user": "ann", "text": "Write to bob@example.org."}\n')
    words = [
        ["detect", str(corpus), "-o", str(marks)],
        ["owners", str(corpus), "--mentions", str(marks)],
    ]
    code = f"import tacit.cli\nfor words in {words!r}:\n    assert tacit.cli.run(words) == 0\n"
    assert loaded_by(code) & {"torch", "transformers"} == set()


ASKED = [
    "numpy",
    "torch; extra == 'stanza'",
    "torch<3,>=2.6; extra == 'train'",
    "markdown-it-py; extra == 'report'",
]


@pytest.mark.parametrize(("module", "extra"), [("torch", "train"), ("markdown_it", "report")])
def test_a_missing_package_is_named_with_its_extra(
    module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And with two ways to install it, neither of which asks an index for a package `tacit`."""
    monkeypatch.setattr("importlib.metadata.requires", lambda name: ASKED)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra) as caught:
        require_package(module, "A figure")
    message = str(caught.value)
    assert f"A figure needs the package {module}" in message
    assert f"-e '.[{extra}]'" in message
    assert f".whl[{extra}]'" in message
    assert "install tacit" not in message.replace("'", "")


def test_a_command_that_lacks_a_package_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.metadata.requires", lambda name: ASKED)
    for name in [name for name in sys.modules if name.split(".")[0] == "torch"]:
        monkeypatch.setitem(sys.modules, name, None)
    for name in [name for name in sys.modules if name.startswith("tacit.training.phases")]:
        monkeypatch.delitem(sys.modules, name)
    assert tacit.cli.run(["train", "preset:own-data-lstm", "-o", str(tmp_path / "RUN")]) == 2
    assert "It comes with the extra train" in capsys.readouterr().err
