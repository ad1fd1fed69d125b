"""What server and clients send each other, and nothing else.

server -> client   the kit       settings, tokenizer, first personal weights      (once)
client -> server   who is here   keyed names of its users; if entities are capped, of the
                                 entities of each record                          (once)
server -> client   a round       current weights; which of its users were drawn, and which
                                 of their records may be used
client -> server   an answer     one clipped update for each of those users
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import DataError
from tacit.federated.keyed_names import NAME_BYTES

JOIN, TRAIN = "query", "train"
"""Kinds of messages, as Flower names them."""


@dataclass(frozen=True)
class Kit:
    """What a client needs to take part: public settings, and files by name."""

    settings: Mapping[str, Any]
    files: Mapping[str, bytes]

    @cached_property
    def digest(self) -> str:
        """A SHA-256 of all of it."""
        sha = hashlib.sha256(self._text().encode())
        for name in sorted(self.files):
            sha.update(name.encode() + b"\0" + hashlib.sha256(self.files[name]).digest())
        return sha.hexdigest()

    def _text(self) -> str:
        return json.dumps(self.settings, sort_keys=True, allow_nan=False)

    def record(self) -> RecordDict:
        """The kit as a message's content."""
        settings = ConfigRecord({"settings": self._text(), "kit": self.digest})
        return RecordDict({"kit": settings, "files": ConfigRecord(dict(self.files))})

    @classmethod
    def read(cls, content: RecordDict) -> "Kit":
        """The kit of a message; refused if it is not what it says."""
        head = content.config_records["kit"]
        files = content.config_records["files"]
        made = cls(json.loads(str(head["settings"])), {k: bytes(v) for k, v in files.items()})  # type: ignore[arg-type]
        if made.digest != head["kit"]:
            raise DataError("The kit that the server sent is not whole.")
        return made


@dataclass(frozen=True)
class Present:
    """Who a client speaks for: its users by keyed name, and the entities of their records.

    `entities[i]` are the keyed names of the entities of record `i`, which user `owner[i]` wrote;
    both are empty where no entity is capped.
    """

    users: tuple[str, ...]
    version: str
    frozen: str
    owner: tuple[int, ...] = ()
    entities: tuple[tuple[str, ...], ...] = ()

    def record(self) -> RecordDict:
        """The answer to a kit."""
        names = sorted({name for row in self.entities for name in row})
        number = {name: n for n, name in enumerate(names)}
        return RecordDict(
            {
                "present": ConfigRecord(
                    {
                        "users": list(self.users),
                        "version": self.version,
                        "frozen": self.frozen,
                        "owner": list(self.owner),
                        "names": names,
                        "sizes": [len(row) for row in self.entities],
                        "entities": [number[name] for row in self.entities for name in row],
                    }
                )
            }
        )

    @classmethod
    def read(cls, content: RecordDict) -> "Present":
        """What a client said; a DataError if it makes no sense."""
        try:
            fields: Any = content.config_records["present"]
            users, names = tuple(fields["users"]), list(fields["names"])
            sizes, flat = list(fields["sizes"]), list(fields["entities"])
            ends = np.cumsum([0, *sizes])
            owner = tuple(int(u) for u in fields["owner"])
            fits = (
                len(owner) == len(sizes)
                and ends[-1] == len(flat)
                and all(0 <= u < len(users) for u in owner)
                and all(size >= 0 for size in sizes)
                and all(0 <= e < len(names) for e in flat)
                and len(set(users)) == len(users)
                and all(_is_name(name) for name in (*users, *names))
            )
            if not fits:
                raise ValueError
            rows = (flat[a:b] for a, b in pairwise(ends))
            entities = tuple(tuple(sorted({names[e] for e in row})) for row in rows)
            return cls(users, str(fields["version"]), str(fields["frozen"]), owner, entities)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise DataError(
                "A client's answer to the kit makes no sense; it was left out."
            ) from None


_NAME = re.compile(f"[0-9a-f]{{{2 * NAME_BYTES}}}")


def _is_name(value: object) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


@dataclass(frozen=True)
class Round:
    """One round as a client sees it: who of its users was drawn, as number and keyed name.

    `permits[i]` are the records that user `i` may use, where the caps say so; `users` is how many
    take part in the federation, which places the random streams of an experiment.
    """

    kit: str
    step: int
    attempt: str
    users: int
    numbers: tuple[int, ...]
    names: tuple[str, ...]
    permits: tuple[tuple[int, ...], ...] | None = None

    def record(self, weights: ArrayRecord) -> RecordDict:
        """The question, with the current weights."""
        fields: dict[str, Any] = {
            "kit": self.kit,
            "step": self.step,
            "attempt": self.attempt,
            "users": self.users,
            "numbers": list(self.numbers),
            "names": list(self.names),
            "capped": self.permits is not None,
        }
        if self.permits is not None:
            fields["sizes"] = [len(rows) for rows in self.permits]
            fields["records"] = [row for rows in self.permits for row in rows]
        return RecordDict({"round": ConfigRecord(fields), "weights": weights})

    @classmethod
    def read(cls, content: RecordDict) -> "Round":
        """The question of a message."""
        fields: Any = content.config_records["round"]
        permits = None
        if fields["capped"]:
            ends = np.cumsum([0, *fields["sizes"]])
            permits = tuple(tuple(fields["records"][a:b]) for a, b in pairwise(ends))
        return cls(
            str(fields["kit"]),
            int(fields["step"]),
            str(fields["attempt"]),
            int(fields["users"]),
            tuple(fields["numbers"]),
            tuple(fields["names"]),
            permits,
        )


Update = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Answer:
    """What a client sends back: an update for each user; records only in plain averaging."""

    step: int
    attempt: str
    updates: Mapping[int, Update]
    records: Mapping[int, int]

    def record(self) -> RecordDict:
        """The answer as a message's content."""
        made = RecordDict()
        numbers = sorted(self.updates)
        fields: dict[str, Any] = {"step": self.step, "attempt": self.attempt, "users": numbers}
        if self.records:
            fields["records"] = [self.records[n] for n in numbers]
        made["answer"] = ConfigRecord(fields)
        for number in numbers:
            made[f"user-{number}"] = packed(self.updates[number])
        return made


def packed(tensors: Mapping[str, NDArray[Any] | Tensor]) -> ArrayRecord:
    """Tensors as Flower's arrays."""
    plain = (
        (n, t.detach().cpu().numpy() if isinstance(t, Tensor) else t) for n, t in tensors.items()
    )
    return ArrayRecord({name: Array(np.ascontiguousarray(value)) for name, value in plain})


def unpacked(record: ArrayRecord) -> Iterator[tuple[str, Tensor]]:
    """Flower's arrays as tensors."""
    for name, array in record.items():
        yield name, torch.from_numpy(np.array(array.numpy()))
