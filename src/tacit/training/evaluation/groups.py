"""Who pays for a promise: how well a model serves one group of users and another.

Noise and clipping cost most where there is least to learn from, so a protected model can be worse
for few or for unusual people than its mean says. Groups are of users, by how much they wrote or as
a file says, or of records by their label.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.corpus import Corpus
from tacit.errors import DataError, UsageError
from tacit.files import require_file
from tacit.saved_json import read_fields, write_fields

FORMAT, VERSION = "tacit-groups", 1
UNNAMED = "not named"
_DRAWS = 400
"""So often users are drawn again for an interval."""
_BEYOND = 690.0
"""A mean loss from here on is no model at all; sums of its exponentials are still numbers."""


@dataclass(frozen=True)
class Group:
    """How well a model predicts the words of one group; `low` and `high` are a 95 % interval."""

    name: str
    users: int
    records: int
    tokens: int
    perplexity: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Groups:
    """The groups of a split; exact figures over private text, hence not private."""

    by: str
    split: str
    groups: tuple[Group, ...]

    @property
    def gap(self) -> float:
        """The largest perplexity of a group over the smallest."""
        values = [group.perplexity for group in self.groups]
        return max(values) / min(values)

    def write(self, path: Path) -> None:
        """Save as JSON."""
        fields = {"format": FORMAT, "version": VERSION, "by": self.by, "split": self.split}
        write_fields(path, {**fields, "groups": [asdict(group) for group in self.groups]})


def read_groups(path: Path) -> Groups:
    """The groups of a file that `Groups.write` wrote."""
    fields = read_fields(path, FORMAT, VERSION)
    try:
        groups = tuple(Group(**group) for group in fields["groups"])
        if not groups or not all(math.isfinite(group.perplexity) for group in groups):
            raise ValueError
        return Groups(str(fields["by"]), str(fields["split"]), groups)
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{path} holds no groups; run tacit evaluate --by again.") from None


def group_names(corpus: Corpus, part: Corpus, by: str) -> list[str]:
    """The group of each record of a part: by `records`, by `label`, or by a file of users.

    `records` cuts the users of the part into quarters by how many records each has in the corpus.
    """
    if by == "records":
        return _by_count(corpus, part)
    if by == "label":
        if "label" not in part.columns:
            raise DataError("by=label needs records with labels, and these have none.")
        return [UNNAMED if label is None else label for label in part.column("label").to_pylist()]
    known = _users_file(Path(by))
    return [known.get(user, UNNAMED) for user in part.require_users().to_pylist()]


ENDS = 5
"""So many users of either end: those with most, and those with fewest, records."""


def ends_of(
    wrote: Mapping[str, int],
    users: Sequence[str],
    losses: NDArray[np.float64],
    tokens: NDArray[np.int64],
    split: str,
) -> Groups | None:
    """How well those who wrote most and those who wrote least are served; nobody is named.

    The figure of a group is the mean over its users of each one's perplexity, so that the mean
    drop against another model is the difference of two figures. None with fewer than ten users.

    Source: Mireshghallah et al. 2021, section 3 (utility drop of the top and the bottom five).
    """
    names, code = np.unique(np.array(users), return_inverse=True)
    lost, seen = np.bincount(code, losses), np.bincount(code, tokens).astype(np.float64)
    rows = np.bincount(code)
    able = [at for at in range(len(names)) if seen[at] > 0]
    if len(able) < 2 * ENDS:
        return None
    # Among those who wrote equally much, the order of names decides, which nobody chose.
    able.sort(key=lambda at: (-wrote.get(str(names[at]), 0), str(names[at])))
    made = []
    for name, own in ((MOST, able[:ENDS]), (FEWEST, able[-ENDS:])):
        each = _perplexity(lost[own], seen[own])
        made.append(
            Group(name, ENDS, int(rows[own].sum()), int(seen[own].sum()), float(each.mean()))
        )
    return Groups("ends", split, tuple(made))


MOST, FEWEST = f"{ENDS} with most records", f"{ENDS} with fewest records"


def _users_file(path: Path) -> dict[str, str]:
    if path.suffix != ".csv":
        raise UsageError(f"by={path} is not a grouping; accepted: records, label, or FILE.csv.")
    try:
        with require_file(path).open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            if not {"user", "group"} <= set(rows.fieldnames or ()):
                raise DataError(f"{path} needs the columns user and group in its first line.")
            return {row["user"]: row["group"] for row in rows}
    except (UnicodeDecodeError, csv.Error):
        raise DataError(f"{path} is not a CSV file in UTF-8.") from None


def _by_count(corpus: Corpus, part: Corpus) -> list[str]:
    names, counts = np.unique(corpus.require_users().to_pylist(), return_counts=True)
    wrote = dict(zip(names.tolist(), counts.tolist(), strict=True))
    writers = part.require_users().to_pylist()
    sizes = np.array([wrote[user] for user in dict.fromkeys(writers)])
    # Upper ends of the quarters; where many wrote equally much, fewer groups.
    ends = sorted({int(np.quantile(sizes, q, method="lower")) for q in (0.25, 0.5, 0.75, 1.0)})
    starts = [int(sizes.min()), *(end + 1 for end in ends[:-1])]
    width = len(str(ends[-1]))
    labels = [
        f"{start:>{width}} to {end} records"
        if start < end
        else f"{start:>{width}} {'record' if start == 1 else 'records'}"
        for start, end in zip(starts, ends, strict=True)
    ]
    return [labels[int(np.searchsorted(ends, wrote[user]))] for user in writers]


def _perplexity(lost: Any, seen: Any) -> Any:
    """Of whole losses and tokens; of a model that ran away a number so large that it says so."""
    return np.exp(np.minimum(lost / seen, _BEYOND))


def compare_groups(
    names: Sequence[str],
    users: Sequence[str],
    losses: NDArray[np.float64],
    tokens: NDArray[np.int64],
    *,
    rng: np.random.Generator,
) -> tuple[Group, ...]:
    """The perplexity of each group from the whole loss and the number of tokens of each record.

    Intervals come from drawing the users of a group again: records of one user belong together.
    """
    made = []
    for name in sorted(set(names)):
        rows = [row for row, own in enumerate(names) if own == name]
        _, code = np.unique(np.array([users[row] for row in rows]), return_inverse=True)
        lost = np.bincount(code, losses[rows])
        seen = np.bincount(code, tokens[rows]).astype(np.float64)
        if not seen.sum():
            continue
        low = high = None
        if len(lost) > 1:
            drawn = rng.multinomial(len(lost), np.full(len(lost), 1 / len(lost)), size=_DRAWS)
            again = _perplexity(drawn @ lost, np.maximum(drawn @ seen, 1))
            low, high = (float(v) for v in np.quantile(again, [0.025, 0.975]))
        value = float(_perplexity(lost.sum(), seen.sum()))
        made.append(Group(name.strip(), len(lost), len(rows), int(seen.sum()), value, low, high))
    return tuple(made)
