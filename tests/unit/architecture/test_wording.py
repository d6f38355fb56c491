"""Docstrings name a thing or tell what to do; they ask nothing."""

from __future__ import annotations

import re

from tests.unit.architecture.source_tree import ROOMS, ROOT

QUESTION = re.compile(r'^\s*"""(What|How|Who|Whether|Where|When)\b')


def test_no_docstring_opens_with_a_question_word() -> None:
    """``Return the cost of a step``, or ``Cost of a step``; not ``What a step costs``."""
    questions = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for folder in (*ROOMS, "benchmarks", "deploy", "tests")
        for path in (ROOT / folder).rglob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if QUESTION.search(line)
    ]
    assert not questions, "say it as a noun phrase or an imperative:\n" + "\n".join(questions)
