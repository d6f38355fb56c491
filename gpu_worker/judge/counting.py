"""Counts the work of a traced graph: operations, compulsory bytes, operator family. Reads the graph only.

Operation counts a result (or input) element are conventions, as in every roofline: an addition, a comparison and an
exponential each count one; composite operators count the operations of their textbook form.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod
from types import MappingProxyType

from pydantic import JsonValue

from cupilot.domain.problem import Graph, GraphNode, Role, TensorSpec

_PER_RESULT: dict[str, float] = {
    "_softmax": 5, "_log_softmax": 5, "native_layer_norm": 8, "native_group_norm": 8, "native_batch_norm": 8,
    "cudnn_batch_norm": 8,
    "gelu": 8, "silu": 4, "sigmoid": 3, "tanh": 4, "elu": 4, "celu": 4, "softplus": 4, "mish": 8, "hardsigmoid": 4,
    "xlogy": 2, "hardswish": 5, "hardtanh": 2, "leaky_relu": 2, "log_sigmoid_forward": 4, "addcmul": 3, "addcdiv": 3,
    "lerp": 3,
}  # fmt: skip

_PER_INPUT: dict[str, float] = {
    "sum": 1, "mean": 1, "prod": 1, "max": 1, "min": 1, "amax": 1, "amin": 1, "argmax": 1, "argmin": 1, "any": 1,
    "all": 1, "var": 4, "std": 4, "var_mean": 4, "std_mean": 4, "linalg_vector_norm": 2, "norm": 2, "logsumexp": 3,
    "cumsum": 1, "cumprod": 1, "_cumsum": 1, "logcumsumexp": 3, "cummax": 1, "cummin": 1, "mse_loss": 3,
    "huber_loss": 4, "smooth_l1_loss": 4, "binary_cross_entropy": 5, "kl_div": 3, "sort": 1,
    "topk": 1, "max_pool2d_with_indices": 1, "max_pool3d_with_indices": 1, "native_norm": 2, "median": 1,
}  # fmt: skip

_POOLS = ("pool1d", "pool2d", "pool3d", "max_pool")
_FREE = frozenset({
    "view", "_unsafe_view", "reshape", "permute", "transpose", "t", "expand", "squeeze", "unsqueeze", "slice",
    "select", "narrow", "split", "split_with_sizes", "chunk", "unbind", "as_strided", "alias", "detach", "lift_fresh",
    "lift_fresh_copy", "clone", "copy_", "_to_copy", "contiguous", "empty", "empty_like", "zeros", "zeros_like",
    "ones", "ones_like", "full", "full_like", "fill_", "zero_", "arange", "constant", "cat", "stack", "index",
    "gather", "embedding", "index_select", "scalar_tensor", "diagonal", "unfold", "flip", "roll", "repeat", "tril",
    "triu", "constant_pad_nd", "new_zeros", "new_ones", "new_full", "new_empty",
})  # fmt: skip
PARTIAL = frozenset({
    "slice", "select", "narrow", "diagonal", "index", "gather", "embedding", "index_select", "as_strided",
})  # fmt: skip
"""Calls that read a part of their first tensor only: as much as their result holds."""

_MATRIX = frozenset({
    "mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot",
})  # fmt: skip
_ATTENTION = "_scaled_dot_product"
_NORMS = frozenset({
    "native_layer_norm", "native_group_norm", "native_batch_norm", "cudnn_batch_norm", "rsqrt", "linalg_vector_norm",
    "norm",
})  # fmt: skip
_REDUCTIONS = frozenset({
    "sum", "mean", "prod", "max", "min", "amax", "amin", "argmax", "argmin", "any", "all", "var", "std", "var_mean",
    "std_mean", "logsumexp",
})  # fmt: skip
_SCANS = frozenset({
    "cumsum", "cumprod", "logcumsumexp", "cummax", "cummin",
})  # fmt: skip
_LOSSES = (
    "mse_loss",
    "l1_loss",
    "huber_loss",
    "smooth_l1_loss",
    "nll_loss",
    "cross_entropy",
    "kl_div",
    "hinge",
    "_loss",
)


def base_name(node: GraphNode) -> str:
    """Return ``relu`` of ``aten.relu_.default``."""
    name = node.op.split(".")[1] if node.op.startswith("aten.") else node.op
    return name[:-1] if name.endswith("_") and not name.startswith("_") and name not in _FREE else name


def pointwise_flops(graph: Graph, tensors: Sequence[TensorSpec]) -> float:
    """Return operations outside matrix products and convolutions; ``tensors`` are the graph's named ones."""
    shapes = {spec.name: spec.shape for spec in tensors}
    total = 0.0
    for node in graph.nodes:
        total += _node_flops(node, shapes)
        shapes.update(zip(node.results, node.shapes, strict=True))
    return total


def _node_flops(node: GraphNode, shapes: Mapping[str, tuple[int, ...]]) -> float:
    name = base_name(node)
    if name in _FREE or name in _MATRIX or "convolution" in name or name.startswith(_ATTENTION):
        return 0.0
    result = float(prod(node.shapes[0])) if node.shapes else 0.0
    if name in _PER_RESULT:
        return _PER_RESULT[name] * result
    source = max((float(prod(shapes[ref])) for ref in _references(node) if ref in shapes), default=result)
    if any(pool in name for pool in _POOLS):
        return max(source, result)
    if name.startswith("nll_loss"):  # one logarithm of each row is picked and added
        return float(prod(shapes.get(_references(node)[1], ())))
    if name in _PER_INPUT:
        return _PER_INPUT[name] * max(source, result)
    return result


def compulsory_bytes(
    graph: Graph,
    tensors: tuple[TensorSpec, ...],
    zero_shares: Mapping[str, float] = MappingProxyType({}),
    *,
    whole: Collection[str] = (),
    needless: Mapping[str, int] = MappingProxyType({}),
    observed: Mapping[str, int] = MappingProxyType({}),
) -> int:
    """Return bytes of every input element that the graph reads, once, and of every output element, once.

    ``zero_shares``: how much of an input is zero by construction; a kernel need not read that (half of a triangle).
    ``whole``: inputs that count whole, whatever the graph reads of them. ``needless``: bytes of inputs that the graph
    reads and that matter to no output. ``observed``: bytes that were seen to be read, where the graph does not tell how
    its reads overlap.
    """
    total = 0
    for spec, size in zip(_given(tensors), bytes_read(graph, tensors).values(), strict=True):
        filled, stored = 1.0 - zero_shares.get(spec.name, 0.0), stored_bytes(spec)
        read = stored if spec.name in whole else min(observed.get(spec.name, size), stored)
        total += int(filled * max(read - needless.get(spec.name, 0), 0))
    return total + sum(spec.nbytes for spec in tensors if spec.role is Role.OUTPUT)


def bytes_read(graph: Graph, tensors: tuple[TensorSpec, ...]) -> dict[str, int]:
    """Count the bytes of each input, parameter and buffer that the graph reads, in the order of ``tensors``."""
    parts, sizes = read_in_part(graph, tensors), {spec.name: stored_bytes(spec) for spec in _given(tensors)}
    itemsizes = {spec.name: spec.dtype.itemsize for spec in tensors}
    return sizes | {
        name: min(sum(prod(node.shapes[0]) for node in nodes) * itemsizes[name], sizes[name])
        for name, nodes in parts.items()
    }


def read_in_part(graph: Graph, tensors: Sequence[TensorSpec]) -> dict[str, list[GraphNode]]:
    """Return the calls that read each input, parameter and buffer of which no call reads the whole."""
    readers: dict[str, list[GraphNode]] = {spec.name: [] for spec in _given(tensors)}
    for node in graph.nodes:
        for name in dict.fromkeys(_references(node)):
            readers.setdefault(name, []).append(node)
    return {
        spec.name: readers[spec.name]
        for spec in _given(tensors)
        if spec.name not in graph.outputs and all(_reads_a_part(node, spec.name) for node in readers[spec.name])
    }


def _reads_a_part(node: GraphNode, name: str) -> bool:
    return base_name(node) in PARTIAL and next(iter(_references(node)), None) == name


def stored_bytes(spec: TensorSpec) -> int:
    """Return the bytes of a tensor's distinct elements: those of an expanded one lie at one place."""
    return min(spec.numel, spec.storage_elements) * spec.dtype.itemsize


def _given(tensors: Sequence[TensorSpec]) -> list[TensorSpec]:
    return [spec for spec in tensors if spec.role is not Role.OUTPUT]


def products(graph: Graph) -> int:
    """Count the matrix products, convolutions and attentions of the graph."""
    names = [base_name(node) for node in graph.nodes]
    return sum(name in _MATRIX or "convolution" in name or name.startswith(_ATTENTION) for name in names)


def used(graph: Graph, name: str) -> bool:
    """Return whether a named tensor takes part in the graph at all."""
    return name in graph.outputs or any(name in _references(node) for node in graph.nodes)


def numbers_read(graph: Graph, inputs: Collection[str]) -> list[int]:
    """Return lines in which ``forward`` makes a number of its inputs' values, as ``item()`` does, sorted.

    What is done with the number is not in the graph: kernels have it as a constant.
    """
    varying, lines = set(inputs), set[int]()
    for node in graph.nodes:
        if varying.intersection(_references(node)):
            varying.update(node.results)
            if base_name(node) == "_local_scalar_dense" and node.line is not None:
                lines.add(node.line)
    return sorted(lines)


def _references(node: GraphNode) -> list[str]:
    references: list[str] = []

    def visit(value: JsonValue) -> None:
        if isinstance(value, dict):
            if isinstance(reference := value.get("ref"), str):
                references.append(reference)
        elif isinstance(value, list):
            for item in value:
                visit(item)

    for argument in (*node.args, *node.kwargs.values()):
        visit(argument)
    return references


def op_class(graph: Graph, output_shapes: tuple[tuple[int, ...], ...]) -> str:
    """Return coarse operator family, by the heaviest kind of call in the graph."""
    names = [base_name(node) for node in graph.nodes]
    present = set(names)
    matrix = [name for name in names if name in _MATRIX]
    if any(name.startswith(_ATTENTION) for name in names) or ("_softmax" in present and len(matrix) >= 2):
        return "attention"
    if any("convolution" in name or "conv2d" in name for name in names):
        return "conv"
    if matrix:
        return "matmul"
    if any(any(loss in name for loss in _LOSSES) for name in names):
        return "loss"
    if any(any(pool in name for pool in _POOLS) for name in names):
        return "pool"
    if present & _SCANS:
        return "scan"
    if present & _REDUCTIONS and output_shapes == ((),) and len(present - _FREE) > 1:
        return "loss"
    if {"_softmax", "_log_softmax"} & present:
        return "softmax"
    if _is_norm(names):
        return "norm"
    if present & _REDUCTIONS:
        return "reduction"
    return "elementwise" if present - _FREE else "other"


def _is_norm(names: list[str]) -> bool:
    """Return a normalisation operator, or a reduction whose result scales what it was computed from."""
    if {"native_layer_norm", "native_group_norm", "native_batch_norm", "cudnn_batch_norm"} & set(names):
        return True
    computing = [name for name in names if name not in _FREE]
    reduces = bool((_REDUCTIONS | _NORMS) & set(computing))
    scales = bool({"div", "rsqrt", "reciprocal"} & set(computing))
    return reduces and scales and computing[-1] in ("div", "mul", "add", "addcmul")
