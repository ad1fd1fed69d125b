"""A detector, a corpus and a mechanism of somebody else's: one file each, and an entry point."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from support.forking import run_python

DETECTOR = """
import re

from tacit.detection import Finding


class Badges:
    name = "badges"
    summary = "badge numbers of our own"
    option = "letters before the digits"
    kinds = ("PII/ID",)

    def __init__(self, letters):
        self._badge = re.compile(rf"\\\\b{letters}[0-9]{{4}}\\\\b")

    @classmethod
    def open(cls, option):
        return cls(option or "B")

    def find(self, records):
        for record in records:
            yield [
                Finding(*found.span(), "PII/ID", 0.9, "badges: number")
                for found in self._badge.finditer(record.text)
            ]
"""
CORPUS = """
import pyarrow as pa

from tacit.corpora import NamedCorpus


def read(folder, seed):
    lines = (folder / "notes.txt").read_text().splitlines()
    users, texts = zip(*(line.split(": ", 1) for line in lines))
    ids = [str(n) for n in range(len(lines))]
    return pa.table({"id": ids, "user": users, "text": texts, "split": ["train"] * len(lines)})


NOTES = NamedCorpus("short notes; who wrote a note is a user", read)
"""
MECHANISM = '''
import numpy as np

from tacit.sanitization.mechanisms import SanText, WordMechanism
from tacit.sanitization.operators import MentionMechanism


class Swap(WordMechanism):
    name = "swap"
    summary = "every word becomes the next one of the vocabulary"
    takes = ()

    def replace(self, work, words, draws):
        return (words + 1) % len(work.embedding)


class Borrowed(SanText):
    """Draws nothing, whatever its parent has proved."""

    name = "borrowed"

    def replace(self, work, words, draws):
        return words.copy()


class Broken(Swap):
    def replace(self, work, words, draws):
        return np.full(len(words), len(work.embedding))


class Initials(MentionMechanism):
    name = "initials"
    summary = "what was found becomes its first character"

    def instead(self, record, place):
        return record.text[place.start] + "."
'''
ENTRY_POINTS = """
[tacit.detectors]
badges = badges:Badges
patterns = badges:Badges

[tacit.corpora]
notes = notes:NOTES

[tacit.mechanisms]
swap = swap:Swap
borrowed = swap:Borrowed
broken = swap:Broken
initials = swap:Initials
santext = swap:Swap
"""


@pytest.fixture
def toys(tmp_path: Path) -> Path:
    """A folder like site-packages, with the plug-ins and what says that they are there."""
    folder = tmp_path / "site"
    about = folder / "toy-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    for name, source in (("badges", DETECTOR), ("notes", CORPUS), ("swap", MECHANISM)):
        (folder / f"{name}.py").write_text(source.replace("\\\\", "\\"))
    (tmp_path / "mail.jsonl").write_text(
        '{"id": "1", "user": "ann", "text": "my badge B1234 or C5678 for ann@example.org"}\n'
    )
    return folder


def python(toys: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    paths = [str(toys), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return run_python(*arguments, cwd=toys.parent, env=environment)


def tacit(toys: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return python(toys, "-m", "tacit", *arguments)


def printed(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_detector(toys: Path) -> None:
    assert "badge numbers of our own" in printed(tacit(toys, "detect", "list"))
    said = tacit(toys, "detect", "mail.jsonl", "--with", "badges=C,patterns", "--json")
    found = json.loads(printed(said))
    # The name `patterns` stays ours, whoever else would like to have it.
    assert found["mentions_by_kind"] == {"PII/ID": 1, "PII/EMAIL": 1}
    code = (
        "from tacit import detect, read; print(len(detect(read('mail.jsonl'), 'badges').mentions))"
    )
    assert printed(python(toys, "-c", code)).strip() == "1"


def test_a_corpus(toys: Path) -> None:
    folder = toys.parent / "data" / "notes"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("ann: buy milk\nbob: call home\nann: rest\n")
    assert "short notes" in printed(tacit(toys, "corpus", "list"))
    said = tacit(toys, "corpus", "describe", "notes", "--data", "data", "--json")
    assert json.loads(printed(said))["users"] == 2
    code = "from tacit import corpora; print(corpora.load('notes', 'data'))"
    assert "3 records" in printed(python(toys, "-c", code))


@pytest.mark.parametrize("method", ["swap", "borrowed", "initials"])
def test_a_mechanism_of_which_nothing_is_proved_promises_nothing(toys: Path, method: str) -> None:
    options = ["--epsilon-per-distance", "2"] if method == "borrowed" else []
    said = tacit(toys, "sanitize", "mail.jsonl", "--method", method, *options, "-o", "new.jsonl",
                 "--json")  # fmt: skip
    found = json.loads(printed(said))
    assert (found["notion"], found["standing"]) == ("none", "heuristic")
    assert found["epsilon_per_distance"] == "infinity"
    certificate = json.loads((toys.parent / "new.certificate" / "certificate.json").read_text())
    assert certificate["sentence"].startswith("Nothing is promised")
    assert method in certificate["sentence"]
    assert certificate["reach"] == {}
    assert printed(tacit(toys, "verify", "new.certificate"))


def test_a_mechanism_from_python(toys: Path) -> None:
    code = (
        "from tacit import read, sanitize; from tacit.sanitization import Recipe, sanitize_query\n"
        "done = sanitize(read('mail.jsonl'), Recipe('swap'))\n"
        "print(len(done.column('text')[0].as_py().split()), sanitize_query('b', 'swap'))"
    )
    assert int(printed(python(toys, "-c", code)).split()[0]) >= 6
    said = tacit(toys, "sanitize", "mail.jsonl", "--method", "initials", "-o", "new.jsonl")
    assert "Nothing is promised" in printed(said)
    assert json.loads((toys.parent / "new.jsonl").read_text())["text"].endswith("for a.")


def test_a_mechanism_keeps_to_its_parameters_and_to_the_vocabulary(toys: Path) -> None:
    for method, options, said in (
        ("swap", ["--epsilon-per-distance", "2"], "takes no epsilon_per_distance"),
        ("borrowed", [], "needs epsilon_per_distance"),
        ("broken", [], "that mechanism is broken"),
        ("santxt", [], "Did you mean 'santext'?"),
    ):
        done = tacit(toys, "sanitize", "mail.jsonl", "--method", method, *options, "-o", "x.jsonl")
        assert done.returncode != 0
        assert said in " ".join(done.stderr.split())
        assert not (toys.parent / "x.jsonl").exists()
