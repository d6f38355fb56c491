"""Launch-plan arithmetic: right on everything it accepts, and closed to everything else."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cupilot.domain.errors import InvalidPlan
from cupilot.domain.expression import MAX_LENGTH, MAX_VALUE, evaluate

NAMES = {"X_ROWS": 4096, "BLOCK": 256, "ZERO": 0, "EPS": 1e-5}

numbers = st.integers(min_value=0, max_value=10**6)


def trees(
    leaves: st.SearchStrategy[tuple[str, int]],
) -> st.SearchStrategy[tuple[str, int]]:
    """Expression texts with the values that Python's own operators give them."""
    exact: dict[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}

    def binary(children: st.SearchStrategy[tuple[str, int]]) -> st.SearchStrategy[tuple[str, int]]:
        return st.builds(
            lambda symbol, a, b: (f"({a[0]} {symbol} {b[0]})", exact[symbol](a[1], b[1])),
            st.sampled_from(sorted(exact)),
            children,
            children,
        )

    return st.recursive(leaves, binary, max_leaves=5)


@given(trees(st.builds(lambda n: (str(n), n), st.integers(0, 1000))))
def test_agrees_with_integer_arithmetic(tree: tuple[str, int]) -> None:
    text, value = tree
    assert evaluate(text, {}) == value


@given(numbers, st.integers(min_value=1, max_value=10**6))
def test_division_floors_and_ceil_div_covers(a: int, b: int) -> None:
    names = {"A": a, "B": b}
    assert evaluate("A / B", names) == evaluate("A // B", names) == a // b
    assert evaluate("A % B", names) == a % b
    blocks = evaluate("ceil_div(A, B)", names)
    assert (blocks - 1) * b < a <= blocks * b or (a == 0 and blocks == 0)


@given(st.lists(numbers, min_size=1, max_size=5))
def test_min_and_max_take_any_number_of_arguments(values: list[int]) -> None:
    text = ", ".join(map(str, values))
    assert evaluate(f"min({text})", {}) == min(values)
    assert evaluate(f"max({text})", {}) == max(values)


@given(st.text(max_size=60))
def test_any_text_gives_an_integer_or_says_what_is_wrong(text: str) -> None:
    with contextlib.suppress(InvalidPlan):
        assert type(evaluate(text, NAMES)) is int


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("X_ROWS", 4096),
        ("ceil_div(X_ROWS, BLOCK) * 4", 64),
        (" BLOCK * 4 + 16 ", 1040),
        ("-BLOCK", -256),
        ("2 + 3 * 4", 14),
    ],
)
def test_what_plans_say(text: str, value: int) -> None:
    assert evaluate(text, NAMES) == value


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "X_ROWS.bit_length()",
        "[1][0]",
        "lambda: 1",
        "1 if BLOCK else 2",
        "2 ** 62",
        "1 << 10",
        "1.5",
        "True",
        "'4096'",
        "min()",
        "min(*[1, 2])",
        "max(1, default=2)",
        "ceil_div(1)",
        "ceil_div(1, 2, 3)",
        "abs(-1)",
        "X_ROWS = 1",
        "",
    ],
)
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidPlan):
        evaluate(text, NAMES)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("UNKNOWN", "unknown name 'UNKNOWN'"),
        ("EPS * 2", "'EPS' is not an integer"),
        ("BLOCK / ZERO", "division by zero"),
        ("ceil_div(BLOCK, ZERO)", "division by zero"),
        (f"{MAX_VALUE} + 1", "64 bits"),
        ("1" + "+1" * MAX_LENGTH, "at most"),
    ],
)
def test_refusals_say_why(text: str, part: str) -> None:
    with pytest.raises(InvalidPlan, match=part):
        evaluate(text, NAMES)
