"""Who takes part in a federation: users by keyed name, where each is, and what each may use.

The cohort is closed when training begins: the coins are thrown over a known list of users, and the
caps on entities are kept on a known graph. A client that comes back later speaks for the users it
had; users who were not there at the beginning are not added.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import DataError, PrivacyRefused
from tacit.federated.protocol import Present
from tacit.federated.settings import FOLDER
from tacit.files import whole_file
from tacit.owners import Owners
from tacit.owners.bounding import Bounded, Caps
from tacit.planning.dry_run import apply_caps
from tacit.planning.plan import Plan
from tacit.training.data.training_data import Rows, TrainingData


class Elsewhere:
    """The records of a federation, as the server has them: not at all."""

    user = record = np.zeros(0, dtype=np.int32)
    lengths = np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return 0

    def batch(self, rows: NDArray[Any]) -> dict[str, Tensor]:
        """There is nothing to make a batch of."""
        raise DataError("The records are with the clients; the server has none of them.")


@dataclass(frozen=True)
class Cohort:
    """The users of a federation, in order of their keyed names; with the graph, where caps are."""

    users: tuple[str, ...]
    clients: int
    owners: Owners | None = None
    bounded: Bounded | None = None

    @cached_property
    def number(self) -> dict[str, int]:
        """The number of each user, which its coin has, too."""
        return {name: number for number, name in enumerate(self.users)}

    @cached_property
    def permits(self) -> dict[str, tuple[int, ...]] | None:
        """The records that each user may use, by the number that its client gave them."""
        if self.owners is None or self.bounded is None:
            return None
        found: dict[str, list[int]] = {name: [] for name in self.users}
        for row in np.flatnonzero(self.bounded.kept):
            name, _, record = self.owners.record_ids[row].partition(":")
            found[name].append(int(record))
        return {name: tuple(sorted(rows)) for name, rows in found.items()}

    @cached_property
    def _told(self) -> dict[str, dict[int, tuple[str, ...]]]:
        """The entities of each record of each user, as the client said that made the graph."""
        found: dict[str, dict[int, tuple[str, ...]]] = {}
        if self.owners is not None:
            for row, id_ in enumerate(self.owners.record_ids):
                name, _, record = id_.partition(":")
                named = tuple(sorted(self.owners.entities[e] for e in self.owners.entities_of(row)))
                found.setdefault(name, {})[int(record)] = named
        return found

    def agreeing(self, one: Present) -> list[str]:
        """The users of a client that are on the cohort, and whose records are those of the graph.

        What a user may use is told by numbers of records; a client whose file has changed, or who
        has others of the user's records, would take them for others.
        """
        known = [name for name in one.users if name in self.number]
        if self.owners is None:
            return known
        said: dict[str, dict[int, tuple[str, ...]]] = {}
        for record, (code, named) in enumerate(zip(one.owner, one.entities, strict=True)):
            said.setdefault(one.users[code], {})[record] = tuple(sorted(named))
        return [name for name in known if said.get(name) == self._told[name]]

    def training_data(self) -> TrainingData:
        """Who owns what, without what it is."""
        none: Rows = np.zeros(0, dtype=np.int64)
        if self.owners is None or self.bounded is None:
            return TrainingData(Elsewhere(), none, (none,) * len(self.users), None, None)
        kept = np.flatnonzero(self.bounded.kept)
        names = [self.owners.users[self.owners.record_user[row]] for row in kept]
        of_user: dict[str, list[int]] = {name: [] for name in self.users}
        for name, row in zip(names, kept.tolist(), strict=True):
            of_user[name].append(row)
        rows = tuple(np.asarray(of_user[name], dtype=np.int64) for name in self.users)
        return TrainingData(Elsewhere(), kept, rows, self.owners, self.bounded)

    def digest(self) -> str:
        """A SHA-256 of all of it."""
        graph = self.owners.digest() if self.owners is not None else ""
        text = json.dumps([self.users, graph], allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def save(self, folder: Path) -> None:
        """Write it into a run's folder; it is about people and must stay inside."""
        place = folder / FOLDER
        place.mkdir(parents=True, exist_ok=True)
        if self.owners is not None and self.bounded is not None:
            self.owners.save(place / "graph.json.gz")
            self.bounded.save(place / "kept.json.gz")
        with whole_file(place / "cohort.json") as draft:
            fields = {
                "users": self.users,
                "clients": self.clients,
                "graph": self.owners is not None,
                "digest": self.digest(),
            }
            draft.write_text(json.dumps(fields, allow_nan=False), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> "Cohort | None":
        """The cohort of a run that was begun; None where it has none yet."""
        path = folder / FOLDER / "cohort.json"
        if not path.exists():
            return None
        owners = bounded = None
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            if fields["graph"]:
                owners = Owners.load(path.with_name("graph.json.gz"))
                bounded = Bounded.load(path.with_name("kept.json.gz"), owners)
            made = cls(tuple(fields["users"]), int(fields["clients"]), owners, bounded)
            if made.digest() != fields["digest"]:
                raise ValueError
        except (ValueError, KeyError, TypeError):
            raise DataError(f"{path} was changed; a cohort stays as training began.") from None
        return made


def make_cohort(plan: Plan | None, present: Iterable[Present]) -> Cohort:
    """The cohort of all that joined; a user of two clients is the first one's alone.

    A user whose records lay with two clients would be clipped at each, and count twice.

    *Guarantee*: where entities are capped, `bound` reads keyed names, the shape of the graph and
    the plan's seed, as in central training. Its caps are looked at once more.
    """
    holders: dict[str, Present] = {}
    clients = 0
    for one in present:
        clients += 1
        for name in one.users:
            holders.setdefault(name, one)
    if not holders:
        raise DataError("No client has a user; there is nobody to learn from.")
    if plan is None or not plan.caps:
        return Cohort(tuple(sorted(holders)), clients)
    rows = sorted(
        (name, record, named)
        for one in {id(p): p for p in holders.values()}.values()
        for record, (code, named) in enumerate(zip(one.owner, one.entities, strict=True))
        if holders[name := one.users[code]] is one
    )
    owners = Owners.from_rows((f"{name}:{record}", name, named) for name, record, named in rows)
    bounded = apply_caps(plan, owners)
    broken = Caps(**plan.caps).broken_by(owners.subset(bounded.kept))
    if broken:
        raise PrivacyRefused(f"The kept records exceed the caps: {broken}; nothing was trained.")
    kept = {owners.users[owners.record_user[row]] for row in np.flatnonzero(bounded.kept)}
    return Cohort(tuple(sorted(kept)), clients, owners, bounded)


class Whereabouts:
    """Which of Flower's nodes speaks for which user at the moment."""

    def __init__(self, cohort: Cohort) -> None:
        self._cohort = cohort
        self._node: dict[str, int] = {}
        self._agreed: dict[int, list[str]] = {}

    @property
    def nodes(self) -> set[int]:
        """The nodes that speak for somebody, or could."""
        return set(self._agreed)

    def put(self, node: int, one: Present, connected: set[int]) -> bool:
        """A node that joined, if it speaks for anybody of the cohort.

        Users of a node that is still connected stay there.
        """
        agreed = self._cohort.agreeing(one)
        for name in agreed:
            if self._node.get(name) not in connected - {node}:
                self._node[name] = node
        if agreed:
            self._agreed[node] = agreed
        return bool(agreed)

    def forget(self, node: int) -> None:
        """A node that has to join anew; another one that has its users speaks for them."""
        self._agreed.pop(node, None)
        self._node = {name: at for name, at in self._node.items() if at != node}
        for other, agreed in self._agreed.items():
            for name in agreed:
                self._node.setdefault(name, other)

    def drawn(self, numbers: Iterable[int]) -> Mapping[int, list[int]]:
        """The drawn users by node; those who are nowhere are left out."""
        found: dict[int, list[int]] = {}
        for number in numbers:
            node = self._node.get(self._cohort.users[number])
            if node is not None:
                found.setdefault(node, []).append(int(number))
        return found
