"""A misspelt field of a request is refused with the field that it may mean."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from cupilot.cli.matrix import request
from cupilot.domain.errors import InvalidInput
from cupilot.schemas import ExperimentRequest, JobRequest
from cupilot.schemas.paths import unknown_field

JOB: dict[str, Any] = {"problem": {"id": "softmax"}, "target": "cpu"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budgets": {"candidate": 5}}, "unknown field; did you mean candidates?"),
        ({"targett": "cpu"}, "unknown field; did you mean target?"),
        ({"method": {"name": "sce", "popluation": 4}}, "unknown field; did you mean population?"),
        ({"candidates": 5}, "unknown field; did you mean budgets.candidates?"),
        ({"policy": "fp32"}, "unknown field; did you mean problem.policy?"),
        ({"problem": {"id": "softmax", "xyz": 1}}, "unknown field; there are id, name, policy, size, source"),
    ],
)
def test_the_nearest_field_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        JobRequest.model_validate(JOB | changes)
    (error,) = (error for error in refused.value.errors() if error["type"] == "extra_forbidden")
    assert unknown_field(JobRequest, error["loc"]) == message


def test_fields_in_lists_are_found() -> None:
    assert unknown_field(ExperimentRequest, ("problems", 0, "nam")) == "unknown field; did you mean name?"


def test_a_request_of_no_type_says_no_more() -> None:
    assert unknown_field(None, ("a",)) == "unknown field"


def test_a_matrix_file_is_told_too() -> None:
    fields = {"name": "m", "target": "cpu", "problems": [{"id": "softmax"}], "seeds": [0], "seedz": [1]}
    with pytest.raises(InvalidInput, match=r"did you mean seeds\?"):
        request(fields)
