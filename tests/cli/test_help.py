"""Every command explains itself, with an example."""

import re

import click
import pytest
import typer

from support.driving import Tacit
from tacit.cli import app


def commands(command: click.Command, words: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    below = getattr(command, "commands", {})
    return [words, *(w for name in below for w in commands(below[name], (*words, name)))]


COMMANDS = commands(typer.main.get_command(app))


def test_all_commands_are_looked_at() -> None:
    assert {" ".join(words) for words in COMMANDS} >= {
        "", "corpus", "corpus list", "corpus describe", "corpus convert", "corpus generate",
        "detect", "detect list", "detect run", "detect train", "owners", "price", "plan",
        "verify", "spent",
    }  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_has_an_example(tacit: Tacit, words: tuple[str, ...], option: str) -> None:
    shown = tacit(" ".join(words), option)
    assert shown.code == 0
    assert re.search(r"Examples?: tacit ", " ".join(shown.out.split()))
    assert shown.err == ""


def test_the_commands_stand_in_the_order_of_use(tacit: Tacit) -> None:
    shown = tacit("--help").out
    places = [
        re.search(rf"^│ {name} ", shown, re.MULTILINE).start()
        for name in ("corpus", "detect", "owners", "price", "plan", "verify", "spent")
    ]
    assert places == sorted(places)


@pytest.mark.parametrize("words", [(), ("corpus",), ("detect",)], ids=" ".join)
def test_no_command_shows_the_help(tacit: Tacit, words: tuple[str, ...]) -> None:
    shown = tacit(" ".join(words))
    assert shown.code == 2
    assert "Usage: tacit" in shown.out + shown.err


def test_version(tacit: Tacit, process: Tacit) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", tacit("--version").out)
    assert process("--version").out == tacit("--version").out


@pytest.mark.parametrize(
    "words", ["trian", "corpus descripe", "train --epsilom 3", "canaries plan"]
)
def test_a_near_command_is_suggested_once_and_a_far_one_never(tacit: Tacit, words: str) -> None:
    assert tacit(words).err.count("Did you mean") == 1
    assert "Did you mean" not in tacit("xyzzy").err
