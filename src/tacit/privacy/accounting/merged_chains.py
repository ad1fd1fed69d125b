"""A second opinion on chains of names: links as discrete pairs, merged loss by loss.

Shares no formula with `name_chains`. Each link is put on a grid from its own curve (the user's by
the sampled Gaussian, a move by the theorem for one holder), and two links are merged by coupling
the loss of the first, under its second distribution, with the loss of the second, under its first,
*comonotonely*: both are laws of what lies between them. The losses add, and the result dominates
the chain (docs/explanations/guarantees.md, section 12).
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tacit.privacy.accounting.divergences import Array
from tacit.privacy.accounting.dominating_curves import Instance, OwnerMixture, Pair, ShiftMixture
from tacit.privacy.accounting.name_chains import NameChain
from tacit.privacy.accounting.pld_grid import GridTooLarge, span, upper_loss

_CELLS = 20_000  # of one link; where a finer grid is asked for the opinion is looser, not wrong


@dataclass(frozen=True)
class Discrete:
    """A pair on finitely many losses, in falling order, with what only one of the two can give."""

    loss: Array
    p: Array
    q: Array
    only_p: float
    only_q: float


@dataclass(frozen=True)
class MergedChain:
    """The chain's pair by merging; its curves are exact for the merged discrete pair."""

    chain: NameChain
    tail: float

    @property
    def revealed_shift(self) -> float:
        return self.chain.revealed_shift

    def forward(self, eps: Array) -> Array:
        made = merged(self.chain, self.tail)
        return _hockey_stick(made.loss, made.p, made.q, made.only_p, eps)

    def backward(self, eps: Array) -> Array:
        made = merged(self.chain, self.tail)
        return _hockey_stick(-made.loss[::-1], made.q[::-1], made.p[::-1], made.only_q, eps)

    def instances(self) -> list[Instance]:
        return self.chain.instances()


@lru_cache(maxsize=32)
def merged(chain: NameChain, tail: float) -> Discrete:
    """The user first, then the moves; all moves are alike, so they are merged by doubling."""
    owner = OwnerMixture(chain.rate, 1, chain.share, 1.0, False, chain.scale)
    fine = 0.12 * chain.rate * min(chain.share, 2.0) * chain.scale
    power = _gridded(owner, fine, tail)
    made: Discrete | None = None
    left = chain.moves
    while left:
        if left & 1:
            made = power if made is None else merge(power, made)
        left >>= 1
        power = merge(power, power) if left else power
    if chain.with_user:
        user = _gridded(ShiftMixture(chain.rate, 1, chain.scale), fine, tail)
        made = user if made is None else merge(user, made)
    assert made is not None
    return made


def _gridded(pair: Pair, step: float, tail: float) -> Discrete:
    step = max(step, span(pair, tail) / _CELLS)
    while True:
        try:
            forward, backward = upper_loss(pair, step, tail)
            break
        except GridTooLarge:
            step *= 2
    loss: Array = np.arange(forward.start, forward.start + forward.probs.size, dtype=np.float64)
    loss *= step
    # each half from its own role, where it is exact
    p = np.where(loss > 0, forward.probs, backward.probs[::-1] * np.exp(np.minimum(loss, 0)))
    q = np.where(loss > 0, forward.probs * np.exp(-np.maximum(loss, 0)), backward.probs[::-1])
    held = (p > 0) | (q > 0)
    order = np.flatnonzero(held)[::-1]
    return Discrete(loss[order], p[order], q[order], forward.infinite, backward.infinite)


def merge(first: Discrete, second: Discrete) -> Discrete:
    """First P against R, then R against Q: equal amounts of R are paired from the top.

    R's mass that Q cannot give (`second.only_p`) is on top, R's mass that P cannot give
    (`first.only_q`) at the bottom.
    """
    r1 = np.concatenate([[0.0], np.cumsum(first.q)])
    r2 = np.concatenate([[0.0], second.only_p + np.cumsum(second.p)])
    edges = np.unique(np.concatenate([r1, r2, [0.0, second.only_p]]))
    amount, middle = np.diff(edges), (edges[1:] + edges[:-1]) / 2
    i = np.searchsorted(r1, middle, side="right") - 1
    j = np.searchsorted(r2, middle, side="right") - 1
    below, above = i >= first.loss.size, middle < second.only_p
    over = j >= second.loss.size
    i, j = np.minimum(i, first.loss.size - 1), np.minimum(j, second.loss.size - 1)
    x, y = first.loss[i], second.loss[j]
    p = np.where(below, 0.0, amount * np.exp(x))
    q = np.where(above | over, 0.0, amount * np.exp(-y))
    both = ~below & ~above & ~over
    return Discrete(
        (x + y)[both],
        p[both],
        q[both],
        first.only_p + float(p[(above | over) & ~below].sum()),
        second.only_q + float(q[below & ~above & ~over].sum()),
    )


def _hockey_stick(loss: Array, p: Array, q: Array, only_p: float, eps: Array) -> Array:
    """sum over losses above eps of p - e^eps q, losses falling."""
    top_p, top_q = np.cumsum(p), np.cumsum(q)
    count = np.searchsorted(-loss, -eps, side="left")  # so many losses are above eps
    inside = np.maximum(count - 1, 0)
    with np.errstate(over="ignore", invalid="ignore"):
        value = top_p[inside] - np.exp(eps) * top_q[inside]
    found: Array = only_p + np.where(count > 0, np.maximum(value, 0.0), 0.0)
    return found
