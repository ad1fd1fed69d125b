"""Membership inference: was this record, or this user, in the training text?

    loss        minus the loss: what a model has seen it finds likely
    zlib        the loss over what zlib makes of the text, which takes out how plain it is
    reference   the loss of a reference model less that of the target, which does so better

A user's score is the mean over that user's records.

Source: Yeom et al. 2018 (loss); Carlini et al. 2021 (zlib, reference).
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.attacks.attack import Need, Progress, Scores
from tacit.attacks.rates import Values, rates_of, roc
from tacit.attacks.target import Target
from tacit.attacks.verdicts import against_guessing
from tacit.corpus import Corpus

MOST = 5000
"""So many records of each side are looked at."""


@dataclass(frozen=True)
class Membership:
    """Records and users, by loss, zlib and, where there is one, a reference model."""

    name: str = "membership"
    says: str = "were these records, these users, in the training text?"
    needs: tuple[Need, ...] = ("members", "non-members")
    most: int = MOST

    def run(
        self, target: Target, *, progress: Progress | None = None, rng: np.random.Generator
    ) -> Scores:
        """Score members and others, and see how far apart they are."""
        assert target.members is not None
        assert target.others is not None
        members = _some(without_canaries(target), self.most, rng)
        others = _some(target.others, self.most, rng)
        by_score = dict(_scored(target, members, others, progress))
        sides = {"records": by_score}
        users = _user_codes(members, others)
        if users is not None:
            sides["users"] = {
                name: (_means(m, users[0]), _means(o, users[1]))
                for name, (m, o) in by_score.items()
            }
        rows: list[dict[str, Any]] = []
        curves: dict[str, list[tuple[float, float]]] = {}
        notes: list[str] = []
        for unit, scored in sides.items():
            for name, (inside, outside) in scored.items():
                figures, intervals, said = rates_of(inside, outside)
                row: dict[str, Any] = {
                    "of": unit,
                    "by": name,
                    "members": len(inside),
                    "others": len(outside),
                }
                for key, value in figures.items():
                    row |= {key: value, f"{key}_low": intervals[key][0]}
                    row |= {f"{key}_high": intervals[key][1]}
                rows.append(row)
                curves[f"{unit} by {name}"] = roc(inside, outside)
                notes += [f"{unit}: {note}" for note in said if f"{unit}: {note}" not in notes]
        return _summed_up(rows, curves, notes, target)


ATTACK = Membership()

_HEADLINES = ("auc", "accuracy", "tpr_at_0.01", "tpr_at_0.001")


def _summed_up(
    rows: list[dict[str, Any]],
    curves: dict[str, list[tuple[float, float]]],
    notes: list[str],
    target: Target,
) -> Scores:
    """The scores, with the headline of an attack that was named before looking.

    It is the reference where there is one, else the loss; the best of several would be biased.
    """
    by = "reference" if target.reference is not None else "loss"
    figures: dict[str, float] = {}
    intervals: dict[str, tuple[float, float]] = {}
    for row in rows:
        if row["by"] != by:
            continue
        for key in _HEADLINES:
            name = f"{row['of']}_{key}"
            figures[name] = float(row[key])
            low, high = row[f"{key}_low"], row[f"{key}_high"]
            intervals[name] = (float(low), float(high))
    of = "users" if "users_auc" in figures else "records"
    verdict = against_guessing(
        f"{of} by {by}, AUC", figures[f"{of}_auc"], intervals[f"{of}_auc"], 0.5
    )
    notes.append(f"headline figures are those of the attack by {by}, chosen before looking")
    if target.others is not None and any(f.startswith("users_") for f in figures):
        notes.append("records of one user are not independent: the intervals of users are honest")
    return Scores("membership", figures, intervals, rows, curves, notes, target.perplexity, verdict)


def without_canaries(target: Target) -> Corpus:
    """What the model was trained on, less what was planted: that is too easily told."""
    members = target.members
    assert members is not None
    if target.planted is None:
        return members
    planted = target.planted.records()
    ids = members.column("id").to_pylist()
    return members.take([i for i, name in enumerate(ids) if name not in planted])


def _some(corpus: Corpus, most: int, rng: np.random.Generator) -> Corpus:
    if len(corpus) <= most:
        return corpus
    return corpus.take(np.sort(rng.choice(len(corpus), most, replace=False)))


def _scored(
    target: Target, members: Corpus, others: Corpus, progress: Progress | None
) -> Iterator[tuple[str, tuple[Values, Values]]]:
    def on_progress(corpus: Corpus) -> None:
        if progress:
            progress(len(corpus))

    sums, means, sizes = [], [], []
    for corpus in (members, others):
        examples = target.reader.encode(corpus)
        mean = target.reader.task.record_losses(target.reader.model, examples)
        means.append(mean)
        sums.append(mean * np.maximum(examples.lengths - 1, 0))
        sizes.append(zipped_sizes(corpus))
        on_progress(corpus)
    yield "loss", (-means[0], -means[1])
    yield "zlib", (-sums[0] / sizes[0], -sums[1] / sizes[1])
    if target.reference is not None:
        reference = [target.reference.total_losses(c) for c in (members, others)]
        letters = [text_sizes(c) for c in (members, others)]
        with np.errstate(invalid="ignore"):  # two that found a text impossible say nothing
            inside, outside = ((reference[side] - sums[side]) / letters[side] for side in (0, 1))
        yield "reference", (inside, outside)


def zipped_sizes(corpus: Corpus) -> NDArray[np.float64]:
    """How many bits zlib needs for each text."""
    texts = corpus.column("text").to_pylist()
    return np.array([8.0 * len(zlib.compress(t.encode())) for t in texts])


def text_sizes(corpus: Corpus) -> NDArray[np.float64]:
    """How many letters each text has, at least one."""
    return np.array([max(1.0, len(t)) for t in corpus.column("text").to_pylist()])


def _user_codes(
    members: Corpus, others: Corpus
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """The users of both sides as numbers, -1 for those of both: they are neither."""
    for corpus in (members, others):
        if "user" not in corpus.columns or corpus.column("user").null_count:
            return None
    inside, outside = (c.column("user").to_pylist() for c in (members, others))
    shared = set(inside) & set(outside)
    made = []
    for side in (inside, outside):
        names = {name: code for code, name in enumerate(dict.fromkeys(side))}
        made.append(np.array([-1 if n in shared else names[n] for n in side], dtype=np.int64))
    if any(len(np.unique(codes[codes >= 0])) < 2 for codes in made):
        return None
    return made[0], made[1]


def _means(scores: Values, users: NDArray[np.int64]) -> Values:
    """The mean score of each user."""
    known = users >= 0
    _, at = np.unique(users[known], return_inverse=True)
    total = np.bincount(at, scores[known])
    return np.asarray(total / np.bincount(at), dtype=np.float64)
