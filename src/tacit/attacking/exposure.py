"""Exposure: how far up a planted secret ranks among all that it could have been.

Exposure is log2 of the number of secrets of the form, less log2 of the rank of the planted one by
the model's likelihood: 0 for a secret that ranks last, the full number of bits for one that the
model finds likeliest. A secret that was never planted has 1.44 bits on average (1 / ln 2).

Small spaces are enumerated, which is exact; of large ones so many are drawn, a skew-normal
distribution is fitted to their log-perplexities, and the rank is read off it.

Source: Carlini et al. 2019, sections 4 and 5.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from tacit.attacking.attack import Need, Progress, Scores
from tacit.attacking.canaries import Canary, Planted, Template
from tacit.attacking.likelihood import Ids, log_likelihoods
from tacit.attacking.target import Reader, Target
from tacit.errors import DataError

ENUMERATED = 2_000_000
"""Spaces of at most so many secrets are enumerated."""
DRAWN = 20_000
"""Of larger ones, so many are drawn."""
_CHUNK = 50_000


@dataclass(frozen=True)
class Exposure:
    """How exposed one canary is; `exact` where all secrets of its form were ranked."""

    bits: float
    exact: bool


@dataclass(frozen=True)
class Exposing:
    """Exposure of planted canaries, by repetition, beside that of canaries never planted."""

    name: str = "exposure"
    says: str = "the rank of planted secrets among all of their form"
    needs: tuple[Need, ...] = ("canaries",)
    enumerated: int = ENUMERATED
    drawn: int = DRAWN

    def run(
        self, target: Target, *, progress: Progress | None = None, rng: np.random.Generator
    ) -> Scores:
        """Rank every canary of the plan."""
        planted = target.planted
        assert planted is not None
        found = exposures(
            target.reader,
            planted,
            enumerated=self.enumerated,
            drawn=self.drawn,
            progress=progress,
            rng=rng,
        )
        return _scores(planted, found, target.perplexity, target.kept)


ATTACK = Exposing()


@dataclass(frozen=True)
class Found:
    """The exposures of a plan's canaries, in its order, and how they were found."""

    canaries: list[Exposure]
    distinct: int
    """How many secrets of the form the tokenizer tells apart, where all were looked at."""
    fit: float | None
    """The p-value of a Kolmogorov-Smirnov test of the fitted distribution, where one was."""


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
        ranks = _ranks(scores, everything, counts)
        made = [Exposure(template.bits - math.log2(rank), True) for rank in ranks]
        return Found(made, len(different), None)
    sample = _secret_ids(reader, template, _draws(template, drawn, rng), before)
    others = log_likelihoods(reader.model, before, sample, progress=progress)
    bits, fit = _fitted(scores, others)
    return Found([Exposure(b, False) for b in bits], len(_different(sample)[0]), fit)


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
    chunks = []
    for texts in _chunks(template.text(s) for s in secrets):
        # No offsets are needed, so the faster way is open: a million texts are many.
        rows = reader.tokenizer.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        chunks.append(_padded([row.ids[start:] for row in rows]))
    width = max(c.shape[1] for c in chunks)
    wide = [np.pad(c, ((0, 0), (0, width - c.shape[1])), constant_values=-1) for c in chunks]
    return np.concatenate(wide)


def _padded(rows: Sequence[Sequence[int]]) -> Ids:
    lengths = np.array([len(row) for row in rows])
    made = np.full((len(rows), int(lengths.max(initial=0))), -1, dtype=np.int32)
    # One pass over all tokens: rows of an array are filled in the same order.
    made[np.arange(made.shape[1]) < lengths[:, None]] = np.fromiter(
        (token for row in rows for token in row), dtype=np.int32, count=int(lengths.sum())
    )
    return made


def _moved_left(rows: Ids) -> Ids:
    """The rows with their tokens in order and all -1 after them."""
    if (rows >= 0).all():
        return rows
    order = np.argsort(rows < 0, axis=1, kind="stable")
    moved: Ids = np.take_along_axis(rows, order, axis=1)
    return moved[:, (moved >= 0).any(0)]


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
        if cut >= 0 and np.array_equal(real, _padded([row[cut:] for row in joined])):
            places = np.indices([len(slot) for slot in template.slots]).reshape(len(pieces), -1)
            wide = [_padded(slot)[at] for slot, at in zip(pieces, places, strict=True)]
            return _moved_left(np.concatenate(wide, axis=1)[:, cut:])
    return _secret_ids(reader, template, template.all(), before)


def _chunks(texts: Iterator[str]) -> Iterator[list[str]]:
    while chunk := list(islice(texts, _CHUNK)):
        yield chunk


def _different(space: Ids) -> tuple[Ids, NDArray[np.int64]]:
    """The distinct rows, and how often each occurs: a tokenizer may not tell all apart."""
    ordered = space[np.lexsort(space.T[::-1])]
    new = np.ones(len(ordered), dtype=bool)
    new[1:] = (ordered[1:] != ordered[:-1]).any(1)
    return ordered[new], np.diff(np.append(np.flatnonzero(new), len(ordered)))


def _ranks(
    scores: NDArray[np.float64], everything: NDArray[np.float64], counts: NDArray[Any]
) -> NDArray[np.float64]:
    """The rank of each score, 1 for the likeliest; equals share their mean rank.

    Numbers within rounding of single precision are equal: the same tokens read in another batch.
    """
    order = np.argsort(everything)
    values, weight = everything[order], np.concatenate([[0], np.cumsum(counts[order])])
    slack = 1e-5 * np.maximum(1.0, np.abs(scores))
    below = weight[np.searchsorted(values, scores - slack, side="left")]
    upto = weight[np.searchsorted(values, scores + slack, side="right")]
    above, equal = weight[-1] - upto, np.maximum(upto - below, 1)
    return above + (equal + 1) / 2


def _fitted(
    scores: NDArray[np.float64], others: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    """Bits of exposure by a skew-normal fit to log-perplexities, and how well it fits."""
    drawn, own = -others / math.log(2), -scores / math.log(2)
    spread = float(drawn.std()) or 1.0
    middle = float(drawn.mean())
    # A fit is steadier on numbers near one.
    shape = stats.skewnorm.fit((drawn - middle) / spread)
    law = stats.skewnorm(*shape)
    fit = float(stats.kstest((drawn - middle) / spread, law.cdf).pvalue)
    tail = np.asarray(law.logcdf((own - middle) / spread), dtype=float)
    return np.maximum(0.0, -tail / math.log(2)), fit


def _scores(
    planted: Planted, found: Found, perplexity: float | None, kept: frozenset[str] | None
) -> Scores:
    pairs = list(zip(planted.canaries, found.canaries, strict=True))
    rows = [_row(count, [e.bits for c, e in pairs if c.planted and c.repetitions == count])
            for count in sorted({c.repetitions for c in planted.inside()})]  # fmt: skip
    for row in rows:
        own = [r for c in planted.inside() if c.repetitions == row["repetitions"]
               for r in c.records]  # fmt: skip
        row["records"] = len(own)
        row["records_kept"] = len(own) if kept is None else sum(r in kept for r in own)
    controls = [e.bits for c, e in pairs if not c.planted]
    if controls:
        rows.insert(0, _row(0, controls))
    inside = [e.bits for c, e in pairs if c.planted]
    figures = {
        "most_possible_bits": planted.template.bits,
        "mean_bits": float(np.mean(inside)) if inside else math.nan,
        "largest_bits": float(np.max(inside)) if inside else math.nan,
        "control_bits": float(np.mean(controls)) if controls else math.nan,
        "planted": float(len(inside)),
        "controls": float(len(controls)),
    }
    notes = [_how(planted, found)]
    if found.fit is None and found.distinct < planted.template.size:
        notes.append(
            f"the tokenizer tells only {found.distinct:,} of the {planted.template.size:,} secrets "
            "apart; equal ones share their mean rank"
        )
    lost = sum(row["records"] - row["records_kept"] for row in rows if row["repetitions"])
    if lost:
        notes.append(
            f"the plan's caps dropped {lost:,} records of canaries, which hides them without noise"
        )
    curve = [(float(row["repetitions"]), float(row["mean_bits"])) for row in rows]
    return Scores("exposure", figures, _interval(inside), rows, {"by repetition": curve}, notes,
                  perplexity)  # fmt: skip


def _how(planted: Planted, found: Found) -> str:
    if found.fit is None:
        return f"exact: all {planted.template.size:,} secrets of the form were ranked"
    return (
        f"by a skew-normal fit to secrets drawn from {planted.template.size:,} "
        f"(Kolmogorov-Smirnov p = {found.fit:.2g}); exposures far in the tail are extrapolated"
    )


def _row(count: int, bits: Sequence[float]) -> dict[str, Any]:
    low, high = _interval(bits).get("mean_bits", (math.nan, math.nan))
    return {
        "repetitions": count,
        "canaries": len(bits),
        "mean_bits": float(np.mean(bits)),
        "low": low,
        "high": high,
        "largest_bits": float(np.max(bits)),
    }


def _interval(bits: Sequence[float]) -> dict[str, tuple[float, float]]:
    """A 95 % confidence interval of the mean by Student's t."""
    if len(bits) < 2:
        return {}
    half = float(stats.t.ppf(0.975, len(bits) - 1) * stats.sem(bits))
    mean = float(np.mean(bits))
    return {"mean_bits": (mean - half, mean + half)}


def canary_bits(found: Found, planted: Planted) -> list[tuple[Canary, float]]:
    """Each canary with its exposure."""
    return [(c, e.bits) for c, e in zip(planted.canaries, found.canaries, strict=True)]
