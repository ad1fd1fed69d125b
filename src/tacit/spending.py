"""What several runs over the same data spent together."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacit.errors import DataError
from tacit.privacy.accounting import price_all
from tacit.privacy.ledger import Books, Releases, read_ledger


def total(places: Sequence[Path], delta: float) -> dict[str, Any]:
    """Epsilon over all ledgers found, summed by the data they are about.

    Each ledger is counted once, also if it is named twice; a project's own ledger repeats its
    runs, so it is not added to them.
    """
    groups: dict[str, dict[str, Any]] = {}
    for path in _ledgers(places):
        books = read_ledger(path)
        group = groups.setdefault(
            str(books.about.get("data", "unknown data")), {"runs": [], "books": []}
        )
        group["runs"].append(path.parent.name)
        group["books"].append(books)
    if not groups:
        raise DataError("No ledger was found; give folders that hold a ledger.jsonl.")
    return {"delta": delta, "data": {name: _sum(g, delta) for name, g in groups.items()}}


def _ledgers(places: Sequence[Path]) -> list[Path]:
    found: dict[Path, Path] = {}
    for place in places:
        if not place.exists():
            raise DataError(f"{place} is not there; give a ledger or a folder.")
        files = sorted(place.rglob("ledger.jsonl")) if place.is_dir() else [place]
        found |= {file.resolve(): file for file in files}
    return list(found.values())


def _sum(group: dict[str, Any], delta: float) -> dict[str, Any]:
    releases: Releases = {}
    books: list[Books] = group["books"]
    for one in books:
        for event, count in one.releases().items():
            releases[event] = releases.get(event, 0) + count
    costs = {u: c.as_json()["epsilon"] for u, c in price_all(releases, delta).items()}
    return {"runs": group["runs"], "releases": sum(releases.values()), "epsilon": costs}
