"""Users for corpora that have none: records dealt out, and whole users dealt to splits."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from tacit.corpora.sources import to_table

SPLITS = ("train", "valid", "test")


def split_rng(seed: int, split: str) -> np.random.Generator:
    """The generator of one split: what another split holds does not move it."""
    return np.random.default_rng([seed, SPLITS.index(split)])


def deal_users(
    count: int, prefix: str, rng: np.random.Generator, *, mean: float = 15, spread: float = 2
) -> list[str]:
    """A user for each of `count` records; users hold N(mean, spread²) records, rounded, >= 1.

    The records are dealt in random order; the last user takes what is left over and may hold
    fewer.

    Source: Lai et al. 2022, who deal AG News to users this way, with N(15, 2²).

    >>> users = deal_users(100, "u", np.random.default_rng(0))
    >>> len(users), len(set(users))
    (100, 7)
    """
    sizes = np.empty(0, dtype=np.int64)
    while sizes.sum() < count:
        more = np.rint(rng.normal(mean, spread, size=int(count / mean) + 8))
        sizes = np.concatenate([sizes, np.maximum(more, 1).astype(np.int64)])
    owner = np.searchsorted(np.cumsum(sizes), np.arange(count), side="right")
    dealt = np.empty(count, dtype=np.int64)
    dealt[rng.permutation(count)] = owner
    return [f"{prefix}-{n + 1:05d}" for n in dealt.tolist()]


def dealt(
    path: Path, split: str, seed: int, texts: Sequence[str], labels: Sequence[str],
    pairs: Sequence[str] = (),
) -> pa.Table:  # fmt: skip
    """The rows of a split of a corpus without users, numbered and dealt to users."""
    columns = {
        "id": [f"{split}-{n + 1:06d}" for n in range(len(texts))],
        "user": deal_users(len(texts), f"{split}-user", split_rng(seed, split)),
        "text": texts,
        "label": labels,
        "split": [split] * len(texts),
    }
    return to_table(columns | ({"pair": pairs} if pairs else {}), path)


def deal_splits(
    users: Sequence[str], rng: np.random.Generator, *, valid: float = 0.1, test: float = 0.1
) -> dict[str, str]:
    """A split for each distinct user: a tenth valid, a tenth test (rounded), the rest train."""
    distinct = list(dict.fromkeys(users))
    order = rng.permutation(len(distinct)).tolist()
    valid_end = round(valid * len(distinct))
    test_end = valid_end + round(test * len(distinct))
    return {
        distinct[user]: "valid" if place < valid_end else "test" if place < test_end else "train"
        for place, user in enumerate(order)
    }
