"""The families of operators that the playbook has kernels for, as recognition returns them. Pure data.

``Pointwise``: every output element from the input elements at its place. ``Rows``: rows of a tensor are reduced to
statistics, and the result is one value a row or one an element. ``Matmul``: a (batched) matrix product.
``Launches``: any other graph of supported calls, which the compiler cuts into launches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod

from agents.playbook.expressions import Expr, Level, depth
from agents.playbook.ordering import walk
from cupilot.domain.problem import DType, ProblemFacts


@dataclass(frozen=True)
class Operand:
    """An input tensor; element ``i`` of the full-size tensor goes with element ``(i // div) % mod`` of it."""

    name: str
    div: int
    mod: int


@dataclass(frozen=True, kw_only=True)
class Typed:
    """An operator over tensors of floats, which are computed with in float32 and rounded once, when they are stored."""

    halves: Mapping[str, DType] = field(default_factory=dict, hash=False)
    """Types of tensors that are stored in 16 bits; the others are float32, or the int64 of indices."""

    def itemsize(self, name: str) -> int:
        """Return the bytes that an element of a tensor of floats takes in memory."""
        return self.halves.get(name, DType.FLOAT32).itemsize


@dataclass(frozen=True)
class Pointwise(Typed):
    """One expression, evaluated for every element of a dense tensor."""

    output: str
    size: int
    operands: tuple[Operand, ...]
    expression: Expr

    @property
    def full(self) -> tuple[Operand, ...]:
        """Operands that have as many elements as the output."""
        return tuple(item for item in self.operands if item.div == 1 and item.mod == self.size)

    @property
    def broadcast(self) -> tuple[Operand, ...]:
        """Operands that are read several times."""
        return tuple(item for item in self.operands if item not in self.full)

    @property
    def streamed(self) -> tuple[str, ...]:
        """Tensors of as many elements as the output, which neighbouring threads read and write side by side."""
        return (*(item.name for item in self.full), self.output)


@dataclass(frozen=True)
class Rows(Typed):
    """Reductions along one axis of a dense tensor seen as ``(outer, length, inner)``, and what is made of them."""

    outer: int
    length: int
    inner: int
    outputs: tuple[tuple[str, Expr], ...]
    """Output tensors: one element-level expression, or one or more row-level ones."""
    elements: tuple[str, ...]
    """Inputs of ``outer * length * inner`` elements."""
    columns: tuple[str, ...] = ()
    """Inputs of ``length`` elements, the same for every row (weights, biases)."""
    spread: tuple[Operand, ...] = ()
    """Inputs that repeat in another way, of contiguous rows: element ``i`` of the tensor reads ``(i // div) % mod``."""
    row_inputs: tuple[str, ...] = ()
    """Inputs of one element a row."""
    scalars: tuple[str, ...] = ()
    """Inputs of one element."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """All inputs, in the order of a kernel's parameters."""
        spread = tuple(item.name for item in self.spread)
        return (*self.elements, *self.columns, *spread, *self.row_inputs, *self.scalars)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.outer * self.inner

    @property
    def size(self) -> int:
        """Number of elements of a full-size tensor."""
        return self.rows * self.length

    @property
    def contiguous(self) -> bool:
        """True if the elements of a row are neighbours in memory."""
        return self.inner == 1

    @property
    def maps(self) -> bool:
        """True if the result has one value an element."""
        return self.outputs[0][1].level is Level.ELEMENT

    @property
    def streamed(self) -> tuple[str, ...]:
        """Tensors of as many elements as the rows have, which neighbouring threads read and write side by side."""
        return (*self.elements, *(name for name, _ in self.outputs if self.maps))

    @property
    def passes(self) -> int:
        """Return how often the row is read: once a level of reductions, and once more for an element-wise result."""
        return max(depth(expr) for _, expr in self.outputs) + self.maps

    def reductions(self) -> tuple[tuple[Expr, ...], ...]:
        """Return the reductions, grouped by the pass in which they can be made."""
        groups: dict[int, list[Expr]] = {}
        for node in walk(expr for _, expr in self.outputs):
            if node.op == "reduce":
                groups.setdefault(depth(node), []).append(node)
        return tuple(tuple(groups[level]) for level in sorted(groups))


@dataclass(frozen=True)
class Operand2D:
    """A matrix operand: a tensor and its strides, in elements."""

    name: str
    batch: int
    """0 where all batches share it."""
    row: int
    col: int


@dataclass(frozen=True)
class Matmul:
    """``out = alpha * a @ b + beta * bias`` for each batch; ``a`` is m by k, ``b`` k by n, the output dense."""

    output: str
    batches: int
    m: int
    n: int
    k: int
    a: Operand2D
    b: Operand2D
    bias: Operand2D | None = None
    """Added with ``beta``; a stride of 0 repeats it."""
    alpha: float = 1.0
    beta: float = 1.0

    @property
    def flops(self) -> float:
        """Operations of the product."""
        return 2.0 * prod((self.batches, self.m, self.n, self.k))


@dataclass(frozen=True)
class Launches:
    """A graph that is no template's: the compiler's launches over index maps."""

    facts: ProblemFacts


Operator = Pointwise | Rows | Matmul | Launches


def softmax_pair(operator: Rows) -> tuple[Expr, Expr] | None:
    """Return the maximum and the sum of exponentials of a softmax, where the operator has exactly these two
    reductions.
    """
    groups = operator.reductions()
    if [len(group) for group in groups] != [1, 1]:
        return None
    top, total = groups[0][0], groups[1][0]
    argument = total.args[0]
    if top.name not in ("Peak", "Largest") or total.name != "Sum" or argument.op != "exp":
        return None
    shifted = argument.args[0]
    if shifted.op != "sub" or shifted.args[1] is not top or shifted.args[0] is not top.args[0]:
        return None
    return top, total


def moments_pair(operator: Rows) -> tuple[Expr, Expr] | None:
    """Return the sum and the sum of squared deviations from the mean, where the operator has exactly these two
    reductions.
    """
    groups = operator.reductions()
    if [len(group) for group in groups] != [1, 1]:
        return None
    total, squares = groups[0][0], groups[1][0]
    square = squares.args[0]
    if total.name != "Sum" or squares.name != "Sum" or square.op != "mul" or square.args[0] is not square.args[1]:
        return None
    deviation = square.args[0]
    if deviation.op != "sub" or deviation.args[0] is not total.args[0]:
        return None
    mean = deviation.args[1]
    is_mean = mean.op == "div" and mean.args[0] is total and mean.args[1].op == "const"
    return (total, squares) if is_mean and mean.args[1].value == operator.length else None


def kept_value(operator: Rows) -> Expr | None:
    """Return a value of the last statistics pass that can take the input's place afterwards, e.g. softmax's
    exponential.

    None where the result needs the input itself again, or where there is more than one input.
    """
    if not operator.maps or len(operator.elements) != 1 or len(operator.outputs) != 1:
        return None
    last = operator.reductions()[-1]
    if len(last) != 1:
        return None
    value = last[0].args[0]
    if value.op == "input":
        return None
    rest = _nodes_without(operator.outputs[0][1], stop=(value, last[0]))
    needs_input = any(node.op == "input" and node.name == operator.elements[0] for node in rest)
    return None if needs_input else value


def _nodes_without(root: Expr, stop: Iterable[Expr]) -> list[Expr]:
    stopped = set(stop)
    nodes: list[Expr] = []
    stack = [root]
    seen: set[Expr] = set()
    while stack:
        node = stack.pop()
        if node in seen or node in stopped or node.op == "reduce":
            continue
        seen.add(node)
        nodes.append(node)
        stack.extend(node.args)
    return nodes


def calls_any(operator: Operator, functions: Iterable[str]) -> bool:
    """Return whether the operator computes one of these functions."""
    if isinstance(operator, Matmul | Launches):
        return False
    roots = [operator.expression] if isinstance(operator, Pointwise) else [expr for _, expr in operator.outputs]
    wanted = set(functions)
    return any(node.op in wanted for node in walk(roots))
