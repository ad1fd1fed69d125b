"""The wheel has everything that the package reads at run time, and needs no repository."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import tacit
from tacit import presets

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "tacit"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel that is built from a copy of what a build needs."""
    copy = tmp_path_factory.mktemp("sources")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(
        ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("*.egg-info", "__py*")
    )
    code = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, "out"], cwd=copy, check=True, capture_output=True)
    (path,) = (copy / "out").glob("tacit-*.whl")
    return zipfile.ZipFile(path)


def test_whatever_lies_in_the_package_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    there = {
        f"tacit/{path.relative_to(SOURCE).as_posix()}"
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    held = {name for name in wheel.namelist() if name.startswith("tacit/")}
    assert held == there
    kinds = {Path(name).suffix for name in held}
    assert {".yml", ".jinja", ".npz", ".txt", ".css"} <= kinds
    assert sum(name.startswith("tacit/presets/") and name.endswith(".yml") for name in held) == len(
        presets.names()
    )


def test_the_wheel_carries_its_licence_and_pins_nothing(wheel: zipfile.ZipFile) -> None:
    (licence,) = (name for name in wheel.namelist() if name.endswith("/LICENSE"))
    assert b"Apache License" in wheel.read(licence)
    (metadata,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
    lines = wheel.read(metadata).decode().splitlines()
    asked = [line for line in lines if line.startswith("Requires-Dist:")]
    assert asked
    assert [line for line in asked if "==" in line.partition(";")[0]] == []
    core = [line.split()[1] for line in asked if "extra ==" not in line]
    assert not {"torch", "matplotlib", "fastapi"} & set(core)


def test_the_wheel_is_small(wheel: zipfile.ZipFile) -> None:
    # Most of it are the network that finds names (5 MB) and the public start of own data (3 MB).
    assert Path(str(wheel.filename)).stat().st_size < 10_000_000


def test_the_package_reads_nothing_outside_of_itself() -> None:
    """No module climbs from its own file out of the package, into a repository."""
    depth = {path: len(path.relative_to(SOURCE).parts) for path in SOURCE.rglob("*.py")}
    for path, parts in depth.items():
        text = path.read_text(encoding="utf-8")
        for climbed in range(parts, parts + 3):
            assert f"__file__).parents[{climbed}]" not in text, path
    assert Path(tacit.__file__).parent == SOURCE
