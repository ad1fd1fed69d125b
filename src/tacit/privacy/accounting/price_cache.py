"""Prices kept on disk, under the question, the releases and the code that answered."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from tacit.privacy.accounting.price import Price
from tacit.privacy.events import AnyEvent, write_event
from tacit.saved_json import spelled

# What `pricing.price` stands on: a change in any of it makes old prices strangers.
CODE = ("accounting/*.py", "arguments.py", "events.py", "rounding.py")
_BOUNDS = ("opinions", "looser_bounds")
LIBRARIES = ("dp-accounting", "numpy", "scipy")


def cache_folder() -> Path | None:
    """Where prices are kept: $TACIT_CACHE, else the user's cache folder; None if it is "off"."""
    named = os.environ.get("TACIT_CACHE")
    if named == "off":
        return None
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tacit"


@cache
def code_version() -> str:
    """A digest of the code that prices, and of the libraries it stands on."""
    digest = hashlib.sha256()
    room = Path(__file__).parent.parent
    for file in sorted(file for pattern in CODE for file in room.glob(pattern)):
        digest.update(file.read_bytes())
    for library in LIBRARIES:
        digest.update(f"{library} {version(library)}".encode())
    return digest.hexdigest()


def _entry(inputs: Mapping[str, Any], counted: Mapping[AnyEvent, int]) -> tuple[Path, str] | None:
    folder = cache_folder()
    if folder is None:
        return None
    releases = sorted(
        json.dumps([write_event(e), n], sort_keys=True, allow_nan=False) for e, n in counted.items()
    )
    asked = json.dumps([inputs, releases, code_version()], sort_keys=True, allow_nan=False)
    key = hashlib.sha256(asked.encode()).hexdigest()
    return folder / "prices" / key[:2] / f"{key}.json", key


def recall(inputs: Mapping[str, Any], counted: Mapping[AnyEvent, int]) -> Price | None:
    """The stored price, if it is whole; anything else is as if it were not there."""
    place = _entry(inputs, counted)
    if place is None:
        return None
    try:
        stored = json.loads(place[0].read_text())
        if stored["digest"] != _digest(place[1], stored["price"]):
            return None
        values = stored["price"]
        values |= {name: float(values[name]) for name in ("epsilon", "lower")}
        for name in _BOUNDS:
            values[name] = tuple((str(n), float(v)) for n, v in values[name])
        found = Price(**values)
        whole = 0 <= found.lower <= found.epsilon and found.delta == inputs["delta"]
        return found if whole and found.unit == inputs["unit"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remember(inputs: Mapping[str, Any], counted: Mapping[AnyEvent, int], found: Price) -> None:
    """Store a price under a temporary name and rename it, so that readers see it whole or not."""
    place = _entry(inputs, counted)
    if place is None:
        return
    path, key = place
    values = spelled(asdict(found))  # an epsilon may be infinite
    text = json.dumps({"digest": _digest(key, values), "price": values}, allow_nan=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=path.parent, suffix=".new", delete=False) as draft:
            draft.write(text)
        os.replace(draft.name, path)
    except OSError:
        return  # a cache that cannot be written costs time, nothing else


def _digest(key: str, values: Mapping[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, allow_nan=False)
    return hashlib.sha256((key + text).encode()).hexdigest()
