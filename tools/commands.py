"""`docs/reference/commands.md` from the commands' own help, so that the two cannot differ."""

import os
import sys
from pathlib import Path

# The help is drawn for a terminal; here it must not depend on whose.
os.environ.update(COLUMNS="100", TERM="dumb", NO_COLOR="1", TERMINAL_WIDTH="100")

import typer
from click.testing import CliRunner

from tacit.cli import app

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "commands.md"


def help_page() -> str:
    """The whole page."""
    group = typer.main.get_command(app)
    parts = [
        "# Every command",
        "",
        "Made by `python tools/commands.py` from the commands' help.",
        "",
    ]
    for words in _commands(group, []):
        result = CliRunner().invoke(group, [*words, "--help"], prog_name="tacit")
        lines = [line.rstrip() for line in result.output.strip("\n").splitlines()]
        parts += [f"## `{' '.join(['tacit', *words])}`", "", "```", *lines, "```", ""]
    return "\n".join(parts)


def _commands(group, words: list[str]) -> list[list[str]]:  # type: ignore[no-untyped-def]
    found = [words]
    for name, command in getattr(group, "commands", {}).items():
        found += _commands(command, [*words, name])
    return found


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text(encoding="utf-8") == help_page() else f"{PAGE} is out of date")
    PAGE.write_text(help_page(), encoding="utf-8")
