"""How easily Gaussians, and mixtures of them, are told apart: the elementary divergences.

Everything is in units of the noise. H_e(P || Q) = sup_S P(S) - e^e Q(S) for e >= 0, rounded on
the safe side:

    mixture_over_gaussian   H_e of shifted Gaussians against N(0, 1)
    gaussian_over_mixture   H_e of N(0, 1) against shifted Gaussians
    gaussian_epsilon        the epsilon at which one shifted Gaussian reaches delta
"""

import math

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import log_ndtr, logsumexp, ndtri

Array = npt.NDArray[np.float64]

_ROUNDING = 1e-15  # allowance per term for the error of exp and ndtr, on the safe side
_LEAST_WEIGHT = 1e-300


def mixture_over_gaussian(e: Array, shifts: Array, log_weights: Array) -> Array:
    """F(e) = H_e(sum_i w_i N(v_i, 1) || N(0, 1)) for e >= 0; the weight missing to 1 is at 0.

    Legend: r = sum of the given weights, w_0 = 1 - r. The optimal test is t > t*, where
    sum_i w_i exp(v_i t - v_i^2/2) = e^e - w_0, so

        F = sum_i w_i Phi(v_i - t*) - (e^e - w_0) Phi(-t*).
    """
    if shifts.size == 0:
        return np.zeros_like(e)
    r = min(1.0, float(np.exp(logsumexp(log_weights))))
    if r < _LEAST_WEIGHT:  # F is at most r; below this its logarithm is lost
        return np.full_like(e, _LEAST_WEIGHT)
    near, far = np.minimum(e, 1.0), np.maximum(e, 1.0)
    # e^e - w_0 = expm1(e) + r, which does not cancel when w_0 is near 1
    target = np.where(e < 1, np.log(np.expm1(near) + r), e + np.log1p(-(1 - r) * np.exp(-far)))
    t = _threshold(target, shifts, log_weights)
    v = shifts[:, None]
    return _difference(log_weights[:, None] + log_ndtr(v - t), (target + log_ndtr(-t))[None])


def gaussian_over_mixture(e: Array, shifts: Array, log_weights: Array, log_gap: Array) -> Array:
    """R(e) = H_e(N(0, 1) || w_0 N(0, 1) + sum_i w_i N(v_i, 1)) for e >= 0.

    Legend: log_weights = log w_i (rows by columns); w_0 enters through log_gap =
    log(1 - e^e w_0), which the caller computes without cancellation and which is -inf where the
    divergence is 0. The optimal test is t < t*, where sum_i w_i exp(v_i t - v_i^2/2) =
    e^-e - w_0, so

        R = (1 - e^e w_0) Phi(t*) - e^e sum_i w_i Phi(t* - v_i).
    """
    value = np.zeros_like(e)
    live = np.isfinite(log_gap)
    if shifts.size == 0 or not live.any():
        if shifts.size == 0:
            value[live] = np.exp(log_gap[live])
        return value
    e, log_gap, log_w = e[live], log_gap[live], log_weights[:, live]
    t = _threshold(log_gap - e, shifts, log_w)
    v = shifts[:, None]
    with np.errstate(invalid="ignore"):
        second = e + log_w + log_ndtr(t - v)
    value[live] = _difference((log_gap + log_ndtr(t))[None], second)
    return value


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The exact epsilon of N(mu, 1) against N(0, 1).

    Source: Balle and Wang 2018, Theorem 8:
    delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu).
    """
    # delta(0) = 2 Phi(mu/2) - 1 < 0.4 mu, said without a difference that would cancel
    if mu == 0 or mu * 0.3990 <= delta:
        return 0.0

    if mu > 1e3:  # the second term, at most a millionth of the first, drowns in rounding
        return (mu * mu / 2 - mu * float(ndtri(delta))) * (1 + 1e-12)

    def excess(eps: float) -> float:
        first = float(log_ndtr(mu / 2 - eps / mu))
        second = eps + float(log_ndtr(-mu / 2 - eps / mu))
        gap = second - first
        return first + (math.log(-math.expm1(gap)) if gap < 0 else -math.inf) - math.log(delta)

    high = mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta))  # the Chernoff bound
    if mu < 1e-3:  # below this the two terms cancel, and only the bound is certain
        return high
    low = 0.0
    if excess(low) <= 0:
        return 0.0
    root = float(
        brentq(lambda eps: max(excess(eps), -1e3), low, high * (1 + 1e-9), xtol=1e-16, rtol=1e-13)
    )
    return root * (1 + 1e-11)


def _threshold(target: Array, shifts: Array, log_weights: Array) -> Array:
    """The t at which a mixture's likelihood ratio reaches exp(target).

    Legend: v = shifts > 0 (rows), w = exp(log_weights) (rows, or rows by columns), t in units of
    the noise. Solves log sum_i w_i exp(v_i t - v_i^2 / 2) = target. The left side is convex and
    increasing, so Newton from a point right of the root decreases to it; where one term alone
    reaches the target is such a point.
    """
    v = shifts[:, None]
    log_w = log_weights if log_weights.ndim == 2 else log_weights[:, None]
    t: Array = np.min((target - log_w + v * v / 2) / v, axis=0)
    live = np.isfinite(t)
    if not live.any():
        return t
    goal = target[live]
    base = (log_w[:, live] if log_w.shape[1] > 1 else log_w) - v * v / 2
    x = t[live]
    for _ in range(100):
        terms = base + v * x
        top = terms.max(axis=0)
        scaled = np.exp(terms - top)
        total = scaled.sum(axis=0)
        slope = (v * scaled).sum(axis=0) / total
        step = (top + np.log(total) - goal) / slope
        x = x - step
        if np.all(np.abs(step) <= 1e-13 * (1 + np.abs(x))):
            break
    t[live] = x
    return t


def _difference(log_first: Array, log_second: Array) -> Array:
    """sum exp(first) - sum exp(second), not below 0, plus what rounding may have taken away."""
    first, second = np.exp(log_first), np.exp(log_second)
    # exp(y) carries a relative error of about |y| units in the last place, and exp(y) |y| -> 0
    slack_first = first * (2 + np.abs(np.where(first > 0, log_first, 0)))
    slack_second = second * (2 + np.abs(np.where(second > 0, log_second, 0)))
    slack = _ROUNDING * (slack_first.sum(axis=0) + slack_second.sum(axis=0))
    value: Array = np.maximum(first.sum(axis=0) - second.sum(axis=0), 0) + slack
    return np.minimum(value, 1.0)


def log_one_minus_exp(x: Array | float) -> Array:
    """log(1 - e^x), and -inf where x >= 0."""
    x = np.asarray(x, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        value: Array = np.where(x < 0, np.log(-np.expm1(np.minimum(x, 0))), -np.inf)
    return value


def log_or_minus_infinity(x: Array | float) -> Array:
    """log x, and -inf at 0."""
    with np.errstate(divide="ignore"):
        value: Array = np.log(np.asarray(x, dtype=np.float64))
    return value
