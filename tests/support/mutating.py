"""Run tests on a copy of the package with one line changed, many changes in one process.

    python mutating.py TESTS_FOLDER COPY_OF_SRC < changes.json > outcomes.json

Each change is {"name", "file", "old", "new", "test"}. The outcome is pytest's exit code (1: a test
failed, so the change was caught), or "does not apply". Outcome "unchanged" is that of all tests on
the copy as it is. Heavy libraries are imported once; our own modules anew for every change, each
text compiled once. Prices are those of the session: each is kept under the code that computed it,
so a bug in that code meets none of them.
"""

import contextlib
import io
import json
import os
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings


def forget(folders: tuple[str, ...]) -> None:
    """Drop every module of ours and of the tests."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        ours = name == "tacit" or name.startswith("tacit.")
        if ours or (file.startswith(folders) and "mutating" not in file):
            del sys.modules[name]


def compile_once() -> None:
    """The same text of a file is the same code: only what a change touches is compiled again."""
    compiled: dict[tuple[str, bytes], Any] = {}
    honest = SourceFileLoader.source_to_code

    def source_to_code(self: Any, data: Any, path: Any, **options: Any) -> Any:
        key = str(path), bytes(data)
        if key not in compiled:
            compiled[key] = honest(self, data, path, **options)
        return compiled[key]

    SourceFileLoader.source_to_code = source_to_code  # type: ignore[method-assign]


class Hurried:
    """A failure is all we want to know: it need not be made small."""

    @staticmethod
    def pytest_collection(session: pytest.Session) -> None:
        """After conftest has chosen its profile."""
        phases = (Phase.explicit, Phase.generate, Phase.target)
        settings.register_profile("hurried", parent=settings(), phases=phases)
        settings.load_profile("hurried")


def outcome(tests: list[str], folders: tuple[str, ...]) -> int:
    forget(folders)
    without = ("cacheprovider", "doctest", "unraisableexception")  # the last collects all garbage
    options = ["-q", "-x", "--no-header", *(f"-pno:{name}" for name in without)]
    options += ["--assert=plain"]  # nobody reads what a failure says
    options += ["-oaddopts=--import-mode=importlib --disable-plugin-autoload"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return int(pytest.main([*options, *tests], plugins=[Hurried()]))


def main() -> None:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # of which conftest would think otherwise
    sys.dont_write_bytecode = True  # bytecode of one second may be that of another change
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    compile_once()
    tests, source = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    sys.path.insert(0, str(source))
    import tacit

    assert Path(tacit.__file__).is_relative_to(source), "the copy is not what is tested"
    changes = json.load(sys.stdin)
    folders = (str(tests), str(source))
    places = sorted({str(tests / change["test"]) for change in changes})
    found: dict[str, int | str] = {"unchanged": outcome(places, folders)}
    for change in changes:
        file = source / "tacit" / change["file"]
        text = file.read_text()
        if text.count(change["old"]) != 1:
            found[change["name"]] = "does not apply"
            continue
        file.write_text(text.replace(change["old"], change["new"]))
        Path(cache_from_source(str(file))).unlink(missing_ok=True)
        try:
            found[change["name"]] = outcome([str(tests / change["test"])], folders)
        finally:
            file.write_text(text)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
