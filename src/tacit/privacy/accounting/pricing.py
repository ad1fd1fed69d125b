"""What releases cost: epsilon at delta for a unit, from events alone.

Every figure is an upper bound that docs/explanations/guarantees.md proves, and it comes with a
lower bound that two real neighbours attain, so that the interval in which the truth lies is always
known.

    price              one epsilon for any mixture of releases
    price_all          the same for every unit the releases bound
    curve_over_steps   epsilon as a function of the number of steps
    curve_over_degree  epsilon as a function of an entity's number of holders
    adversary_gain     what the guarantee means for somebody who guesses
    best_accuracy      how often a guess between two neighbours can be right, at even odds
    calibrate          the least noise that meets a target, on the safe side

Behind the questions, in order: `pairing` (which dominating pair an event has), `composing` (the
loss of all of them together), `opinions` (three accountants; the smallest, being valid, is the
price), `price_cache`.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from tacit.errors import PrivacyRefused, UsageError
from tacit.privacy.accounting.accountants import all_opinions, merged_opinion
from tacit.privacy.accounting.calibration import Progress, least_noise
from tacit.privacy.accounting.composition import (
    attained,
    first_step,
    fitting,
    grid_works,
    revealed,
    rounding_noise,
)
from tacit.privacy.accounting.dominating_pairs import (
    Items,
    Releases,
    common_adjacency,
    counted_releases,
    dominating_items,
)
from tacit.privacy.accounting.pld_grid import BothRoles, GridTooLarge, Losses
from tacit.privacy.accounting.price import Gain, Price
from tacit.privacy.accounting.price_cache import recall, remember
from tacit.privacy.arguments import require_delta
from tacit.privacy.events import (
    UNITS,
    AnyEvent,
    Flat,
    Public,
    Unit,
    UserClip,
    require_event,
    require_unit,
    write_event,
)
from tacit.privacy.rounding import down

__all__ = [
    "Gain",
    "Price",
    "adversary_gain",
    "best_accuracy",
    "calibrate",
    "curve_over_degree",
    "curve_over_steps",
    "price",
    "price_all",
    "require_delta",
]


def price(
    releases: Releases,
    unit: Unit,
    delta: float,
    *,
    step: float | None = None,
    lower: bool = True,
    fresh: bool = False,
) -> Price:
    """What these releases cost together for one unit.

    Different events may be mixed. `step` fixes the grid of the losses instead of refining it until
    0.5 % is met; `lower=False` leaves the lower bound at 0; `fresh` neither reads nor writes the
    disk cache.

    Guarantee: the releases are (epsilon, delta)-indistinguishable for neighbours that differ in
    one such unit in the sense of `adjacency`. A unit that some release does not bound costs
    infinity.
    """
    counted, delta = counted_releases(releases), require_delta(delta)
    unit = require_unit(unit)
    if step is not None and not 0 < step < 1e6:
        raise UsageError(f"step={step!r} is not a grid; give a positive number, or leave it out.")
    inputs = {"ask": "price", "unit": unit, "delta": delta, "step": step, "lower": lower}
    stored = None if fresh else recall(inputs, counted)
    if stored is not None:
        return stored
    try:
        result = _price(tuple(counted.items()), unit, delta, step, lower)
    except GridTooLarge as error:
        raise UsageError(f"step={step!r} is too fine ({error}); give a larger one.") from None
    if not fresh:
        remember(inputs, counted, result)
    return result


def price_all(releases: Releases, delta: float, **options: Any) -> dict[Unit, Price]:
    """The price for every unit that some release bounds: user only, entity only, both."""
    counted = counted_releases(releases)
    private = [event for event in counted if not isinstance(event, Public)]
    named = {unit for event in private for unit in event.bounds}
    units = [unit for unit in UNITS if unit in named] or list(UNITS)
    return {unit: price(counted, unit, delta, **options) for unit in units}


def curve_over_steps(
    event: AnyEvent, steps: Sequence[int], unit: Unit, delta: float, **options: Any
) -> list[tuple[int, Price]]:
    """The price after each number of steps; the loss of one step is computed once."""
    return [(count, price({event: count}, unit, delta, **options)) for count in steps]


def curve_over_degree(
    event: UserClip | Flat,
    degrees: Sequence[int],
    unit: Unit,
    delta: float,
    steps: int,
    **options: Any,
) -> list[tuple[int, Price]]:
    """The price for an entity with each number of holders (of records, for `Flat`).

    Guarantee: under by-degree adjacency (records really removed, no caps) this holds for
    `entity_share` 2, or if every user has the same public denominator and weight.
    """
    field = {UserClip: "users_per_entity", Flat: "records_per_entity"}.get(type(event))
    if field is None:
        raise UsageError(
            f"A {type(event).__name__} has no entity degree; give a UserClip or a Flat event."
        )
    named = write_event(event)
    events: list[AnyEvent] = [type(event)(**(named | {field: degree})) for degree in degrees]
    return [
        (degree, price({each: steps}, unit, delta, **options))
        for degree, each in zip(degrees, events, strict=True)
    ]


def adversary_gain(
    releases: Releases,
    unit: Unit,
    delta: float,
    fprs: Sequence[float] = (0.01, 0.001),
    *,
    fresh: bool = False,
) -> tuple[Gain, ...]:
    """The true positive rate that the guarantee leaves to an adversary at each false positive rate.

    Read off the composed trade-off curve where the losses could be composed, which is tighter
    than what one (epsilon, delta) implies; each gain says what it is based on.
    """
    counted, delta, unit = counted_releases(releases), require_delta(delta), require_unit(unit)
    for fpr in fprs:
        if not (isinstance(fpr, float | int) and 0 <= fpr <= 1):
            raise UsageError(f"fpr={fpr!r} is not a rate; give a number between 0 and 1.")
    items, composed = _tradeoff(tuple(counted.items()), unit, delta)
    if items is None:
        return tuple(Gain(float(fpr), 1.0, "epsilon and delta") for fpr in fprs)
    if not items:
        return tuple(Gain(float(fpr), float(fpr), "nothing released") for fpr in fprs)
    cost = price(counted, unit, delta, fresh=fresh)
    shift = revealed(items)
    return tuple(_gain(float(fpr), cost, shift, composed, rounding_noise(items)) for fpr in fprs)


def calibrate(
    make_event: Callable[[float], AnyEvent],
    target_epsilon: float,
    delta: float,
    unit: Unit,
    steps: int,
    *,
    also: Releases = (),
    progress: Progress | None = None,
) -> float:
    """The least noise multiplier whose price meets the target, within 0.3 % on the safe side.

    The price meets it as it is written, in four digits and rounded up. `also` is what was or will
    be released besides; `progress(trial, noise_multiplier, epsilon)` is called after every price.
    A target that no noise up to 1e6 reaches is refused.
    """
    if not (isinstance(target_epsilon, float | int) and 0 < target_epsilon < math.inf):
        raise UsageError(
            f"target_epsilon={target_epsilon!r} cannot be met; give a positive finite number."
        )
    delta, besides = require_delta(delta), counted_releases(also)

    def price_of(noise_multiplier: float) -> float:
        event = require_event(make_event(noise_multiplier))
        return price([*besides.items(), (event, steps)], unit, delta, lower=False).epsilon

    return least_noise(price_of, float(down(target_epsilon)), unit, progress)


@lru_cache(maxsize=4096)
def _price(
    releases: tuple[tuple[AnyEvent, int], ...],
    unit: Unit,
    delta: float,
    step: float | None,
    lower: bool,
) -> Price:
    # A certificate and its checks ask for the same price several times; nothing here has a state.
    counted = dict(releases)
    adjacency = common_adjacency(counted, unit)
    items = dominating_items(counted, unit, adjacency)
    if items is None:
        return Price(unit, math.inf, delta, math.inf, "none", adjacency)
    if not items:
        return Price(unit, 0.0, delta, 0.0, "none", adjacency)
    opinions, used = all_opinions(items, delta, step)
    accountant, epsilon = min(
        (item for item in opinions if item[0] in ("pld", "rdp", "gdp")), key=lambda item: item[1]
    )
    floor = 0.0
    if lower and math.isfinite(epsilon):
        floor = attained(items, delta, used, epsilon)
        opinions += merged_opinion(items, delta, used)
    if not (epsilon >= 0 and epsilon >= floor * (1 - 1e-6)):
        raise PrivacyRefused(
            f"The accountants contradict each other (upper {epsilon!r}, lower {floor!r}); no price "
            "is given. Please report the events."
        )
    return Price(
        unit,
        epsilon,
        delta,
        min(floor, epsilon),
        accountant,  # type: ignore[arg-type]
        adjacency,
        tuple(item for item in opinions if item[1] <= epsilon),
        tuple(item for item in opinions if item[1] > epsilon),
    )


# --- what it means for somebody who guesses -----------------------------------------------------


def best_accuracy(releases: Releases, unit: Unit, delta: float, *, fresh: bool = False) -> float:
    """How often somebody who guesses between two neighbours, each as likely, is right at most.

    It is (1 + d) / 2 with d the total variation, that is the divergence at epsilon 0; each way to
    bound d is valid, and the smallest counts.

    >>> from tacit.privacy.events import SampledGaussian
    >>> one = SampledGaussian(unit="users", rate=1.0, noise_multiplier=1.0)
    >>> round(best_accuracy(one, "users", 1e-5, fresh=True), 3)
    0.691
    """
    counted, delta, unit = counted_releases(releases), require_delta(delta), require_unit(unit)
    items, composed = _tradeoff(tuple(counted.items()), unit, delta)
    if items is None:
        return 1.0
    if not items:
        return 0.5
    cost = price(counted, unit, delta, fresh=fresh)
    apart = [2 * float(ndtr(revealed(items) / 2)) - 1]
    if cost.epsilon < 700:
        apart.append((math.expm1(cost.epsilon) + 2 * delta) / (math.exp(cost.epsilon) + 1))
    if composed is not None:
        noise = rounding_noise(items)
        apart.append(max(_total_variation(losses) for losses in composed) + noise)
    return 0.5 + min(1.0, *apart) / 2


def _total_variation(losses: Losses) -> float:
    """The divergence at epsilon 0, read off the losses."""
    values = (losses.start + np.arange(losses.probs.size)) * losses.step
    positive = values > 0
    return losses.infinite + float(-(losses.probs[positive] @ np.expm1(-values[positive])))


@lru_cache(maxsize=64)
def _tradeoff(
    releases: tuple[tuple[AnyEvent, int], ...], unit: Unit, delta: float
) -> tuple[Items | None, BothRoles | None]:
    """The dominating pairs of releases, and their composed losses where a grid holds them."""
    counted = dict(releases)
    items = dominating_items(counted, unit, common_adjacency(counted, unit))
    if not items or not grid_works(items, delta):
        return items, None
    return items, fitting(items, delta, first_step(items, delta))[0]


def _gain(fpr: float, cost: Price, shift: float, composed: BothRoles | None, noise: float) -> Gain:
    found: list[Gain] = [Gain(fpr, _from_epsilon(fpr, cost), "epsilon and delta")]
    curve = float(ndtr(ndtri(fpr) + shift)) if 0 < fpr < 1 else fpr
    found.append(Gain(fpr, curve, "gaussian curve"))
    if composed is not None:
        rate = max(_power(losses, fpr) for losses in composed) + noise
        found.append(Gain(fpr, rate, "trade-off curve"))
    best = min(found, key=lambda gain: gain.tpr)
    return Gain(fpr, min(max(best.tpr, fpr), 1.0), best.basis)


def _from_epsilon(fpr: float, cost: Price) -> float:
    if math.isinf(cost.epsilon) or cost.epsilon > 700:
        return 1.0
    up = math.exp(cost.epsilon) * fpr + cost.delta
    down = 1 - math.exp(-cost.epsilon) * (1 - cost.delta - fpr)
    return min(up, down, 1.0)


def _power(losses: Losses, fpr: float) -> float:
    """The power of the best test at level `fpr`: reject on the largest losses first."""
    p = losses.probs[::-1]
    values = (losses.start + np.arange(losses.probs.size)[::-1]) * losses.step
    with np.errstate(divide="ignore"):
        q = np.exp(np.minimum(np.log(p) - values, 0))
    level, power = np.cumsum(q), losses.infinite + np.cumsum(p)
    i = int(np.searchsorted(level, fpr))
    if i >= p.size:
        return 1.0
    before = float(power[i - 1]) if i else losses.infinite
    taken = float(level[i - 1]) if i else 0.0
    share = (fpr - taken) / float(q[i]) if q[i] > 0 else 0.0
    return before + share * float(p[i])
