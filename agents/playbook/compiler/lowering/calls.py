"""A call of the graph as lowering sees it, and the vocabulary that lowering of calls shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import prod
from typing import NoReturn

from agents.playbook.compiler.tensors import Index, Map, Reduce, Shape, Tensor, mapped
from agents.playbook.compiler.terms import BOOL, FLOATS, INTEGERS, Term, const, make, number, register
from agents.playbook.recognition import values
from cupilot.domain.problem import GraphNode

UNFORESEEN = (LookupError, ValueError, TypeError, ArithmeticError, AssertionError, RecursionError)
"""Exceptions of lowering for arguments that no entry expects: a problem without a kernel, not a fault of the agent."""

UNKNOWN_SIZE = "how many elements it gives is only known when it runs"
RUN_TIME_SIZE = (
    f"{UNKNOWN_SIZE}; calls that treat its rows apart, sums, extremes, losses and products over them, and writes under"
    " the same mask are supported, and so are masked_fill and where with a neutral value"
)
"""Reason for refusing what a mask selects where that cannot be made of all elements."""

KEYWORD = 99
"""Position of an argument that is given by keyword only."""


class Unsupported(Exception):
    """A call, or a variant of one, that there is no lowering for."""

    def __init__(self, node: GraphNode | None, reason: str) -> None:
        super().__init__(reason)
        self.node = node
        self.reason = reason


@dataclass(frozen=True)
class Call:
    """One call with its operands' definitions."""

    node: GraphNode
    value: Callable[[str], Tensor]
    dtypes: Mapping[str, str] = field(default_factory=dict)
    """Types of values in the reference."""
    given: frozenset[str] = frozenset()
    """Types of the tensors that the caller gives."""
    asked: set[str] = field(default_factory=set)
    """Names of arguments that lowering looked at."""
    updates: dict[str, Tensor] = field(default_factory=dict)
    """New values of tensors that the call changes without a mark of it."""

    @property
    def op(self) -> str:
        """The overload, without the mark of a call in place."""
        return values.out_of_place(self.node.op)

    def argument(self, index: int, name: str, default: object = None) -> object:
        """Return an argument by position or keyword."""
        self.asked.add(name)
        return values.argument(self.node, index, name, default)

    def tensor(self, index: int, name: str = "") -> Tensor:
        """Return a tensor argument."""
        found = self.optional(index, name)
        if found is None:
            self.refuse(f"its argument {name or index} is not a tensor")
        return found

    def optional(self, index: int, name: str = "") -> Tensor | None:
        """Return a tensor argument, or None where it is left out."""
        reference = values.reference(self.argument(index, name))
        return None if reference is None else self.value(reference)

    def tensors(self, index: int, name: str = "tensors") -> list[Tensor]:
        """Return the tensors of a list argument."""
        items = self.argument(index, name)
        references = [values.reference(item) for item in items] if isinstance(items, list | tuple) else [None]
        if None in references:
            self.refuse("its argument is not a list of tensors")
        return [self.value(str(item)) for item in references]

    def whole(self, index: int, name: str, default: int | None = None) -> int:
        """Return an integer argument."""
        value = self.argument(index, name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            self.refuse(f"its argument {name} is {value!r}")
        return value

    def real(self, index: int, name: str, default: float | None = None) -> float:
        """Return a number argument; a truth value is 0 or 1."""
        given = self.argument(index, name, default)
        value = int(given) if isinstance(given, bool) else values.number(given)
        if value is None:
            self.refuse(f"its argument {name} is not a number")
        return value

    def dtype_of(self, index: int) -> str:
        """Return the type that a tensor argument has in the reference; it may be held in another."""
        return self.dtypes[str(values.reference(self.argument(index, "")))]

    def flag(self, index: int, name: str, *, default: bool = False) -> bool:
        """Return a truth value argument."""
        value = self.argument(index, name, default)
        if not isinstance(value, bool):
            self.refuse(f"its argument {name} is {value!r}")
        return value

    def sizes(self, index: int, name: str, default: Sequence[int] | None = None) -> list[int]:
        """Return a list of integers; a single one as a list."""
        value = self.argument(index, name, default)
        items = [value] if isinstance(value, int) else value
        if not isinstance(items, list | tuple) or not all(isinstance(item, int) for item in items):
            self.refuse(f"its argument {name} is {value!r}")
        return [int(str(item)) for item in items]

    @property
    def shape(self) -> Shape:
        """Shape of the first result."""
        return tuple(self.node.shapes[0])

    @property
    def dtype(self) -> str:
        """Storage type of the first result."""
        return self.node.dtypes[0].removeprefix("torch.")

    def refuse_unread(self) -> None:
        """Refuse tensors given by keyword that nothing looked at: the call would mean something else without them."""
        for name, item in self.node.kwargs.items():
            if values.reference(item) is not None and name not in self.asked:
                self.refuse(f"its argument {name} is not supported")

    def refuse(self, reason: str) -> NoReturn:
        """Raise the error of this call."""
        raise Unsupported(self.node, reason)


def f(op: str, *args: Term) -> Term:
    """Return an operator or a ``fn_`` function of values of one register type."""
    return make(op, args[0].dtype, *args)


def like(value: float, term: Term) -> Term:
    """Return a constant of a term's type."""
    return const(value, term.dtype)


def wide(dtype: str) -> str:
    """Return the storage type of intermediate values: float32 for 16-bit floats."""
    return register(dtype)


def wrapped(axis: int, rank: int) -> int:
    """Return an axis that may be counted from the end."""
    return axis % rank if rank else 0


def spread(tensor: Tensor, index: Index) -> Index:
    """Return the index into a tensor that is broadcast to the index's shape."""
    own = index[len(index) - len(tensor.shape) :]
    return tuple(number(0) if size == 1 else item for item, size in zip(own, tensor.shape, strict=True))


def read(tensor: Tensor, index: Index) -> Term:
    """Return the element of a tensor that is broadcast to the index's shape."""
    return tensor.at(spread(tensor, index))


def combined(shape: Sequence[int], dtype: str, make_term: Callable[..., Term], *tensors: Tensor) -> Map:
    """Return the map of broadcast tensors through a function of their elements."""
    return mapped(tuple(shape), dtype, lambda index: make_term(*(read(tensor, index) for tensor in tensors)))


_NEUTRAL = {"sum": 0, "prod": 1, "max": 0, "min": 1}
"""Results of reducing no elements; extremes are those of truth values, as PyTorch has none of numbers."""


def reduced(
    tensor: Tensor, axes: Sequence[int], kind: str, dtype: str, change: Callable[[Term], Term] = lambda term: term
) -> Tensor:
    """Return a reduction of some axes, which stay with one element each; of no elements its neutral element."""
    shape = tuple(1 if axis in axes else size for axis, size in enumerate(tensor.shape))
    extents = tuple(tensor.shape[axis] for axis in axes)
    if 0 in extents:
        return Map(shape, dtype, lambda _: const(_NEUTRAL[kind], register(dtype)))

    def define(index: Index, inner: Index) -> Term:
        full = list(index)
        for axis, item in zip(axes, inner, strict=True):
            full[axis] = item
        return change(tensor.at(full))

    sample = tensor.register if kind in ("argmax", "argmin") else register(dtype)
    return Reduce(shape, dtype, kind, extents, sample, define)


def squeezed(tensor: Tensor, axes: Sequence[int]) -> Tensor:
    """Return the tensor without axes of one element."""
    shape = tuple(size for axis, size in enumerate(tensor.shape) if axis not in axes)

    def define(index: Index) -> Term:
        rest = list(index)
        return tensor.at([number(0) if axis in axes else rest.pop(0) for axis in range(len(tensor.shape))])

    return Map(shape, tensor.dtype, define)


def length(tensor: Tensor, axes: Sequence[int]) -> int:
    """Return how many elements some axes have together."""
    return prod(tensor.shape[axis] for axis in axes)


def is_float(dtype: str) -> bool:
    """Return whether a storage type is a float."""
    return register(dtype) in FLOATS


def promoted(*classes: Sequence[str]) -> str:
    """Return the storage type that PyTorch promotes operands to.

    ``classes`` are the types of tensors with dimensions, of those without, and of numbers: a later class counts only
    where it is of a higher category (truth values, integers, floats) than those before it.
    """
    result = BOOL
    for types in classes:
        joined = reduce(_joined, types, BOOL)
        if _category(joined) > _category(result):
            result = _joined(result, joined)
    return result


def _category(dtype: str) -> int:
    return 0 if dtype == BOOL else 1 if dtype in INTEGERS else 2


def _joined(first: str, second: str) -> str:
    """Return the smallest storage type that holds the values of two."""
    low, high = sorted((first, second), key=_WIDTHS.index)
    apart = {low, high} in ({"float16", "bfloat16"}, {"uint8", "int8"})
    return _WIDTHS[_WIDTHS.index(high) + 1] if apart else high


_WIDTHS = (BOOL, "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
"""Storage types, each after those that are promoted to it."""
