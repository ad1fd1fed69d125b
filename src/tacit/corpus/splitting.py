"""Records set aside to test on: whole users, or single records, by a hash of their own names."""

import hashlib
from typing import TYPE_CHECKING

from tacit.errors import UsageError

if TYPE_CHECKING:
    from tacit.corpus.corpus import Corpus


def split_of(name: str, seed: int, *, valid: float, test: float) -> str:
    """The split of a user, or of a record, by its own name and the seed, and by nobody else's.

    *Guarantee*: that somebody joins or leaves moves nobody else to another split, so choosing the
    training records this way changes nothing about who is a neighbour of whom.

    >>> [split_of(name, 1, valid=0.2, test=0.2) for name in ("ann", "bob", "cleo", "dan", "eve")]
    ['train', 'test', 'train', 'train', 'train']
    """
    digest = hashlib.sha256(f"{seed}\0{name}".encode()).digest()
    place = int.from_bytes(digest[:8], "big") / 2**64
    return "test" if place < test else "valid" if place < test + valid else "train"


def splits_by(corpus: "Corpus", by: str, *, test: float, valid: float, seed: int) -> list[str]:
    """The split of each record, by its user or by itself."""
    if by not in ("user", "record") or min(test, valid) < 0 or not 0 < test + valid < 1:
        raise UsageError(
            f"by={by}, test={test:g} and valid={valid:g} are not a split; split by user or record, "
            "with shares above 0 that leave something to train on."
        )
    if "split" in corpus.columns:
        raise UsageError(f"{corpus.name} has splits already: {', '.join(corpus.splits())}.")
    names = (corpus.require_users() if by == "user" else corpus.column("id")).to_pylist()
    return [split_of(name, seed, valid=valid, test=test) for name in names]


def training_part(corpus: "Corpus") -> "Corpus":
    """The training split, or everything where there are no splits."""
    return corpus.only("train") if "train" in corpus.splits() else corpus
