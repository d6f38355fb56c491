"""Every operation shows an example of the JSON that it takes and answers, and each fits its schema."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.service.api.world import documentation


def bodies() -> dict[str, tuple[dict[str, Any], list[Any]]]:
    """Schema and examples of each operation with a JSON body."""
    found = {}
    for path, operations in documentation()["paths"].items():
        for method, operation in operations.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if content:
                shown = [content["example"]] if "example" in content else []
                shown += [example["value"] for example in content.get("examples", {}).values()]
                found[f"{method} {path}"] = (content["schema"], shown)
    return found


@pytest.mark.parametrize("operation", bodies())
def test_an_operations_examples_are_there_and_fit(operation: str) -> None:
    schema, examples = bodies()[operation]
    assert examples
    validator = Draft202012Validator({**schema, "components": documentation()["components"]})
    for example in examples:
        assert [error.message for error in validator.iter_errors(example)] == []


def answers() -> dict[str, tuple[dict[str, Any], list[Any]]]:
    """Schema and examples of each operation's JSON answer of success."""
    found = {}
    for path, operations in documentation()["paths"].items():
        for method, operation in operations.items():
            for status, response in operation["responses"].items():
                content = response.get("content", {}).get("application/json", {})
                if status.startswith("2") and content.get("schema"):
                    shown = [content["example"]] if "example" in content else []
                    shown += [example["value"] for example in content.get("examples", {}).values()]
                    found[f"{method} {path} {status}"] = (content["schema"], shown)
    return found


@pytest.mark.parametrize("operation", answers())
def test_an_answers_example_is_there_and_fits(operation: str) -> None:
    schema, examples = answers()[operation]
    assert examples
    validator = Draft202012Validator({**schema, "components": documentation()["components"]})
    for example in examples:
        assert [error.message for error in validator.iter_errors(example)] == []


def test_an_example_of_a_job_reads_like_one() -> None:
    _, (job,) = answers()["get /v1/jobs/{job} 200"]
    assert (job["state"], job["problem"]["name"], job["best"]["verdict"]) == ("succeeded", "softmax", "reproduced")
    assert job["best"]["speedup"]["low"] < job["best"]["speedup"]["median"] < job["best"]["speedup"]["high"]
