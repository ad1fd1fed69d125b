"""`tacit.models`: what can be trained here without a network, and what a package index has."""

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tacit.notebook import rows_html
from tacit.packaged_models import (
    START_PREFIX,
    find_packaged,
    has_weights,
    how_to_install,
    hub_models,
    starts,
)
from tacit.planning import recipes
from tacit.planning.recipes import Fields, Machine

_TASKS = {
    "ForCausalLM": "next-word",
    "LMHeadModel": "next-word",
    "ForMaskedLM": "masked-word",
    "ForSequenceClassification": "classification",
    "ForTokenClassification": "tagging",
}
"""What a model is for, by the end of its class's name in transformers."""
_LICENCE = re.compile(r"^license:\s*(\S.*)$", re.MULTILINE)
HEADINGS = ("model", "where", "for", "numbers", "MB", "licence", "how to use it")


@dataclass(frozen=True)
class KnownModel:
    """A model that is on this machine, or that a package index may have."""

    name: str
    where: str
    """`installed`, `public start`, `Hugging Face cache`, or `not installed`."""
    task: str
    numbers: int | None
    megabytes: float
    licence: str
    use: str
    """A setting of a run; for what is not installed, the command that installs it."""

    def row(self) -> tuple[str, ...]:
        """As a table shows it."""
        numbers = "" if self.numbers is None else f"{self.numbers:,}"
        size = f"{self.megabytes:,.0f}" if self.megabytes >= 10 else f"{self.megabytes:.1f}"
        return self.name, self.where, self.task, numbers, size, self.licence, self.use


@dataclass(frozen=True)
class Models:
    """What is known, and what this machine is recommended."""

    known: Sequence[KnownModel]
    recommended: Sequence[str]
    """A sentence for each task."""

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "models": [asdict(one) for one in self.known],
            "recommended": list(self.recommended),
        }

    def __repr__(self) -> str:
        return f"Models({', '.join(one.name for one in self.known)})"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        rows = [one.row() for one in self.known]
        return rows_html("Models", HEADINGS, rows, " ".join(self.recommended))


def models() -> Models:
    """The models that runs can begin from, and which of them suit this machine.

    Nothing is fetched: what is not installed comes with the command that a package index knows.
    """
    known = (*_of_recipes(), *_of_starts(), *_of_hub())
    return Models(sorted(known, key=lambda one: one.where == "not installed"), _recommended())


def _of_recipes() -> Iterator[KnownModel]:
    """The packages that recipes know."""
    here = Machine.here()
    for family in recipes.constants()["family"]:
        packages = family.get("packages")
        if not packages:
            continue
        installed = here.installed.issuperset(packages)
        yield KnownModel(
            family["name"],
            "installed" if installed else "not installed",
            family["task"],
            family["holds"],
            _megabytes(find_packaged(packages[0])) if installed else float(family["download"]),
            family["licence"],
            f"model: {family['name']}" if installed else how_to_install(packages),
        )


def _of_starts() -> Iterator[KnownModel]:
    """What read public text only, here or where this package was made."""
    for name, folder in starts().items():
        facts = _json(folder / "start.json")
        use = f"model: {{kind: folder, folder: {START_PREFIX}{name}}}"
        licence = str(facts.get("licence") or "not stated").rpartition("these weights ")[2]
        yield KnownModel(
            START_PREFIX + name, "public start", "next-word", facts.get("weights"),
            _megabytes(folder), licence, use,
        )  # fmt: skip


def _of_hub() -> Iterator[KnownModel]:
    """What the tools of Hugging Face have fetched before."""
    for name, folder in hub_models().items():
        made = str((_json(folder / "config.json").get("architectures") or [""])[0])
        task = next((task for end, task in _TASKS.items() if made.endswith(end)), "features")
        kind = {"next-word": "folder", "features": "features"}.get(task, "folder")
        use = f"model: {{kind: {kind}, folder: {name}}}"
        if not has_weights(folder):
            use = "cannot be loaded: it has no model.safetensors"
        card = folder / "README.md"
        said = _LICENCE.search(card.read_text("utf-8", "replace")) if card.exists() else None
        yield KnownModel(
            name, "Hugging Face cache", task, None, _megabytes(folder),
            said.group(1).strip() if said else "not stated", use,
        )  # fmt: skip


def _recommended() -> list[str]:
    """What a recipe takes here, and what it would take if more were installed."""
    machine, all_of_them = Machine.here(), Machine.here(with_everything=True)
    cores = f"{machine.cores} cores" if machine.cores > 1 else "one core"
    said = []
    for task in ("classification", "next-word"):
        best, own = recipes.recommended(task, all_of_them), _taken(task, machine)
        better = "" if own == best else f" after {how_to_install(best['packages'])}"
        first = f"{task}: {best['name']}{better} ({best['why']})"
        second = f"; until then {own['name']}" if own is not None and own != best else ""
        said.append(f"On {cores}, for {first}{second}.")
    return said


def _taken(task: str, machine: Machine) -> Fields | None:
    usable = any(
        machine.installed.issuperset(one.get("packages", ()))
        for one in recipes.constants()["family"]
        if one["task"] == task and "adapter" not in one
    )
    return recipes.recommended(task, machine) if usable else None


def _megabytes(place: Path) -> float:
    files = [place] if place.is_file() else [one for one in place.rglob("*") if one.is_file()]
    return sum(os.path.getsize(one) for one in files) / 1e6


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
