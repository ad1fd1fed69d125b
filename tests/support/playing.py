"""The game of the counter-example played with random numbers: an attack that states a confidence.

It certifies less than `tacit.replication.counterexample.lower_bound` by other means, so that the
tests can set the two beside each other.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from tacit.errors import UsageError
from tacit.privacy.accounting.divergences import Array
from tacit.privacy.arguments import check_whole, require_delta
from tacit.replication.counterexample import LARGEST_EPSILON, Instance

_CELLS = 4_000


@dataclass(frozen=True)
class SampledAttack:
    """What a likelihood-ratio attack achieved, and the epsilon it certifies with `confidence`.

    `epsilon` is 0 when the attack shows nothing. The counts are those of the scoring half; the
    threshold and the direction were chosen on the other half of the runs.
    """

    epsilon: float
    delta: float
    confidence: float
    runs: int
    true_positives: int
    false_positives: int
    direction: Literal["with", "without"]
    kind: Literal["sampled"] = "sampled"


def attack(
    model: Instance,
    *,
    steps: int,
    delta: float = 1e-5,
    runs: int = 400_000,
    confidence: float = 0.99,
    rng: np.random.Generator,
) -> SampledAttack:
    """Play the game: `runs` trainings in all, half with the entity, guess by likelihood ratio.

    Half of the runs choose threshold and direction, the other half score them, so that choosing
    costs nothing. Both error rates are bounded by Clopper and Pearson's exact intervals. Ten
    million steps (runs times steps) take about a second; what can be certified is limited by the
    logarithm of `runs`.

    Guarantee: with probability `confidence` over the runs, the true epsilon at `delta` is at
    least `epsilon`.
    """
    check_whole("steps", steps, least=1)
    require_delta(delta)
    check_whole("runs", runs, least=8)
    if not 0 < confidence < 1:
        raise UsageError(f"confidence={confidence} is out of range; give a value between 0 and 1.")
    each = runs // 4
    scores = score_table(model)
    chosen_on = [play(model, scores, steps, each, present, rng) for present in (True, False)]
    scored_on = [play(model, scores, steps, each, present, rng) for present in (True, False)]
    direction, threshold = _choose(*chosen_on, delta=delta, confidence=confidence)
    present, absent = scored_on
    if direction == "with":
        true_positives = int(np.count_nonzero(present >= threshold))
        false_positives = int(np.count_nonzero(absent >= threshold))
    else:
        true_positives = int(np.count_nonzero(absent <= threshold))
        false_positives = int(np.count_nonzero(present <= threshold))
    epsilon = clopper_pearson_epsilon(
        np.array([true_positives]), np.array([false_positives]), each, delta, confidence
    )[0]
    return SampledAttack(
        epsilon=max(0.0, float(epsilon)),
        delta=delta,
        confidence=confidence,
        runs=runs,
        true_positives=true_positives,
        false_positives=false_positives,
        direction=direction,
    )


def loss(model: Instance, x: Array) -> Array:
    """ln p(x)/q(x), the privacy loss at x."""
    with np.errstate(divide="ignore"):
        ratio = _log_density(model, x, +1) - _log_density(model, x, -1)
        mixed = np.logaddexp(np.log1p(-model.rate), np.log(model.rate) + ratio)
    return np.asarray(mixed, dtype=np.float64)


def _log_density(model: Instance, x: Array, sign: int) -> Array:
    """ln of the density of A (sign +1) or Q (sign -1), without the common constant."""
    count, probability = model.drawn
    exponent = -0.5 * ((x[:, None] - model._centres(count, sign)) / model.noise_std) ** 2
    return np.asarray(special.logsumexp(exponent + np.log(probability), axis=1))


def score_table(model: Instance) -> Array:
    """The loss at evenly spaced outputs; the attack looks up the nearest one."""
    x = np.linspace(-model.reach, model.reach, _CELLS)
    return np.clip(loss(model, x), -LARGEST_EPSILON, LARGEST_EPSILON)


def play(
    model: Instance,
    scores: Array,
    steps: int,
    runs: int,
    present: bool,
    rng: np.random.Generator,
) -> Array:
    """Total score of each of `runs` trainings, with or without the entity."""
    total = np.zeros(runs)
    per_cell = (len(scores) - 1) / (2 * model.reach)
    for _ in range(steps):
        count = rng.binomial(model.holders, model.user_rate, size=runs)
        output = model.noise_std * rng.standard_normal(runs)
        if present:
            drawn = rng.random(runs) < model.rate
            output += np.where(drawn, count, -count if model.sign_flip else 0)
        elif model.sign_flip:
            output -= count
        cell = ((output + model.reach) * per_cell + 0.5).astype(np.int64)
        total += scores[np.clip(cell, 0, len(scores) - 1, out=cell)]
    return total


def _choose(
    present: Array, absent: Array, *, delta: float, confidence: float
) -> tuple[Literal["with", "without"], float]:
    """The direction and threshold that would certify most on these runs."""
    each = len(present)
    margin = 0.2 * float(np.std(absent))  # so that the threshold holds on the other half too
    thresholds = np.quantile(np.concatenate([present, absent]), np.linspace(0.0, 1.0, 2001))
    present, absent = np.sort(present), np.sort(absent)
    upward = clopper_pearson_epsilon(
        each - np.searchsorted(present, thresholds, side="left"),
        each - np.searchsorted(absent, thresholds - margin, side="left"),
        each,
        delta,
        confidence,
    )
    downward = clopper_pearson_epsilon(
        np.searchsorted(absent, thresholds, side="right"),
        np.searchsorted(present, thresholds + margin, side="right"),
        each,
        delta,
        confidence,
    )
    if upward.max() >= downward.max():
        return "with", float(thresholds[int(np.argmax(upward))])
    return "without", float(thresholds[int(np.argmax(downward))])


def clopper_pearson_epsilon(
    true_positives: NDArray[np.int64],
    false_positives: NDArray[np.int64],
    runs: int,
    delta: float,
    confidence: float,
) -> Array:
    """ln[(TPR - delta) / FPR] at the worse ends of two exact intervals; -inf shows nothing."""
    side = (1 - confidence) / 2
    with np.errstate(all="ignore"):
        low = stats.beta.ppf(side, true_positives, runs - true_positives + 1)
        high = stats.beta.ppf(1 - side, false_positives + 1, runs - false_positives)
        low = np.where(true_positives == 0, 0.0, low)
        high = np.where(false_positives == runs, 1.0, high)
        gain = np.log(np.maximum(low - delta, 0.0)) - np.log(high)
    return np.asarray(gain, dtype=np.float64)
