"""Whatever the project asks for has one exact version, in one place."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def name_of(requirement: str) -> str:
    """A package's name as registries compare it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[=<>\[ ;]", requirement)[0]).lower()


def test_every_requirement_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    pinned = [
        name_of(line)
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if re.match(r"[\w.-]+==", line)
    ]
    assert len(pinned) == len(set(pinned))
    assert {name_of(r) for some in lists for r in some} <= set(pinned)
