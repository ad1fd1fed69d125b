"""The public surface: small, sorted, and quick to load."""

import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import tacit

HEAVY = {
    "datasets", "dp_accounting", "faker", "jinja2", "matplotlib", "pandas", "presidio_analyzer",
    "scipy", "spacy", "stanza", "torch", "transformers",
}  # fmt: skip


def test_the_names_are_sorted_and_few() -> None:
    assert list(tacit.__all__) == sorted(set(tacit.__all__))
    assert dir(tacit) == list(tacit.__all__)
    assert len(tacit.__all__) <= 26


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


OPTIONAL = {"datasets", "presidio_analyzer", "spacy", "stanza", "torch", "transformers"}


def test_no_module_loads_an_optional_package() -> None:
    """Whoever has not installed an extra can import every module but those that run models."""
    root = Path(tacit.__file__).parent
    files = [path.relative_to(root.parent) for path in root.rglob("*.py")]
    models = {"training", "attacks", "audits", "server", "federated"}
    names = [
        ".".join(file.with_suffix("").parts).removesuffix(".__init__")
        for file in files
        if not models & set(file.parts) and file.stem != "__main__"
    ]
    code = f"import importlib\nfor name in {sorted(names)!r}:\n    importlib.import_module(name)\n"
    assert loaded_by(code) & OPTIONAL == set()
