"""What several runs spent together on the same people.

An *account* is a set of runs that are linked by people: two runs belong together if a user of one,
by name, is a user of the other. All releases of an account are added up, which bounds what anybody
in it lost. Users are compared by keyed names in each run's `account.json`, so runs have to be of
one key (one TACIT_HOME). Where accounts share no user and yet the same texts, people may have been
renamed; that is said, with the price of both together.
"""

import base64
import binascii
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from tacit.errors import DataError
from tacit.privacy.accounting.pricing import price_all
from tacit.privacy.events import AnyEvent
from tacit.privacy.ledger import LedgerContents, read_ledger
from tacit.saved_json import read_fields

ACCOUNT = "account.json"
FORMAT, VERSION = "tacit-account", 1

Names = NDArray[np.uint64]


@dataclass(frozen=True)
class _Read:
    """A run's ledger, and whose text it read; None where nobody knows."""

    name: str
    data: str
    contents: LedgerContents
    users: Names | None
    records: Names | None


def total(places: Sequence[Path], delta: float) -> dict[str, Any]:
    """Epsilon over all ledgers found, summed by account; each ledger is counted once."""
    runs = [_read(path) for path in _ledgers(places)]
    if not runs:
        raise DataError("No ledger was found; give folders that hold a ledger.jsonl.")
    accounts = _linked(runs)
    return {
        "delta": delta,
        "accounts": [_sum(account, delta) for account in accounts],
        "overlaps": list(_overlaps(accounts, delta)),
        "unknown": [r.name for r in runs if r.users is None],
    }


def _ledgers(places: Sequence[Path]) -> list[Path]:
    found: dict[Path, Path] = {}
    for place in places:
        if not place.exists():
            raise DataError(f"{place} does not exist; give a ledger or a folder.")
        files = sorted(place.rglob("ledger.jsonl")) if place.is_dir() else [place]
        found |= {file.resolve(): file for file in files}
    return list(found.values())


def _read(path: Path) -> _Read:
    contents = read_ledger(path)
    users = records = None
    account = path.with_name(ACCOUNT)
    if account.exists():
        fields = read_fields(account, FORMAT, VERSION)
        users, records = (_unpacked(fields.get(name), account) for name in ("users", "records"))
    return _Read(path.parent.name, str(contents.about.get("data", path)), contents, users, records)


def _unpacked(text: Any, path: Path) -> Names:
    try:
        return np.frombuffer(base64.b64decode(str(text), validate=True), dtype="<u8")
    except (binascii.Error, ValueError):
        raise DataError(f"{path} was changed after it was written; it is not counted.") from None


def _linked(runs: list[_Read]) -> list[list[_Read]]:
    """Runs in groups that share users, directly or through others, or the same commitment."""
    links = np.eye(len(runs), dtype=np.bool_)
    for (i, one), (j, other) in combinations(enumerate(runs), 2):
        same = one.data == other.data or _shared(one.users, other.users) > 0
        links[i, j] = same
    count, groups = connected_components(links, directed=False)
    return [
        [run for run, group in zip(runs, groups, strict=True) if group == g] for g in range(count)
    ]


def _shared(one: Names | None, other: Names | None) -> int:
    if one is None or other is None:
        return 0
    return int(np.intersect1d(one, other).size)


def _overlaps(accounts: list[list[_Read]], delta: float) -> Iterator[dict[str, Any]]:
    """Pairs of accounts with texts in common and no users: the same people, renamed?"""
    for i, one in enumerate(accounts):
        for other in accounts[:i]:
            shared = max(_shared(a.records, b.records) for a in one for b in other)
            if shared:
                both = _sum([*other, *one], delta)
                yield {"runs": both["runs"], "texts": shared, "epsilon": both["epsilon"]}


def _sum(account: list[_Read], delta: float) -> dict[str, Any]:
    releases: Counter[AnyEvent] = Counter()
    for one in account:
        # What a run continued is counted with the run it continued, if that is here, too.
        earlier = one.contents.about.get("earlier")
        here = earlier and any(o.contents.digest == earlier.get("ledger") for o in account)
        whole = earlier and not here
        releases.update(one.contents.releases() if whole else one.contents.own_releases())
    users = [one.users for one in account if one.users is not None]
    costs = price_all(releases, delta)
    return {
        "runs": [one.name for one in account],
        "users": int(np.unique(np.concatenate(users)).size) if users else None,
        "releases": releases.total(),
        "epsilon": {unit: cost.as_json()["epsilon"] for unit, cost in costs.items()},
    }
