"""Which of the models that runs kept are worth an attack: methods compare at one perplexity.

A model is scored in seconds and attacked in minutes, so many may be kept and few attacked.
"""

import bisect
import math
from collections.abc import Callable, Mapping, Sequence

HARDLY = 100.0
"""A run whose best perplexity is so many times the best of all runs hardly learnt anything."""


def common_level(best: Mapping[str, float]) -> float | None:
    """The lowest perplexity that every run reached; None where no run has one.

    What learnt nothing at all is left out: it would pull the level to where no other run is.

    >>> common_level({"plain": 3.2, "records": 11.4, "ruined": 900.0})
    11.4
    """
    known = [value for value in best.values() if math.isfinite(value)]
    return max((v for v in known if v <= HARDLY * min(known)), default=None)


def off(perplexity: float, level: float) -> float:
    """How far a model is from a level, as a logarithm; what has no perplexity is nowhere near."""
    return abs(math.log(perplexity / level)) if math.isfinite(perplexity) else math.inf


def near_and_spread(
    steps: Sequence[int], perplexity: Callable[[int], float], level: float | None, count: int
) -> list[int]:
    """So many of the steps: the one that is nearest to the level, others evenly spread.

    Perplexity falls as training goes on, so the nearest is found by halving: few are scored.

    >>> near_and_spread(range(10, 100, 10), lambda step: 1000 / step, 14.0, 3)
    [30, 50, 70]
    """
    if len(steps) <= count:
        return list(steps)
    others = [steps[len(steps) * k // (count + 1)] for k in range(1, count + 1)]
    if level is None:
        return others
    after = bisect.bisect_left(steps, True, key=lambda step: perplexity(step) <= level)
    about = steps[max(0, after - 1) : after + 1]
    near = min(about, key=lambda step: off(perplexity(step), level))
    return sorted({near, *[step for step in others if step != near][: count - 1]})
