"""Numbers on the pages: the unit suits the number that is shown."""

from __future__ import annotations

import pytest

from api.pages.words import micros, prefixed, seconds


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 us"),
        (12.34, "12.3 us"),
        (999.4, "999 us"),
        (999.7, "1 ms"),
        (999_400.0, "999 ms"),
        (999_700.0, "1 s"),
        (999.7e6, "1,000 s"),
    ],
)
def test_a_time_in_microseconds(value: float, text: str) -> None:
    assert micros(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 s"),
        (0.9994, "999 ms"),
        (0.99999, "1 s"),
        (59.94, "59.9 s"),
        (59.97, "1 min"),
        (3_599.7, "1 h"),
        (90_061.0, "1 d 1 h"),
    ],
)
def test_a_duration(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(12.0, "12"), (999.4e9, "999G"), (999.7e9, "1T"), (999.9, "1k")])
def test_a_large_number(value: float, text: str) -> None:
    assert prefixed(value) == text
