"""`tacit.plan`: what the command line plans, as an object."""

from pathlib import Path

import pytest

import tacit
from tacit.errors import UsageError
from tacit.planning.pipeline import read_plan_file


def planned(**changes: object) -> tacit.Planned:
    asked = {"protect": "users", "epsilon": 4, "users": 500, "model": "english"} | changes
    return tacit.plan(**asked)  # type: ignore[arg-type]


def test_it_is_the_plan_of_the_command_line(tmp_path: Path) -> None:
    from tacit.cli import run

    made = planned(model=None, task="classification", labels=["work", "home"])
    line = "plan x --task classification --labels work,home --protect users --users 500"
    assert run([*line.split(), "--epsilon", "4", "-o", str(tmp_path / "own.yml")]) == 0
    saved = made.save(tmp_path / "plan.yml")
    assert saved.read_text() == (tmp_path / "own.yml").read_text()
    assert read_plan_file(saved)[0] == made.plan
    with pytest.raises(UsageError, match="exists"):
        made.save(saved)


def test_it_shows_itself() -> None:
    made = planned(protect="users+names")
    assert made.epsilon["names"] == 0
    assert 3.9 < made.epsilon["users"] <= 4
    assert repr(made).startswith("Planned(epsilon ")
    html = made._repr_html_()
    assert "plan.clip_norm" in html
    assert "What to expect" in html
    assert "What this plan promises" in made.explain()


def test_what_is_given_wins() -> None:
    assert planned(steps=3).plan.steps == 3
    assert planned(delta=1e-6).plan.delta == 1e-6
    assert planned(model={"kind": "folder", "folder": "start:english"}).fields["model"]["folder"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"users": None}, "round number that you knew before"),
        ({"model": "smolm2"}, "Did you mean 'smollm2'"),
        ({"task": "tagging"}, "serves the tasks"),
        ({"nonsense": 3}, "nonsense"),
    ],
)
def test_bad_input(changes: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        planned(**changes)
