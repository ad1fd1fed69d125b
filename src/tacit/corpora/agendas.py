"""The agendas of CustomerSim, read from `agendas.txt` and `customersim.toml` beside this file.

Those files hold the words and say how to write more; this one knows their grammar.
"""

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

_FOLDER = resources.files("tacit.corpora")
WORDS: dict[str, Any] = tomllib.loads((_FOLDER / "customersim.toml").read_text(encoding="utf-8"))
SLOT_KINDS = {slot: kind for kind, slots in WORDS["slots"].items() for slot in slots.split()}
FILLERS: dict[str, list[str]] = WORDS["fillers"]

_SLOT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a template: words as they are, or a slot (then `kind` may name an entity)."""

    words: str
    slot: str | None = None
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One turn: who speaks, and the paraphrases."""

    speaker: str
    variants: tuple[tuple[Part, ...], ...]


@dataclass(frozen=True, slots=True)
class Exchange:
    """Lines that are said together, with their chance; several `choices` mean one of them."""

    choices: tuple[tuple[Line, ...], ...]
    chance: float = 1.0


@dataclass(frozen=True, slots=True)
class Agenda:
    """What a dialog is about: its exchanges in order, and the slots that may be said."""

    name: str
    exchanges: tuple[Exchange, ...]
    slots: frozenset[str]


Blocks = dict[str, tuple[Line, ...]]


@cache
def agendas() -> tuple[Agenda, ...]:
    """Every agenda, ready to be said."""
    source = (_FOLDER / "agendas.txt").read_text(encoding="utf-8")
    texts: dict[str, dict[str, str]] = {"block": {}, "agenda": {}}
    for section in re.split(r"^== ", source, flags=re.MULTILINE)[1:]:
        head, _, body = section.partition("\n")
        sort, _, name = head.partition(": ")
        texts[sort][name] = body
    blocks = {name: _lines(body.strip().split("\n")) for name, body in texts["block"].items()}
    opening = _exchanges("@greet", blocks)
    closing = _exchanges("@close\n\n70%\n@bye", blocks)
    made = []
    for name, body in texts["agenda"].items():
        exchanges = (*opening, *_exchanges(body, blocks), *closing)
        slots = (
            part.slot
            for exchange in exchanges
            for lines in exchange.choices
            for line in lines
            for variant in line.variants
            for part in variant
        )
        made.append(Agenda(name, exchanges, frozenset(s for s in slots if s and s in SLOT_KINDS)))
    return tuple(made)


def _exchanges(text: str, blocks: Blocks) -> tuple[Exchange, ...]:
    return tuple(_exchange(block.split("\n"), blocks) for block in text.strip().split("\n\n"))


def _exchange(lines: list[str], blocks: Blocks) -> Exchange:
    chance = 1.0
    if lines[0].endswith("%"):
        chance = int(lines.pop(0)[:-1]) / 100
    if lines == ["@chat"]:
        return Exchange(tuple(blocks[name] for name in WORDS["chat"]), WORDS["chat_chance"])
    if lines[0].startswith("@"):
        return Exchange(tuple(blocks[name] for name in lines[0][1:].split("/")), chance)
    return Exchange((_lines(lines),), chance)


def _lines(lines: list[str]) -> tuple[Line, ...]:
    turns: list[tuple[str, list[tuple[Part, ...]]]] = []
    for line in lines:
        head, _, words = line.strip().partition(" ")
        if head != "|":
            turns.append((head.rstrip(":"), []))
        turns[-1][1].append(_parts(words))
    return tuple(Line(speaker, tuple(variants)) for speaker, variants in turns)


def _parts(template: str) -> tuple[Part, ...]:
    parts = []
    for at, piece in enumerate(_SLOT.split(template)):
        if at % 2:
            parts.append(Part("", piece, SLOT_KINDS.get(piece)))
        elif piece:
            parts.append(Part(piece))
    return tuple(parts)
