"""Whatever the project asks for has one exact version, in one place."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent


def name_of(requirement: str) -> str:
    """A package's name as registries compare it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[=<>\[ ;]", requirement)[0]).lower()


def asked() -> list[str]:
    """Every requirement, of the core and of each extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    return [requirement for some in lists for requirement in some]


def pins() -> list[tuple[str, str]]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = [re.match(r"([\w.-]+)==(\S+)", line) for line in lines]
    return [(name_of(match[1]), match[2]) for match in found if match]


def test_every_requirement_is_pinned() -> None:
    pinned = [name for name, _ in pins()]
    assert len(pinned) == len(set(pinned))
    assert {name_of(requirement) for requirement in asked()} <= set(pinned)


def test_every_pin_is_within_what_is_asked_for() -> None:
    """Ranges are in pyproject.toml, which a wheel carries; exact versions are here alone."""
    versions = dict(pins())
    for requirement in map(Requirement, asked()):
        assert versions[name_of(requirement.name)] in requirement.specifier, requirement
        assert "==" not in str(requirement.specifier)


def test_torch_has_a_range() -> None:
    ranges = {requirement for requirement in asked() if requirement.startswith("torch")}
    assert ranges == {"torch>=2.6,<3"}
