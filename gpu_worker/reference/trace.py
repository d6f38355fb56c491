"""Records one forward pass as a graph of ATen calls. Says what was called on what, not what it means."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from pydantic import JsonValue
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import flop_registry

from cupilot.domain.problem import Graph, GraphNode
from gpu_worker.judge import fast_algorithms
from gpu_worker.judge.refusal import UnusableReference
from gpu_worker.judge.structure import STRUCTURAL_ZEROS, zero_share
from gpu_worker.reference import indexing
from gpu_worker.reference.complex_numbers import complex_rule, out_of_place
from gpu_worker.reference.decompositions import decomposition
from gpu_worker.reference.derivatives import DERIVATIVES
from gpu_worker.reference.fourier import FOURIER
from gpu_worker.reference.masked_calls import MaskedCalls
from gpu_worker.reference.masked_rows import Masked
from gpu_worker.reference.watching import ForwardWatch

MAX_NODES = 20_000
MAX_CONSTANT_ELEMENTS = 64
"""A longer tensor constant is not written into the graph."""
_NUMBER_READ = "aten._local_scalar_dense.default"
"""The call of ``item()``, which stands for every way in which values leave PyTorch."""
_LEAVING = ("numpy", "tolist", "__array__", "__dlpack__")
"""Methods of a tensor that give its values to others, without an ATen call that says so."""
_INDEXING: dict[str, Callable[..., Any]] = {"__getitem__": indexing.taken, "__setitem__": indexing.put}
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


class Traced(NamedTuple):
    """One forward pass."""

    graph: Graph
    matmul_flops: float
    """Operations of products and convolutions, counted directly."""
    least_matmul_flops: float
    """The same by the best algorithms known."""
    outputs: list[torch.Tensor]
    counted: Graph
    """The calls that the reference makes of as many elements as they are recorded with."""


class Tracer(ForwardWatch):  # type: ignore[no-untyped-call]  # torch's own
    """Names every tensor value of a forward pass; counts the operations of matrix products on the way."""

    def __init__(self, named: Mapping[str, torch.Tensor], file: str | None = None) -> None:
        """Trace with ``named`` tensors; ``file`` is the problem file, whose lines calls are told by."""
        super().__init__()
        self._file = file
        self.nodes: list[GraphNode] = []
        self.matmul_flops = 0.0
        self.least_matmul_flops = 0.0
        self._names = {id(tensor): name for name, tensor in named.items()}
        self._given = frozenset(self._names)
        self._alive: list[torch.Tensor] = list(named.values())  # an id is a name only while its tensor lives
        self._count = 0
        self._in_a_rule = False
        self._makers: dict[int, str] = {}
        """Calls by the ids of their results."""
        self._pairs: dict[int, torch.Tensor] = {}
        """Pairs that complex tensors stand for, by their ids."""
        self._masked = MaskedCalls(self.nodes, self.name, self._encode)
        self._selected_in: dict[int, int | None] = {}
        """Lines in which masked rows were selected, by their ids."""
        self._of_more_rows: set[int] = set()
        """Places of calls among :attr:`nodes` that are made of more rows than the reference makes them of."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        followed = self._of_masked_rows(func, args, kwargs)
        if followed is not NotImplemented:
            return followed
        if func is torch.ops.aten.view_as_complex.default:
            return self._pair(func(*args), *args)
        if func is torch.ops.aten.view_as_real.default and id(args[0]) not in self._names:
            if id(args[0]) not in self._pairs:  # a constant
                self._pair(args[0], func(args[0].resolve_conj()))
            with self:  # a tensor of its own, since PyTorch makes it a view of the complex one
                return torch.ops.aten.alias.default(self._pairs[id(args[0])])
        moved = out_of_place(func, args)
        if moved is not None:
            return self._pair(func(*args), self._pairs[id(self._decomposed(moved, args, kwargs))])
        simpler = self._decomposed(func, args, kwargs)
        if simpler is not NotImplemented:
            return simpler
        encoded = tuple(self._encode(argument) for argument in args)
        encoded_kwargs = {name: self._encode(argument) for name, argument in kwargs.items()}
        result = func(*args, **kwargs)
        count = _matrix_flops(func)
        if count is not None:
            self._count_product(func, args, kwargs, float(count(*args, **kwargs, out_val=result)))
        self._record(str(func), encoded, encoded_kwargs, _tensors(result) + self._aliases(func, args, kwargs, result))
        return result

    def _of_masked_rows(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the results of a call that selects rows, or is given such; NotImplemented for another.

        They are recorded as calls on all rows, whose operations are not counted: the reference makes fewer.
        """
        if not self._masked.concerns(func, (*args, *kwargs.values())):
            return NotImplemented
        named = _by_name(func, args, kwargs)
        before = len(self.nodes), self.matmul_flops, self.least_matmul_flops
        outside, self._in_a_rule = self._in_a_rule, True
        try:
            with self:
                found = self._masked.results(func, args, kwargs, named)
        except Exception:  # a call that cannot be made of all rows is recorded as it is, and refused
            found = None
        finally:
            self._in_a_rule = outside
            _, self.matmul_flops, self.least_matmul_flops = before
        if found is None:
            del self.nodes[before[0] :]
            return NotImplemented
        self._of_more_rows.update(range(before[0], len(self.nodes)))
        if not any(isinstance(item, Masked) for item in found):
            return found[0] if len(found) == 1 else tuple(found)
        made = func(*args, **kwargs)
        count = _matrix_flops(func)
        if count is not None:
            self._count_product(func, args, kwargs, float(count(*args, **kwargs, out_val=made)))
        self._masked.settle(_tensors(made), found, _written(func, args, kwargs))
        self._selected_in |= dict.fromkeys(map(id, _tensors(made)), self._line())
        return made

    def _decomposed(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return what simpler calls, which are recorded, give for a call; NotImplemented where it is recorded itself.

        Within a rule, calls that PyTorch takes apart before a mode sees them are taken apart here.
        """
        rule = complex_rule(func, args, kwargs) or decomposition(func, self._made_by)
        rule = rule or (func.decompose if self._in_a_rule else None)
        if rule is None:
            return NotImplemented
        outside, self._in_a_rule = self._in_a_rule, True
        before = len(self.nodes), self.matmul_flops, self.least_matmul_flops
        result = NotImplemented
        try:
            with self:
                result = rule(*args, **kwargs)
        except Exception:  # a rule that this PyTorch does not fit must not fail the reference
            pass
        finally:
            self._in_a_rule = outside
        if result is NotImplemented:
            del self.nodes[before[0] :]
        if result is NotImplemented or str(func) in _OTHER_PRODUCTS:
            _, self.matmul_flops, self.least_matmul_flops = before
            count = _matrix_flops(func)
            if result is not NotImplemented and count is not None:
                self._count_product(func, args, kwargs, float(count(*args, **kwargs, out_val=result)))
        return result

    def _pair(self, value: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
        """Remember that a complex tensor stands for these pairs, which are what is recorded."""
        self._pairs[id(value)] = pairs
        self._alive.append(value)
        return value

    def note_read(self, tensor: Any) -> None:
        """Record that the values of a tensor of this forward pass are read outside of PyTorch."""
        if id(tensor) in self._names or id(tensor) in self._pairs:
            self._record(_NUMBER_READ, (self._encode(tensor),), {}, ())

    def name(self, tensor: torch.Tensor) -> str:
        """Return the value that this tensor is now."""
        known = self._names.get(id(tensor))
        if known is None and (rows := self._masked.of(tensor)) is not None:
            self._record(*rows.origin, {}, [tensor], self._selected_in.get(id(tensor)))
            return self._names[id(tensor)]
        if known is None and id(tensor) in self._pairs:
            pairs: JsonValue = {"ref": self.name(self._pairs[id(tensor)])}
            self._record("aten.view_as_complex.default", (pairs,), {}, [tensor])
            return self._names[id(tensor)]
        return known if known is not None else self._constant(tensor)

    def _count_product(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], dense: float) -> None:
        """Count a product that takes ``dense`` operations where nothing is known to be zero."""
        name, arguments = str(func._overloadpacket).removeprefix("aten."), _by_name(func, args, kwargs)
        direct = self._structured(name, args, dense)
        if arguments.get("is_causal"):
            direct *= fast_algorithms.causal_share(arguments["query"].shape[-2], arguments["key"].shape[-2])
        self.matmul_flops += direct
        self.least_matmul_flops += fast_algorithms.operations(name, arguments, direct)

    def _structured(self, name: str, args: Sequence[Any], dense: float) -> float:
        """Return operations of a product, less those with what is zero by construction in a given matrix.

        Only products of what is not zero are work: a kernel that skips the other half of a triangle is honest.
        """
        if name not in ("mm", "bmm"):
            return dense
        if not any(id(tensor) in self._given and zero_share(tensor) > STRUCTURAL_ZEROS for tensor in args[:2]):
            return dense
        first, second = ((tensor != 0).double() for tensor in args[:2])
        return 2.0 * float((first.sum(-2) * second.sum(-1)).sum())

    def _record(
        self,
        op: str,
        args: tuple[JsonValue, ...],
        kwargs: dict[str, JsonValue],
        results: Sequence[torch.Tensor],
        line: int | None = None,
    ) -> None:
        if self._in_a_rule and op == _NUMBER_READ:
            return  # a number that a rule looks at, and not forward
        if len(self.nodes) >= MAX_NODES:
            raise UnusableReference(f"forward makes more than {MAX_NODES} ATen calls")
        node = GraphNode(
            op=op,
            args=args,
            kwargs=kwargs,
            results=tuple(self._new_value(tensor) for tensor in results),
            shapes=tuple(tuple(tensor.shape) for tensor in results),
            dtypes=tuple(str(tensor.dtype).removeprefix("torch.") for tensor in results),
            line=line or self._line(),
        )
        self.nodes.append(node)
        self._makers.update((id(tensor), op) for tensor in results)

    def counted(self) -> tuple[GraphNode, ...]:
        """Return the calls that the reference makes of as many elements as they are recorded with."""
        return tuple(node for place, node in enumerate(self.nodes) if place not in self._of_more_rows)

    def _made_by(self, tensor: torch.Tensor) -> str | None:
        return self._makers.get(id(tensor))

    def _line(self) -> int | None:
        """Return the line of the problem file that is being run."""
        frame = sys._getframe() if self._file is not None else None
        while frame is not None and frame.f_code.co_filename != self._file:
            frame = frame.f_back
        return None if frame is None else frame.f_lineno

    def _new_value(self, tensor: torch.Tensor) -> str:
        name = f"v{self._count}"
        self._count += 1
        self._names[id(tensor)] = name
        self._alive.append(tensor)
        return name

    def _aliases(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> list[torch.Tensor]:
        """Return other tensors whose storage the call wrote: they are new values too."""
        written = _written(func, args, kwargs)
        if not written:
            return []
        storages = {tensor.untyped_storage()._cdata for tensor in written}
        skip = {id(tensor) for tensor in _tensors(result)} | self._pairs.keys()
        aliases = {id(t): t for t in self._alive if id(t) not in skip and t.untyped_storage()._cdata in storages}
        return list(aliases.values())

    def _encode(self, value: Any) -> JsonValue:
        if isinstance(value, torch.Tensor):
            return {"ref": self.name(value)}
        if isinstance(value, list | tuple):
            return [self._encode(item) for item in value]
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value)
        return str(value).removeprefix("torch.")

    def _constant(self, tensor: torch.Tensor) -> str:
        if tensor.numel() > MAX_CONSTANT_ELEMENTS:
            raise UnusableReference(
                f"forward uses a tensor of shape {list(tensor.shape)} that is neither an argument nor a parameter nor "
                "a buffer; a kernel could not be given it. Make it a buffer with self.register_buffer(name, tensor)"
                f"{self._instead_of_reads()}"
            )
        known = torch.zeros(tensor.shape) if tensor._is_zerotensor() else tensor.detach()  # forward AD's has no data
        values = self._encode(known.tolist())
        self._record("constant", (values if isinstance(values, list) else [values],), {}, [tensor])
        return self._names[id(tensor)]

    def _instead_of_reads(self) -> str:
        lines = sorted({node.line for node in self.nodes if node.op == _NUMBER_READ and node.line is not None})
        return f", or, if it is made of what is read in line {', '.join(map(str, lines))}, by PyTorch" if lines else ""


def trace(
    call: Callable[[], Sequence[torch.Tensor]], named: Mapping[str, torch.Tensor], file: str | None = None
) -> Traced:
    """Trace the forward pass that ``call`` makes on named tensors; ``file`` is that of the problem."""
    tracer = Tracer(named, file)
    with tracer, _without_fused_layers(), _ValuesRead(tracer):
        outputs = list(call())
    names = tuple(tracer.name(tensor) for tensor in outputs)
    graph = Graph(nodes=tuple(tracer.nodes), outputs=names)
    counted = Graph(nodes=tracer.counted(), outputs=names)
    return Traced(graph, tracer.matmul_flops, tracer.least_matmul_flops, outputs, counted)


@contextmanager
def _without_fused_layers() -> Iterator[None]:
    """Have ``nn.MultiheadAttention``, ``nn.LSTM`` and their kin make the calls that they are made of."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with _StepByStep():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class _ValuesRead(TorchFunctionMode):
    """Tells the tracer where values are read outside of PyTorch; those that index a tensor, it has PyTorch read."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self._tracer = tracer

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _LEAVING:
            self._tracer.note_read(args[0])
        if name in _INDEXING:
            result = _INDEXING[name](*args)
            if result is not NotImplemented:
                return result
        return func(*args, **(kwargs or {}))


class _StepByStep(TorchFunctionMode):
    """Runs recurrent layers without the libraries that have one call for all of their steps."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") not in _RECURRENT:
            return func(*args, **(kwargs or {}))
        with warnings.catch_warnings(), torch.backends.cudnn.flags(enabled=False):
            warnings.simplefilter("ignore", UserWarning)  # oneDNN's TF32, which the next line leaves alone
            with torch.backends.mkldnn.flags(enabled=False):
                return func(*args, **(kwargs or {}))


def _tensors(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, list | tuple):
        return [tensor for item in result for tensor in _tensors(item)]
    return []


def _by_name(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by the names of its schema, those left out at their defaults."""
    schema = func._schema.arguments
    given = dict(zip((argument.name for argument in schema), args, strict=False))
    return {argument.name: argument.default_value for argument in schema} | given | dict(kwargs)


def _written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    arguments, tensors = _by_name(func, args, kwargs), list[torch.Tensor]()
    for argument in func._schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            tensors += _tensors(arguments[argument.name])
    return tensors


_OTHER_PRODUCTS = frozenset({*FOURIER, *DERIVATIVES, "aten.linalg_matrix_exp.default"})
"""Calls whose rules make products that are no work which a kernel must do."""


def _matrix_flops(func: Any) -> Callable[..., int] | None:
    packet = func._overloadpacket
    registered: Callable[..., int] | None = flop_registry.get(packet)
    return registered or _OWN_FLOPS.get(str(packet))


def _attention_flops(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> int:
    batch, heads, rows, width = query.shape
    columns = key.shape[-2]
    return 2 * batch * heads * rows * columns * (width + value.shape[-1])


_OWN_FLOPS: dict[str, Callable[..., int]] = {
    "aten.mv": lambda matrix, _vector, **_: 2 * matrix.numel(),
    "aten.addmv": lambda _bias, matrix, _vector, **_: 2 * matrix.numel(),
    "aten.dot": lambda first, _second, **_: 2 * first.numel(),
    "aten._scaled_dot_product_flash_attention_for_cpu": _attention_flops,
}
"""Calls that torch's own registry leaves out."""
