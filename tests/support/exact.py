"""Exact divergences of explicit mechanisms by plain quadrature.

Independent truth for the accountant's tests: nothing here comes from tacit, and the method is a
different one (densities integrated on a fine grid, instead of thresholds and distribution
functions).
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Draw:
    """One outcome of all coins: its probability and the mean of the release on both neighbours."""

    weight: float
    with_unit: float
    without_unit: float


def user_clip(
    q: float, starts: list[float], moves: list[float], q_e: float, user: float | None
) -> list[Draw]:
    """Every draw of users and entity in one step of user clipping along a line.

    Holder i contributes `starts[i]` without the entity's records and `starts[i] + moves[i]` with
    them (used when the entity is drawn); the user, if any, contributes `user`, or nothing.
    """
    draws = []
    everyone = len(starts) + (user is not None)
    for picked in itertools.product((0, 1), repeat=everyone):
        for entity in (0, 1):
            weight = q_e if entity else 1 - q_e
            for coin in picked:
                weight *= q if coin else 1 - q
            holders = picked[: len(starts)]
            without = math.fsum(c * s for c, s in zip(holders, starts, strict=True))
            extra = entity * math.fsum(c * m for c, m in zip(holders, moves, strict=True))
            if user is not None and picked[-1]:
                extra += user
            draws.append(Draw(weight, without + extra, without))
    return [draw for draw in draws if draw.weight > 0]


def densities(draws: list[Draw], z: float, points: int = 40_001):
    """A grid with its spacing, and the two output densities on it."""
    means = [m for draw in draws for m in (draw.with_unit, draw.without_unit)]
    x = np.linspace(min(means) - 12 * z, max(means) + 12 * z, points)
    p, q = np.zeros(points), np.zeros(points)
    for draw in draws:
        p += draw.weight * np.exp(-((x - draw.with_unit) ** 2) / (2 * z * z))
        q += draw.weight * np.exp(-((x - draw.without_unit) ** 2) / (2 * z * z))
    scale = 1 / (z * math.sqrt(2 * math.pi))
    return x[1] - x[0], p * scale, q * scale


def hockey_sticks(draws: list[Draw], z: float, epsilons: np.ndarray):
    """H_eps(with || without) and H_eps(without || with) at every epsilon."""
    dx, p, q = densities(draws, z)
    forward = [dx * np.maximum(p - math.exp(eps) * q, 0).sum() for eps in epsilons]
    backward = [dx * np.maximum(q - math.exp(eps) * p, 0).sum() for eps in epsilons]
    return np.array(forward), np.array(backward)


def mixture_hockey_sticks(p_parts, q_parts, coin: float, epsilons: np.ndarray, points=40_001):
    """The same for two explicit mixtures of unit Gaussians, given as (mean, weight) pairs.

    With probability 1 - coin, and everybody sees it, both are the same.
    """
    means = [mean for mean, _ in (*p_parts, *q_parts)]
    x = np.linspace(min(means) - 12, max(means) + 12, points)
    scale = (x[1] - x[0]) / math.sqrt(2 * math.pi)
    p = scale * sum(weight * np.exp(-((x - mean) ** 2) / 2) for mean, weight in p_parts)
    q = scale * sum(weight * np.exp(-((x - mean) ** 2) / 2) for mean, weight in q_parts)
    forward = [coin * np.maximum(p - math.exp(eps) * q, 0).sum() for eps in epsilons]
    backward = [coin * np.maximum(q - math.exp(eps) * p, 0).sum() for eps in epsilons]
    return np.array(forward), np.array(backward)
