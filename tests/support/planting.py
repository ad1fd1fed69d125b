"""Plant bugs in a copy of the package, and see whether the named tests notice."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import tacit
from support.forking import run_python

HERE = Path(__file__).resolve().parent.parent
Change = tuple[str, str, str, str]
"""The file, what stands there, what a bug would make of it, the test that must notice."""


def planted(changes: Mapping[str, Change], folder: Path) -> dict[str, int | str]:
    """How the test of each change ended on a copy with that change (1: it was noticed)."""
    source = folder / "src"
    own = Path(tacit.__file__).parent
    # With bytecode, so that only what changes is compiled, but for what others are writing.
    shutil.copytree(own, source / "tacit", ignore=shutil.ignore_patterns("*.pyc.*"))
    names = ("file", "old", "new", "test")
    given = [
        {"name": name, **dict(zip(names, change, strict=True))} for name, change in changes.items()
    ]
    done = run_python(
        str(HERE / "support" / "mutating.py"), str(HERE), str(source),
        input=json.dumps(given), cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, int | str] = json.loads(done.stdout)
    return found
