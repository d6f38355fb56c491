"""Value objects: frozen, strict, and hashed by what they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cupilot.domain.problem import DType, Role, TensorSpec
from cupilot.domain.value import digest

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
