"""What is made of noisy votes and of the noisy histogram: nothing here sees private text."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tacit.synthesis.space import SCALE, Points, likeness
from tacit.synthesis.votes import Columns

Shares = NDArray[np.float64]
"""How much of the text is of each label (rows) and length (columns)."""


def even(kinds: int) -> Shares:
    """Labels that are equally frequent, lengths that are not told apart.

    >>> even(2).tolist()
    [[0.5], [0.5]]
    """
    return np.full((kinds, 1), 1 / kinds)


def shares_of(counts: NDArray[np.float64], kinds: int) -> Shares:
    """Released counts as shares; what noise made negative is none.

    >>> shares_of(np.array([3.0, -1.0, 1.0, 0.0]), 2).tolist()
    [[0.75, 0.0], [0.25, 0.0]]
    """
    kept = np.clip(counts, 0, None).reshape(kinds, -1)
    total = kept.sum()
    return kept / total if total > 0 else np.full(kept.shape, 1 / kept.size)


def quotas(shares: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """Whole numbers in these shares that add up to the total: the largest remainders.

    >>> quotas(np.array([[0.5, 0.3], [0.2, 0.0]]), 4).tolist()
    [[2, 1], [1, 0]]
    """
    wanted = shares * total
    made = np.floor(wanted).astype(np.int64)
    left = total - int(made.sum())
    most = np.argsort(-(wanted - made).ravel(), kind="stable")[:left]
    made.ravel()[most] += 1
    return made


def smoothed(
    points: Points, columns: Columns, votes: NDArray[np.float64], power: float
) -> NDArray[np.float64]:
    """Votes of a label shared among candidates that are alike, with noise as large as before.

    A candidate alone has few votes and as much noise as any other; neighbours were voted for by
    the same records, and their noise is independent.
    """
    if power == 0:
        return votes
    made = np.empty_like(votes)
    for own in columns.of_label.values():
        at = points[columns.candidate[own]]
        for part, products in likeness(at, at):
            shares = np.clip(products / SCALE**2, 0, None).astype(np.float64) ** power
            length = np.sqrt((shares**2).sum(1))
            made[own[part]] = (shares @ votes[own]) / np.maximum(length, 1e-9)
    return made


def labelled(columns: Columns, votes: NDArray[np.float64]) -> NDArray[np.int64]:
    """The column that speaks for each candidate: its own, or that of the label it has most of."""
    best: dict[int, int] = {}
    for column in np.argsort(-votes, kind="stable").tolist():
        best.setdefault(int(columns.candidate[column]), column)
    return np.array([best[number] for number in sorted(best)], dtype=np.int64)


def keep(
    votes: NDArray[np.float64],
    label: NDArray[np.int64],
    length: NDArray[np.int64],
    wanted: NDArray[np.int64],
    noise: float,
) -> list[int]:
    """The candidates with most votes in each cell of labels and lengths.

    What the noise alone may reach among so many has no claim to a cell. Where a cell has too few,
    the label's best of other lengths fill up; a label may fall short.
    """
    claim = noise * np.sqrt(2 * np.log(max(2, len(votes))))
    order = np.argsort(-votes, kind="stable")
    kept: list[int] = []
    for kind, row in enumerate(wanted):
        own = order[label[order] == kind]
        chosen: list[int] = []
        for cell, count in enumerate(row.tolist()):
            inside = own if len(row) == 1 else own[(length[own] == cell) & (votes[own] > claim)]
            chosen += inside[:count].tolist()
        taken = set(chosen)
        rest = [at for at in own.tolist() if at not in taken]
        kept += chosen + rest[: int(row.sum()) - len(chosen)]
    return kept


def cells(words: Sequence[int], lengths: Sequence[int]) -> NDArray[np.int64]:
    """Which length of the histogram each text has.

    >>> cells([3, 8, 100], (8, 16)).tolist()
    [0, 1, 2]
    """
    return np.searchsorted(lengths, np.asarray(words, dtype=np.int64), "right").astype(np.int64)
