"""JSON for JSONB columns: what Postgres refuses is replaced, everything else stays."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cupilot.domain.evaluation import LawResult
from cupilot.storage.db.json_columns import to_json


def test_numbers_that_are_not_finite_survive_as_text_that_reads_as_a_float() -> None:
    law = LawResult(law="own", passed=False, error=math.inf, tolerance=1.0, reference_error=math.nan)
    stored = json.loads(to_json(law.model_dump(mode="json")))
    assert stored["error"] == "Infinity"
    read = LawResult.model_validate(stored)
    assert read.error == math.inf
    assert math.isnan(read.reference_error)
    assert json.loads(to_json([-math.inf])) == ["-Infinity"]
    assert LawResult.model_validate_json(law.model_dump_json()).error == math.inf


def test_characters_that_jsonb_refuses_are_replaced() -> None:
    assert json.loads(to_json({"a\0": ["b\0", "\ud800c", ("\udfff",)]})) == {
        "a\ufffd": ["b\ufffd", "\ufffdc", ["\ufffd"]]
    }


def test_what_only_looks_like_an_escape_is_left_alone() -> None:
    text = "a \\u0000 \\ud800 \\\\u0000 🚀 ü"
    assert json.loads(to_json(text)) == text


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(values)
def test_the_result_is_always_json_that_postgres_takes(value: Any) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    def check(item: Any) -> None:
        if isinstance(item, str):
            assert "\0" not in item
            item.encode()
        elif isinstance(item, list):
            for each in item:
                check(each)
        elif isinstance(item, dict):
            for key, each in item.items():
                check(key)
                check(each)

    check(json.loads(to_json(value), parse_constant=refuse))
