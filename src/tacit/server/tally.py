"""What is counted over a dataset, kept up with every record that comes and goes.

Counting a million texts takes longer than anybody waits, so it is done once, and then again after
each start of the server; from then on each record is added and taken away by itself. The counts are
exact, so they are for those inside.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tacit.corpus import COLUMNS
from tacit.corpus.description import histogram
from tacit.server import Json

Row = Mapping[str, Any]
"""A record as it is stored: id, user, text, label, split, extra."""
_TRIES = 3


@dataclass
class Tally:
    """Sums over the records of a dataset; all of them can be added to and taken from."""

    records: int = 0
    characters: int = 0
    given: int = 0
    """How many came with tokens of their own."""
    users: Counter[str] = field(default_factory=Counter)
    words: Counter[int] = field(default_factory=Counter)
    tokens: Counter[int] = field(default_factory=Counter)
    labels: Counter[str] = field(default_factory=Counter)
    splits: Counter[str] = field(default_factory=Counter)
    tagged: Counter[str] = field(default_factory=Counter)
    spans: Counter[str] = field(default_factory=Counter)
    columns: Counter[str] = field(default_factory=Counter)

    def count(self, row: Row, sign: int = 1) -> None:
        """Add a record, or take it away."""
        text, extra = row["text"], row["extra"] or {}
        self.records += sign
        self.characters += sign * len(text)
        _count(self.users, row["user"], sign)
        _count(self.words, len(text.split()), sign)
        if "tokens" in extra:
            self.given += sign
            _count(self.tokens, len(extra["tokens"]), sign)
        for name, counts in (("label", self.labels), ("split", self.splits)):
            if row[name] is not None:
                _count(counts, row[name], sign)
                _count(self.columns, name, sign)
        for tag in extra.get("tags", ()):
            if tag[:2] in ("B-", "S-", "U-"):
                _count(self.tagged, tag[2:], sign)
        for span in extra.get("spans", ()):
            _count(self.spans, span["kind"], sign)
        for name in extra:
            _count(self.columns, name, sign)

    def counts(self) -> dict[str, int]:
        """How many records and users."""
        return {"records": self.records, "users": len(self.users)}

    def described(self) -> Json:
        """As `tacit.corpus.description.describe` says it of a corpus."""
        sizes = self.tokens if self.given == self.records else self.words
        columns = {"id", "user", "text", *self.columns}
        found: Json = {
            "name": "the dataset",
            **self.counts(),
            "records_without_user": 0,
            "records_per_user": _spread(Counter(self.users.values())),
            "tokens": sum(size * n for size, n in sizes.items()),
            "tokens_per_record": _spread(sizes),
            "characters": self.characters,
        }
        for name, counts in (("label", self.labels), ("split", self.splits)):
            if name in columns:
                found[f"{name}s"] = dict(counts.most_common())
        if "tags" in columns:
            found["tagged_spans"] = dict(self.tagged.most_common())
        if "spans" in columns:
            found["gold_spans"] = dict(self.spans.most_common())
        return found | {"columns": [name for name in COLUMNS if name in columns]}


class Tallies:
    """The tallies of all datasets, of which those are kept that somebody asked for."""

    def __init__(self, rows: Callable[[str], Iterable[Row]]) -> None:
        self._rows = rows
        self._done: dict[str, Tally] = {}
        self._new: dict[str, list[Row]] = {}
        """What came while a dataset is being counted."""
        self._versions: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._counting = threading.Lock()

    def get(self, dataset: str) -> Tally:
        """The tally of a dataset; the first one counts for a while."""
        with self._lock:
            if dataset in self._done:
                return self._done[dataset]
        with self._counting:
            for _ in range(_TRIES):
                with self._lock:
                    if dataset in self._done:
                        return self._done[dataset]
                found = self._count(dataset)
                if found is not None:
                    return found
        return self._counted(dataset)  # somebody deletes all the time: as it is at this moment

    def version(self, dataset: str) -> int:
        """A number that changes with every change to the records."""
        return self._versions[dataset]

    def added(self, rows: Iterable[Row]) -> None:
        """Records that are just being written; `dropped` if they were not after all."""
        with self._lock:
            for row in rows:
                dataset = row["dataset_id"]
                self._versions[dataset] += 1
                if dataset in self._new:
                    self._new[dataset].append(row)
                elif dataset in self._done:
                    self._done[dataset].count(row)

    def removed(self, dataset: str, rows: Iterable[Row]) -> None:
        """Records that are just being deleted."""
        with self._lock:
            self._versions[dataset] += 1
            self._new.pop(dataset, None)
            if dataset in self._done:
                for row in rows:
                    self._done[dataset].count(row, -1)

    def dropped(self, datasets: Iterable[str]) -> None:
        """A transaction failed: what was counted of it may be wrong, so it is counted anew."""
        with self._lock:
            for dataset in datasets:
                self._versions[dataset] += 1
                self._new.pop(dataset, None)
                self._done.pop(dataset, None)

    def _count(self, dataset: str) -> Tally | None:
        """Count while others write; None if something was taken away meanwhile."""
        new: list[Row] = []
        with self._lock:
            self._new[dataset] = new
        tally = self._counted(dataset, new)
        with self._lock:
            if self._new.pop(dataset, None) is not new:
                return None
            for row in new:
                tally.count(row)
            self._done[dataset] = tally
        return tally

    def _counted(self, dataset: str, new: list[Row] | None = None) -> Tally:
        """What is there, without what came since: it is counted afterwards."""
        tally, later = Tally(), set[str]()
        known = 0
        for row in self._rows(dataset):
            if new is not None and known < len(new):
                later.update(one["id"] for one in new[known:])
                known = len(new)
            if row["id"] not in later:
                tally.count(row)
        return tally


def _count(counts: Counter[Any], what: Any, sign: int) -> None:
    counts[what] += sign
    if not counts[what]:
        del counts[what]


def _spread(counts: Mapping[int, int]) -> Json:
    """As `tacit.corpus.description.spread`, of values that are counted already."""
    if not counts:
        return {"min": 0, "mean": 0.0, "median": 0.0, "max": 0, "histogram": {}}
    values = np.array(sorted(counts), dtype=np.int64)
    times = np.array([counts[int(value)] for value in values], dtype=np.int64)
    ends = times.cumsum()
    total = int(ends[-1])
    low, high = (values[ends.searchsorted(place, "right")] for place in
                 ((total - 1) // 2, total // 2))  # fmt: skip
    return {
        "min": int(values[0]),
        "mean": round(float(values @ times) / total, 3),
        "median": float(low + high) / 2,
        "max": int(values[-1]),
        "histogram": histogram(values, times),
    }
