"""Membership inference: was this record, or this user, in the training text?

    loss        minus the loss: what a model has seen it finds likely
    zlib        the loss over what zlib makes of the text, which takes out how plain it is
    reference   the loss of a reference model less that of the target, which does so better

A user's score is the mean over that user's records.

Source: Yeom et al. 2018 (loss); Carlini et al. 2021 (zlib, reference).
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.attacks.attack import (
    Attack,
    Column,
    Drawing,
    Headline,
    Presentation,
    Progress,
    Scores,
)
from tacit.attacks.rates import Measured, Values, rates_of, roc
from tacit.attacks.target import Target
from tacit.attacks.verdicts import against_guessing
from tacit.corpus import Corpus

MOST = 5000
"""So many records of each side are looked at."""


def _rate(key: str, label: str, format: str) -> Column:
    return Column(key, label, format, (f"{key}_low", f"{key}_high"))


@dataclass(frozen=True)
class Membership(Attack):
    """Records and users, by loss, zlib and, where there is one, a reference model."""

    most: int = MOST

    name = "membership"
    says = "were these records, these users, in the training text?"
    needs = ("members", "non-members")
    presentation = Presentation(
        "Membership",
        (
            Headline(
                "auc", "membership AUC", ("users_auc", "records_auc"), chance=0.5,
                meaning="An AUC of 0.5 is guessing.",
            ),
            Headline(
                "accuracy", "membership accuracy", ("users_accuracy", "records_accuracy"),
                chance=0.5,
            ),
        ),
        (
            Column("of", "of", public=True),
            Column("by", "by", public=True),
            _rate("auc", "AUC", ".3f"),
            _rate("tpr_at_0.01", "true positives at 1 % false ones", ".1%"),
            _rate("tpr_at_0.001", "true positives at 0.1 % false ones", ".1%"),
        ),
        Drawing(
            "Who was in the training text?", "false positive rate", "true positive rate",
            curves=("users by reference", "users by loss"),
        ),
    )  # fmt: skip

    def run(
        self, target: Target, *, progress: Progress | None = None, rng: np.random.Generator
    ) -> Scores:
        """Score members and others, and see how far apart they are.

        The headline is of an attack that is named before looking, the reference where there is
        one, else the loss: the best of several would be biased.
        """
        assert target.others is not None
        members = _some(without_canaries(target), self.most, rng)
        others = _some(target.others, self.most, rng)
        sides = {"records": dict(_scored(target, members, others, progress))}
        users = _user_codes(members, others)
        if users is not None:
            sides["users"] = {
                name: (_means(m, users[0]), _means(o, users[1]))
                for name, (m, o) in sides["records"].items()
            }
        headline = "reference" if target.reference is not None else "loss"
        rows, notes, measured = _rates(sides, headline)
        curves = {
            f"{unit} by {by}": roc(*both)
            for unit, scored in sides.items()
            for by, both in scored.items()
        }
        said = [f"headline figures are those of the attack by {headline}, chosen before looking"]
        if users is not None:
            said.append(
                "records of one user are not independent: the intervals of users are honest"
            )
        of = "users_auc" if users is not None else "records_auc"
        return self.scores(
            target, measured.figures, intervals=measured.intervals, rows=rows, curves=curves,
            notes=[*notes, *said],
            verdict=against_guessing(
                f"{of.removesuffix('_auc')} by {headline}, AUC", measured.figures[of],
                measured.intervals[of], 0.5,
            ),
        )  # fmt: skip


ATTACK = Membership()


def _rates(
    sides: Mapping[str, Mapping[str, tuple[Values, Values]]], headline: str
) -> tuple[list[dict[str, Any]], list[str], Measured]:
    """A row of rates for every attack, what is to be said of them, and the headline's figures."""
    rows: list[dict[str, Any]] = []
    notes: dict[str, None] = {}
    measured = Measured()
    for unit, by in ((unit, by) for unit, scored in sides.items() for by in scored):
        inside, outside = sides[unit][by]
        found, said = rates_of(inside, outside)
        row = {"of": unit, "by": by, "members": len(inside), "others": len(outside)}
        for key, value in found.figures.items():
            low, high = found.intervals[key]
            row |= {key: value, f"{key}_low": low, f"{key}_high": high}
            if by == headline:
                measured.put(f"{unit}_{key}", value, (low, high))
        rows.append(row)
        notes |= dict.fromkeys(f"{unit}: {note}" for note in said)
    return rows, list(notes), measured


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
    sums, means, texts = [], [], []
    for corpus in (members, others):
        examples = target.reader.encode(corpus)
        mean = target.reader.task.record_losses(target.reader.model, examples)
        means.append(mean)
        sums.append(mean * np.maximum(examples.lengths - 1, 0))
        texts.append(corpus.column("text").to_pylist())
        if progress:
            progress(len(corpus))
    yield "loss", (-means[0], -means[1])
    sizes = [np.array([8.0 * len(zlib.compress(t.encode())) for t in own]) for own in texts]
    yield "zlib", (-sums[0] / sizes[0], -sums[1] / sizes[1])
    if target.reference is not None:
        reference = [target.reference.total_losses(c) for c in (members, others)]
        letters = [np.array([max(1.0, len(t)) for t in own]) for own in texts]
        with np.errstate(invalid="ignore"):  # two that found a text impossible say nothing
            inside, outside = ((reference[side] - sums[side]) / letters[side] for side in (0, 1))
        yield "reference", (inside, outside)


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
