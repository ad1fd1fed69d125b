"""Keep a subset of records so that no owner weighs more than a cap: `bound`.

A guarantee for users and entities is paid by how far one of them reaches. Bounding limits
that reach before training: at most so many records of a user, so many users (or records) of
an entity, so many records of one user that name one entity.

*Guarantee.* The choice reads the graph and an independent seed, never a text, a label or a
score. Two corpora with the same graph and the same seed therefore keep the same records,
which is what a fixed-graph guarantee assumes. It is not stable under deleting an owner from
the graph: the records that are kept may then be quite others.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.errors import DataError, UsageError
from tacit.owners import Counts, Mask, Owners
from tacit.saved_json import read_fields, whole_numbers, write_fields

FORMAT = "tacit bounded owners"
VERSION = 1

RULE = "peel-fill/1"
"""The name and version of the rule; another rule may keep other records."""

# Divisible by 1..16, so that the value of a record divides exactly and sums in any order agree.
_WORTH = 720720


@dataclass(frozen=True)
class Caps:
    """The limits that a bounded graph meets; None is no limit."""

    records_per_user: int | None = None
    users_per_entity: int | None = None
    records_per_entity: int | None = None
    records_per_user_entity: int | None = None

    def __post_init__(self) -> None:
        for name, value in self.given().items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"{name}={value!r} is not a cap; give a whole number from 1 up.")

    def given(self) -> dict[str, int]:
        """The limits there are, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def broken_by(self, owners: Owners) -> dict[str, int]:
        """The limits that a graph exceeds, with the greatest value found; empty if it meets all.

        >>> owners = Owners.from_rows([("r1", "ann", ["e1"]), ("r2", "bob", ["e1"])])
        >>> Caps(users_per_entity=1, records_per_user=1).broken_by(owners)
        {'users_per_entity': 2}
        """
        worst = {name: int(getattr(owners, name).max(initial=0)) for name in self.given()}
        return {name: worst[name] for name, cap in self.given().items() if worst[name] > cap}


@dataclass(frozen=True, eq=False)
class Bounded:
    """Which records `bound` keeps, under which caps, by which rule and seed.

    `dropped_by` counts each dropped record once, under the first cap (in the order of `Caps`)
    that stops it from coming back.
    """

    kept: Mask
    caps: Caps
    seed: int
    rule: str
    owners_digest: str
    dropped_by: dict[str, int]

    @property
    def records_kept(self) -> int:
        """How many records are kept."""
        return int(self.kept.sum())

    @property
    def records_dropped(self) -> int:
        """How many records are dropped."""
        return len(self.kept) - self.records_kept

    def summary(self) -> dict[str, Any]:
        """Caps, seed, rule and counts, ready for JSON."""
        return {
            "caps": self.caps.given(),
            "seed": self.seed,
            "rule": self.rule,
            "owners": self.owners_digest,
            "records": len(self.kept),
            "kept": self.records_kept,
            "dropped": self.records_dropped,
            "dropped_by": self.dropped_by,
        }

    def save(self, path: Path) -> None:
        """Write the choice as JSON (gzipped if the name ends in .gz): row numbers and no text."""
        rows = np.flatnonzero(self.kept).tolist()
        head = {"format": FORMAT, "version": VERSION}
        write_fields(Path(path), {**head, **self.summary(), "kept_rows": rows})

    @classmethod
    def load(cls, path: Path, owners: Owners) -> "Bounded":
        """Read a choice back for the graph it was made on; the caps are checked again."""
        given = read_fields(Path(path), FORMAT, VERSION)
        if given.get("owners") != owners.digest():
            raise DataError(
                f"{path} was made for another graph than this one; bound these owners again."
            )
        try:
            kept = np.zeros(len(owners), dtype=np.bool_)
            rows = whole_numbers(given["kept_rows"], "kept_rows")
            kept[rows] = True
            bounded = cls(
                kept=_frozen(kept),
                caps=Caps(**given["caps"]),
                seed=int(given["seed"]),
                rule=str(given["rule"]),
                owners_digest=owners.digest(),
                dropped_by={str(k): int(v) for k, v in given["dropped_by"].items()},
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError):
            raise DataError(
                f"{path} lacks a field of bounded owners, or has one of another type; "
                "bound the owners again."
            ) from None
        except (UsageError, DataError) as error:
            raise DataError(f"{path}: {error}") from None
        broken = bounded.caps.broken_by(owners.subset(kept))
        if broken or bounded.records_kept != given.get("kept"):
            raise DataError(
                f"{path} was changed after it was written (its records exceed its caps, or "
                "their number does not fit); bound the owners again."
            )
        return bounded


def bound(owners: Owners, *, seed: int, **given: int | None) -> Bounded:
    """Keep records so that every given cap (of `Caps`) holds and no dropped record could come back.

    First each user's records are cut to a random `records_per_user`; then, while an entity
    has too many users, the (entity, user) whose loss costs least is given up, with its
    records (`_peel`); last, all records are offered again, the survivors first, and each is
    kept if the caps allow it. Linear in the size of the graph apart from sorting.

    >>> owners = Owners.from_rows(
    ...     [("r1", "ann", ["e1"]), ("r2", "ann", ["e1"]), ("r3", "bob", ["e1"]), ("r4", "bob", [])]
    ... )
    >>> bounded = bound(owners, users_per_entity=1, seed=0)
    >>> bounded.kept.tolist(), bounded.dropped_by
    ([True, True, False, True], {'users_per_entity': 1})
    """
    caps = Caps(**given)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise UsageError(f"seed={seed!r} is not a seed; give a whole number from 0 up.")
    # One independent number for each record is all the chance there is. `random` is the
    # stream that numpy is least likely to change.
    luck = np.random.default_rng(seed).random(len(owners))
    order = _order(owners, caps, luck)
    kept = _fill(owners, caps, order)
    reasons = _reasons(owners, caps, kept)
    return Bounded(_frozen(kept), caps, seed, RULE, owners.digest(), reasons)


@dataclass(frozen=True)
class Kept:
    """What a cap on the users of an entity would keep: one row of `preview`."""

    users_per_entity: int
    records: int
    sensitive_records: int
    entities: int
    users: int


def preview(
    owners: Owners, caps: Sequence[int] = (1, 2, 4, 8, 16, 32), *, seed: int, **given: int | None
) -> list[Kept]:
    """What each cap on the users of an entity would keep, the other caps being as given."""
    rows = []
    for cap in caps:
        kept = bound(owners, users_per_entity=cap, seed=seed, **given).kept
        entries = kept[owners.record_of_entry]
        rows.append(
            Kept(
                users_per_entity=cap,
                records=int(kept.sum()),
                sensitive_records=int((kept & owners.sensitive).sum()),
                entities=len(np.unique(owners.indices[entries])),
                users=len(np.unique(owners.record_user[kept])),
            )
        )
    return rows


def _order(owners: Owners, caps: Caps, luck: NDArray[np.float64]) -> Counts:
    """The order in which records are offered to the caps."""
    candidates = np.ones(len(owners), dtype=np.bool_)
    if caps.records_per_user is not None:
        candidates = _luckiest(owners.record_user, luck, caps.records_per_user)
    # 0: meets every cap on users per entity; then the given-up ones, the last of them first;
    # then what only the random cut to records_per_user left out.
    turn = np.where(candidates, 0, len(owners) + 1)
    if caps.users_per_entity is not None:
        given_up = _peel(owners, caps.users_per_entity, candidates, luck)
        turn[given_up] = np.arange(len(given_up), 0, -1)
    return np.lexsort((luck, _strain(owners, caps), turn))


def _luckiest(groups: NDArray[np.int32], luck: NDArray[np.float64], count: int) -> Mask:
    """The `count` luckiest members of each group."""
    order = np.lexsort((luck, groups))
    sizes = np.bincount(groups)
    starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
    chosen = np.zeros(len(groups), dtype=np.bool_)
    chosen[order[np.arange(len(groups)) - starts < count]] = True
    return chosen


def _strain(owners: Owners, caps: Caps) -> Counts:
    """In how many crowded places, under the caps that count records, each record stands."""
    crowded = np.zeros(len(owners.indices), dtype=np.int64)
    if caps.records_per_entity is not None:
        crowded += (owners.records_per_entity > caps.records_per_entity)[owners.indices]
    if caps.records_per_user_entity is not None:
        _, pair_of, sizes = owners.numbered_pairs
        crowded += (sizes > caps.records_per_user_entity)[pair_of]
    running = np.concatenate([[0], np.cumsum(crowded)])
    return np.asarray(running[owners.indptr[1:]] - running[owners.indptr[:-1]])


def _peel(owners: Owners, cap: int, candidates: Mask, luck: NDArray[np.float64]) -> list[int]:
    """The candidates to give up, in order, until no entity has more than `cap` users.

    An (entity, user) pair stands for the records of that user naming that entity. Each record
    is worth 1 / (1 + its number of crowded entities): one that is likely to go anyway is worth
    less. The pair worth least, over all entities that are still crowded, is given up next;
    ties fall by luck. A pair's worth only falls, so a heap with stale entries is exact.
    """
    entries = np.flatnonzero(candidates[owners.record_of_entry])
    pairs = np.unique(owners.incidence_pairs[entries])
    degrees = np.bincount(pairs // max(1, len(owners.users)), minlength=len(owners.entities))
    entries = entries[(degrees > cap)[owners.indices[entries]]]
    if len(entries) == 0:
        return []
    record_of = owners.record_of_entry[entries]
    pairs, pair_of = np.unique(owners.incidence_pairs[entries], return_inverse=True)
    # The luck of a pair is the sum over its records: two pairs that tie in it are the same
    # records, so how users and entities are numbered cannot matter. Pairs go by luck from here.
    by_luck = np.argsort(np.bincount(pair_of, weights=luck[record_of]), kind="stable")
    pair_of = np.argsort(by_luck)[pair_of]
    crowded = np.bincount(record_of, minlength=len(owners))
    worth = np.maximum(1, _WORTH // (1 + crowded))
    # Sums of whole numbers far below 2**53 are exact in floats.
    pair_worth = np.bincount(pair_of, weights=worth[record_of]).astype(np.int64)
    return _give_up(
        cap,
        degrees.tolist(),
        (pairs // max(1, len(owners.users)))[by_luck].tolist(),
        pair_worth.tolist(),
        worth.tolist(),
        _grouped(record_of, pair_of, len(pairs)),
        _grouped(pair_of, record_of, len(owners)),
    )


_Groups = tuple[list[int], list[int]]


def _give_up(
    cap: int, degree: list[int], entity: list[int], value: list[int], worth: list[int],
    records_of: _Groups, pairs_of: _Groups,
) -> list[int]:  # fmt: skip
    """The loop of `_peel`, on plain lists, which Python walks faster than arrays."""
    pairs = len(value)
    records, first_record = records_of
    touched, first_pair = pairs_of
    crowded_left = sum(d > cap for d in degree)
    gone = bytearray(len(worth))
    given_up: list[int] = []
    # One whole number holds a pair's worth and, below it, its place by luck.
    heap = [v * pairs + p for p, v in enumerate(value)]
    heapify(heap)
    while crowded_left:
        least, p = divmod(heappop(heap), pairs)
        if least != value[p] or degree[entity[p]] <= cap:
            continue
        for record in records[first_record[p] : first_record[p + 1]]:
            if gone[record]:
                continue
            gone[record] = 1
            given_up.append(record)
            loss = worth[record]
            for q in touched[first_pair[record] : first_pair[record + 1]]:
                left = value[q] - loss
                value[q] = left
                e = entity[q]
                if left == 0:
                    degree[e] -= 1
                    if degree[e] == cap:
                        crowded_left -= 1
                elif q != p and degree[e] > cap:
                    heappush(heap, left * pairs + q)
    return given_up


def _fill(owners: Owners, caps: Caps, order: Counts) -> Mask:
    """Offer every record, in order; keep it if the caps still hold with it.

    What a cap refuses once it refuses for ever, since loads only grow: so one pass leaves no
    dropped record that could come back.
    """
    everything = len(owners) + 1
    user_cap = caps.records_per_user or everything
    holder_cap = caps.users_per_entity or everything
    entity_cap = caps.records_per_entity or everything
    pair_cap = caps.records_per_user_entity or everything

    # Only what is over a cap in the whole graph can ever be refused; the rest is kept unseen.
    pairs, pair_of, sizes = owners.numbered_pairs
    tight_entity = (owners.users_per_entity > holder_cap) | (owners.records_per_entity > entity_cap)
    tight = tight_entity[owners.indices] | (sizes > pair_cap)[pair_of]
    record_of = owners.record_of_entry[tight]
    kept = owners.records_per_user[owners.record_user] <= user_cap
    kept[record_of] = False

    entities, first = _grouped(owners.indices[tight], record_of, len(owners))
    touched, _ = _grouped(pair_of[tight], record_of, len(owners))
    user_of = owners.record_user.tolist()
    user_load = np.bincount(owners.record_user[kept], minlength=len(owners.users)).tolist()
    holders = [0] * len(owners.entities)
    entity_load = [0] * len(owners.entities)
    pair_load = [0] * len(pairs)
    for record in order[~kept[order]].tolist():
        user = user_of[record]
        if user_load[user] >= user_cap:
            continue
        span = range(first[record], first[record + 1])
        for i in span:
            e, load = entities[i], pair_load[touched[i]]
            if (
                (load == 0 and holders[e] >= holder_cap)
                or load >= pair_cap
                or entity_load[e] >= entity_cap
            ):
                break
        else:
            kept[record] = True
            user_load[user] += 1
            for i in span:
                e, p = entities[i], touched[i]
                holders[e] += pair_load[p] == 0
                entity_load[e] += 1
                pair_load[p] += 1
    return kept


def _reasons(owners: Owners, caps: Caps, kept: Mask) -> dict[str, int]:
    """How many dropped records each cap keeps from coming back, each under the first such."""
    everything = len(owners) + 1
    entry_kept = kept[owners.record_of_entry]
    pairs, pair_of, _ = owners.numbered_pairs
    pair_load = np.bincount(pair_of[entry_kept], minlength=len(pairs))
    held = pairs[pair_load > 0] // max(1, len(owners.users))
    holders = np.bincount(held, minlength=len(owners.entities))[owners.indices]
    named = np.bincount(owners.indices[entry_kept], minlength=len(owners.entities))
    user_load = np.bincount(owners.record_user[kept], minlength=len(owners.users))
    load = pair_load[pair_of]
    full_entries = {
        "users_per_entity": (load == 0) & (holders >= (caps.users_per_entity or everything)),
        "records_per_entity": named[owners.indices] >= (caps.records_per_entity or everything),
        "records_per_user_entity": load >= (caps.records_per_user_entity or everything),
    }
    left = ~kept
    reasons: dict[str, int] = {}
    for name, cap in caps.given().items():
        if name == "records_per_user":
            stopped = user_load[owners.record_user] >= cap
        else:
            stopped = np.zeros(len(owners), dtype=np.bool_)
            stopped[owners.record_of_entry[full_entries[name]]] = True
        reasons[name] = int((left & stopped).sum())
        left &= ~stopped
    return reasons


def _grouped(values: NDArray[Any], groups: Counts, count: int) -> _Groups:
    """The values by group, as one list, and where each group starts in it."""
    order = np.argsort(groups, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(groups, minlength=count))])
    return values[order].tolist(), starts.tolist()


def _frozen(mask: Mask) -> Mask:
    mask.setflags(write=False)
    return mask
