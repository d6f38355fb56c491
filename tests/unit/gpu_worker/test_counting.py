"""Counted work of traced references: the numbers that the roofline and the floor rest on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from cupilot.problem import DType, Graph, Role, TensorSpec
from gpu_worker.judge.counting import compulsory_bytes, op_class, pointwise_flops
from gpu_worker.judge.trace import trace

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def _spec(name: str, role: Role, tensor: torch.Tensor) -> TensorSpec:
    dtype = DType(str(tensor.dtype).removeprefix("torch."))
    return TensorSpec(name=name, role=role, dtype=dtype, shape=tuple(tensor.shape), strides=tensor.stride())


def _counted(
    function: Callable[..., torch.Tensor], *inputs: torch.Tensor
) -> tuple[Graph, tuple[TensorSpec, ...], float, float]:
    named = {f"x{number}": tensor for number, tensor in enumerate(inputs)}
    with torch.no_grad():
        graph, matmul_flops, outputs = trace(lambda: [function(*inputs)], named)
    specs = (
        *(_spec(name, Role.INPUT, tensor) for name, tensor in named.items()),
        _spec("out", Role.OUTPUT, outputs[0]),
    )
    return graph, specs, pointwise_flops(graph, specs), matmul_flops


def test_a_reduction_counts_what_it_reads_and_not_what_it_writes() -> None:
    _, _, flops, _ = _counted(lambda x: x.sum(dim=1), torch.randn(64, 256))
    assert flops == 64 * 256


def test_a_map_counts_each_element() -> None:
    _, _, flops, _ = _counted(lambda x: torch.relu(x) + 1.0, torch.randn(10, 30))
    assert flops == 2 * 300


def test_a_matrix_product_counts_two_operations_a_multiply_add() -> None:
    graph, specs, flops, matmul_flops = _counted(lambda a, b: a @ b, torch.randn(8, 16), torch.randn(16, 32))
    assert (flops, matmul_flops) == (0, 2 * 8 * 16 * 32)
    assert compulsory_bytes(graph, specs) == 4 * (8 * 16 + 16 * 32 + 8 * 32)


def test_only_what_is_read_is_compulsory() -> None:
    graph, specs, _, _ = _counted(lambda x, _: x[:2] * 2.0, torch.randn(8, 16), torch.randn(1000))
    assert compulsory_bytes(graph, specs) == 4 * (2 * 16 + 2 * 16)


@pytest.mark.parametrize(
    ("function", "shape", "family"),
    [
        (lambda x: torch.softmax(x, 1), (4, 8), "softmax"),
        (lambda x: x.sum(1), (4, 8), "reduction"),
        (lambda x: torch.nn.functional.layer_norm(x, (8,)), (4, 8), "norm"),
        (torch.relu, (4, 8), "elementwise"),
        (lambda x: x @ x.T, (4, 8), "matmul"),
        (lambda x: torch.cumsum(x, 1), (4, 8), "scan"),
        (lambda x: torch.nn.functional.max_pool1d(x, 2), (2, 4, 8), "pool"),
    ],
)
def test_the_family_of_an_operator(
    function: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, ...], family: str
) -> None:
    graph, specs, _, _ = _counted(function, torch.randn(*shape))
    assert op_class(graph, (specs[-1].shape,)) == family
