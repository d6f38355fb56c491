"""Diffs in two columns."""

from __future__ import annotations

import difflib

from hypothesis import given
from hypothesis import strategies as st

from api.pages.sides import Line, Row, side_by_side

TEXTS = st.lists(st.sampled_from(["a", "b", "-- c", "++ d", "@@ e", "", "  f"]), max_size=30)


def diff(before: list[str], after: list[str]) -> str:
    return "\n".join(difflib.unified_diff(before, after, "one", "other", lineterm=""))


def test_changed_lines_stand_beside_each_other() -> None:
    before, after = ["keep", "old", "gone", "end"], ["keep", "new", "end"]
    assert side_by_side(diff(before, after)) == [
        Row(Line(1, "keep", changed=False), Line(1, "keep", changed=False)),
        Row(Line(2, "old", changed=True), Line(2, "new", changed=True)),
        Row(Line(3, "gone", changed=True), None),
        Row(Line(4, "end", changed=False), Line(3, "end", changed=False)),
    ]


def test_left_out_lines_are_a_gap() -> None:
    before = [str(number) for number in range(40)]
    rows = side_by_side(diff(before, ["first", *before[1:39], "last"]))
    assert rows.count(Row()) == 1
    assert rows[-1] == Row(Line(40, "39", changed=True), Line(40, "last", changed=True))


def test_equal_texts_have_no_rows() -> None:
    assert side_by_side("") == []


@given(TEXTS, TEXTS)
def test_each_side_shows_its_own_lines(before: list[str], after: list[str]) -> None:
    for row in side_by_side(diff(before, after)):
        for line, text in ((row.first, before), (row.second, after)):
            assert line is None or text[line.number - 1] == line.text
