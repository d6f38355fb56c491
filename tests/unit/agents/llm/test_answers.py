"""Answers as models write them: drafts before the final word, marks around words, numbers for expressions."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from agents.interface import Attempt, Briefing
from agents.llm import answers
from agents.llm.engineer import draft
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
        '{"n": 2, // two\n "url": "http://x", /* no\nmore */ "list": [1, // last\n]}',
        '{"n": 2, "yes": True, "no": [False, None]}',
        '{\u00a0"n":\u00a02}',
        '```jsonc\n{"n": 2}\n```',
        '~~~json\n{"n": 2}\n~~~',
        '````json\n{"n": 2, "text": "```"}\n````',
        'First:\n```json\n{"n": 1}\n```\nNo, rather:\n```json\n{"n": 2}',
        '{"n": 2}\n```\n',
    ],
    ids=[
        "draft",
        "comma",
        "commas",
        "line break",
        "comments",
        "python",
        "blanks",
        "jsonc",
        "tildes",
        "four",
        "open",
        "stray fence",
    ],
)
def test_the_object_that_an_answer_ends_with_is_read(text: str) -> None:
    assert answers.json_object(text)["n"] == 2


def test_a_comma_in_a_string_stays() -> None:
    assert answers.json_object('{"text": "[a,]"}') == {"text": "[a,]"}
    assert answers.json_object('{"text": "a\\", ]", "list": [1,],}') == {"text": 'a", ]', "list": [1]}


@pytest.mark.parametrize(
    "text",
    [
        '{"n": 2,, }',
        '{"n": ' + "9" * 5_000 + "}",
        '```json\n{"n": 1}\n```\nRather:\n```json\n{"n": 2, "more": [',
        "[" * 90_000,
    ],
    ids=["commas", "digits", "cut off", "deep"],
)
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(AnswerError, match="cannot be read"):
        answers.json_object(text)


def test_what_cannot_be_stored_is_replaced() -> None:
    read = answers.json_object('{"a\\u0000": ["b\\ud800", {"c": "\\ud83d\\ude00"}]}')
    assert read == {"a\ufffd": ["b\ufffd", {"c": "\U0001f600"}]}


PLAN = '{"launches": [{"kernel": "k", "args": ["x", "out"]}]}'
WHOLE = f'#include "problem.h"\n{SOURCE}'


@pytest.mark.parametrize(
    "text",
    [
        f"```cpp\n{WHOLE}```\n```json\n{PLAN}\n```\nIts core is:\n```cpp\nout[0] = x[0];\n// that\n```",
        f"```cpp\nDRAFT\n```\n```cpp\n{WHOLE}```\n```json\n{PLAN}\n```",
        f"```cxx\n{WHOLE}```\n```jsonc\n{PLAN}\n```",
        f"```\n{WHOLE}```\n```\n{PLAN}\n```",
        f"~~~cpp\n{WHOLE}~~~\n~~~json\n{PLAN}\n~~~",
        f"````cpp\n{WHOLE}````\n````json\n{PLAN}\n````",
        f"```cpp\n{WHOLE}```\n```json\n{PLAN}",
        f'```cpp\n{WHOLE}```\n```json\n{PLAN}\n```\nFor instance:\n```json\n{{"BLOCK": 256}}\n```',
        f"```cpp\n{WHOLE}```\n```json\n{PLAN.replace('[{', '[ // one' + chr(10) + '{')}\n```",
    ],
    ids=["snippet", "draft", "cxx", "bare", "tildes", "four", "open", "example", "comment"],
)
def test_a_kernel_is_read_whatever_form_its_fences_have(briefing: Briefing, text: str) -> None:
    read = answers.kernel(text, briefing)
    assert (read.source, read.plan.launches[0].kernel) == (WHOLE, "k")


def test_a_source_that_was_cut_off_is_no_source(briefing: Briefing) -> None:
    with pytest.raises(AnswerError, match="no fenced ```cpp block"):
        answers.kernel(f"```json\n{PLAN}\n```\n```cpp\n{WHOLE}", briefing)


@pytest.mark.parametrize(
    "loop", ["\n", "`", "``` ", "~~~\n", "* ", '\\"', "/*", "NAME: \n", "```json\n", "<<<<<<< SEARCH\n"]
)
def test_a_model_that_loops_is_read_at_once(briefing: Briefing, loop: str) -> None:
    begun, text = time.monotonic(), CODE + "THOUGHT: x" + loop * (60_000 // len(loop)) + "y"
    for read in (draft, answers.kernel):
        read(text, briefing)
    with suppress(AnswerError):
        answers.json_object('{"' + text)
    assert time.monotonic() - begun < 5


def test_a_word_in_the_code_leaves_no_kernel_unchanged(briefing: Briefing) -> None:
    changed = CODE.replace("// mended", "// UNCHANGED\n// NOTE: of the code\n// DROPPED: threads")
    made = improvement(f"NOTE: wider\n{changed}", briefing, written("threads"))
    assert (made.note, made.strategy.ids()) == ("wider", ("threads",))
    assert "UNCHANGED" in made.kernel.source
    assert improvement("```\nUNCHANGED\n```", briefing, written()).note == "unchanged"


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
