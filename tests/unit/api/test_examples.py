"""Every operation that takes JSON shows an example of it, and each is one that the service would take."""

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
