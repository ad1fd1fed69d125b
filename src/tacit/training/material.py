"""What a run learns from: tokenized records, who owns them, and which of them the caps keep."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit import corpora
from tacit.bounding import Bounded, Caps
from tacit.corpus import Corpus
from tacit.detecting.mentions import Mention, read_mentions
from tacit.errors import DataError, PrivacyRefused, UsageError
from tacit.owners import Owners
from tacit.plan import Plan
from tacit.planning import apply_caps
from tacit.reading import read
from tacit.training.settings import Run
from tacit.training.tasks import Examples

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Material:
    """The training records of a run; `rows_of_user` holds what each user may contribute."""

    examples: Examples
    rows: Rows
    rows_of_user: tuple[Rows, ...]
    owners: Owners | None
    bounded: Bounded | None

    @property
    def users(self) -> int:
        """How many users have a kept record."""
        return len(self.rows_of_user)


def open_corpus(run: Run) -> Corpus:
    """The corpus of a run, by file or by name."""
    if run.corpus in corpora.known() and not Path(run.corpus).exists():
        if run.data is None:
            raise UsageError(f"corpus={run.corpus} is a known corpus; say where it lies with data.")
        return corpora.load(run.corpus, Path(run.data))
    return read(Path(run.corpus))


def training_part(corpus: Corpus) -> Corpus:
    """The training split, or everything where there are no splits."""
    return corpus.only("train") if "train" in corpus.splits() else corpus


def mentions_of(run: Run, corpus: Corpus) -> list[Mention]:
    """The mentions that a run names, in the given corpus; other splits' are left aside."""
    if run.mentions is None:
        return []
    return read_mentions(Path(run.mentions), corpus)


def prepare(
    examples: Examples, corpus: Corpus, mentions: Sequence[Mention], plan: Plan | None
) -> Material:
    """Who owns what, and what the plan's caps keep of it."""
    if len(examples) == 0:
        raise DataError("There is no record to train on.")
    everything = np.arange(len(examples))
    if plan is None or plan.protect in ("records", "tokens"):
        return Material(examples, everything, _by_user(examples, everything), None, None)
    corpus.need_users()
    owners = bounded = None
    kept = everything
    if plan.caps or "entities" in plan.protect:
        own = set(corpus.column("id").to_pylist())
        owners = Owners.from_mentions(
            corpus, [m for m in mentions if m.record in own], kinds=plan.kinds
        )
        bounded = apply_caps(plan, owners)
        _need_caps(owners, bounded, plan)
        kept = np.flatnonzero(bounded.kept[examples.record])
    if len(kept) == 0:
        raise PrivacyRefused("The caps keep no record; raise them.")
    return Material(examples, kept, _by_user(examples, kept), owners, bounded)


def _need_caps(owners: Owners, bounded: Bounded, plan: Plan) -> None:
    """What the guarantee rests on is looked at once more, on what will really be used."""
    broken = Caps(**plan.caps).broken_by(owners.subset(bounded.kept))
    if broken:
        raise PrivacyRefused(f"The kept records exceed the caps: {broken}; nothing was trained.")


def _by_user(examples: Examples, rows: Rows) -> tuple[Rows, ...]:
    """The rows of each user, users in order of their code."""
    order = rows[np.argsort(examples.user[rows], kind="stable")]
    _, starts = np.unique(examples.user[order], return_index=True)
    return tuple(np.split(order, starts[1:]))


def batches(
    examples: Examples, units: Sequence[Rows], token_budget: int
) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    """Batches within a budget of padded tokens, with the number of each record's unit.

    Units come one after the other, each sorted by length so that little is padded; a unit larger
    than the budget goes on in the next batch.
    """
    lengths = examples.lengths
    rows: list[int] = []
    owner: list[int] = []
    widest = 0
    for number, unit in enumerate(units):
        for row in unit[np.argsort(lengths[unit], kind="stable")]:
            width = max(widest, int(lengths[row]))
            if rows and width * (len(rows) + 1) > token_budget:
                yield examples.batch(np.asarray(rows)), torch.tensor(owner)
                rows, owner, width = [], [], int(lengths[row])
            rows.append(int(row))
            owner.append(number)
            widest = width
    if rows:
        yield examples.batch(np.asarray(rows)), torch.tensor(owner)
