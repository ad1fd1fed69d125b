"""Every epsilon is written by one rule, and nothing in the code writes one by another."""

import ast
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tacit
from tacit.privacy.rounding import down, up

SOURCE = Path(tacit.__file__).parent
PRICED = re.compile(r"epsilon|no_less_than|second_opinion|\.(lower|upper|claimed|at_least)\b")
"""What an expression holds that is an epsilon which was computed, or a bound on one."""
GIVEN = re.compile(r"target_epsilon|epsilon_per_distance")
"""Numbers that somebody asked for are repeated as they were given."""


@given(st.floats(1e-12, 1e12))
def test_rounding_is_safe_and_close(epsilon: float) -> None:
    high, low = float(up(epsilon)), float(down(epsilon))
    assert low <= epsilon <= high
    assert high <= epsilon * 1.001001
    assert low >= epsilon * 0.999
    assert up(high) == up(epsilon)  # what is written is written alike again
    assert down(low) == down(epsilon)


@pytest.mark.parametrize("epsilon", [8.0, 0.1, 0.3, 7.988, 12.34, 1e-5, 0.0])
def test_what_has_few_digits_stays(epsilon: float) -> None:
    assert float(up(epsilon)) == float(down(epsilon)) == epsilon


def test_no_bound_is_said_in_words() -> None:
    assert up(float("inf")) == down(float("inf")) == up("infinity") == "infinity"


def rounded_otherwise(source: str) -> list[int]:
    """The lines in which a computed epsilon is written by a format or by `round`."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        value: ast.AST | None = None
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            value = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            value = node.args[0] if node.func.id in ("round", "format", "number") else None
        if value is not None:
            said = ast.unparse(value)
            if PRICED.search(said) and not GIVEN.search(said):
                lines.append(value.lineno)  # type: ignore[attr-defined]
    return lines


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('f"{cost.epsilon:.4g}"', True),
        ('f"{epsilon:g}"', True),
        ("round(found['epsilon'], 3)", True),
        ("number(plan['epsilon'][unit])", True),
        ('f"{audit.lower:.2f}"', True),
        ('f"{up(cost.epsilon)}"', False),
        ('f"{self.target_epsilon:g}"', False),
        ('f"{loss:.4g}"', False),
    ],
)
def test_the_search_finds_what_it_should(line: str, found: bool) -> None:
    assert bool(rounded_otherwise(line)) is found


def test_no_epsilon_is_written_by_another_rule() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{line}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line in rounded_otherwise(path.read_text(encoding="utf-8"))
    ]
    assert found == []
