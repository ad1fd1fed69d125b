"""Arguments that cannot be are refused in one sentence."""

import pytest

from tacit.errors import UsageError
from tacit.privacy.arguments import require_small_delta


@pytest.mark.parametrize(
    ("units", "name", "one"),
    [(2_000, "users", "user"), (1_001, "records", "record"), (5_000, "entities", "entity")],
)
def test_a_delta_above_one_over_the_units_is_refused(units: int, name: str, one: str) -> None:
    with pytest.raises(UsageError, match=f"above 1/{name} = .* one {one} may be given away"):
        require_small_delta(1e-3, units, name)


@pytest.mark.parametrize("units", [1, 10, 1_000])
def test_a_delta_up_to_one_over_the_units_is_taken(units: int) -> None:
    assert require_small_delta(1e-3, units, "users") == 1e-3


def test_nobody_is_no_number_of_units() -> None:
    with pytest.raises(UsageError, match="users=0"):
        require_small_delta(1e-5, 0, "users")
