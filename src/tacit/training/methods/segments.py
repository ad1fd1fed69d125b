"""Plain and sensitive segments of a record, in turn.

A position is where a token is read and the next one predicted. It is sensitive if the token that
is read is, for its state then holds it, or if the token that is predicted is, for the loss then
looks at it: so the position before a sensitive token is sensitive, too.

Source: Shi et al. 2022, section 4.1 and Algorithm 1 (tuples of a plain and a sensitive part).
"""

import numpy as np
from numpy.typing import NDArray

from tacit.training.tasks.examples import Mask

Rounds = NDArray[np.int64]
"""One line a round: where its plain segment begins, where its sensitive one does and ends."""


def positions(marks: Mask) -> Mask:
    """Which positions of a record are sensitive, given which of its tokens are.

    >>> positions(np.array([False, False, True, False, False])).tolist()
    [False, True, True, False]
    """
    sensitive: Mask = marks[:-1] | marks[1:]
    return sensitive


def rounds_of(marks: Mask, most: int) -> Rounds:
    """The rounds of a record with at most so many sensitive segments.

    Where there are more, those with the least between them become one, plain tokens between them
    included: these are then protected, too. It looks at nothing but the marks.

    >>> rounds_of(np.array([False, False, True, False, False, False]), 4).tolist()
    [[0, 1, 3], [3, 5, 5]]
    """
    length = max(0, len(marks) - 1)
    sensitive = positions(marks)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], sensitive, [False]]).astype(np.int8)))
    starts, ends = (list(map(int, side)) for side in edges.reshape(-1, 2).T)
    while len(starts) > most:
        gaps = np.subtract(starts[1:], ends[:-1])
        at = int(gaps.argmin())
        del ends[at], starts[at + 1]
    lines = [
        (plain, start, end)
        for plain, start, end in zip([0, *ends[:-1]], starts, ends, strict=bool(starts))
    ]
    done = ends[-1] if ends else 0
    if done < length:
        lines.append((done, length, length))
    return np.asarray(lines, dtype=np.int64).reshape(-1, 3)
