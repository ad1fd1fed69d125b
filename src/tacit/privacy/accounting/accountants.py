"""Three accountants, each with its own valid bound on the same releases.

pld   the loss on a grid, composed numerically by dp-accounting
rdp   Renyi moments (of the Poisson-sampled Gaussian in closed form, and by dp-accounting at
      orders that are not whole; else of the gridded loss), composed by addition: looser, without
      numerical limits
gdp   all coins revealed, one Gaussian, in closed form: loosest with sampling, exact without

Chains of names have a further opinion: the same chain merged loss by loss, on grids of its links.
"""

import logging
import math

import numpy as np
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from scipy.special import gammaln

from tacit.privacy.accounting.composition import (
    LEAST_SHIFT,
    MOST_SHIFT,
    composed,
    first_step,
    fitting,
    grid_epsilon,
    grid_works,
    largest,
    revealed,
    tail_of,
    upper_losses,
    worse_role,
)
from tacit.privacy.accounting.divergences import Array, gaussian_epsilon
from tacit.privacy.accounting.dominating_curves import ShiftMixture
from tacit.privacy.accounting.dominating_pairs import Items
from tacit.privacy.accounting.merged_chains import MergedChain
from tacit.privacy.accounting.name_chains import NameChain
from tacit.privacy.accounting.pld_grid import GridTooLarge, Losses

ACCURACY = 0.005  # how far the grid may push a price above its limit, as a share of it

WHOLE_ORDERS = np.concatenate([np.arange(2, 65), np.geomspace(70, 2000, 30).round()])
"""Orders of Renyi moments; the bound has one minimum, around which those between are tried, too."""
_BETWEEN = np.setdiff1d(np.arange(6, 48) / 4, WHOLE_ORDERS)
_STARTS = np.concatenate([[0], np.cumsum(WHOLE_ORDERS + 1)[:-1]]).astype(np.int64)
_ORDER = np.repeat(WHOLE_ORDERS, WHOLE_ORDERS.astype(np.int64) + 1)
_K = np.arange(_ORDER.size) - np.repeat(_STARTS, WHOLE_ORDERS.astype(np.int64) + 1)
_LOG_CHOICES = gammaln(_ORDER + 1) - gammaln(_K + 1) - gammaln(_ORDER - _K + 1)


def all_opinions(
    items: Items, delta: float, step: float | None
) -> tuple[list[tuple[str, float]], float]:
    """Every bound we can compute, and the grid that was used."""
    opinions = [("gdp", gaussian_epsilon(revealed(items), delta))]
    if opinions[0][1] == 0 or revealed(items) < LEAST_SHIFT or largest(items) > MOST_SHIFT:
        return opinions + _sampled_gaussian_rdp(items, delta), 0.0
    chosen = step or first_step(items, delta)
    opinions += _sampled_gaussian_rdp(items, delta) or [
        ("rdp", _moments_epsilon(items, chosen, delta))
    ]
    if grid_works(items, delta):
        found, chosen = _refined(items, delta, chosen, fixed=step is not None)
        opinions += found
    return opinions, chosen


def merged_opinion(items: Items, delta: float, step: float) -> list[tuple[str, float]]:
    """What merging says of chains of names, on a grid half as wide as that of the price."""
    if step <= 0 or not any(isinstance(pair, NameChain) for pair, _ in items):
        return []
    others = tuple(
        (MergedChain(pair, tail_of(delta)) if isinstance(pair, NameChain) else pair, count)
        for pair, count in items
    )
    try:
        return [("pld, merged", grid_epsilon(others, step / 2, delta))]
    except GridTooLarge:
        return []


def _refined(
    items: Items, delta: float, step: float, fixed: bool
) -> tuple[list[tuple[str, float]], float]:
    """The price on the coarsest grid that a twice finer one confirms to 0.5 %.

    The error of connected dots is of second order: what is left at `step` is 4/3 of the
    difference to the twice finer grid.
    """
    roles, step = (composed(items, step, delta), step) if fixed else fitting(items, delta, step)
    coarse = worse_role(roles, items, delta)
    while not fixed:
        fine_step = step / 2
        try:
            fine = grid_epsilon(items, fine_step, delta)
        except GridTooLarge:
            break
        if coarse - fine <= max(0.75 * ACCURACY * fine, 1e-5):
            return [("pld", coarse), ("pld, finer grid", min(fine, coarse))], step
        coarse, step = fine, fine_step
    return [("pld", coarse)], step


def _moments_epsilon(items: Items, step: float, delta: float) -> float:
    """Renyi moments of the gridded losses, added up and converted.

    Legend: with t = order - 1, E[e^(t L)] is a moment of the loss; (1 - e^(eps - L))_+ is at most
    e^(t (L - eps)) (1 + 1/t)^-t / (1 + t) for every L, so delta is at most the same multiple of
    the product of moments, plus the probability of an infinite loss.
    """
    t = np.geomspace(1e-4, 1e5, 121)
    worst = 0.0
    parts = [(upper_losses(pair, step, tail_of(delta)), count) for pair, count in items]
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
        return np.array([_log_sum(logs + order * values) for order in t])


def _log_sum(logs: Array) -> float:
    """The logarithm of a sum of exponentials, with none of what makes scipy's slow."""
    most = float(logs.max())
    return most + math.log(float(np.exp(logs - most).sum())) if math.isfinite(most) else most


def _from_moments(t: Array, log_moment: Array, delta: float) -> float:
    """The least of the bounds over all t, at least 0."""
    bounds = _converted(t, log_moment, delta)
    usable = bounds[np.isfinite(bounds)]
    return max(0.0, float(usable.min())) if usable.size else math.inf


def _converted(t: Array, log_moment: Array, delta: float) -> Array:
    """(log moment - log delta - log(1 + t)) / t + log(t / (1 + t)), an epsilon for each t."""
    with np.errstate(all="ignore"):
        found: Array = (log_moment - math.log(delta) - np.log1p(t)) / t - np.log1p(1 / t)
    return found


def _sampled_gaussian_rdp(items: Items, delta: float) -> list[tuple[str, float]]:
    """Moments in closed form, where every release is a Poisson-sampled Gaussian."""
    pairs = [(pair, count) for pair, count in items if isinstance(pair, ShiftMixture)]
    if len(pairs) < len(items) or any(pair.units != 1 for pair, _ in pairs):
        return []
    if not 1e-6 <= largest(items) <= 3:
        return []
    rdp = np.sum([n * rdp_at_whole_orders(pair.rate, pair.shift) for pair, n in pairs], axis=0)
    bounds = _bounds(WHOLE_ORDERS, rdp, delta)
    if all(pair.revealed_shift > 1e-2 for pair, _ in pairs):
        # the series for other orders does not converge when the noise is very large
        near = _BETWEEN[np.abs(_BETWEEN - WHOLE_ORDERS[int(np.argmin(bounds))]) < 1]
        bounds = np.append(bounds, _bounds(near, _rdp_between(pairs, near), delta))
    least = float(bounds.min())
    return [("rdp", max(0.0, least))] if math.isfinite(least) else []


def _bounds(orders: Array, rdp: Array, delta: float) -> Array:
    """The epsilon that each order gives; infinite where its divergence is not known."""
    t = orders - 1
    return np.where(np.isfinite(rdp) & (rdp >= 0), _converted(t, t * rdp, delta), math.inf)


def rdp_at_whole_orders(rate: float, shift: float) -> Array:
    """Renyi divergences of one release at whole orders, in nats.

    Legend: of order a, (log of the sum over k of binomial(a, k) (1 - q)^(a - k) q^k e^(k (k - 1)
    s^2 / 2)) / (a - 1), with rate q and shift s.

    Source: Mironov, Talwar, Zhang 2019, section 3.3; dp-accounting adds the same terms one by one.
    """
    if rate in (0, 1):
        return rate * WHOLE_ORDERS * shift**2 / 2
    logs = _LOG_CHOICES + _K * math.log(rate) + (_ORDER - _K) * math.log1p(-rate)
    logs += _K * (_K - 1) * (shift**2 / 2)
    found: Array = np.logaddexp.reduceat(logs, _STARTS) / (WHOLE_ORDERS - 1)
    return found


def _rdp_between(pairs: list[tuple[ShiftMixture, int]], orders: Array) -> Array:
    if orders.size == 0:
        return orders
    # It logs every order whose series does not converge; those orders are left out.
    logging.getLogger("absl").setLevel(logging.ERROR)
    accountant = RdpAccountant(orders)
    for pair, count in pairs:
        gaussian = dp_event.GaussianDpEvent(1 / pair.shift)
        accountant.compose(dp_event.PoissonSampledDpEvent(pair.rate, gaussian), count)
    return np.asarray(accountant.rdp, dtype=np.float64)
