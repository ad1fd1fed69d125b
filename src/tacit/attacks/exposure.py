"""Exposure: how far up a planted secret ranks among all that it could have been.

Exposure is log2 of the number of secrets of the form, less log2 of the rank of the planted one by
the model's likelihood: 0 for a secret that ranks last, the full number of bits for one that the
model finds likeliest. A secret that was never planted has 1.44 bits on average (1 / ln 2), whatever
the model is: it was drawn by chance, and equally likely secrets share the mean of their bits.

Small spaces are enumerated, which is exact; of large ones so many are drawn, and a canary is ranked
among these. Above them a skew-normal distribution is fitted to their log-perplexities, if it fits;
no exposure is ever larger than the form allows.

Source: Carlini et al. 2019, sections 4 and 5.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import gammaln

from tacit.attacks.attack import (
    Attack,
    Column,
    Drawing,
    Headline,
    Presentation,
    Progress,
    Scores,
)
from tacit.attacks.canaries import Planted, Template
from tacit.attacks.likelihood import Ids, log_likelihoods, padded
from tacit.attacks.rates import Values, ordered
from tacit.attacks.spelling import Spelled, spelled_canaries
from tacit.attacks.target import Reader, Target
from tacit.attacks.verdicts import against_ranks, rank_is_chance
from tacit.errors import DataError

ENUMERATED = 2_000_000
"""Spaces of at most so many secrets are enumerated."""
DRAWN = 20_000
"""Of larger ones, so many are drawn."""
TAIL = 10
"""Where fewer of those that were drawn are likelier, a rank among them says little: a fit does."""
_FEWEST, _FAR = 1000, 0.05
"""A fit needs so many scores, and may be off by no more than this share at any of them."""
_CHUNK = 50_000


@dataclass(frozen=True)
class Exposing(Attack):
    """Exposure of planted canaries, by repetition, beside that of canaries never planted."""

    enumerated: int = ENUMERATED
    drawn: int = DRAWN

    name = "exposure"
    says = "the rank of planted secrets among all of their form"
    needs = ("canaries",)
    presentation = Presentation(
        "Exposure of canaries",
        (
            Headline(
                "bits", "exposure, bits", ("most_repeated_bits",), chance=1 / math.log(2),
                most="most_possible_bits", format=".4g",
                meaning="Exposure is that of the canaries that were planted most often: near its "
                "maximum they can be read out of the model, at 1.44 they are as well hidden as "
                "secrets that were never in the text.",
            ),
        ),
        (
            Column("repetitions", "repeated", public=True),
            Column("canaries", "canaries", public=True),
            Column("mean_bits", "mean bits", ".2f", ("low", "high")),
            Column("largest_bits", "largest", ".2f"),
            Column("records", "records", public=True),
            Column("records_kept", "records kept by caps"),
        ),
        Drawing(
            "Exposure of planted secrets", "times planted", "mean exposure, bits",
            columns=("repetitions", "mean_bits", "low", "high"),
        ),
    )  # fmt: skip

    def run(
        self, target: Target, *, progress: Progress | None = None, rng: np.random.Generator
    ) -> Scores:
        """Rank every canary of the plan."""
        spelled = spelled_canaries(target)
        found = exposures(
            target.reader, spelled.plan, enumerated=self.enumerated, drawn=self.drawn,
            progress=progress, rng=rng,
        )  # fmt: skip
        planted, size = spelled.plan, spelled.plan.template.size
        pairs = list(zip(planted.canaries, found.bits.tolist(), strict=True))
        inside = [bits for c, bits in pairs if c.planted]
        controls = [bits for c, bits in pairs if not c.planted]
        groups: dict[int, list[float]] = {}
        for canary, bits in sorted(pairs, key=lambda pair: pair[0].repetitions):
            if canary.planted:
                groups.setdefault(canary.repetitions, []).append(bits)
        rows = [_row(0, controls, size)] if controls else []
        rows += [_planted_row(target, planted, count, groups[count]) for count in groups]
        most_repeated = groups[max(groups)] if groups else []
        figures = {
            "most_possible_bits": planted.template.bits,
            "chance_bits": chance_bits(size),
            "mean_bits": _mean(inside),
            "most_repeated_bits": _mean(most_repeated),
            "largest_bits": max(inside, default=math.nan),
            "largest_by_chance": _largest_by_chance(len(inside), planted.template.bits),
            "control_bits": _mean(controls),
            "planted": float(len(inside)),
            "controls": float(len(controls)),
        }
        measured = {"mean_bits": inside, "most_repeated_bits": most_repeated,
                    "control_bits": controls}  # fmt: skip
        return self.scores(
            target, figures, rows=rows, notes=_notes(spelled, found, rows),
            intervals={name: mean_interval(bits, size) for name, bits in measured.items() if bits},
            verdict=against_ranks(list(groups.values()), controls, figures["chance_bits"]),
        )  # fmt: skip


ATTACK = Exposing()


def _planted_row(
    target: Target, planted: Planted, count: int, bits: Sequence[float]
) -> dict[str, Any]:
    """The exposure of what was planted so often, with its records and how many the caps kept."""
    own = [c for c in planted.inside() if c.repetitions == count]
    records = [record for c in own for record in c.records]
    kept = len(records if target.kept is None else target.kept.intersection(records))
    row = _row(count, bits, planted.template.size)
    return row | {"records": len(records), "records_kept": kept}


@dataclass(frozen=True)
class Found:
    """The exposures of a plan's canaries, in its order, and how they were found."""

    bits: Values
    distinct: int
    """How many secrets of the form the tokenizer tells apart, where all were looked at."""
    drawn: int = 0
    """How many were drawn to rank among, where not all were looked at."""
    fit: float | None = None
    """How far the fitted distribution is from the scores (Kolmogorov-Smirnov), where one fits."""


def exposures(
    reader: Reader,
    planted: Planted,
    *,
    enumerated: int = ENUMERATED,
    drawn: int = DRAWN,
    progress: Progress | None = None,
    rng: np.random.Generator,
) -> Found:
    """The exposure of every canary, planted or not."""
    template = planted.template
    before = _before(reader, template)
    own = _secret_ids(reader, template, [c.secret for c in planted.canaries], before)
    scores = log_likelihoods(reader.model, before, own)
    if template.size <= enumerated:
        space = _all_ids(reader, template, before)
        different, counts = _different(space)
        everything = log_likelihoods(reader.model, before, different, progress=progress)
        likelier, equal = _likelier(scores, everything, counts)
        return Found(_rank_bits(likelier, np.maximum(equal, 1), template.size), len(different))
    sample = _secret_ids(reader, template, _draws(template, drawn, rng), before)
    others = log_likelihoods(reader.model, before, sample, progress=progress)
    bits, fit = _drawn_bits(scores, others, template.bits)
    return Found(bits, len(_different(sample)[0]), len(others), fit)


def _before(reader: Reader, template: Template) -> list[int]:
    """The tokens that all secrets of the form share: a start token and the words before them.

    They are found by comparison, because the last of the words may join the secret's first token.
    """
    first, _ = reader.task.frame(reader.tokenizer)
    rng = np.random.default_rng(0)
    texts = [template.text(s) for s in _draws(template, 64, rng)]
    # Two secrets that differ in the first place end any token that they share.
    texts += [template.text(template.joint.join([w] + [s[0] for s in template.slots[1:]]))
              for w in template.slots[0]]  # fmt: skip
    rows = reader.tokenizer(texts, add_special_tokens=False)["input_ids"]
    shared = 0
    while all(len(r) > shared + 1 and r[shared] == rows[0][shared] for r in rows):
        shared += 1
    before = [*first, *rows[0][:shared]]
    if not before:
        raise DataError("The tokenizer has no start token, and the template nothing before it.")
    return before


def _draws(template: Template, count: int, rng: np.random.Generator) -> list[str]:
    return [template.secret(choice) for choice in _places(template, count, rng)]


def _places(template: Template, count: int, rng: np.random.Generator) -> list[list[int]]:
    drawn = [rng.integers(len(slot), size=count) for slot in template.slots]
    return np.stack(drawn, axis=1).tolist()


def _secret_ids(
    reader: Reader, template: Template, secrets: Iterable[str], before: Sequence[int]
) -> Ids:
    """The tokens of each canary after the common beginning, padded with -1."""
    start = len(before) - len(reader.task.frame(reader.tokenizer)[0])
    chunks, texts_of = [], map(template.text, secrets)
    while texts := list(islice(texts_of, _CHUNK)):
        # No offsets are needed, so the faster way is open: a million texts are many.
        rows = reader.tokenizer.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        chunks.append(padded([row.ids[start:] for row in rows]))
    width = max(c.shape[1] for c in chunks)
    wide = [np.pad(c, ((0, 0), (0, width - c.shape[1])), constant_values=-1) for c in chunks]
    return np.concatenate(wide)


def _all_ids(reader: Reader, template: Template, before: Sequence[int]) -> Ids:
    """The tokens of every secret of the form.

    Where words stand apart, most tokenizers read each by itself: then the tokens of a secret are
    those of its words in a row, which is tried on many before it is used.
    """
    if template.joint.isspace() and template.before.endswith(" "):
        pieces = [
            [
                e.ids
                for e in reader.tokenizer.backend_tokenizer.encode_batch_fast(
                    [template.joint + word for word in slot], add_special_tokens=False
                )
            ]
            for slot in template.slots
        ]
        tried = _places(template, 2000, np.random.default_rng(1))
        secrets = [template.secret(choice) for choice in tried]
        joined = [[t for p, i in zip(pieces, choice, strict=True) for t in p[i]]
                  for choice in tried]  # fmt: skip
        real = _secret_ids(reader, template, secrets, before)
        # The first token of the first word may belong to the common beginning.
        cut = len(joined[0]) - int((real[0] >= 0).sum())
        if cut >= 0 and np.array_equal(real, padded([row[cut:] for row in joined])):
            places = np.indices([len(slot) for slot in template.slots]).reshape(len(pieces), -1)
            wide = [padded(slot)[at] for slot, at in zip(pieces, places, strict=True)]
            rows: Ids = np.concatenate(wide, axis=1)[:, cut:]
            if (rows < 0).any():  # the tokens of each in order, and all -1 after them
                order = np.argsort(rows < 0, axis=1, kind="stable")
                rows = np.take_along_axis(rows, order, axis=1)
            return rows[:, (rows >= 0).any(0)]
    return _secret_ids(reader, template, template.all(), before)


def _different(space: Ids) -> tuple[Ids, NDArray[np.int64]]:
    """The distinct rows, and how often each occurs: a tokenizer may not tell all apart."""
    ordered = space[np.lexsort(space.T[::-1])]
    new = np.ones(len(ordered), dtype=bool)
    new[1:] = (ordered[1:] != ordered[:-1]).any(1)
    return ordered[new], np.diff(np.append(np.flatnonzero(new), len(ordered)))


def _likelier(
    scores: Values, everything: Values, counts: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many secrets are likelier than each score, and how many as likely.

    Numbers within rounding of single precision are equal: the same tokens read in another batch.
    """
    scores, everything = ordered(scores), ordered(everything)
    order = np.argsort(everything)
    values, weight = everything[order], np.concatenate([[0], np.cumsum(counts[order])])
    slack = np.where(np.isfinite(scores), 1e-5 * np.maximum(1.0, np.abs(scores)), 0.0)
    below = weight[np.searchsorted(values, scores - slack, side="left")]
    upto = weight[np.searchsorted(values, scores + slack, side="right")]
    return weight[-1] - upto, upto - below


def _rank_bits(likelier: NDArray[Any], equal: NDArray[Any], total: int) -> Values:
    """log2 of how many there are, less the mean log2 of the ranks that equals share."""
    first = likelier.astype(np.float64)
    several = (gammaln(first + equal + 1) - gammaln(first + 1)) / equal
    mean = np.where(equal == 1, np.log(first + 1), several)
    return np.maximum(0.0, math.log2(total) - mean / math.log(2))


def chance_bits(size: float) -> float:
    """The mean exposure of a secret that was never planted, among so many of its form.

    >>> round(chance_bits(10**6), 2)
    1.44
    """
    return float(math.log2(size) - gammaln(size + 1) / size / math.log(2))


def _drawn_bits(scores: Values, others: Values, most: float) -> tuple[Values, float | None]:
    """Bits of exposure by rank among secrets that were drawn, and above them by a fit.

    The fit comes with how far it is off; None where scores are too few or too much alike for one.
    """
    likelier, equal = _likelier(scores, others, np.ones(len(others), dtype=np.int64))
    # Each is ranked among those that were drawn and itself.
    bits = np.minimum(_rank_bits(likelier, equal + 1, len(others) + 1), most)
    fitted = _fit(others)
    if fitted is None:
        return bits, None
    law, middle, spread, off = fitted
    cost = (-ordered(scores) / math.log(2) - middle) / spread
    with np.errstate(all="ignore"):
        far = -np.asarray(law.logcdf(cost), dtype=np.float64) / math.log(2)
    far = np.minimum(np.where(np.isnan(far), 0.0, far), most)
    return np.where(likelier < TAIL, np.maximum(bits, far), bits), off


def _fit(others: Values) -> tuple[Any, float, float, float] | None:
    """A skew-normal law of costs in bits, their mean and spread, and how far it is from them."""
    drawn = -others / math.log(2)
    if len(drawn) < _FEWEST or not np.isfinite(drawn).all():
        return None
    middle, spread = float(drawn.mean()), float(drawn.std())
    # Scores that differ by rounding alone, or that are few, have no tail to follow.
    if spread < 1e-3 * max(1.0, abs(middle)) or len(np.unique(drawn)) < _FEWEST // 10:
        return None
    standard = (drawn - middle) / spread
    try:
        with np.errstate(all="ignore"):
            shape = stats.skewnorm.fit(standard)  # a fit is steadier on numbers near one
            off = float(stats.kstest(standard, stats.skewnorm(*shape).cdf).statistic)
    except (stats.FitError, ValueError, FloatingPointError):
        return None
    if not (np.isfinite(shape).all() and off <= _FAR):
        return None
    return stats.skewnorm(*shape), middle, spread, off


def _notes(spelled: Spelled, found: Found, rows: Sequence[dict[str, Any]]) -> list[str]:
    size = spelled.plan.template.size
    how = f"exact: all {size:,} secrets of the form were ranked"
    if found.drawn:
        how = f"ranked among {found.drawn:,} secrets drawn from {size:,}; "
        most = math.log2(found.drawn + 1)
        how += (
            f"their scores fit no distribution, so that no more than {most:.1f} bits can be seen"
            if found.fit is None
            else f"above the {TAIL} likeliest of these by a skew-normal fit, which is off by "
            f"{found.fit:.1%} at most, so that exposures there are extrapolated"
        )
    notes = [how, *spelled.notes()]
    if not found.drawn and found.distinct < size:
        notes.append(
            f"the tokenizer tells only {found.distinct:,} of the {size:,} secrets "
            "apart; equal ones share the mean of their bits"
        )
    lost = sum(row["records"] - row["records_kept"] for row in rows if row["repetitions"])
    if lost:
        notes.append(
            f"the plan's caps dropped {lost:,} records of canaries, which hides them without noise"
        )
    return notes


def _row(count: int, bits: Sequence[float], size: int) -> dict[str, Any]:
    low, high = mean_interval(bits, size)
    return {
        "repetitions": count, "canaries": len(bits), "mean_bits": _mean(bits), "low": low,
        "high": high, "largest_bits": max(bits),
    }  # fmt: skip


def _mean(bits: Sequence[float]) -> float:
    return float(np.mean(bits)) if bits else math.nan


def _largest_by_chance(count: int, most: float) -> float:
    """What the largest exposure of so many secrets never planted stays below in 95 of 100 cases."""
    return min(most, -math.log2(-math.expm1(math.log(0.95) / count))) if count else math.nan


def mean_interval(bits: Sequence[float], size: int) -> tuple[float, float]:
    """A 95 % confidence interval of mean exposure: Student's, and chance as long as it is possible.

    Exposure is skewed, so few canaries of chance alone would often seem to have less or more.
    """
    most, chance = math.log2(size), chance_bits(size)
    if len(bits) < 2:
        return 0.0, most
    mean = float(np.mean(bits))
    half = float(stats.t.ppf(0.975, len(bits) - 1) * stats.sem(bits))
    low, high = max(0.0, min(mean, mean - half)), min(most, max(mean, mean + half))
    return (min(low, chance), max(high, chance)) if rank_is_chance(bits) else (low, high)
