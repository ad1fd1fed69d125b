"""How an epsilon is written, everywhere: four digits, on the safe side.

What is promised is rounded up, what was found or is certainly lost is rounded down, so that no
text promises more than what was computed, and two texts never differ in the last digit.
"""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context

DIGITS = 4


def up(epsilon: float | str) -> str:
    """An upper bound, never rounded down; "infinity" where there is none.

    >>> up(1.17001), up(12.5), up(3.0), up(float("inf")), up("infinity")
    ('1.171', '12.5', '3', 'infinity', 'infinity')
    """
    return _written(epsilon, ROUND_CEILING)


def down(epsilon: float | str) -> str:
    """A lower bound, never rounded up.

    >>> down(1.17099), down(12.5), down(0.0), down(float("inf"))
    ('1.17', '12.5', '0', 'infinity')
    """
    return _written(epsilon, ROUND_FLOOR)


def percent(rate: float) -> str:
    """A rate as a percentage with one decimal, rounded up.

    >>> percent(0.80641), percent(0.5), percent(1.0)
    ('80.7%', '50.0%', '100.0%')
    """
    return f"{min(1000, math.ceil(rate * 1000 - 1e-9)) / 10:.1f}%"


def _written(epsilon: float | str, rounding: str) -> str:
    if isinstance(epsilon, str) or math.isinf(epsilon):
        return str(epsilon) if isinstance(epsilon, str) else "infinity"
    # From the shortest decimal that means this number: 0.1 stays 0.1, and nothing is computed.
    rounded = Context(prec=DIGITS, rounding=rounding).create_decimal(repr(float(epsilon)))
    return f"{float(rounded):.{DIGITS}g}"
