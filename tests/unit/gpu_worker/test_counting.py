"""Counted work of traced references: the numbers that the roofline and the floor rest on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from cupilot.domain.problem import DType, Graph, Role, TensorSpec
from gpu_worker.judge.counting import compulsory_bytes, numbers_read, op_class, pointwise_flops
from gpu_worker.judge.refusal import UnusableReference
from gpu_worker.reference.trace import trace

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def _spec(name: str, role: Role, tensor: torch.Tensor) -> TensorSpec:
    dtype = DType(str(tensor.dtype).removeprefix("torch."))
    return TensorSpec(name=name, role=role, dtype=dtype, shape=tuple(tensor.shape), strides=tensor.stride())


def _counted(
    function: Callable[..., torch.Tensor], *inputs: torch.Tensor
) -> tuple[Graph, tuple[TensorSpec, ...], float, float]:
    named = {f"x{number}": tensor for number, tensor in enumerate(inputs)}
    with torch.no_grad():
        graph, matmul_flops, _, outputs, _ = trace(lambda: [function(*inputs)], named)
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


def _branches(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    scale = weight.max().item()
    return x * scale if (x + weight).sum() > 0 else x


def _through_numpy(x: torch.Tensor) -> torch.Tensor:
    return x / float(x.numpy().max())


def _through_an_array(x: torch.Tensor) -> torch.Tensor:
    return x / float(np.asarray(x * 2).max())


def _through_a_list(x: torch.Tensor) -> torch.Tensor:
    return x / max(x.tolist())


@pytest.mark.parametrize("function", [_through_numpy, _through_an_array, _through_a_list])
def test_lines_that_read_inputs_outside_of_torch_are_told(function: Callable[..., torch.Tensor]) -> None:
    x = torch.rand(4)
    graph = trace(lambda: [function(x)], {"x": x}, __file__).graph
    assert numbers_read(graph, {"x"}) == [function.__code__.co_firstlineno + 1]


def test_a_tensor_made_outside_of_torch_is_refused_with_the_line_that_read_the_values() -> None:
    x = torch.rand(100)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return x + torch.from_numpy(np.sort(x.numpy()))

    with pytest.raises(UnusableReference, match=rf"line {forward.__code__.co_firstlineno + 1}, by PyTorch"):
        trace(lambda: [forward(x)], {"x": x}, __file__)


def test_lines_that_make_numbers_of_inputs_are_told_and_those_of_parameters_are_not() -> None:
    given = {"x": torch.rand(4), "weight": torch.rand(4)}
    graph = trace(lambda: [_branches(**given)], given, __file__).graph
    assert numbers_read(graph, {"x"}) == [_branches.__code__.co_firstlineno + 2]
    assert len(numbers_read(graph, {"x", "weight"})) == 2


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


F = torch.nn.functional


@pytest.mark.parametrize(
    ("function", "inputs", "by_hand"),
    [
        pytest.param(lambda x: x.sum(1, keepdim=True), [(16, 32, 8)], 16 * 32 * 8, id="sum"),
        pytest.param(lambda x: x.mean(1), [(16, 32, 8)], 16 * 32 * 8, id="mean"),
        pytest.param(lambda x: x.max(1)[0], [(16, 32, 8)], 16 * 32 * 8, id="max"),
        pytest.param(lambda x: x.argmin(1), [(16, 32, 8)], 16 * 32 * 8, id="argmin"),
        pytest.param(lambda x: x.cumsum(1), [(16, 32)], 16 * 32, id="scan"),
        pytest.param(lambda x, m: (x * m).cumsum(1), [(16, 32), (16, 32)], 2 * 16 * 32, id="masked scan"),
        pytest.param(lambda x: x.softmax(1), [(16, 32)], 5 * 16 * 32, id="softmax"),
        pytest.param(lambda x: F.layer_norm(x, (32,)), [(16, 32)], 8 * 16 * 32, id="layer norm"),
        pytest.param(lambda x: x / x.abs().sum(1, keepdim=True), [(16, 32)], 3 * 16 * 32, id="L1 norm"),
        pytest.param(lambda x: x / x.norm(), [(16, 32)], 3 * 16 * 32, id="Frobenius norm"),
        pytest.param(F.mse_loss, [(16, 32), (16, 32)], 3 * 16 * 32, id="squared error"),
        pytest.param(
            lambda x, y: F.kl_div(x, y, reduction="batchmean"), [(16, 32), (16, 32)], 5 * 16 * 32 + 1, id="divergence"
        ),
        pytest.param(
            lambda x, y: F.cross_entropy(x, y.argmax(1)), [(16, 32), (16, 32)], 6 * 16 * 32 + 16, id="cross entropy"
        ),
        pytest.param(lambda x: F.max_pool2d(x, 2), [(2, 3, 8, 8)], 2 * 3 * 64, id="max pool"),
        pytest.param(lambda x: F.avg_pool1d(x, 4), [(2, 3, 8)], 2 * 3 * 8, id="average pool"),
        pytest.param(lambda x: x * x.sigmoid(), [(16, 32)], 4 * 16 * 32, id="swish"),
        pytest.param(F.hardtanh, [(16, 32)], 2 * 16 * 32, id="hardtanh"),
    ],
)
def test_operations_are_those_counted_by_hand(
    function: Callable[..., torch.Tensor], inputs: list[tuple[int, ...]], by_hand: int
) -> None:
    _, _, flops, matmul_flops = _counted(function, *(torch.rand(shape) + 0.1 for shape in inputs))
    assert (flops, matmul_flops) == (by_hand, 0)


@pytest.mark.parametrize(
    ("function", "inputs", "by_hand"),
    [
        pytest.param(F.conv2d, [(2, 3, 8, 8), (4, 3, 3, 3)], 2 * 2 * 4 * 36 * 27, id="convolution"),
        pytest.param(
            lambda x, w: F.conv2d(x, w, groups=3), [(2, 3, 8, 8), (3, 1, 3, 3)], 2 * 2 * 3 * 36 * 9, id="depthwise"
        ),
        pytest.param(F.conv_transpose1d, [(2, 3, 8), (3, 4, 5)], 2 * 2 * 8 * 3 * 4 * 5, id="transposed"),
        pytest.param(torch.bmm, [(3, 8, 16), (3, 16, 4)], 2 * 3 * 8 * 16 * 4, id="batched product"),
        pytest.param(lambda a, b: a @ b, [(8, 16), (16,)], 2 * 8 * 16, id="matrix and vector"),
    ],
)
def test_products_are_those_counted_by_hand(
    function: Callable[..., torch.Tensor], inputs: list[tuple[int, ...]], by_hand: int
) -> None:
    _, _, flops, matmul_flops = _counted(function, *(torch.rand(shape) for shape in inputs))
    assert (flops, matmul_flops) == (0, by_hand)


def test_zeros_by_construction_are_no_work() -> None:
    """A kernel that skips the empty half of triangles is honest and must stay above the floor."""
    n = 16
    graph, specs, _, products = _counted(lambda a, b: (a @ b).tril(), torch.ones(n, n).tril(), torch.ones(n, n).tril())
    by_hand = sum(2 for i in range(n) for j in range(n) for k in range(n) if j <= k <= i)
    assert products == by_hand
    full = compulsory_bytes(graph, specs)
    share = (n - 1) / (2 * n)
    assert full == 3 * 4 * n * n
    assert compulsory_bytes(graph, specs, {"x0": share, "x1": share}) == 2 * 4 * n * (n + 1) // 2 + 4 * n * n


@pytest.mark.parametrize(
    ("function", "family"),
    [
        (lambda x: F.kl_div(x, x.softmax(1), reduction="batchmean"), "loss"),
        (lambda x: F.kl_div(x.log(), x, reduction="batchmean"), "loss"),
        (lambda x: F.relu(1 - x).mean(), "loss"),
        (lambda x: x.sum(), "reduction"),
        (lambda x: x / x.norm(), "norm"),
        (lambda x: x / x.pow(2).mean(1, keepdim=True).sqrt(), "norm"),
    ],
)
def test_losses_are_told_from_norms(function: Callable[[torch.Tensor], torch.Tensor], family: str) -> None:
    graph, specs, _, _ = _counted(function, torch.rand(4, 8))
    assert op_class(graph, (specs[-1].shape,)) == family
