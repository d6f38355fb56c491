"""Recognition reads exactly what is there, and refuses near misses by name."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from agents.interface import NoTemplate
from agents.playbook.expressions import Level, walk
from agents.playbook.operators import Matmul, Operand, Pointwise, Rows, kept_value, moments_pair, softmax_pair
from agents.playbook.recognition import recognise
from cupilot.domain.problem import Graph, GraphNode, ProblemFacts
from tests.unit.agents.playbook.operators_under_test import everything, pointwise, products, rows
from tests.unit.agents.playbook.references import trace


def recognised(name: str) -> Pointwise | Rows | Matmul:
    case = everything()[name]
    return recognise(trace(case.function, case.inputs, case.parameters)[0])


@pytest.mark.parametrize("name", list(pointwise()))
def test_pointwise_expressions_are_recognised(name: str) -> None:
    operator = recognised(name)
    assert isinstance(operator, Pointwise)
    assert operator.full, "some operand has a value for every element"
    assert operator.expression.level is Level.ELEMENT


@pytest.mark.parametrize("name", list(rows()))
def test_row_operators_are_recognised(name: str) -> None:
    operator = recognised(name)
    assert isinstance(operator, Rows)
    case = rows()[name]
    assert operator.size == max(item.numel() for item in case.inputs.values())


@pytest.mark.parametrize("name", list(products()))
def test_matrix_products_are_recognised(name: str) -> None:
    operator = recognised(name)
    assert isinstance(operator, Matmul)
    case = products()[name]
    assert operator.batches * operator.m * operator.n == case.exact()[0].numel()


def test_geometry_follows_the_reduced_axes() -> None:
    last, middle, whole = recognised("sum_last"), recognised("sum_middle"), recognised("frobenius")
    assert isinstance(last, Rows)
    assert isinstance(middle, Rows)
    assert isinstance(whole, Rows)
    assert (last.outer, last.length, last.inner) == (200, 1037, 1)
    assert (middle.outer, middle.length, middle.inner) == (5, 600, 39)
    assert (whole.outer, whole.length, whole.inner) == (1, 4 * 12 * 16 * 64, 1)
    assert not last.maps
    assert whole.maps


def test_structure_decides_which_one_pass_statistics_exist() -> None:
    softmax, norm, lone = recognised("softmax"), recognised("layer_norm"), recognised("l2_norm")
    assert isinstance(softmax, Rows)
    assert isinstance(norm, Rows)
    assert isinstance(lone, Rows)
    assert softmax_pair(softmax) is not None
    assert moments_pair(softmax) is None
    assert moments_pair(norm) is not None
    assert softmax_pair(norm) is None
    assert (softmax_pair(lone), moments_pair(lone)) == (None, None)
    assert kept_value(softmax) is not None, "the exponential can take the input's place"
    assert kept_value(norm) is None, "a weighted norm needs its input again"


def test_every_detail_of_a_norm_reaches_the_expression() -> None:
    def constants(eps: float) -> set[float]:
        facts, _ = trace(lambda x: F.layer_norm(x, (64,), eps=eps), {"x": torch.ones(8, 64)})
        operator = recognise(facts)
        assert isinstance(operator, Rows)
        return {node.value for node in walk([operator.outputs[0][1]]) if node.op == "const"}

    assert 1e-5 in constants(1e-5)
    assert 1e-3 in constants(1e-3)
    assert 1e-5 not in constants(1e-3)


def test_affine_and_plain_norms_differ_in_their_inputs() -> None:
    affine, plain = recognised("layer_norm"), recognised("layer_norm_plain")
    assert isinstance(affine, Rows)
    assert isinstance(plain, Rows)
    assert affine.columns == ("weight", "bias")
    assert plain.columns == ()


def test_broadcast_operands_know_which_element_they_give() -> None:
    operator = recognised("channels")
    assert isinstance(operator, Pointwise)
    assert operator.broadcast == (Operand("b", div=35, mod=6),)


def test_operands_of_a_product_keep_their_strides() -> None:
    operator = recognised("both_transposed")
    assert isinstance(operator, Matmul)
    assert (operator.m, operator.n, operator.k) == (101, 75, 300)
    assert (operator.a.row, operator.a.col) == (1, 101)
    assert (operator.b.row, operator.b.col) == (1, 300)


def _through_a_view(x: torch.Tensor) -> torch.Tensor:
    copy = x.clone()
    copy.view(-1).add_(1)
    return copy * 2


def _scaled_by_a_running_mean(x: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    F.batch_norm(x, mean, mean.clone(), training=True)
    return x * mean


X = {"x": torch.randn(6, 32)}
SQUARE_AND_ROW = {"x": torch.randn(6, 6), "d": torch.randn(6)}
IMAGE = {"x": torch.randn(2, 4, 6, 8)}
REFUSED = {
    "dropout in training": (lambda x: F.dropout(x, 0.5, training=True), X),
    "cumulative sum": (lambda x: torch.cumsum(x, dim=1), X),
    "pooling": (lambda x: F.max_pool2d(x, 2), IMAGE),
    "convolution": (lambda x: F.conv2d(x, torch.ones(1, 4, 1, 1)), IMAGE),
    "sorting": (lambda x: torch.sort(x, dim=1)[0], X),
    "norm of order 3": (lambda x: torch.norm(x, p=3, dim=1), X),
    "relu of a product": (lambda x: torch.relu(x @ x.T), X),
    "product of products": (lambda x: x @ x.T @ x, X),
    "triangular product": (lambda x: torch.tril(x @ x.T), X),
    "product of a calculated operand": (lambda x: (x + 1) @ x.T, X),
    "reductions of two axes in turn": (lambda x: torch.softmax(x, 1).sum(dim=0), X),
    "softmax over both axes in turn": (lambda x: torch.softmax(torch.softmax(x, 0), 1), X),
    "axes that are not neighbours": (lambda x: x.sum(dim=(0, 2)), IMAGE),
    "a mean along another axis, broadcast wrongly": (lambda x: x - x[:, :6].mean(dim=1), {"x": torch.randn(6, 6)}),
    "a flipped input": (lambda x: torch.flip(x, (1,)) + 1, X),
    "a part of the input": (lambda x: x[:, :16] * 2, X),
    "a transposed sum": (lambda x: x + x.T, {"x": torch.randn(6, 6)}),
    "the input itself": (lambda x: x, X),
    "a constant": (torch.zeros_like, X),
    "several unlike results": (lambda x: (x * 2, x.sum(1)), X),
    "calculation with indices": (lambda x: torch.argmax(x, dim=1) + 1, X),
    "int64 input": (lambda x: x * 2, {"x": torch.arange(12)}),
    "float64 input": (lambda x: x * 2, {"x": torch.randn(6, 32).double()}),
    "a calculated row used as a column": (lambda x, d: x * d.exp()[:, None] * d.exp(), SQUARE_AND_ROW),
    "a condition on rows used as one on columns": (lambda x, d: x.masked_fill((d > 0)[:, None], 0) * d, SQUARE_AND_ROW),
    "a softmax over rows of calculated temperatures": (
        lambda x, d: torch.softmax(x * d.exp()[:, None], 1),
        SQUARE_AND_ROW,
    ),
    "a softmax seen in another shape": (
        lambda x, d: torch.softmax(x, -1).view(4, 2, 2) * d,
        {"x": torch.randn(2, 2, 4), "d": torch.randn(2, 1)},
    ),
    "a group norm and a bias of rows": (
        lambda x, d: F.group_norm(x, 2) + d,
        {"x": torch.randn(2, 4, 2, 8), "d": torch.randn(2, 1)},
    ),
    "a sum in float64": (lambda x: x.sum(1, dtype=torch.float64), X),
    "a transposed input": (torch.relu, {"x": torch.randn(32, 6).T}),
    "a quotient rounded down": (lambda x: torch.div(x, 3.0, rounding_mode="floor"), X),
    "cross entropy": (lambda x: F.cross_entropy(x, torch.tensor([1, 2, 3, 4, 5, 6])), X),
    "batch statistics": (lambda x: F.batch_norm(x, None, None, training=True), IMAGE),
    "running statistics": (_scaled_by_a_running_mean, {**X, "mean": torch.randn(32)}),
    "an in-place change behind a view": (_through_a_view, X),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_is_not_understood_is_refused(name: str) -> None:
    function, inputs = REFUSED[name]
    facts, _ = trace(function, inputs)
    with pytest.raises(NoTemplate) as caught:
        recognise(facts)
    assert caught.value.code == "no_template"
    assert "operators seen: " in caught.value.message
    assert "matrix products" in (caught.value.hint or "")


def test_a_refusal_names_the_operators_that_were_seen() -> None:
    facts, _ = trace(lambda x: torch.relu(torch.cumsum(x, dim=1)), X)
    with pytest.raises(NoTemplate, match=r"aten\.cumsum\.default, aten\.relu\.default"):
        recognise(facts)


def test_another_operator_at_the_end_changes_the_expression() -> None:
    plain = recognise(trace(lambda x: torch.softmax(x, 1), X)[0])
    doubled = recognise(trace(lambda x: torch.softmax(x, 1) * 2, X)[0])
    assert isinstance(plain, Rows)
    assert isinstance(doubled, Rows)
    assert plain.outputs[0][1].op == "div"
    assert doubled.outputs[0][1].op == "mul"


def test_a_sum_of_conditions_is_a_condition() -> None:
    operator = recognise(trace(lambda x: x * ((x > 0) + (x > 1)), X)[0])
    assert isinstance(operator, Pointwise)
    condition = next(node for node in walk([operator.expression]) if node.op == "ne")
    assert condition.mask
    assert condition.args[0].op == "add"


def test_values_of_max_and_its_indices_are_told_apart() -> None:
    values = recognise(trace(lambda x: torch.max(x, dim=1)[0], X)[0])
    indices = recognise(trace(lambda x: torch.max(x, dim=1)[1], X)[0])
    assert isinstance(values, Rows)
    assert isinstance(indices, Rows)
    assert values.outputs[0][1].name == "Largest"
    assert indices.outputs[0][1].name == "ArgLargest"


def test_dead_calls_do_not_matter() -> None:
    def reference(x: torch.Tensor) -> torch.Tensor:
        torch.cumsum(x, dim=1)
        return torch.relu(x)

    assert isinstance(recognise(trace(reference, X)[0]), Pointwise)


def test_dropout_in_evaluation_leaves_no_trace() -> None:
    module = nn.Sequential(nn.ReLU(), nn.Dropout(0.5)).eval()
    assert isinstance(recognise(trace(module, X)[0]), Pointwise)


def test_an_infinite_bound_written_as_text_is_understood() -> None:
    facts, _ = trace(lambda x: torch.clamp(x, min=0.0, max=float("inf")), X)
    operator = recognise(facts)
    assert isinstance(operator, Pointwise)
    assert operator.expression.op == "min"


def _with_node(facts: ProblemFacts, **changes: object) -> ProblemFacts:
    node = facts.graph.nodes[-1].model_copy(update=changes)
    graph = Graph(nodes=(*facts.graph.nodes[:-1], node), outputs=facts.graph.outputs)
    return facts.model_copy(update={"graph": graph})


@pytest.mark.parametrize(
    "changes",
    [
        {"args": ({"ref": "x"}, 1, "True")},
        {"args": ({"ref": "x"}, "one", False)},
        {"args": ({"ref": "elsewhere"}, 1, False)},
        {"op": "aten._safe_softmax.default"},
        {"op": "softmax"},
        {"args": ()},
        {"args": ({"ref": "x"}, 5.5, False)},
    ],
)
def test_a_softmax_with_strange_arguments_is_refused(changes: dict[str, object]) -> None:
    facts, _ = trace(lambda x: torch.softmax(x, 1), X)
    assert isinstance(recognise(facts), Rows)
    with pytest.raises(NoTemplate):
        recognise(_with_node(facts, **changes))


def test_an_unknown_keyword_is_refused() -> None:
    facts, _ = trace(lambda x: x + 1, X)
    with pytest.raises(NoTemplate, match="variant"):
        recognise(_with_node(facts, kwargs={"wrapping": True}))


def test_a_graph_of_views_only_is_refused() -> None:
    node = GraphNode(
        op="aten.view.default",
        args=({"ref": "x"}, [32, 6]),
        results=("v0",),
        shapes=((32, 6),),
        dtypes=("float32",),
    )
    facts, _ = trace(lambda x: x * 2, X)
    changed = facts.model_copy(update={"graph": Graph(nodes=(node,), outputs=("v0",))})
    with pytest.raises(NoTemplate):
        recognise(changed)
