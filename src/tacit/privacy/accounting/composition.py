"""The loss of many releases together, on a grid: how wide its cells are, and what it amounts to.

dp-accounting composes; here the grid is chosen, what would take gigabytes is refused before, and
epsilon is read off afterwards. `composed` is never optimistic, `attained` never pessimistic.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from dp_accounting.pld import common as pld_common
from dp_accounting.pld import pld_pmf
from scipy.signal import lfilter

from tacit.errors import PrivacyRefused
from tacit.privacy.accounting.dominating_curves import Pair
from tacit.privacy.accounting.dominating_pairs import Items
from tacit.privacy.accounting.pld_grid import (
    BothRoles,
    GridTooLarge,
    Losses,
    lower_loss,
    span,
    spread,
    strongest,
    upper_loss,
)

CELLS_PER_SPREAD = 4.75  # the first grid; it adds about 0.4 % to epsilon
MOST_SHIFT = 1e3  # beyond this many noise units in one step, epsilon is far above 1e5
LEAST_SHIFT = 1e-7  # below this in all, amplification no longer matters
MOST_COMPOSED = 2**21  # losses of all steps together; dp-accounting needs some 100 bytes for each
_CUT = 1e-7  # the share of delta that composing may cut from the tails, counted as infinite loss
_COARSEST_GRID = 25_000  # cells of one step above which the grid is widened instead
_NOISE_FLOOR = 2e-15  # error of a composed probability per step; 70 times what we observe


_FINEST = 1e-12


def first_step(items: Items, delta: float) -> float:
    """The grid to begin with: some cells for the spread of one loss, not too many in all."""
    total = sum(count for _, count in items)
    variance = sum(count * _spread(pair) ** 2 for pair, count in items) / total
    widest = max(_span(pair, tail_of(delta)) for pair, _ in items)
    # Curves may vanish to rounding (an entity that is hardly ever drawn); no grid has a step of 0.
    return max(math.sqrt(variance) / CELLS_PER_SPREAD, widest / _COARSEST_GRID, _FINEST)


def fitting(items: Items, delta: float, step: float) -> tuple[BothRoles, float]:
    """The composed losses on this grid, or on the first wider one on which they fit.

    Wider grids are looser, never wrong.
    """
    while True:
        try:
            return composed(items, step, delta), step
        except GridTooLarge:
            step *= 2


def grid_works(items: Items, delta: float) -> bool:
    """Whether rounding in the Fourier transforms stays far below delta."""
    small = rounding_noise(items) <= delta / 100
    return small and revealed(items) >= LEAST_SHIFT and largest(items) <= MOST_SHIFT


def rounding_noise(items: Items) -> float:
    """A bound on the probability that rounding misplaces while composing; one step needs none."""
    total = sum(count for _, count in items)
    return 0.0 if total == 1 else _NOISE_FLOOR * (total + 100)


def tail_of(delta: float) -> float:
    """What may be cut from one step; a million steps then cut a millionth of delta."""
    return max(delta * 1e-12, 1e-290)


def grid_epsilon(items: Items, step: float, delta: float) -> float:
    """The epsilon of all releases together on this grid."""
    return worse_role(composed(items, step, delta), items, delta)


def worse_role(roles: BothRoles, items: Items, delta: float) -> float:
    """The larger epsilon of both roles; rounding is taken off delta first."""
    return max(read_epsilon(losses, delta - rounding_noise(items)) for losses in roles)


def composed(items: Items, step: float, delta: float) -> BothRoles:
    """The loss of all releases together, both roles, composed by dp-accounting."""
    parts = [(upper_losses(pair, step, tail_of(delta)), count) for pair, count in items]
    return BothRoles(
        _compose([(part.forward, count) for part, count in parts], delta),
        _compose([(part.backward, count) for part, count in parts], delta),
    )


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
        raise GridTooLarge(f"{high - low} composed losses, more than {MOST_COMPOSED}")


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
            raise GridTooLarge(f"{total.size} composed losses")
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


def attained(items: Items, delta: float, step: float, epsilon: float) -> float:
    """An epsilon below which no bound can be valid: an instance, its losses pooled downwards."""
    if not 0 < step < 300 or not grid_works(items, delta):
        return 0.0
    found = 0.0
    for finer in (1, 8):
        try:
            found = max(found, _attained_on(items, delta, step / finer))
        except GridTooLarge:
            break
        # where rounding down costs little, a finer grid adds nothing
        if found >= 0.8 * epsilon or epsilon < 0.01:
            break
    return found


def _attained_on(items: Items, delta: float, step: float) -> float:
    parts = [(_lower_losses(pair, step), count) for pair, count in items]
    slack = delta * (1 + 1e-4) + rounding_noise(items)
    both = [_compose([(part[role], count) for part, count in parts], delta) for role in (0, 1)]
    # what composing cut off counts as infinite there; here it must not count at all
    kept = [Losses(each.step, each.start, each.probs, 0.0) for each in both]
    return max(read_epsilon(losses, slack) for losses in kept)


# --- small shared computations, kept for the life of the process --------------------------------


@lru_cache(maxsize=64)
def upper_losses(pair: Pair, step: float, tail: float) -> BothRoles:
    """`upper_loss`, computed once."""
    return upper_loss(pair, step, tail)


@lru_cache(maxsize=64)
def _lower_losses(pair: Pair, step: float) -> BothRoles:
    return lower_loss(strongest(pair, step), step)


@lru_cache(maxsize=256)
def _spread(pair: Pair) -> float:
    return spread(pair)


@lru_cache(maxsize=256)
def _span(pair: Pair, tail: float) -> float:
    return span(pair, tail)


def revealed(items: Items) -> float:
    """The shift of one Gaussian that all releases together amount to, all coins revealed."""
    return math.sqrt(math.fsum(count * pair.revealed_shift**2 for pair, count in items))


def largest(items: Items) -> float:
    """The largest shift of one release, all coins revealed."""
    return max(pair.revealed_shift for pair, _ in items)
