"""Copies of records in which a name is shown, for one step, and the accounts that they belong to.

A copy is a text of its own: rendered, tokenized and truncated by itself. Its number is that of its
record, so that what is drawn for it (dropout) is drawn for the base text, too, and does not depend
on which other names are shown.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.corpus import Corpus
from tacit.training.data.substitution import Marked, Name
from tacit.training.dp.dropout import RECORD
from tacit.training.dp.gradients import BASE, Account
from tacit.training.tasks.examples import Examples, Spans

Rows = NDArray[np.int64]
_COPY = "copy"
_KEPT = 20_000  # copies that are kept tokenized


class ShownNames:
    """The names that are shown in a step, as copies of the records of those who are drawn.

    `encode` makes examples of texts, given where their invented names stand, as the run's task and
    model read them.
    """

    def __init__(
        self,
        marked: Marked,
        users_per_name: int,
        names_per_user: int,
        part: Corpus,
        encode: Callable[[Corpus, Spans], Examples],
    ) -> None:
        self._marked, self._part, self._encode = marked, part, encode
        self._most = {"users_per_name": users_per_name, "names_per_user": names_per_user}
        self._made: dict[tuple[int, Name], tuple[Examples, int]] = {}
        self._step: tuple[int, dict[int, list[Name]]] | None = None

    def digest(self) -> str:
        """A SHA-256 of what may be shown: places with their names, which no base text tells."""
        places = repr([record.places for record in self._marked.records])
        return hashlib.sha256(places.encode("utf-8", "surrogatepass")).hexdigest()

    def copies(self, step: int, examples: Any, units: Sequence[Rows]) -> "Copies":
        """The base texts of these units, and a copy for each name that one of them shows."""
        shown = self._shown(step)
        wanted = [
            (int(row), name)
            for rows in units
            for row in rows
            for name in shown.get(int(examples.record[row]), ())
        ]
        self._encode_missing([(int(examples.record[row]), name) for row, name in wanted])
        return Copies(examples, units, wanted, self._made)

    def _shown(self, step: int) -> dict[int, list[Name]]:
        """The names that each record shows in a step, over all users."""
        if self._step is None or self._step[0] != step:
            found: dict[int, list[Name]] = {}
            for one in self._marked.shown(step, **self._most):
                for row in one.rows:
                    found.setdefault(row, []).append(one.name)
            self._step = step, found
        return self._step[1]

    def _encode_missing(self, wanted: Sequence[tuple[int, Name]]) -> None:
        missing = [copy for copy in dict.fromkeys(wanted) if copy not in self._made]
        if not missing:
            return
        if len(self._made) + len(missing) > _KEPT:
            self._made.clear()
            missing = list(dict.fromkeys(wanted))
        unlearnt = {str(n): self._marked.unlearnt(*copy) for n, copy in enumerate(missing)}
        made = self._encode(self._marked.copies(self._part, missing), unlearnt)
        for number, copy in enumerate(missing):
            self._made[copy] = made, number


class Copies:
    """Examples of one step: the base texts by their own rows, then the copies."""

    def __init__(
        self,
        examples: Any,
        units: Sequence[Rows],
        copies: Sequence[tuple[int, Name]],
        made: dict[tuple[int, Name], tuple[Examples, int]],
    ) -> None:
        self._examples, self._copies = examples, list(copies)
        self._own = [made[int(examples.record[row]), name] for row, name in copies]
        self._names: dict[int, list[int]] = {}
        self._parts: Counter[tuple[int, int]] = Counter()
        number: dict[Name, int] = {}
        self._number = [number.setdefault(name, len(number)) for _, name in copies]
        first = len(examples)
        of_row: dict[int, list[int]] = {}
        for at, (row, _) in enumerate(self._copies):
            of_row.setdefault(row, []).append(first + at)
            self._names.setdefault(row, []).append(self._number[at])
        # Records with copies come last, and then these: what is summed together stands together.
        self.units = []
        for rows in units:
            plain = [int(row) for row in rows if int(row) not in of_row]
            named = [int(row) for row in rows if int(row) in of_row]
            copied = [at for row in named for at in of_row[row]]
            self.units.append(np.array([*plain, *named, *copied], dtype=np.int64))
        for unit, rows in enumerate(units):
            for row in rows:
                self._parts.update((unit, name) for name in self._names.get(int(row), ()))
        self.lengths = self._lengths(of_row)

    def _lengths(self, of_row: dict[int, list[int]]) -> Rows:
        """How many tokens each example has; a record and its copies count as their longest."""
        copies = np.array([int(made.lengths[row]) for made, row in self._own], dtype=np.int64)
        found = np.concatenate([self._examples.lengths, copies])
        for row, own in of_row.items():
            found[[row, *own]] = found[[row, *own]].max()
        return np.asarray(found)

    def batch(self, rows: NDArray[Any]) -> dict[str, Tensor]:
        """Base texts and copies together, padded to the longest; copies have their record's number.

        `copy` says which are which; `accounts` takes it out.
        """
        base = rows[rows < len(self._examples)]
        parts = [self._examples.batch(base)] if len(base) else []
        for at in rows[rows >= len(self._examples)] - len(self._examples):
            made, row = self._own[at]
            one = made.batch(np.array([row]))
            one[RECORD] = torch.tensor([self._copies[at][0]])
            parts.append(one)
        joined = {name: padded([part[name] for part in parts], name) for name in parts[0]}
        order = np.concatenate([np.flatnonzero(rows < len(self._examples)),
                                np.flatnonzero(rows >= len(self._examples))])  # fmt: skip
        back = torch.from_numpy(np.argsort(order, kind="stable"))
        joined = {name: tensor[back] for name, tensor in joined.items()}
        joined[_COPY] = torch.from_numpy(np.asarray(rows, dtype=np.int64))
        return joined

    def accounts(self, batch: dict[str, Tensor], owner: Tensor) -> list[Account]:
        """Which records of a batch belong to which account of their user.

        A base text counts for the base, and with a minus sign for every name that its record
        shows; a copy counts for its name.
        """
        found: dict[tuple[int, int], list[tuple[int, float]]] = {}
        for at, (row, unit) in enumerate(
            zip(batch.pop(_COPY).tolist(), owner.tolist(), strict=True)
        ):
            if row >= len(self._examples):
                name = self._number[row - len(self._examples)]
                found.setdefault((unit, name), []).append((at, 1.0))
                continue
            found.setdefault((unit, BASE), []).append((at, 1.0))
            for name in self._names.get(row, ()):
                found.setdefault((unit, name), []).append((at, -1.0))
        return [
            Account(
                unit,
                name,
                torch.tensor([at for at, _ in held]),
                torch.tensor([sign for _, sign in held]),
                whole=name != BASE and len(held) == 2 * self._parts[unit, name],
            )
            for (unit, name), held in found.items()
        ]


_FILLED = {"labels": -100}


def padded(parts: list[Tensor], name: str) -> Tensor:
    """Parts of a batch below each other, padded on the right; padding is masked where it counts."""
    if parts[0].dim() < 2:
        return torch.cat(parts)
    width = max(part.shape[1] for part in parts)
    out = []
    for part in parts:
        shape = (len(part), width, *part.shape[2:])
        wide = part.new_full(shape, _FILLED.get(name, 0))
        wide[:, : part.shape[1]] = part
        out.append(wide)
    return torch.cat(out)
