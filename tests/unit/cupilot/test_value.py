"""Value objects: frozen, strict, and hashed by what they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from cupilot.domain.evolution.eoh import EohConfig
from cupilot.domain.evolution.funsearch import FunSearchConfig
from cupilot.domain.problem import DType, Role, TensorSpec
from cupilot.domain.value import digest, stated
from cupilot.schemas import JobRequest

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON))
def test_a_digest_does_not_depend_on_the_order_of_keys(data: dict[str, object]) -> None:
    assert digest(data) == digest(dict(reversed(data.items())))
    assert len(digest(data)) == 64


def test_values_are_frozen_and_refuse_unknown_fields() -> None:
    spec = TensorSpec(name="x", role=Role.INPUT, dtype=DType.FLOAT32, shape=(1,), strides=(1,))
    with pytest.raises(ValidationError, match="frozen"):
        spec.name = "y"  # type: ignore[misc]
    with pytest.raises(ValidationError, match="extra"):
        TensorSpec.model_validate({**spec.model_dump(), "device": "cuda"})


def test_equal_fields_equal_hash() -> None:
    one = TensorSpec(name="x", role=Role.INPUT, dtype=DType.FLOAT32, shape=(1,), strides=(1,))
    assert one.content_hash() == one.model_copy().content_hash()
    assert one.content_hash() != one.model_copy(update={"name": "y"}).content_hash()


def test_what_is_stated_does_not_depend_on_defaults_and_tells_kinds_apart() -> None:
    body = {"problem": {"id": "softmax"}, "target": "cpu", "budgets": {"candidates": 7}, "labels": {"a": "b"}}
    request = JobRequest.model_validate(body)
    assert stated(request) == body
    assert stated(JobRequest.model_validate(request.model_dump(mode="json"))) == body

    class LaterRequest(JobRequest):
        added: int | None = None
        listed: list[str] = []

    assert stated(LaterRequest.model_validate(body)) == body
    assert stated(LaterRequest.model_validate({**body, "added": 1})) == {**body, "added": 1}
    methods: list[BaseModel] = [EohConfig(), FunSearchConfig()]
    assert [stated(request.model_copy(update={"method": method}))["method"] for method in methods] == [
        {"name": "eoh"},
        {"name": "funsearch"},
    ]
