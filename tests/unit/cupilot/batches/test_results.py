"""Lines of a result file: whole, of this batch, and an answer to what was asked."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cupilot.domain.batches.errors import InvalidResultFile
from cupilot.domain.batches.manifest import Operation
from cupilot.domain.batches.results import (
    MAX_LINE_BYTES,
    SECONDS_SLACK,
    Damaged,
    charged_seconds,
    check_record,
    read_header,
    read_record,
    write_header,
    write_record,
)
from cupilot.domain.evaluation import Failure, FailureKind, PreparationResult
from tests.unit.cupilot.batches.batch_of import (
    DEVICE,
    answer,
    entry,
    header_of,
    manifest,
    preparation,
    problem,
    question,
)

ENTRY = entry(question()[0])
HEADER = header_of(manifest(ENTRY))
LINE = write_record(HEADER, answer(ENTRY))
LOST = Failure(kind=FailureKind.INFRASTRUCTURE, message="the GPU fell off the bus")


def signed(text: str) -> str:
    """A line that whoever has the batch can write."""
    digest = hashlib.sha256(f"{HEADER.signature}\n{text}".encode("utf-8", "surrogatepass")).hexdigest()
    return f"{digest} {text}"


def test_lines_come_out_as_they_were_written() -> None:
    assert read_header(write_header(HEADER)) == HEADER
    assert read_record(HEADER, LINE) == answer(ENTRY)
    assert check_record(ENTRY, answer(ENTRY), "cpu") is None


def test_a_line_of_another_batch_is_damaged() -> None:
    with pytest.raises(Damaged):
        read_record(header_of(manifest(ENTRY)), LINE)


@pytest.mark.parametrize("place", [0, 10, 64, 65, 66, 200, -1])
def test_a_changed_line_is_damaged(place: int) -> None:
    letter = "b" if LINE[place] == "a" else "a"
    changed = LINE[:place] + letter + LINE[place:][1:]
    with pytest.raises(Damaged):
        read_record(HEADER, changed)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300))
def test_any_text_is_damaged_and_never_an_error(text: str) -> None:
    for line in (text, signed(text)):
        with pytest.raises(Damaged):
            read_record(HEADER, line)
    with pytest.raises(InvalidResultFile):
        read_header(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=200, deadline=None)
@given(name=st.sampled_from(sorted(json.loads(LINE.partition(" ")[2]))), value=json_values)
def test_a_record_with_any_value_in_a_field_is_read_or_refused(name: str, value: Any) -> None:
    data = json.loads(LINE.partition(" ")[2]) | {name: value}
    try:
        record = read_record(HEADER, signed(json.dumps(data)))
    except Damaged:
        return
    assert check_record(ENTRY, record, "cpu") is None or record != answer(ENTRY)


@pytest.mark.parametrize("text", ["{}", "[]", "null", "1", '"a"', "[" * 10_000, '{"seconds": NaN}', "{}" * 2])
def test_json_that_is_no_record_is_damaged(text: str) -> None:
    with pytest.raises(Damaged):
        read_record(HEADER, signed(text))


@pytest.mark.parametrize("seconds", ["-1", "1e999", '"NaN"', '"Infinity"'])
def test_a_time_that_is_none_is_damaged(seconds: str) -> None:
    text = LINE.partition(" ")[2].replace('"seconds":1.5', f'"seconds":{seconds}')
    with pytest.raises(Damaged):
        read_record(HEADER, signed(text))


def test_an_answer_that_no_request_could_carry_is_not_written() -> None:
    failure = LOST.model_copy(update={"message": "x" * MAX_LINE_BYTES})
    with pytest.raises(Damaged, match="bytes"):
        write_record(HEADER, answer(ENTRY, evaluation=None, failure=failure))


def test_a_step_is_charged_for_no_more_than_its_timeout_allows() -> None:
    assert charged_seconds(ENTRY, answer(ENTRY)) == 1.5
    assert charged_seconds(ENTRY, answer(ENTRY, seconds=1e9)) == 60.0 + SECONDS_SLACK


def test_an_answer_must_fit_its_question() -> None:
    of = problem()
    prepare = entry(question(Operation.PREPARE)[0])
    prepared = PreparationResult(preparation=preparation(of))
    fits = answer(prepare, evaluation=None, preparation=prepared)
    assert check_record(prepare, fits, "cpu") is None
    assert check_record(prepare, answer(prepare, evaluation=None, failure=LOST), "cpu") is None
    elsewhere = DEVICE.model_copy(update={"uid": "cpu-2"})
    another = PreparationResult(preparation=preparation(problem("gelu")))
    evaluation = answer(ENTRY).evaluation
    assert evaluation is not None
    wrong = [
        (ENTRY, answer(ENTRY, attempt=2), "another question"),
        (ENTRY, answer(ENTRY, entry="0" * 64), "another question"),
        (ENTRY, answer(ENTRY, evaluation=None, preparation=prepared), "no answer to evaluate"),
        (prepare, answer(prepare), "no answer to prepare"),
        (prepare, answer(prepare, evaluation=None, preparation=another), "another problem"),
        (prepare, answer(prepare, evaluation=None, preparation=prepared, device=elsewhere), "another device"),
        (ENTRY, answer(ENTRY, evaluation=evaluation.model_copy(update={"kernel_hash": "0" * 64})), "another kernel"),
        (ENTRY, answer(ENTRY, evaluation=evaluation.model_copy(update={"problem_hash": "0" * 64})), "another problem"),
    ]
    for asked, record, complaint in wrong:
        assert complaint in (check_record(asked, record, "cpu") or "")
    assert "not on sm_90" in (check_record(ENTRY, answer(ENTRY), "sm_90") or "")


def test_a_record_holds_exactly_one_answer() -> None:
    for changes in ({"evaluation": None}, {"failure": LOST}):
        with pytest.raises(ValueError, match="exactly one"):
            answer(ENTRY, **changes)
