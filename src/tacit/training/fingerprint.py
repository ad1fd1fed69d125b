"""Which code made a model: a digest of what decides its weights and its price."""

import hashlib
from pathlib import Path

import tacit

_PARTS = ("training", "privacy", "plan.py", "bounding.py", "owners.py", "planning.py")


def code_digest(*also: str) -> str:
    """A SHA-256 over the sources of training and privacy, folders inside them included."""
    sha = hashlib.sha256()
    root = Path(tacit.__file__).parent
    for part in (*_PARTS, *also):
        place = root / part
        for file in [place] if place.is_file() else sorted(place.rglob("*.py")):
            sha.update(file.relative_to(root).as_posix().encode())
            sha.update(file.read_bytes())
    return sha.hexdigest()
