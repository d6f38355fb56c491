"""A reference that changes its inputs, as earlier releases accepted it, is not exported."""

from __future__ import annotations

import pytest

from cupilot.domain.problem import Graph, GraphNode
from cupilot.exports.winner import ExportRefused, refuse_in_place
from tests.unit.cupilot.factories import facts


@pytest.mark.parametrize(
    ("op", "written", "refused"), [("relu_", "x", True), ("relu_", "v0", False), ("relu", "x", False)]
)
def test_only_calls_that_write_to_an_input_are_refused(op: str, written: str, refused: bool) -> None:
    node = GraphNode(
        op=f"aten.{op}.default", args=({"ref": written},), results=("v1",), shapes=((4,),), dtypes=("float32",)
    )
    known = facts().model_copy(update={"graph": Graph(nodes=(node,), outputs=("v1",))})
    if not refused:
        return refuse_in_place(known)
    with pytest.raises(ExportRefused, match="in_place_reference"):
        refuse_in_place(known)
    return None
