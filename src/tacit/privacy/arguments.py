"""Arguments that can be, or one sentence why not."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tacit.errors import UsageError


def require_delta(delta: Any) -> float:
    """The delta, if it is a number strictly between 0 and 1."""
    if not (_is_number(delta) and 0 < delta < 1):
        raise UsageError(
            f"delta={delta!r} is out of range; give a value above 0 and below 1, such as 1e-5."
        )
    return float(delta)


def require_small_delta(delta: float, units: int, unit_name: str) -> float:
    """The delta, if it is at most one over the number of units that it is about.

    Above that, giving one unit's data away whole, chosen by chance, would be within the promise.
    `units` is declared, or counted where the promise holds the graph fixed; `unit_name` is
    "users", "records" or "entities".
    """
    if require_delta(delta) * check_whole(unit_name, units, least=1) > 1:
        one = {"entities": "entity"}.get(unit_name, unit_name.removesuffix("s"))
        raise UsageError(
            f"delta={delta:g} is above 1/{unit_name} = {1 / units:.2g}: at that, one {one} may be "
            "given away altogether; give a smaller one."
        )
    return delta


def check_user_rate(users: int, users_per_step: float) -> float:
    """Users per step over users, if both are counts that can be."""
    check_whole("users", users, least=1)
    if not (_is_number(users_per_step) and 0 < users_per_step <= users):
        raise UsageError(
            f"users_per_step={users_per_step} is out of range; "
            f"give a number above 0, at most users={users}."
        )
    return users_per_step / users


def check_probability(name: str, value: float) -> float:
    """The value, if it lies between 0 and 1."""
    if not (_is_number(value) and 0 <= value <= 1):
        raise UsageError(f"{name}={value} is not a probability; give a value between 0 and 1.")
    return value


def check_not_negative(name: str, value: float) -> float:
    """The value, if it is finite and 0 or more."""
    if not (_is_number(value) and value >= 0):
        raise UsageError(f"{name}={value} is out of range; give a finite number, 0 or more.")
    return value


def check_positive(name: str, value: float) -> float:
    """The value, if it is finite and above 0."""
    if not (_is_number(value) and value > 0):
        raise UsageError(f"{name}={value} is out of range; give a finite number above 0.")
    return value


def check_whole(name: str, value: int, *, least: int) -> int:
    """The value, if it is a whole number and large enough."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise UsageError(f"{name}={value} is out of range; give a whole number, at least {least}.")
    return int(value)


def check_one_of(name: str, value: str, accepted: Sequence[str]) -> str:
    """The value, if it is one of the accepted words."""
    if value not in accepted:
        raise UsageError(f"{name}={value} is not known; give one of {', '.join(accepted)}.")
    return value


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond the range of floating point
        return False
