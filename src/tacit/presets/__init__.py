"""Runs that come with the package, by name: `preset:NAME` stands wherever a run file does."""

import re
from pathlib import Path

from tacit.errors import UsageError
from tacit.registry import did_you_mean

PREFIX = "preset:"
_FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Every preset, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.yml"))


def located(path: Path) -> Path:
    """The file that a command's argument names: a file as it is, `preset:NAME` in the package.

    >>> located(Path("run.yml")).name, located(Path("preset:own-data-lstm")).name
    ('run.yml', 'own-data-lstm.yml')
    """
    if not str(path).startswith(PREFIX):
        return path
    name = str(path).removeprefix(PREFIX)
    if name not in names():
        raise UsageError(
            f"There is no preset {name!r}; `tacit presets` lists them.{did_you_mean(name, names())}"
        )
    return _FOLDER / f"{name}.yml"


def description(name: str) -> str:
    """What a preset says about itself: the first sentence of its comment.

    >>> description("conll2003-lstm-users")
    'A promise about every user, here every document.'
    """
    lines = []
    for line in located(Path(PREFIX + name)).read_text(encoding="utf-8").splitlines():
        if not line.startswith("# ") or line.startswith("#   "):
            break
        lines.append(line.removeprefix("# "))
    return re.split(r"(?<=\.) ", " ".join(lines))[0]
