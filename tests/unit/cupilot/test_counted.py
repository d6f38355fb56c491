"""Counts are named as one or as several."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cupilot.domain.counted import counted, size_words

ROOT = Path(__file__).parents[3]
_SHOWN = ("cupilot/cli", "cupilot/reports", "api/pages")
_SEVERAL = ("{len(found)} problems", "{len(ids)} jobs")
"""Said of two and more only."""
_PLURAL = re.compile(
    r"\{\{?\s?[^{}A-Z\"']*\}?\} "
    r"(?:arms|batches|candidates|entries|generations|jobs|kernels|pairs|problems|seeds|steps)\b"
)


@pytest.mark.parametrize(("number", "words"), [(0, "0 jobs"), (1, "1 job"), (2, "2 jobs")])
def test_one_is_one(number: int, words: str) -> None:
    assert counted(number, "job") == words


def test_plurals_of_their_own_are_given() -> None:
    assert counted(1, "entry", "entries") == "1 entry"
    assert counted(3, "entry", "entries") == "3 entries"


def test_the_size_of_an_experiment() -> None:
    assert size_words(2, 1, 3) == "2 arms x 1 problem x 3 seeds"


def test_text_for_users_counts_with_it() -> None:
    files = [file for folder in _SHOWN for kind in ("*.py", "*.html") for file in (ROOT / folder).rglob(kind)]
    found = [f"{file.name}: {plural}" for file in files for plural in _PLURAL.findall(file.read_text())]
    assert [line for line in found if line.partition(": ")[2] not in _SEVERAL] == []
