"""The command line, as a person or a script meets it."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support.driving import Result, Tacit
from tacit.cli import run


@pytest.fixture
def tacit(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tacit:
    """Run a command in this process; further arguments follow the words of the first."""
    monkeypatch.delenv("TACIT_DEBUG", raising=False)
    monkeypatch.delenv("TACIT_DATA", raising=False)

    def tacit(command: str, *more: object) -> Result:
        capsys.readouterr()
        code = run([*shlex.split(command), *map(str, more)])
        return Result(code, *capsys.readouterr())

    return tacit


@pytest.fixture
def process() -> Tacit:
    """Run a command in a process of its own."""

    def process(command: str, *more: object, **environment: str) -> Result:
        words = [sys.executable, "-m", "tacit", *shlex.split(command), *map(str, more)]
        done = subprocess.run(words, capture_output=True, env={**os.environ, **environment})
        return Result(
            done.returncode,
            done.stdout.decode(errors="replace"),
            done.stderr.decode(errors="replace"),
        )

    return process


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with dialogs, their mentions and their owner graph; to be read, not changed."""
    folder = tmp_path_factory.mktemp("made")
    corpus, mentions = folder / "c.jsonl", folder / "mentions.jsonl"
    for arguments in (
        ["corpus", "generate", "customersim", "--dialogs", "60", "--seed", "5", "-o", corpus],
        ["detect", corpus, "--with", "patterns,gold", "-o", mentions],
        ["owners", corpus, "--mentions", mentions, "--kinds", "PERSON,PII", "-o",
         folder / "owners.json"],
    ):  # fmt: skip
        assert run([str(argument) for argument in arguments]) == 0
    return folder
