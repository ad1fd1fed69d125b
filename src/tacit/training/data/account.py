"""Whose text a run read, under keyed names, for adding up what several runs spent on one person.

The file stays inside: it says nothing without the key of this account, and its length says how
many users there were.
"""

import base64
import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tacit.corpus import Corpus
from tacit.planning.spending import ACCOUNT, FORMAT, VERSION
from tacit.saved_json import write_fields

_LENGTH = 8
MOST_RECORDS = 1 << 16
"""Of larger corpora the records with the smallest names are kept: the same ones in every run."""


def write_account(folder: Path, corpus: Corpus, salt: bytes) -> None:
    """Write the keyed names of users and records of the text that a run reads."""
    users = map(str, corpus.users() if "user" in corpus.columns else ())
    texts = (" ".join(str(t).casefold().split()) for t in corpus.column("text").to_pylist())
    write_names(folder, users, texts, salt)


def write_names(folder: Path, users: Iterable[str], records: Iterable[str], salt: bytes) -> None:
    """The same from names of users and records."""
    write_fields(
        folder / ACCOUNT,
        {
            "format": FORMAT,
            "version": VERSION,
            "note": "keyed names of people and texts: keep this inside",
            "users": _keyed_names(users, salt, "user"),
            "records": _keyed_names(records, salt, "record", MOST_RECORDS),
        },
    )


def _keyed_names(values: Iterable[str], salt: bytes, what: str, most: int | None = None) -> str:
    key = hmac.new(salt, what.encode(), hashlib.sha256).digest()
    names = {hmac.new(key, value.encode(), hashlib.sha256).digest()[:_LENGTH] for value in values}
    sorted_names = np.frombuffer(b"".join(sorted(names)), dtype=">u8")[:most]
    return base64.b64encode(sorted_names.astype("<u8").tobytes()).decode()
