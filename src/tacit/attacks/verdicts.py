"""What an attack shows, in words: a leak, nothing beyond chance, or too little to tell.

A figure alone misleads: a model that says "unknown" to everything reproduces secrets that nobody
planted. So every attack is judged against what it would get had the model never seen the text:
guessing, or controls that were never planted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from tacit.attacks.attack import Leak, Verdict

LEVEL = 0.025
"""An attack is said to show something if chance alone would do as well less often than this.

It is what a 95 % interval leaves out on one side, so that intervals and verdicts agree.
"""


def against_guessing(
    what: str, value: float, interval: tuple[float, float], guessing: float
) -> Verdict:
    """A figure with its interval, beside what guessing gets."""
    low, high = interval
    found = f"{what} {value:.3g} ({low:.2g} to {high:.2g})"
    if low > guessing:
        return Verdict("shown", f"{found}, where guessing has {guessing:.3g}.")
    if high < guessing:
        return Verdict(
            "not shown",
            f"{found} is below the {guessing:.3g} of guessing; the sides differ by something else.",
        )
    return Verdict("not shown", f"{found} holds {guessing:.3g}, which guessing has.")


@dataclass(frozen=True)
class Counted:
    """How many of those that were tried came out."""

    hits: int
    tried: int

    def __str__(self) -> str:
        return f"{self.hits:,} of {self.tried:,}"


def against_controls(
    what: str, groups: Sequence[Counted], controls: Counted, *, tests: int = 1
) -> Verdict:
    """What came out of groups that the model saw, beside the same of those that it never did.

    By Fisher's exact test, for as many groups as there are, and `tests` of them in one attack.
    """
    tests *= len(groups)
    whole = Counted(sum(g.hits for g in groups), sum(g.tried for g in groups))
    if not controls.tried or not whole.tried:
        return Verdict(
            "cannot tell",
            f"{whole} {what} came out, and there are no controls to say how many do so unseen.",
        )
    found = f"{whole} {what} came out, and {controls} controls that were never seen"
    if any(_fisher(g, controls) * tests < LEVEL for g in groups):
        return Verdict("shown", f"{found}.")
    if not whole.hits:
        return Verdict("not shown", f"{found}.")
    full = (Counted(g.tried, g.tried) for g in groups)
    if controls.hits == 0 and all(_fisher(g, controls) * tests >= LEVEL for g in full):
        return Verdict("cannot tell", f"{found}; so few cannot differ by more than chance.")
    return Verdict("not shown", f"{found}: that is no more often than chance has it.")


def oftener(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> bool:
    """Whether one guesser is right more often than another on the same things.

    By the exact test of McNemar, on those that only one of them gets right.
    """
    own, others = int((one & ~other).sum()), int((other & ~one).sum())
    return own > 0 and float(stats.binom.sf(own - 1, own + others, 0.5)) < LEVEL


def together(*found: Verdict) -> Verdict:
    """One verdict of several: a leak that shows anywhere shows."""
    order: tuple[Leak, ...] = ("shown", "not shown", "cannot tell")
    leak = min((one.leak for one in found), key=order.index)
    return Verdict(leak, " ".join(one.words for one in found if one.leak == leak))


def _fisher(group: Counted, controls: Counted) -> float:
    table = [
        [group.hits, group.tried - group.hits],
        [controls.hits, controls.tried - controls.hits],
    ]
    return float(stats.fisher_exact(table, alternative="greater").pvalue)


def against_ranks(
    groups: Sequence[Sequence[float]], controls: Sequence[float], chance: float
) -> Verdict:
    """Exposures of planted canaries, by how often they were, beside chance and the controls.

    A secret is drawn by chance, so that of a model that never saw it ranks anywhere alike: then
    bits times ln 2 follow the exponential distribution, and their sum a gamma distribution.
    """
    known = [group for group in groups if group]
    if not known:
        return Verdict("cannot tell", "no canary was planted.")
    bits = max(fmean(group) for group in known)
    p = min(1.0, min(rank_p(group) for group in known) * len(known))
    found = f"planted canaries have {bits:.3g} bits, where chance has {chance:.3g} (p = {p:.2g})"
    if p >= LEVEL:
        return Verdict("not shown", f"{found}.")
    if controls and rank_p(controls) < LEVEL / 25 and fmean(controls) > bits / 2:
        return Verdict(
            "not shown",
            f"controls, never planted, have {fmean(controls):.3g} bits where planted canaries have "
            f"{bits:.3g}; this says nothing about what was learnt.",
        )
    return Verdict("shown", f"{found}.")


def rank_p(bits: Sequence[float]) -> float:
    """How often so many secrets that were never seen rank as high as these, or higher."""
    return float(stats.gamma.sf(log(2) * sum(bits), len(bits)))


def rank_is_chance(bits: Sequence[float]) -> bool:
    """Whether the mean of these is one that secrets never seen have in 95 of 100 draws."""
    return LEVEL <= rank_p(bits) <= 1 - LEVEL
