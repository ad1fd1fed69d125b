"""What releases cost: epsilon at delta for a unit, from events alone.

Every figure is an upper bound that docs/guarantees.md proves, and it comes with a lower bound
that two real neighbours attain, so that the interval in which the truth lies is always known.

    price              one epsilon for any mixture of releases
    price_all          the same for every unit the releases bound
    curve_over_steps   epsilon as a function of the number of steps
    curve_over_degree  epsilon as a function of an entity's number of holders
    adversary_gain     what the guarantee means for somebody who guesses
    calibrate          the least noise that meets a target, on the safe side

Three accountants give their opinion, and the smallest, being valid, is the price:

    pld   the loss on a grid, composed numerically by dp-accounting
    rdp   Renyi moments (of the Poisson-sampled Gaussian by dp-accounting, else of the gridded
          loss), composed by addition: looser, without numerical limits
    gdp   all coins revealed, one Gaussian, in closed form: loosest with sampling, exact without
"""

import hashlib
import json
import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from importlib.metadata import version
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Literal, TypeAlias

import numpy as np
from dp_accounting import dp_event
from dp_accounting.pld import common as pld_common
from dp_accounting.pld import pld_pmf
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import brentq
from scipy.signal import lfilter
from scipy.special import log_ndtr, logsumexp, ndtr, ndtri

from tacit.errors import PrivacyRefused, UsageError
from tacit.privacy import domination
from tacit.privacy.domination import (
    Array,
    BothRoles,
    Losses,
    OwnerMixture,
    Pair,
    ShiftMixture,
    VisibleCoin,
)
from tacit.privacy.events import (
    MOST,
    UNITS,
    Adjacency,
    AnyEvent,
    Flat,
    NotPrivate,
    Public,
    ReplaceOne,
    SampledGaussian,
    Selective,
    Unit,
    UserClip,
    need_event,
    need_unit,
    write_event,
)

Releases: TypeAlias = AnyEvent | Mapping[AnyEvent, int] | Iterable[tuple[AnyEvent, int]]
Accountant: TypeAlias = Literal["pld", "rdp", "gdp", "none"]
Progress: TypeAlias = Callable[[int, float, float], None]

ACCURACY = 0.005  # how far the grid may push a price above its limit, as a share of it
CELLS_PER_SPREAD = 4.75  # the first grid; it adds about 0.4 % to epsilon
MOST_SHIFT = 1e3  # beyond this many noise units in one step, epsilon is far above 1e5
LEAST_SHIFT = 1e-7  # below this in all, amplification no longer matters
MOST_COMPOSED = 2**21  # losses of all steps together; dp-accounting needs some 100 bytes for each
_CUT = 1e-7  # the share of delta that composing may cut from the tails, counted as infinite loss
_COARSEST_GRID = 25_000  # cells of one step above which the grid is widened instead
_NOISE_FLOOR = 2e-15  # error of a composed probability per step; 70 times what we observe


@dataclass(frozen=True)
class Price:
    """An epsilon at a delta for one unit, and how sure it is.

    `lower` is attained by two real neighbours: no accountant can certify less. `opinions` holds
    every valid upper bound that was computed; `accountant` names the one that is shown.
    """

    unit: Unit
    epsilon: float
    delta: float
    lower: float
    accountant: Accountant
    adjacency: Adjacency | None
    opinions: tuple[tuple[str, float], ...] = ()
    standing: str = "proved"

    @property
    def second_opinion(self) -> tuple[str, float] | None:
        """The finer grid if there is one, else the next best bound by another accountant."""
        named = dict(self.opinions)
        if self.accountant == "pld" and "pld, finer grid" in named:
            return "pld, finer grid", named["pld, finer grid"]
        others = [item for item in self.opinions if item[0] != self.accountant]
        return min(others, key=lambda item: item[1], default=None)

    def as_json(self) -> dict[str, Any]:
        """A JSON object; an infinite epsilon is the text "infinity"."""
        values = asdict(self)
        values["opinions"] = {name: _finite(value) for name, value in self.opinions}
        values["epsilon"], values["lower"] = _finite(self.epsilon), _finite(self.lower)
        return values


@dataclass(frozen=True)
class Gain:
    """The most often an adversary can be right about a unit (`tpr`) if wrong at most `fpr`."""

    fpr: float
    tpr: float
    basis: Literal["trade-off curve", "gaussian curve", "epsilon and delta", "nothing released"]


# --- the questions ------------------------------------------------------------------------------


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
    counted, delta = _counted(releases), need_delta(delta)
    unit = need_unit(unit)
    if step is not None and not 0 < step < 1e6:
        raise UsageError(f"step={step!r} is not a grid; give a positive number, or leave it out.")
    inputs = {"ask": "price", "unit": unit, "delta": delta, "step": step, "lower": lower}
    stored = None if fresh else _recall(inputs, counted)
    if stored is not None:
        return stored
    try:
        result = _price(counted, unit, delta, step, lower)
    except domination.GridTooLarge as error:
        raise UsageError(f"step={step!r} is too fine ({error}); give a larger one.") from None
    if not fresh:
        _remember(inputs, counted, result)
    return result


def price_all(releases: Releases, delta: float, **options: Any) -> dict[Unit, Price]:
    """The price for every unit that some release bounds: user only, entity only, both."""
    counted = _counted(releases)
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
    releases: Releases, unit: Unit, delta: float, fprs: Sequence[float] = (0.01, 0.001)
) -> tuple[Gain, ...]:
    """The true positive rate that the guarantee leaves to an adversary at each false positive rate.

    Read off the composed trade-off curve where the losses could be composed, which is tighter
    than what one (epsilon, delta) implies; each gain says what it is based on.
    """
    counted, delta, unit = _counted(releases), need_delta(delta), need_unit(unit)
    for fpr in fprs:
        if not (isinstance(fpr, float | int) and 0 <= fpr <= 1):
            raise UsageError(f"fpr={fpr!r} is not a rate; give a number between 0 and 1.")
    items = _items(counted, unit, _common_adjacency(counted, unit))
    if items is None:
        return tuple(Gain(float(fpr), 1.0, "epsilon and delta") for fpr in fprs)
    if not items:
        return tuple(Gain(float(fpr), float(fpr), "nothing released") for fpr in fprs)
    cost = price(counted, unit, delta)
    shift = _revealed(items)
    composed = _tradeoff(items, delta)
    return tuple(_gain(float(fpr), cost, shift, composed, _noise(items)) for fpr in fprs)


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
    """The least noise multiplier whose price meets the target, within 0.2 % on the safe side.

    `also` is what was or will be released besides; `progress(trial, noise_multiplier, epsilon)` is
    called after every price. A target that no noise up to 1e6 reaches is refused.
    """
    if not (isinstance(target_epsilon, float | int) and 0 < target_epsilon < math.inf):
        raise UsageError(
            f"target_epsilon={target_epsilon!r} cannot be met; give a positive finite number."
        )
    search = _Search(make_event, unit, need_delta(delta), steps, _counted(also), progress)
    if search.epsilon(0.0) <= target_epsilon:
        return 0.0
    least, most = search.bracket(float(target_epsilon))
    return search.narrow(least, most, float(target_epsilon))


def need_delta(delta: object) -> float:
    """The delta, if it is a number strictly between 0 and 1."""
    if isinstance(delta, bool) or not isinstance(delta, float | int) or not 0 < delta < 1:
        raise UsageError(f"delta={delta!r} is not between 0 and 1; 1e-5 is a common choice.")
    return float(delta)


# --- from events to pairs -----------------------------------------------------------------------

_Items: TypeAlias = tuple[tuple[Pair, int], ...]


def _counted(releases: Releases) -> dict[AnyEvent, int]:
    """How often each event happened; equal events are added up, unknown ones refused."""
    if isinstance(releases, Mapping):
        entries: Iterable[Any] = releases.items()
    elif isinstance(releases, Iterable) and not isinstance(releases, str | bytes):
        entries = releases if not hasattr(releases, "model_dump") else [(releases, 1)]
    else:
        entries = [(releases, 1)]
    counted: dict[AnyEvent, int] = {}
    for entry in entries:
        if not (isinstance(entry, tuple | list) and len(entry) == 2):
            raise UsageError("A release is not a pair of an event and a count; give such pairs.")
        event, count = need_event(entry[0]), entry[1]
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MOST:
            raise UsageError(f"count={_shown(count)} is not a whole number from 0 to {MOST}.")
        counted[event] = counted.get(event, 0) + count
    return {event: count for event, count in counted.items() if count}


def _common_adjacency(counted: Mapping[AnyEvent, int], unit: Unit) -> Adjacency | None:
    """The neighbours for which all releases are priced: the strictest any of them was stated for.

    Removing a unit is a case of zeroing it out while the graph is fixed, so those two mix.
    """
    stated = {event.adjacency for event in counted if unit in event.bounds}
    strictest_first: tuple[Adjacency, ...] = ("replace", "zero-out", "add-or-remove")
    for adjacency in strictest_first:
        if adjacency in stated:
            return adjacency
    return None


def _items(
    counted: Mapping[AnyEvent, int], unit: Unit, adjacency: Adjacency | None
) -> _Items | None:
    """The dominating pair of every release that costs something; None if one is unbounded."""
    items: dict[Pair, int] = {}
    for event, count in counted.items():
        if isinstance(event, Public) or (isinstance(event, NotPrivate) and unit in event.bounds):
            continue
        if unit not in event.bounds or isinstance(event, NotPrivate):
            return None
        if adjacency == "replace" and isinstance(event, UserClip | Flat):
            return None  # zeroing out says nothing about replacing
        pair = _pair(event, unit, adjacency)
        if pair is None:
            continue
        if not pair.revealed_shift < 1e100:
            return None
        items[pair] = items.get(pair, 0) + count
    return tuple(items.items())


def _pair(event: AnyEvent, unit: Unit, adjacency: Adjacency | None) -> Pair | None:
    """What dominates one such release; None if it does not depend on the unit at all."""
    match event:
        case SampledGaussian() | ReplaceOne():
            scale = _inverse(event.noise_multiplier)
            if event.rate == 0:
                return None
            if adjacency == "replace":
                return OwnerMixture(event.rate, 1, 2.0, 1.0, False, scale)
            return ShiftMixture(event.rate, 1, scale)
        case UserClip():
            return _user_clip(event, unit)
        case Flat():
            units = {
                "users": event.records_per_user,
                "entities": event.records_per_entity,
                "users+entities": event.records_per_user + event.records_per_entity,
            }[unit]
            if event.record_rate == 0 or units == 0:
                return None
            return ShiftMixture(event.record_rate, units, _inverse(event.noise_multiplier))
        case Selective():
            return _selective(event)
        case _:
            raise PrivacyRefused(f"A {type(event).__name__} has no dominating pair; no price.")


def _user_clip(event: UserClip, unit: Unit) -> Pair | None:
    moves = event.entity_share > 0 and event.entity_rate > 0 and unit != "users"
    holders = event.users_per_entity if moves else 0
    with_user = unit != "entities"
    if event.user_rate == 0 or (holders == 0 and not with_user):
        return None
    scale = _inverse(event.noise_multiplier)
    if holders == 0:
        return ShiftMixture(event.user_rate, 1, scale)
    return OwnerMixture(
        event.user_rate, holders, event.entity_share, event.entity_rate, with_user, scale
    )


def _selective(event: Selective) -> Pair | None:
    """One pass is one Gaussian: mu^2 = segments ((2/z)^2 + states (2/z_state)^2).

    A replaced record can turn a clipped vector into its opposite, hence the 2.
    """
    if event.rate == 0 or event.segments == 0:
        return None
    gradient = 2 * _inverse(event.noise_multiplier)
    state = 2 * _inverse(event.state_noise_multiplier) if event.states else 0.0
    shift = math.sqrt(event.segments) * math.hypot(gradient, math.sqrt(event.states) * state)
    return VisibleCoin(event.rate, shift)


def _inverse(noise_multiplier: float) -> float:
    return 1 / noise_multiplier if noise_multiplier > 1e-200 else math.inf


# --- pricing ------------------------------------------------------------------------------------


def _price(
    counted: Mapping[AnyEvent, int], unit: Unit, delta: float, step: float | None, lower: bool
) -> Price:
    adjacency = _common_adjacency(counted, unit)
    items = _items(counted, unit, adjacency)
    if items is None:
        return Price(unit, math.inf, delta, math.inf, "none", adjacency)
    if not items:
        return Price(unit, 0.0, delta, 0.0, "none", adjacency)
    opinions, used = _opinions(items, delta, step)
    accountant, epsilon = min(
        (item for item in opinions if item[0] in ("pld", "rdp", "gdp")), key=lambda item: item[1]
    )
    floor = _attained(items, delta, used, epsilon) if lower and math.isfinite(epsilon) else 0.0
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
        tuple(opinions),
    )


def _opinions(
    items: _Items, delta: float, step: float | None
) -> tuple[list[tuple[str, float]], float]:
    """Every bound we can compute, and the grid that was used."""
    opinions = [("gdp", gaussian_epsilon(_revealed(items), delta))]
    if opinions[0][1] == 0 or _revealed(items) < LEAST_SHIFT or _largest(items) > MOST_SHIFT:
        return opinions + _library_rdp(items, delta), 0.0
    chosen = step or _first_step(items, delta)
    opinions += _library_rdp(items, delta) or [("rdp", _moments_epsilon(items, chosen, delta))]
    if _grid_works(items, delta):
        found, chosen = _refined(items, delta, chosen, fixed=step is not None)
        opinions += found
    return opinions, chosen


def _refined(
    items: _Items, delta: float, step: float, fixed: bool
) -> tuple[list[tuple[str, float]], float]:
    """The price on the coarsest grid that a twice finer one confirms to 0.5 %.

    The error of connected dots is of second order: what is left at `step` is 4/3 of the
    difference to the twice finer grid.
    """
    roles, step = (_composed(items, step, delta), step) if fixed else _fitting(items, delta, step)
    coarse = _worse_role(roles, items, delta)
    while not fixed:
        fine_step = step / 2
        try:
            fine = _grid_epsilon(items, fine_step, delta)
        except domination.GridTooLarge:
            break
        if coarse - fine <= max(0.75 * ACCURACY * fine, 1e-5):
            return [("pld", coarse), ("pld, finer grid", min(fine, coarse))], step
        coarse, step = fine, fine_step
    return [("pld", coarse)], step


def _first_step(items: _Items, delta: float) -> float:
    total = sum(count for _, count in items)
    variance = sum(count * _spread(pair) ** 2 for pair, count in items) / total
    widest = max(_span(pair, _tail(delta)) for pair, _ in items)
    return max(math.sqrt(variance) / CELLS_PER_SPREAD, widest / _COARSEST_GRID)


def _fitting(items: _Items, delta: float, step: float) -> tuple[BothRoles, float]:
    """The composed losses on this grid, or on the first wider one on which they fit.

    Wider grids are looser, never wrong.
    """
    while True:
        try:
            return _composed(items, step, delta), step
        except domination.GridTooLarge:
            step *= 2


def _check_length(losses: Losses, count: int, delta: float) -> None:
    """Refuse what would take gigabytes before dp-accounting allocates it."""
    size = losses.probs.size
    if size * count <= MOST_COMPOSED:
        return
    orders = np.array([-20, -4, 4, 20]) / size  # some of those that composing itself will try
    with np.errstate(all="ignore"):
        low, high = pld_common.compute_self_convolve_bounds(
            losses.probs, count, delta * _CUT, orders
        )
    if high - low > MOST_COMPOSED:
        raise domination.GridTooLarge(f"{high - low} composed losses, more than {MOST_COMPOSED}")


def _grid_works(items: _Items, delta: float) -> bool:
    """Whether rounding in the Fourier transforms stays far below delta."""
    small = _noise(items) <= delta / 100
    return small and _revealed(items) >= LEAST_SHIFT and _largest(items) <= MOST_SHIFT


def _noise(items: _Items) -> float:
    """A bound on the probability that rounding misplaces while composing; one step needs none."""
    total = sum(count for _, count in items)
    return 0.0 if total == 1 else _NOISE_FLOOR * (total + 100)


def _tail(delta: float) -> float:
    """What may be cut from one step; a million steps then cut a millionth of delta."""
    return max(delta * 1e-12, 1e-290)


def _grid_epsilon(items: _Items, step: float, delta: float) -> float:
    return _worse_role(_composed(items, step, delta), items, delta)


def _worse_role(roles: BothRoles, items: _Items, delta: float) -> float:
    return max(read_epsilon(losses, delta - _noise(items)) for losses in roles)


def _composed(items: _Items, step: float, delta: float) -> BothRoles:
    """The loss of all releases together, both roles, composed by dp-accounting."""
    parts = [(_upper(pair, step, _tail(delta)), count) for pair, count in items]
    return BothRoles(
        _compose([(part.forward, count) for part, count in parts], delta),
        _compose([(part.backward, count) for part, count in parts], delta),
    )


def _compose(parts: Sequence[tuple[Losses, int]], delta: float) -> Losses:
    total: Any = None
    for losses, count in parts:
        pmf: Any = pld_pmf.DensePLDPmf(
            losses.step, losses.start, losses.probs, losses.infinite, True
        )
        if count > 1:
            _check_length(losses, count, delta)
            with np.errstate(all="ignore"):
                pmf = pmf.self_compose(count, tail_mass_truncation=delta * _CUT)
        total = pmf if total is None else total.compose(pmf, tail_mass_truncation=0)
        if total.size > 2 * MOST_COMPOSED:
            raise domination.GridTooLarge(f"{total.size} composed losses")
    return Losses(
        parts[0][0].step,
        int(total._lower_loss),
        np.maximum(np.asarray(total._probs, dtype=np.float64), 0),
        float(total._infinity_mass),
    )


def read_epsilon(losses: Losses, delta: float) -> float:
    """The least epsilon >= 0 with E[(1 - e^(epsilon - loss))_+] <= delta, in any range of losses.

    Legend: M_j = P[loss >= l_j], W_j = sum_{i >= j} p_i e^(l_j - l_i), so that between l_{j-1} and
    l_j the divergence is infinite + M_j - e^(eps - l_j) W_j. dp-accounting's own reading leaves
    the range of exp beyond a loss of 700.
    """
    if losses.infinite > delta:
        return math.inf
    p = losses.probs[::-1]
    mass = np.cumsum(p)[::-1]
    weight = np.asarray(lfilter([1.0], [1.0, -math.exp(-losses.step)], p))[::-1]
    excess = losses.infinite + mass - weight - delta  # at l_j, decreasing in j
    above = np.flatnonzero(excess > 0)
    j = int(above[-1]) + 1 if above.size else 0
    if j >= p.size:
        raise PrivacyRefused("A loss has no last value; no price is given.")
    here = (losses.start + j) * losses.step
    left = losses.infinite + float(mass[j]) - delta
    if left <= 0 or weight[j] <= 0:
        # no mass above l_j: the divergence reaches delta at l_{j-1} or before
        return max(0.0, here - (losses.step if j and left <= 0 else 0.0))
    return max(0.0, here + math.log(left / float(weight[j])))


def _moments_epsilon(items: _Items, step: float, delta: float) -> float:
    """Renyi moments of the gridded losses, added up and converted.

    Legend: with t = order - 1, E[e^(t L)] is a moment of the loss; (1 - e^(eps - L))_+ is at most
    e^(t (L - eps)) (1 + 1/t)^-t / (1 + t) for every L, so delta is at most the same multiple of
    the product of moments, plus the probability of an infinite loss.
    """
    t = np.geomspace(1e-4, 1e5, 121)
    worst = 0.0
    parts = [(_upper(pair, step, _tail(delta)), count) for pair, count in items]
    for role in (0, 1):
        log_moment, lost = np.zeros(t.size), 0.0
        for both, count in parts:
            losses = both[role]
            log_moment += count * _log_moments(losses, t)
            lost += count * losses.infinite
        if lost >= delta:
            return math.inf
        worst = max(worst, _from_moments(t, log_moment, delta - lost))
    return worst


def _log_moments(losses: Losses, t: Array) -> Array:
    held = losses.probs > 0
    values = (losses.start + np.flatnonzero(held)) * losses.step
    logs = np.log(losses.probs[held])
    with np.errstate(all="ignore"):
        return np.array([float(logsumexp(logs + order * values)) for order in t])


def _from_moments(t: Array, log_moment: Array, delta: float) -> float:
    """min over t of (log moment - log delta - log(1 + t)) / t + log(t / (1 + t)), at least 0."""
    with np.errstate(all="ignore"):
        bounds = (log_moment - math.log(delta) - np.log1p(t)) / t - np.log1p(1 / t)
    usable = bounds[np.isfinite(bounds)]
    return max(0.0, float(usable.min())) if usable.size else math.inf


def _library_rdp(items: _Items, delta: float) -> list[tuple[str, float]]:
    """dp-accounting's moments, where every release is a Poisson-sampled Gaussian."""
    if not all(isinstance(pair, ShiftMixture) and pair.units == 1 for pair, _ in items):
        return []
    if not 1e-6 <= _largest(items) <= 3:
        return []
    orders = np.concatenate([np.arange(2, 65), np.geomspace(70, 2000, 30).round()])
    if all(pair.revealed_shift > 1e-2 for pair, _ in items):
        # its series for other orders do not converge when the noise is very large
        orders = np.concatenate([np.arange(11, 120) / 10, orders])
    # It logs every order whose series does not converge; those orders are left out below.
    logging.getLogger("absl").setLevel(logging.ERROR)
    accountant = RdpAccountant(orders)
    for pair, count in items:
        assert isinstance(pair, ShiftMixture)
        gaussian = dp_event.GaussianDpEvent(1 / pair.shift)
        accountant.compose(dp_event.PoissonSampledDpEvent(pair.rate, gaussian), count)
    rdp = np.asarray(accountant.rdp, dtype=np.float64)
    usable = np.isfinite(rdp) & (rdp >= 0)
    t = orders[usable] - 1
    return [("rdp", _from_moments(t, t * rdp[usable], delta))] if usable.any() else []


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The exact epsilon of N(mu, 1) against N(0, 1).

    Source: Balle and Wang 2018, Theorem 8:
    delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu).
    """
    if mu == 0 or (mu * 0.4 <= delta and 2 * ndtr(mu / 2) - 1 <= delta):
        return 0.0

    if mu > 1e3:  # the second term, at most a millionth of the first, drowns in rounding
        return (mu * mu / 2 - mu * float(ndtri(delta))) * (1 + 1e-12)

    def excess(eps: float) -> float:
        first = float(log_ndtr(mu / 2 - eps / mu))
        second = eps + float(log_ndtr(-mu / 2 - eps / mu))
        gap = second - first
        return first + (math.log(-math.expm1(gap)) if gap < 0 else -math.inf) - math.log(delta)

    high = mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta))  # the Chernoff bound
    low = 0.0
    if excess(low) <= 0:
        return 0.0
    root = float(brentq(lambda eps: max(excess(eps), -1e3), low, high * (1 + 1e-9), rtol=1e-13))
    return root * (1 + 1e-11)


def _attained(items: _Items, delta: float, step: float, epsilon: float) -> float:
    """An epsilon below which no bound can be valid: an instance, its losses pooled downwards."""
    if not 0 < step < 300 or not _grid_works(items, delta):
        return 0.0
    found = 0.0
    for finer in (1, 8):
        try:
            found = max(found, _attained_on(items, delta, step / finer))
        except domination.GridTooLarge:
            break
        if (
            found >= 0.8 * epsilon or epsilon < 0.01
        ):  # rounding down costs little here; a finer grid adds nothing
            break
    return found


def _attained_on(items: _Items, delta: float, step: float) -> float:
    parts = [(_lower(pair, step), count) for pair, count in items]
    slack = delta * (1 + 1e-4) + _noise(items)
    composed = [_compose([(part[role], count) for part, count in parts], delta) for role in (0, 1)]
    # what composing cut off counts as infinite there; here it must not count at all
    kept = [Losses(each.step, each.start, each.probs, 0.0) for each in composed]
    return max(read_epsilon(losses, slack) for losses in kept)


# --- small shared computations, kept for the life of the process --------------------------------


@lru_cache(maxsize=64)
def _upper(pair: Pair, step: float, tail: float) -> BothRoles:
    return domination.upper_loss(pair, step, tail)


@lru_cache(maxsize=64)
def _lower(pair: Pair, step: float) -> BothRoles:
    return domination.lower_loss(domination.strongest(pair, step), step)


@lru_cache(maxsize=256)
def _spread(pair: Pair) -> float:
    return domination.spread(pair)


@lru_cache(maxsize=256)
def _span(pair: Pair, tail: float) -> float:
    return domination.span(pair, tail)


def _revealed(items: _Items) -> float:
    """The shift of one Gaussian that all releases together amount to, all coins revealed."""
    return math.sqrt(math.fsum(count * pair.revealed_shift**2 for pair, count in items))


def _largest(items: _Items) -> float:
    return max(pair.revealed_shift for pair, _ in items)


# --- what it means for somebody who guesses -----------------------------------------------------


def _tradeoff(items: _Items, delta: float) -> BothRoles | None:
    if not _grid_works(items, delta):
        return None
    return _fitting(items, delta, _first_step(items, delta))[0]


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


# --- calibration --------------------------------------------------------------------------------


@dataclass
class _Search:
    """A search for the least noise; it only ever trusts a price that it has computed."""

    make_event: Callable[[float], AnyEvent]
    unit: Unit
    delta: float
    steps: int
    also: dict[AnyEvent, int]
    progress: Progress | None
    trials: int = 0

    def epsilon(self, noise_multiplier: float) -> float:
        event = need_event(self.make_event(noise_multiplier))
        releases = [*self.also.items(), (event, self.steps)]
        found = price(releases, self.unit, self.delta, lower=False).epsilon
        self.trials += 1
        if self.progress is not None:
            self.progress(self.trials, noise_multiplier, found)
        return found

    def bracket(self, target: float) -> tuple[tuple[float, float], tuple[float, float]]:
        """(noise, epsilon) with epsilon above the target, and with epsilon at most the target."""
        noise, found = 1.0, self.epsilon(1.0)
        above = below = (noise, found)
        while found > target:
            above = (noise, found)
            if noise >= 1e6 or (math.isinf(found) and noise > 1):
                raise PrivacyRefused(
                    f"target_epsilon={target:g} for {self.unit} is not reached by any noise (at "
                    f"{noise:g} epsilon is still {found:g}); allow a larger epsilon, fewer steps, "
                    "or protect a unit that the method bounds."
                )
            jump = min(max(found / target, 2.0), 1e3) if math.isfinite(found) else 4.0
            noise = min(noise * jump, 1e6)
            found = self.epsilon(noise)
            below = (noise, found)
        while above[1] <= target:
            noise = below[0] / 4
            if noise < 1e-9:
                return (noise, math.inf), below
            above = (noise, self.epsilon(noise))
            if above[1] <= target:
                below = above
        return above, below

    def narrow(
        self, above: tuple[float, float], below: tuple[float, float], target: float
    ) -> float:
        """Halve the bracket in log noise, guided by the slope between its ends."""
        while below[0] > above[0] * 1.002:
            noise = self._between(above, below, target)
            found = self.epsilon(noise)
            if found <= target:
                below = (noise, found)
            else:
                above = (noise, found)
        return below[0]

    def _between(
        self, above: tuple[float, float], below: tuple[float, float], target: float
    ) -> float:
        low, high = math.log(above[0]), math.log(below[0])
        share = 0.5
        if math.isfinite(above[1]) and below[1] > 0 and self.trials % 3:
            drop = math.log(above[1] / below[1])
            share = math.log(above[1] / target) / drop if drop > 0 else 0.5
        # a little to the safe side, and never so near an end that nothing is learned
        share = min(max(share + 0.0008 / (high - low), 0.05), 0.95)
        return math.exp(low + share * (high - low))


# --- prices kept on disk ------------------------------------------------------------------------


def cache_folder() -> Path | None:
    """Where prices are kept: $TACIT_CACHE, else the user's cache folder; None if it is "off"."""
    named = os.environ.get("TACIT_CACHE")
    if named == "off":
        return None
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tacit"


@cache
def _code_version() -> str:
    """A digest of the code that prices, and of the libraries it stands on."""
    digest = hashlib.sha256()
    for name in ("events.py", "domination.py", "accounting.py"):
        digest.update(Path(__file__).with_name(name).read_bytes())
    for library in ("dp-accounting", "numpy", "scipy"):
        digest.update(f"{library} {version(library)}".encode())
    return digest.hexdigest()


def _entry(inputs: Mapping[str, Any], counted: Mapping[AnyEvent, int]) -> tuple[Path, str] | None:
    folder = cache_folder()
    if folder is None:
        return None
    releases = sorted(json.dumps([write_event(e), n], sort_keys=True) for e, n in counted.items())
    asked = json.dumps([inputs, releases, _code_version()], sort_keys=True)
    key = hashlib.sha256(asked.encode()).hexdigest()
    return folder / "prices" / key[:2] / f"{key}.json", key


def _recall(inputs: Mapping[str, Any], counted: Mapping[AnyEvent, int]) -> Price | None:
    """The stored price, if it is whole; anything else is as if it were not there."""
    place = _entry(inputs, counted)
    if place is None:
        return None
    try:
        stored = json.loads(place[0].read_text())
        if stored["digest"] != _digest(place[1], stored["price"]):
            return None
        values = stored["price"]
        values["opinions"] = tuple((str(n), float(v)) for n, v in values["opinions"])
        found = Price(**values)
        whole = 0 <= found.lower <= found.epsilon and found.delta == inputs["delta"]
        return found if whole and found.unit == inputs["unit"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _remember(inputs: Mapping[str, Any], counted: Mapping[AnyEvent, int], found: Price) -> None:
    """Store a price under a temporary name and rename it, so that readers see it whole or not."""
    place = _entry(inputs, counted)
    if place is None:
        return
    path, key = place
    values = asdict(found)
    values["opinions"] = [list(item) for item in found.opinions]
    text = json.dumps({"digest": _digest(key, values), "price": values})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=path.parent, suffix=".new", delete=False) as draft:
            draft.write(text)
        os.replace(draft.name, path)
    except OSError:
        return  # a cache that cannot be written costs time, nothing else


def _digest(key: str, values: Mapping[str, Any]) -> str:
    return hashlib.sha256((key + json.dumps(values, sort_keys=True)).encode()).hexdigest()


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else "infinity"


def _shown(value: object) -> str:
    try:
        return repr(value)[:60]
    except (ValueError, RecursionError):
        return f"a {type(value).__name__}"
