"""Answers as models write them: drafts before the final word, marks around words, numbers for expressions."""

from __future__ import annotations

import pytest

from agents.interface import Attempt, Briefing
from agents.llm import answers
from agents.llm.gateway import AnswerError
from agents.llm.revisor import improvement, revision
from cupilot.domain.kernel import Kernel, Launch, LaunchPlan
from cupilot.domain.problem import Target
from cupilot.domain.strategy import Strategy, TechniqueUse
from cupilot.domain.tensor_map import TensorMap

SOURCE = 'extern "C" void k(const float* x, float* out) { out[0] = x[0]; }\n'
CODE = f"```cpp\n{SOURCE}// mended\n```\n```json\n" + '{"launches": [{"kernel": "k", "args": ["x", "out"]}]}\n```\n'


def written(*techniques: str) -> Attempt:
    plan = LaunchPlan(launches=(Launch(kernel="k", args=("x", "out")),))
    uses = tuple(TechniqueUse(id=name) for name in techniques)
    return Attempt(strategy=Strategy(techniques=uses), kernel=Kernel(target=Target.CPU, source=SOURCE, plan=plan))


@pytest.mark.parametrize(
    "text",
    [
        'First {"n": 0}:\n```json\n{"n": 1}\n```\nNo, rather:\n```json\n{"n": 2}\n```',
        '```json\n{"n": 2,}\n```',
        '{"n": 2, "list": [1, 2,\n],}',
        '{"why": "two\nlines", "n": 2}',
    ],
    ids=["draft", "comma", "commas", "line break"],
)
def test_the_object_that_an_answer_ends_with_is_read(text: str) -> None:
    assert answers.json_object(text)["n"] == 2


def test_a_comma_in_a_string_stays() -> None:
    assert answers.json_object('{"text": "[a,]"}') == {"text": "[a,]"}
    assert answers.json_object('{"text": "a\\", ]", "list": [1,],}') == {"text": 'a", ]', "list": [1]}


def test_what_is_no_object_is_refused() -> None:
    with pytest.raises(AnswerError, match="cannot be read"):
        answers.json_object('{"n": 2,, }')


@pytest.mark.parametrize(
    ("note", "dropped"),
    [
        ("NOTE: the tail", "DROPPED: threads, simd"),
        ("**NOTE:** the tail", "**DROPPED:** `threads`, `simd`."),
        ("- *Note*: x\n**NOTE**: the tail", "### DROPPED: threads, **simd**"),
    ],
)
def test_marks_around_the_words_of_a_revision_are_ignored(briefing: Briefing, note: str, dropped: str) -> None:
    made = revision(f"{note}\n{dropped}\n{CODE}", briefing, written("threads", "simd", "prefetch"))
    assert made.note == "the tail"
    assert made.strategy.ids() == ("prefetch",)


@pytest.mark.parametrize("word", ["UNCHANGED", "UNCHANGED.", "**UNCHANGED**"])
def test_a_kernel_stays_where_the_answer_says_so(briefing: Briefing, word: str) -> None:
    assert improvement(f"It is fast enough.\n{word}\n", briefing, written()).note == "unchanged"


def test_numbers_stand_for_expressions_in_a_plan() -> None:
    launch = {"kernel": "k", "args": ["x"], "grid": [1024, "ROWS"], "block": [256], "shared_bytes": 0, "cluster": [2]}
    plan = LaunchPlan.model_validate({"launches": [launch], "workspace": [{"name": "w", "bytes": 64}]})
    (read,) = plan.launches
    assert (read.grid, read.block, read.shared_bytes, read.cluster) == (("1024", "ROWS"), ("256",), "0", ("2",))
    assert plan.workspace[0].bytes == "64"
    assert TensorMap.model_validate({"name": "m", "tensor": "x", "box": [64, "ROWS"]}).box == ("64", "ROWS")
    with pytest.raises(ValueError, match="valid string"):
        Launch.model_validate({"kernel": "k", "args": [], "shared_bytes": True})
