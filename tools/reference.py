"""`docs/reference/settings.md` and `api.md`, made from the code, so that the two cannot differ."""

import inspect
import sys
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

import tacit
from tacit.planning.plan import Plan
from tacit.synthesis.settings import Synthesis
from tacit.training.methods import METHODS
from tacit.training.settings import MethodSettings, Run

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
MADE = "Made by `python tools/reference.py` from the code."


def settings_page() -> str:
    """Every setting of a run and of a plan."""
    parts = [
        "# Settings", "",
        f"{MADE} A run is one YAML file ([training](../guides/training.md)); a plan is the part of "
        "it that says what is promised ([planning](../guides/planning.md)).", "",
        "## Methods", "",
        "| `method` | standing | may protect | what it does |", "|---|---|---|---|",
        *(
            f"| `{spec.name}` | {spec.standing} | {', '.join(spec.protects) or '-'} "
            f"| {spec.summary} |"
            for spec in METHODS.values()
        ),
        "", "Each is explained in [methods](methods.md).", "",
    ]  # fmt: skip
    for title, model in _sections():
        parts += [
            f"## {title}",
            "",
            _first(model),
            "",
            "| setting | takes | default | is |",
            "|---|---|---|---|",
        ]
        for name, field in model.model_fields.items():
            default = (
                "needed"
                if field.is_required()
                else _shown(field.get_default(call_default_factory=True))
            )
            cells = (f"`{name}`", _type(field.annotation), default, field.description or "")
            parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        parts.append("")
    return "\n".join(parts)


def _sections() -> list[tuple[str, type[BaseModel]]]:
    """The run, then each part of it under the name that it has there, then the plan."""
    found: dict[type[BaseModel], str] = {Run: "A run"}
    for name, field in Run.model_fields.items():
        for part in (field.annotation, *get_args(field.annotation)):
            if inspect.isclass(part) and issubclass(part, BaseModel):
                found.setdefault(part, f"`{name}`")
    del found[MethodSettings]  # each method has its own
    methods = [
        (f"`{spec.name}`", spec.settings) for spec in METHODS.values() if spec.settings.model_fields
    ]
    runs = [(title, model) for model, title in found.items()]
    return [*runs, ("`plan`", Plan), *methods, ("A synthetic corpus", Synthesis)]


def _type(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return "settings, below"
    names = {
        str: "text",
        int: "whole number",
        float: "number",
        bool: "`true`, `false`",
        dict: "`name: value`",
    }
    if annotation in names:
        return names[annotation]
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is dict:
        return names[dict]
    if origin in (tuple, list):
        return f"list of {_type(inner[0])}"
    if hasattr(annotation, "__metadata__"):
        return _type(inner[0])
    return " or ".join(dict.fromkeys(_type(part) for part in inner if part is not NoneType))


def _shown(value: Any) -> str:
    if isinstance(value, BaseModel):
        changed = value.model_dump(exclude_defaults=True)
        return ", ".join(f"{name} {given}" for name, given in changed.items()) or "their defaults"
    empty = (None, PydanticUndefined)
    return (
        ""
        if value in empty or value in ({}, ())
        else f"`{str(value).lower() if isinstance(value, bool) else value}`"
    )


def _first(thing: object) -> str:
    """The first paragraph of what something says about itself."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def api_page() -> str:
    """The public names: what `import tacit` gives."""
    parts = [
        "# Python API",
        "",
        f"{MADE} These names are the public surface: `import tacit`, then `tacit.read(...)`.",
        "",
    ]
    for name in tacit.__all__:
        thing = getattr(tacit, name)
        parts += [f"## `tacit.{name}`", "", _first(thing), ""]
        if not inspect.isclass(thing):
            parts += ["```text", f"{name}{_signature(thing)}", "```", ""]
            continue
        rows = [
            f"| `{key}` | {_first(member)} |"
            for key, member in inspect.getmembers(thing)
            if not key.startswith(("_", "model_")) and key in _own(thing) and _first(member)
        ]
        if rows and not issubclass(thing, Exception):
            parts += ["| member | is |", "|---|---|", *rows, ""]
    return "\n".join(parts)


def _own(thing: type) -> set[str]:
    return {
        key for base in thing.__mro__ if base.__module__.startswith("tacit") for key in vars(base)
    }


def _signature(thing: Any) -> str:
    """The names of the parameters, with their defaults; types are in the code."""
    parameters = [
        p.replace(annotation=p.empty) for p in inspect.signature(thing).parameters.values()
    ]
    return str(inspect.Signature(parameters))


PAGES = {"settings.md": settings_page, "api.md": api_page}

if __name__ == "__main__":
    for name, make in PAGES.items():
        page = FOLDER / name
        if "--check" not in sys.argv:
            page.write_text(make(), encoding="utf-8")
        elif page.read_text(encoding="utf-8") != make():
            sys.exit(f"{page} is out of date")
