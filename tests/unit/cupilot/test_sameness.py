"""Two traces are the same when they make the same calls on the same tensors, whatever those are called."""

from __future__ import annotations

import pytest

from cupilot.domain.problem import DType, Graph, GraphNode, NumericsPolicy, ProblemFacts, Role, TensorSpec
from cupilot.domain.sameness import difference


def facts(
    x: str = "x", first: str = "v0", op: str = "aten.exp.default", scale: float = 2.0, **changes: object
) -> ProblemFacts:
    shape = (4, 8)
    tensors = tuple(
        TensorSpec(name=name, role=role, dtype=DType.FLOAT32, shape=shape, strides=(8, 1))
        for name, role in ((x, Role.INPUT), ("out", Role.OUTPUT))
    )
    nodes = (
        GraphNode(op=op, args=({"ref": x},), results=(first,), shapes=(shape,), dtypes=("float32",)),
        GraphNode(
            op="aten.mul.Tensor", args=({"ref": first}, scale), results=("v9",), shapes=(shape,), dtypes=("float32",)
        ),
    )
    values: dict[str, object] = {
        "problem_hash": "p",
        "policy": NumericsPolicy.FP32,
        "tensors": tensors,
        "graph": Graph(nodes=nodes, outputs=("v9",)),
        "op_class": "elementwise",
        "flops": 1.0,
        "compulsory_bytes": 1,
    }
    return ProblemFacts.model_validate({**values, **changes})


def test_names_do_not_count() -> None:
    assert difference(facts(), facts(x="y", first="v3")) is None


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (facts(op="aten.log.default"), "operation 1 is aten.log"),
        (facts(scale=3.0), "operation 2 is"),
        (facts(graph=Graph(nodes=facts().graph.nodes[:1], outputs=("v0",))), "ends after 1 operations"),
        (facts(graph=Graph(nodes=facts().graph.nodes, outputs=("v0",))), "returns other values"),
        (facts(graph=Graph(nodes=(*facts().graph.nodes, facts().graph.nodes[0]), outputs=("v9",))), "goes on with"),
        (facts(tensors=facts().tensors[:1]), "its tensors are"),
    ],
)
def test_every_other_difference_is_named(other: ProblemFacts, said: str) -> None:
    assert said in (difference(facts(), other) or "")
