"""Patches apply where they fit exactly once, or say why not."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.llm.gateway import AnswerError
from agents.llm.patch import is_patch, patched

SOURCE = "int a = 1;\nint b = 1;\nfor (;;) {}\n"


def part(search: str, replace: str) -> str:
    return f"<<<<<<< SEARCH\n{search}=======\n{replace}>>>>>>> REPLACE\n"


def test_parts_are_applied_in_order() -> None:
    text = "NOTE: x\n```patch\n" + part("int a = 1;\n", "int a = 2;\n") + part("int a = 2;\nint b = 1;\n", "") + "```"
    assert is_patch(text)
    assert patched(SOURCE, text) == "for (;;) {}\n"


@pytest.mark.parametrize(
    ("search", "complaint"),
    [("int c;\n", "does not stand"), (" = 1;\n", "stands in the source 2 times"), ("\n", "searches for nothing")],
)
def test_a_part_that_does_not_fit_once_is_refused(search: str, complaint: str) -> None:
    with pytest.raises(AnswerError, match=complaint):
        patched(SOURCE, part(search, "x\n"))


def test_prose_and_half_a_patch_are_none() -> None:
    assert not is_patch("Use <<<<<<< SEARCH and then =======")
    assert not is_patch("```cpp\nint a;\n```")


@pytest.mark.parametrize(
    "rest",
    [
        "<<<<<<< SEARCH\nint b = 1;\n=======\nint b",
        "<<<<<<< SEARCH\nint b = 1;\n",
        "<<<<<<< SEARCH\nint b = 1;\n>>>>>>> REPLACE\n",
        "  <<<<<<< SEARCH\nint b = 1;\n=======\nint b = 2;\n  >>>>>>> REPLACE\n",
        "<<<<<<< SEARCH\nint b = 1;\n=======\nint b = 2;\n=======\nint b = 3;\n>>>>>>> REPLACE\n",
        "<<<<<<< SEARCH\nint b = 1;\n=======\nint b = 2;\n<<<<<<< SEARCH\nfor\n=======\n\n>>>>>>> REPLACE\n",
        ">>>>>>> REPLACE\n",
    ],
    ids=["cut", "cut early", "no divider", "indented", "two dividers", "nested", "stray end"],
)
def test_a_patch_that_is_not_whole_is_applied_not_even_in_part(rest: str) -> None:
    text = part("int a = 1;\n", "int a = 2;\n") + rest
    assert is_patch(text)
    with pytest.raises(AnswerError, match="not whole"):
        patched(SOURCE, text)


def test_a_model_that_repeats_markers_for_ever_is_read_at_once() -> None:
    text = "<<<<<<< SEARCH\n=======\n" * 20_000
    begun = time.monotonic()
    assert not is_patch(text)
    assert time.monotonic() - begun < 5


def test_rules_in_prose_are_no_markers() -> None:
    assert patched(SOURCE, "Plan\n======\n\n" + part("int b = 1;\n", "")) == "int a = 1;\nfor (;;) {}\n"


def test_a_part_with_the_last_line_of_a_source_without_a_line_break_is_replaced() -> None:
    assert patched(SOURCE.rstrip("\n"), part("for (;;) {}\n", "return;\n")) == SOURCE.replace("for (;;) {}", "return;")


@given(st.lists(st.sampled_from(["a\n", "b\n", "c\n", "ab\n"]), min_size=1, max_size=12), st.data())
def test_a_part_of_the_source_is_replaced_or_refused_and_never_guessed(lines: list[str], data: st.DataObject) -> None:
    source = "".join(lines)
    low = data.draw(st.integers(0, len(lines) - 1))
    high = data.draw(st.integers(low + 1, len(lines)))
    search = "".join(lines[low:high])
    places = [place for place in range(len(source)) if source.startswith(search, place)]
    if len(places) == 1:
        assert patched(source, part(search, "new\n")) == source.replace(search, "new\n")
    else:
        with pytest.raises(AnswerError):
            patched(source, part(search, "new\n"))
