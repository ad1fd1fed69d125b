"""Keyed names: HMACs under a key that clients share and the server does not have."""

import hashlib
import hmac
import json
import secrets
from pathlib import Path

from tacit.detection.mentions import fold
from tacit.errors import DataError
from tacit.files import refuse_overwrite

NAME_BYTES = 16


def new_key(path: Path) -> None:
    """Make the key that all clients of a federation share; the server must not have it."""
    refuse_overwrite(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(secrets.token_hex(32) + "\n", encoding="ascii")


def read_key(path: Path) -> bytes:
    """The key of a file."""
    try:
        key = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except (OSError, ValueError):
        key = b""
    if len(key) != 32:
        raise DataError(f"{path} holds no key; make one with `tacit federate key {path}`.")
    return key


def user_name(key: bytes, federation: str, user: str) -> str:
    """A user's keyed name, which means nothing in another federation.

    >>> user_name(b"k" * 32, "one", "ann") == user_name(b"k" * 32, "two", "ann")
    False
    """
    return _keyed(key, "user", federation, user)


def entity_name(key: bytes, federation: str, name: str, kind: str) -> str:
    """An entity's keyed name: the same at every client, however the name is written.

    >>> entity_name(b"k" * 32, "f", "Ann  LEE's", "PERSON") == (
    ...     entity_name(b"k" * 32, "f", "ann lee", "PERSON"))
    True
    """
    return _keyed(key, "entity", federation, kind, fold(name, kind))


def _keyed(key: bytes, *parts: str) -> str:
    text = json.dumps(parts, allow_nan=False).encode()
    return hmac.new(key, text, hashlib.sha256).digest()[:NAME_BYTES].hex()
