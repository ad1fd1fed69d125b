"""A one-dimensional instance on which the published user-entity epsilon is too small.

The instance obeys every rule of the published method (Lai et al. 2022, Algorithm 1). `holders`
users each have one plain record with gradient -1 and one record naming the protected entity with
gradient +2, in units of the clip norm; all other users, the added one included, have gradient 0.
The loss is linear, so nothing depends on the model. Without the entity a drawn holder sends -1,
with it clip(-1 + 2) = +1. One step therefore releases, with K holders drawn out of `holders`,

    without the entity:  -K + noise
    with the entity:     +K + noise if the entity is drawn too, else -K + noise,

and the published noise has standard deviation noise_multiplier * (users per step + 1).

Two independent certificates that epsilon is larger than claimed: `lower_bound` composes the exact
distributions and rounds only downwards; `attack` plays the game with random numbers and states a
confidence. Neither says anything about the sound prices, which must lie above both.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from dp_accounting.pld import privacy_loss_distribution
from numpy.typing import NDArray
from scipy import stats

from tacit.errors import UsageError
from tacit.privacy.accounting.divergences import Array
from tacit.privacy.arguments import check_positive, check_whole, require_delta
from tacit.replication import published
from tacit.replication.counterexample_step import LARGEST_EPSILON, OneStep

__all__ = [
    "HOLDERS",
    "PAPER",
    "CounterexampleRow",
    "LowerBound",
    "SampledAttack",
    "attack",
    "counterexample_table",
    "lower_bound",
]

# The setting of the published CoNLL-2003 figures.
PAPER: Mapping[str, Any] = MappingProxyType(
    {
        "users": 946,
        "users_per_step": 50,
        "entity_rate": 0.5,
        "noise_multiplier": 2.0,
        "delta": 1e-5,
    }
)
_INPUTS = (
    *("users", "users_per_step", "entity_rate", "noise_multiplier", "steps", "holders"),
    *("sign_flip", "rule", "noise"),
)
HOLDERS: tuple[int, ...] = (1, 8, 16, 32, 64, 112, 250, 500, 946)

# The grid to which the losses of one step are rounded down.
_GRID = 5e-4
# Sizes that keep a composition within seconds; a coarser grid is used rather than exceed them.
_MOST_POINTS_PER_STEP = 2**18
_MOST_POINTS = 2_000_000
# Added to delta: more than the tail that the composition cuts off plus its rounding errors.
_DELTA_SLACK = 1e-9


@dataclass(frozen=True)
class LowerBound:
    """Epsilon is at least this much: a certified lower bound at `delta` for one instance."""

    epsilon: float
    delta: float
    noise_std: float
    inputs: Mapping[str, Any]
    kind: Literal["certified"] = "certified"


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
    inputs: Mapping[str, Any]
    kind: Literal["sampled"] = "sampled"


@dataclass(frozen=True)
class CounterexampleRow:
    """One degree of the protected entity: what was claimed, and what is certainly lost."""

    holders: int
    steps: int
    claimed: float
    at_least: float

    @property
    def contradicts(self) -> bool:
        """True when the lower bound exceeds the published epsilon."""
        return self.at_least > self.claimed


def lower_bound(
    *,
    users: int,
    users_per_step: float,
    entity_rate: float,
    noise_multiplier: float,
    steps: int,
    holders: int,
    delta: float = 1e-5,
    sign_flip: bool = True,
    rule: str = "drawn",
    noise: str = "lemma",
    grid: float = _GRID,
) -> LowerBound:
    """A certified lower bound on the user-entity epsilon of the published method.

    `sign_flip=False` leaves out the plain records, so that an entity moves a holder by one clip
    norm instead of two. `rule="any"` uses a record as soon as any of its entities is drawn, in
    the limit of many of them: the protected record is then used in every step. `noise="patent"`
    takes the patent's noise, noise_multiplier * (users + 1).

    Guarantee: no accountant can prove less than `epsilon` at `delta` for this method, up to
    floating-point slack that is taken off on the safe side. Each step's output is cut into cells
    (which cannot create privacy loss), each cell's loss is rounded down to a multiple of `grid`,
    and the library composes the result. Rounding gives away about steps * grid / 2, which is why
    a rare entity gets 0; a finer grid is tighter and slower.
    """
    model = OneStep.build(
        users=users,
        users_per_step=users_per_step,
        entity_rate=entity_rate,
        noise_multiplier=noise_multiplier,
        holders=holders,
        sign_flip=sign_flip,
        rule=rule,
        noise=noise,
    )
    check_whole("steps", steps, least=1)
    require_delta(delta)
    check_positive("grid", grid)
    present_low, present_high, absent_low, absent_high = model.cells()
    epsilon = max(
        _composed_epsilon(present_low, absent_high, steps, delta, grid),
        _composed_epsilon(absent_low, present_high, steps, delta, grid),
    )
    return LowerBound(
        epsilon=epsilon,
        delta=delta,
        noise_std=model.noise_std,
        inputs=_inputs(locals()),
    )


def attack(
    *,
    users: int,
    users_per_step: float,
    entity_rate: float,
    noise_multiplier: float,
    steps: int,
    holders: int,
    delta: float = 1e-5,
    sign_flip: bool = True,
    rule: str = "drawn",
    noise: str = "lemma",
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
    model = OneStep.build(
        users=users,
        users_per_step=users_per_step,
        entity_rate=entity_rate,
        noise_multiplier=noise_multiplier,
        holders=holders,
        sign_flip=sign_flip,
        rule=rule,
        noise=noise,
    )
    check_whole("steps", steps, least=1)
    require_delta(delta)
    check_whole("runs", runs, least=8)
    if not 0 < confidence < 1:
        raise UsageError(f"confidence={confidence} is out of range; give a value between 0 and 1.")
    inputs = _inputs(locals())
    each = runs // 4
    scores = model.score_table()
    chosen_on = [model.play(scores, steps, each, present, rng) for present in (True, False)]
    scored_on = [model.play(scores, steps, each, present, rng) for present in (True, False)]
    direction, threshold = _choose(*chosen_on, delta=delta, confidence=confidence)
    present, absent = scored_on
    if direction == "with":
        true_positives = int(np.count_nonzero(present >= threshold))
        false_positives = int(np.count_nonzero(absent >= threshold))
    else:
        true_positives = int(np.count_nonzero(absent <= threshold))
        false_positives = int(np.count_nonzero(present <= threshold))
    epsilon = _clopper_pearson_epsilon(
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
        inputs=inputs,
    )


def counterexample_table(
    *, steps: Sequence[int] = (50, 500), holders: Sequence[int] = HOLDERS
) -> list[CounterexampleRow]:
    """Claimed epsilon beside the lower bound, over the entity's degree, in the paper's setting.

    The claim is that of `f_E`; those of `f_E+` are smaller still. An entity in few users is
    protected better than claimed, one in many users far worse: the noise has the wrong scale.
    """
    rows = []
    for number in steps:
        claim = published.uedp(estimator="f_E", steps=number, **PAPER).epsilon["users+entities"]
        for count in holders:
            bound = lower_bound(steps=number, holders=count, **PAPER)
            rows.append(CounterexampleRow(count, number, claim, bound.epsilon))
    return rows


# ---------------------------------------------------------------------------------------------
# From cells to epsilon
# ---------------------------------------------------------------------------------------------


def _composed_epsilon(upper: Array, lower: Array, steps: int, delta: float, grid: float) -> float:
    """Epsilon at delta of `steps` draws of `upper` against `lower`, rounded down throughout.

    Losses above the largest that can be handled are lowered to it, and cells far below zero are
    left out: to count only part of `upper` rounds down as well.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        loss = np.minimum(np.log(upper) - np.log(lower), LARGEST_EPSILON)
    keep = (upper > 0) & (loss > -LARGEST_EPSILON)
    mass, loss = upper[keep], loss[keep]
    if mass.sum() <= delta:
        return 0.0
    width = max(grid, float(np.ptp(loss)) / _MOST_POINTS_PER_STEP)
    mean = float(np.average(loss, weights=mass))
    spread = math.sqrt(float(np.average((loss - mean) ** 2, weights=mass)))
    width = max(width, 20 * math.sqrt(steps) * spread / _MOST_POINTS)
    index = np.floor(loss / width).astype(np.int64)
    first = int(index.min())
    rounded = np.bincount(index - first, weights=mass)
    one = privacy_loss_distribution.PrivacyLossDistribution.create_from_rounded_probability(
        {first + j: float(p) for j, p in enumerate(rounded)},
        0.0,
        width,
        pessimistic_estimate=False,
    )
    epsilon = one.self_compose(steps).get_epsilon_for_delta(delta + _DELTA_SLACK)
    return min(float(epsilon), LARGEST_EPSILON)


# ---------------------------------------------------------------------------------------------
# From runs to epsilon
# ---------------------------------------------------------------------------------------------


def _choose(
    present: Array, absent: Array, *, delta: float, confidence: float
) -> tuple[Literal["with", "without"], float]:
    """The direction and threshold that would certify most on these runs."""
    each = len(present)
    margin = 0.2 * float(np.std(absent))  # so that the threshold holds on the other half too
    thresholds = np.quantile(np.concatenate([present, absent]), np.linspace(0.0, 1.0, 2001))
    present, absent = np.sort(present), np.sort(absent)
    upward = _clopper_pearson_epsilon(
        each - np.searchsorted(present, thresholds, side="left"),
        each - np.searchsorted(absent, thresholds - margin, side="left"),
        each,
        delta,
        confidence,
    )
    downward = _clopper_pearson_epsilon(
        np.searchsorted(absent, thresholds, side="right"),
        np.searchsorted(present, thresholds + margin, side="right"),
        each,
        delta,
        confidence,
    )
    if upward.max() >= downward.max():
        return "with", float(thresholds[int(np.argmax(upward))])
    return "without", float(thresholds[int(np.argmax(downward))])


def _clopper_pearson_epsilon(
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


def _inputs(given: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType({name: given[name] for name in _INPUTS})
