"""Which code made a model: a digest of what decides its weights and its price."""

import hashlib
from importlib.resources import files

_PARTS = ("training", "privacy", "plan.py", "bounding.py", "owners.py", "planning.py")


def code_digest() -> str:
    """A SHA-256 over the sources of training and privacy."""
    sha = hashlib.sha256()
    for part in _PARTS:
        place = files("tacit") / part
        found = [place] if place.is_file() else sorted(place.iterdir(), key=lambda f: f.name)
        for file in found:
            if file.name.endswith(".py"):
                sha.update(file.name.encode())
                sha.update(file.read_bytes())
    return sha.hexdigest()
