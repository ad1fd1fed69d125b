"""The moments accountant as the papers ran it: a grid of orders, and the older conversion."""

import logging
import math
from collections.abc import Sequence

import dp_accounting

from tacit.privacy.arguments import check_not_negative, check_whole, require_delta


def moments_epsilon(
    rate: float,
    noise_multiplier: float,
    steps: int,
    delta: float,
    orders: Sequence[float],
) -> float:
    """Epsilon by the moments accountant with the older conversion.

    Legend: a order, r(a) Renyi divergence of all steps; epsilon = min_a r(a) - ln(delta)/(a-1)
    (Abadi et al. 2016, Theorem 2; Mironov 2017, Proposition 3).
    """
    check_not_negative("noise_multiplier", noise_multiplier)
    check_whole("steps", steps, least=1)
    require_delta(delta)
    return min(renyi(a, rate, noise_multiplier, steps) - math.log(delta) / (a - 1) for a in orders)


def renyi(order: float, rate: float, noise_multiplier: float, steps: int) -> float:
    """Renyi divergence of `steps` Poisson-sampled Gaussian steps, from the library's accountant.

    The library reveals its divergences only through its own, tighter conversion
    epsilon = r + ln(1 - 1/a) - ln(d a)/(a - 1); undo it at a d so small that epsilon stays above
    0 unless r is 0.
    """
    if rate == 0:
        return 0.0
    if noise_multiplier < 1e-6:  # the library squares and inverts; no figure is finite here
        return math.inf
    # It logs every order whose series does not converge; such an order comes out infinite.
    logging.getLogger("absl").setLevel(logging.ERROR)
    tiny = 1e-100
    step = dp_accounting.PoissonSampledDpEvent(
        rate, dp_accounting.GaussianDpEvent(noise_multiplier)
    )
    accountant = dp_accounting.rdp.RdpAccountant(orders=[order])
    accountant.compose(dp_accounting.SelfComposedDpEvent(step, steps))
    epsilon = float(accountant.get_epsilon(tiny))
    if epsilon == 0:
        return 0.0
    undone = epsilon - math.log1p(-1 / order) + math.log(tiny * order) / (order - 1)
    return max(0.0, undone)
