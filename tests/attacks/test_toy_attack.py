"""An attack of a third party: one file, one line, and its column and figure are in the report."""

import json
import os
from pathlib import Path

import pytest

import tacit
from support.forking import run_python

TOY = '''
"""Are the texts that a model was trained on longer than others?"""

from tacit.attacks import Attack, Headline, Presentation, Verdict


class Length(Attack):
    """Guess that whatever is longer was trained on."""

    name = "length"
    says = "were the longer texts trained on?"
    needs = ("members", "non-members")
    presentation = Presentation(
        "Longer texts",
        (Headline("longer", "share of longer texts", chance=0.5, format=".1%"),),
    )

    def run(self, target, *, progress=None, rng):
        inside, outside = (
            [len(text) for text in corpus.column("text").to_pylist()]
            for corpus in (target.members, target.others)
        )
        pairs = [one > other for one in inside for other in outside]
        share = sum(pairs) / len(pairs)
        leak = "shown" if share > 0.75 else "not shown"
        return self.scores(
            target, {"longer": share, "pairs": len(pairs)},
            verdict=Verdict(leak, f"{share:.0%} are longer."),
        )


ATTACK = Length()
'''
IN_PYTHON = """
import sys
from pathlib import Path
import numpy as np
from tacit.attacks import ATTACKS
from tacit.attacks.target import open_target
target = open_target(Path(sys.argv[1]))
scores = ATTACKS["length"].run(target, rng=np.random.default_rng(0))
print(scores.figures["pairs"], scores.presentation.headlines[0].label)
"""


@pytest.fixture
def toy(tmp_path: Path) -> dict[str, str]:
    """An environment in which the toy is installed."""
    place = tmp_path / "site"
    info = place / "toy-1.0.dist-info"
    info.mkdir(parents=True)
    (place / "toy_attack.py").write_text(TOY)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tacit.attacks]\nlength = toy_attack:ATTACK\n")
    own = Path(tacit.__file__).parents[1]
    return os.environ | {"PYTHONPATH": f"{place}{os.pathsep}{own}", "OMP_NUM_THREADS": "1"}


def run(toy: dict[str, str], *words: str) -> str:
    done = run_python(*words, env=toy)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_an_attack_is_one_file_and_one_line(
    toy: dict[str, str], learnt: Path, tmp_path: Path
) -> None:
    folder, page = str(learnt / "run"), tmp_path / "report.html"
    assert "share of longer texts" in run(toy, "-c", IN_PYTHON, folder)
    start = ("-c", "from tacit.cli import main; main()")
    scores = tmp_path / "attacks.json"
    said = run(toy, *start, "attack", folder, "--using", "length", "-o", str(scores))
    assert "length" in said
    assert "are longer." in said
    share = json.loads(scores.read_text())["length"]["figures"]["longer"]
    run(toy, *start, "attack", folder, "--using", "length,membership")
    run(toy, *start, "report", folder, "-o", str(page))
    # The page is made from what is in the folder: also by those who have not installed the toy.
    later = tmp_path / "later.html"
    run(os.environ | {"PYTHONPATH": str(Path(tacit.__file__).parents[1])},
        *start, "report", folder, "-o", str(later))  # fmt: skip
    for text in (page.with_suffix(".md").read_text(), later.with_suffix(".md").read_text()):
        table = [line for line in text.splitlines() if line.startswith("|")]
        heading, _, row = (line.strip("| ").split(" | ") for line in table[:3])
        assert row[heading.index("share of longer texts (not private)")] == f"{share:.1%}"
        assert f"| run | length | longer | {share:.4g} |" in text
        assert "| run | length | " in text[text.index("## What attacks show") :]
    (learnt / "run" / "attacks.json").unlink()
