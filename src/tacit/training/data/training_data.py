"""What a run learns from: tokenized records, who owns them, and which of them the caps keep."""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.corpus import Corpus
from tacit.corpus.splitting import training_part
from tacit.detection import detect
from tacit.detection.mentions import Entity, Mention, read_entities, read_mentions
from tacit.detection.provenance import UNKNOWN, Provenance
from tacit.errors import DataError, PrivacyRefused
from tacit.owners import Owners
from tacit.owners.bounding import Bounded, Caps
from tacit.planning.dry_run import apply_caps
from tacit.planning.pipeline import provenance_beside
from tacit.planning.plan import Plan
from tacit.training.data.protected_entities import ProtectedEntities
from tacit.training.data.residuals import Redacted
from tacit.training.data.shown_names import ShownNames
from tacit.training.settings import Run
from tacit.training.tasks.examples import Batched, Examples, Owned

Rows = NDArray[np.int64]

_STRETCH, _WORTHWHILE = 1.5, 16
_KEPT_ASIDE = 1 << 25
"""Numbers that gradients kept aside may take: 128 MiB in single precision."""


@dataclass(frozen=True)
class TrainingData:
    """The training records of a run; `rows_of_user` holds what each user may contribute."""

    examples: Owned
    rows: Rows
    rows_of_user: tuple[Rows, ...]
    owners: Owners | None
    bounded: Bounded | None
    names: ShownNames | None = None
    """Which names are shown in a step; None where none ever is."""
    redacted: Redacted | None = None
    """The records with their sensitive tokens masked; None where no step reads them."""

    @property
    def users(self) -> int:
        """How many users have a kept record."""
        return len(self.rows_of_user)


def records_learnt_from(run: Run, corpus: Corpus) -> Corpus:
    """The training split, or some records of each of its users where the run says so.

    They are spread evenly over a user's own: how a text begins is not how it goes on.

    *Guarantee*: which of a user's records these are depends on that user's records alone.
    """
    part = training_part(corpus)
    if run.spread_records is None:
        return part
    rows_of: dict[str, list[int]] = {}
    for row, user in enumerate(part.require_users().to_pylist()):
        rows_of.setdefault(user, []).append(row)
    kept = (rows[n] for rows in rows_of.values() for n in evenly(len(rows), run.spread_records))
    return part.take(sorted(kept))


def evenly(count: int, most: int) -> list[int]:
    """So many of `count` numbers, the middle of each of as many equal stretches.

    >>> evenly(10, 3), evenly(2, 3)
    ([1, 5, 8], [0, 1])
    """
    most = min(count, most)
    return [(2 * n + 1) * count // (2 * most) for n in range(most)]


@dataclass(frozen=True)
class Found:
    """What is sensitive in a corpus; `entities` have the names, where they are known."""

    mentions: list[Mention]
    entities: list[Entity]
    provenance: Provenance = UNKNOWN


def find_mentions(run: Run, corpus: Corpus) -> Found:
    """The mentions of a run's file, or those that its detectors find."""
    return found_in(corpus, run.detect, run.mentions)


def found_in(corpus: Corpus, detectors: str | None, mentions: str | None) -> Found:
    """What detectors find in a corpus, or what a file of mentions says; else nothing."""
    if detectors is not None:
        found = detect(corpus, detectors)
        return Found(found.mentions, found.entities, found.provenance)
    if mentions is None:
        return Found([], [])
    source = Path(mentions)
    table = source.with_name(source.stem + ".entities.jsonl")
    entities = read_entities(table) if table.exists() else []
    return Found(read_mentions(source, corpus), entities, provenance_beside(source, corpus))


def prepare(
    examples: Examples,
    corpus: Corpus,
    mentions: Sequence[Mention],
    plan: Plan | None,
    protected: ProtectedEntities | None = None,
) -> TrainingData:
    """Who owns what, and what the plan's caps keep of it.

    Without a plan nothing is capped; the graph is made where `protected` says what an entity is.
    """
    if len(examples) == 0:
        raise DataError("There is no record to train on.")
    everything = np.arange(len(examples))
    if plan is None and protected is not None:
        owners = protected.owners(corpus, mentions)
        return TrainingData(examples, everything, rows_by_user(examples, everything), owners, None)
    if plan is None or plan.protect in ("records", "tokens"):
        return TrainingData(examples, everything, rows_by_user(examples, everything), None, None)
    corpus.require_users()
    graph = bounded = None
    kept = everything
    if "entities" in plan.protect:
        graph = (protected or ProtectedEntities(plan.kinds)).owners(corpus, mentions)
        bounded, kept = bounded_rows(plan, graph, examples)
    return TrainingData(examples, kept, rows_by_user(examples, kept), graph, bounded)


def bounded_rows(plan: Plan, graph: Owners, examples: Owned) -> tuple[Bounded, Rows]:
    """What the plan's caps keep, and the rows of the examples that were made of it."""
    bounded = apply_caps(plan, graph)
    # What the guarantee rests on is looked at once more, on what will really be used.
    if broken := Caps(**plan.caps).broken_by(graph.subset(bounded.kept)):
        raise PrivacyRefused(f"The kept records exceed the caps: {broken}; nothing was trained.")
    kept = np.flatnonzero(bounded.kept[examples.record])
    if len(kept) == 0:
        raise PrivacyRefused("The caps keep no record; raise them.")
    return bounded, kept


def found_and_kept(
    training_data: TrainingData, corpus: Corpus, mentions: Sequence[Mention]
) -> dict[str, dict[str, int]]:
    """What was detected in the training records, and what the caps kept and dropped of them."""
    own = set(corpus.column("id").to_pylist())
    here = [m for m in mentions if m.record in own]
    made: dict[str, dict[str, int]] = {}
    if here:
        made["detected"] = {
            "records": len(own),
            "records_with_a_mention": len({m.record for m in here}),
            "mentions": len(here),
            "entities": len({m.entity for m in here}),
        }
        made["detected_kinds"] = dict(Counter(m.kind for m in here).most_common())
    before, bounded = training_data.owners, training_data.bounded
    if before is not None and bounded is not None:
        after = before.subset(bounded.kept)
        made["bounding"] = {
            "records_before": len(before),
            "records_kept": bounded.records_kept,
            "records_dropped": bounded.records_dropped,
            "users_before": len(before.users),
            "users_kept": len(after.users),
            "entities_before": len(before.entities),
            "entities_kept": len(after.entities),
        }
        made["bounding_caps"] = dict(bounded.caps.given())
        made["dropped_by"] = dict(bounded.dropped_by)
    return made


def rows_by_user(examples: Owned, rows: Rows) -> tuple[Rows, ...]:
    """The rows of each user, users in order of their code."""
    order = rows[np.argsort(examples.user[rows], kind="stable")]
    _, starts = np.unique(examples.user[order], return_index=True)
    return tuple(np.split(order, starts[1:]))


def units_together(model: nn.Module) -> int:
    """How many units a batch may mix: as many as have room for a gradient each.

    A gradient is of what is trained: a frozen encoder takes no room.

    >>> units_together(nn.Linear(1000, 300)), units_together(nn.Linear(10_000, 3000))
    (32, 1)
    """
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return max(1, min(32, _KEPT_ASIDE // max(1, trained)))


def batches(
    examples: Batched, units: Sequence[Rows], token_budget: int, *, together: int = 1
) -> Iterator[tuple[dict[str, Tensor], Tensor, set[int]]]:
    """Batches within a budget of padded tokens, the number of each record's unit, who goes on.

    So many units are laid `together` and their records sorted by length, so that little is
    padded; a unit may then be spread over several batches, and its gradient has to be kept until
    the last of them. The result of a sum does not depend on it.
    """
    lengths = examples.lengths
    for first in range(0, len(units), together):
        part = units[first : first + together]
        rows = np.concatenate([np.asarray(unit, dtype=np.int64) for unit in part])
        owner = np.repeat(np.arange(first, first + len(part)), [len(unit) for unit in part])
        order = np.argsort(lengths[rows], kind="stable")
        rows, owner = rows[order], owner[order]
        last = {int(unit): at for at, unit in enumerate(owner)}
        for start, stop in _cut(lengths[rows], token_budget):
            own = owner[start:stop]
            goes_on = {int(unit) for unit in np.unique(own) if last[int(unit)] >= stop}
            yield examples.batch(rows[start:stop]), torch.from_numpy(own), goes_on


def of_like_length(examples: Batched, rows: Rows) -> list[Rows]:
    """These rows in parts that need little padding; the longest are last."""
    if len(rows) == 0:
        return [rows]
    rows = rows[np.argsort(examples.lengths[rows], kind="stable")]
    return [rows[start:stop] for start, stop in _cut(examples.lengths[rows], sys.maxsize)]


def _cut(lengths: Rows, token_budget: int) -> Iterator[tuple[int, int]]:
    """Where a run of rising lengths is cut: not over the budget, and little padding.

    A batch ends also where its shortest record would be half padding: two batches cost less.
    """
    start = 0
    while start < len(lengths):
        stop = start + 1
        while stop < len(lengths) and lengths[stop] * (stop + 1 - start) <= token_budget:
            if lengths[stop] > _STRETCH * lengths[start] and stop - start >= _WORTHWHILE:
                break
            stop += 1
        yield start, stop
        start = stop
