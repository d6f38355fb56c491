"""A problem: the PyTorch reference to be made faster, and what is known about it.

:class:`Problem` is what a user submits; :func:`check_source` looks at its text only. Its code never
runs here: :class:`ProblemFacts` is measured by the judge, in a sandbox, and only carried here.
"""

from __future__ import annotations

import ast
from collections.abc import Collection
from math import prod
from typing import Any

from pydantic import Field, JsonValue

from cupilot.domain.errors import InvalidProblem, Unavailable
from cupilot.domain.syntax import check_compiles, parse
from cupilot.domain.value import Value, Vocabulary
from cupilot.domain.workload import Workload, declared, specialised

MAX_SOURCE_BYTES = 256 * 1024
"""KernelBench's largest file has 12 KB; more than this is not a reference but an attack or a mistake."""

REQUIRED_NAMES = ("Model", "get_inputs", "get_init_inputs")


class NumericsPolicy(Vocabulary):
    """Arithmetic that a kernel may use; the PyTorch baseline is timed under the same policy."""

    FP32 = "fp32"
    """Strict float32: no tensor cores, no half-precision intermediates."""
    TF32 = "tf32"
    """TF32 tensor cores allowed for matrix products."""
    HALF = "half"
    """fp16 or bf16 operands with float32 accumulation allowed."""


class Target(Vocabulary):
    """Target that kernels run on."""

    CUDA = "cuda"
    CPU = "cpu"


def best_target(available: Collection[Target]) -> Target:
    """Return CUDA where a live worker has it, else what there is; Unavailable where there is nothing."""
    if not available:
        raise Unavailable(
            "the service has no live worker, so no target can be chosen",
            hint="start a worker, or name a target, and work for it waits for a worker",
        )
    return Target.CUDA if Target.CUDA in available else Target.CPU


class DType(Vocabulary):
    """Element types of tensors that cross the kernel boundary."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT64 = "int64"
    INT32 = "int32"
    INT16 = "int16"
    INT8 = "int8"
    UINT8 = "uint8"
    BOOL = "bool"

    @property
    def itemsize(self) -> int:
        """Bytes an element takes."""
        return _ITEMSIZE[self]


_ITEMSIZE = {
    DType.FLOAT32: 4,
    DType.FLOAT64: 8,
    DType.FLOAT16: 2,
    DType.BFLOAT16: 2,
    DType.INT64: 8,
    DType.INT32: 4,
    DType.INT16: 2,
    DType.INT8: 1,
    DType.UINT8: 1,
    DType.BOOL: 1,
}


class Role(Vocabulary):
    """Origin of a named tensor."""

    INPUT = "input"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    OUTPUT = "output"


class TensorSpec(Value):
    """A named tensor at the kernel boundary."""

    name: str
    """A C identifier: forward's parameter name, the state_dict key with dots as underscores, ``out`` or ``out0``..."""
    role: Role
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements, as PyTorch gives them."""

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the dense elements (not of gaps between strides)."""
        return self.numel * self.dtype.itemsize

    @property
    def storage_elements(self) -> int:
        """Elements that the strides span, gaps included: the length of the buffer a kernel is given."""
        if self.numel == 0:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))

    @property
    def contiguous(self) -> bool:
        """True if the elements lie in C order without gaps."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True


class GraphNode(Value):
    """One ATen call that the reference made, in order of execution."""

    op: str
    """Overload name as PyTorch prints it, e.g. ``aten._softmax.default``."""
    args: tuple[JsonValue, ...]
    """Positional arguments; a tensor is ``{"ref": value}``, a list of tensors a list of such."""
    kwargs: dict[str, JsonValue] = {}
    results: tuple[str, ...]
    """Names of the tensor values it made; an in-place call makes a new value for the same storage."""
    shapes: tuple[tuple[int, ...], ...]
    """Shape of each result."""
    dtypes: tuple[str, ...]
    """dtype of each result, as PyTorch names it (may be one that cannot cross the boundary)."""
    line: int | None = None
    """Line of the problem file that made the call; None where it is not known."""


class Graph(Value):
    """The reference as the ATen calls of one forward pass: what operator recognition reads.

    Values named like a :class:`TensorSpec` are the inputs, parameters and buffers; the others are ``v0``, ``v1``...
    """

    nodes: tuple[GraphNode, ...]
    outputs: tuple[str, ...]
    """The value that each output tensor is, in order."""


class ProblemFacts(Value):
    """Facts that the judge learned by running the reference once, in a sandbox."""

    problem_hash: str
    policy: NumericsPolicy
    tensors: tuple[TensorSpec, ...]
    """Forward inputs, then parameters and buffers in state_dict order, then outputs."""
    scalars: dict[str, int | float | bool] = {}
    """Constants of ``problem.h``: scalar forward arguments and the module's own numeric attributes, upper case."""
    graph: Graph
    op_class: str
    """Coarse family for retrieval and statistics: elementwise, softmax, norm, reduction, matmul, conv, pool, scan,
    loss, attention, other."""
    flops: float
    """Directly counted operations of one forward pass (a multiply-add counts two)."""
    matmul_flops: float = 0.0
    """The part of ``flops`` that tensor cores could do."""
    least_matmul_flops: float | None = None
    """Part of ``matmul_flops`` that the best algorithms known need (:mod:`gpu_worker.judge.fast_algorithms`); None in
    records from before they were counted."""
    compulsory_bytes: int
    """Every input, parameter and buffer that is used, read once; every output written once."""

    def tensor(self, name: str) -> TensorSpec:
        """Return the tensor of this name; KeyError where there is none."""
        for spec in self.tensors:
            if spec.name == name:
                return spec
        raise KeyError(name)

    def with_role(self, *roles: Role) -> tuple[TensorSpec, ...]:
        """Return the tensors of these roles, in order."""
        return tuple(spec for spec in self.tensors if spec.role in roles)


class Problem(Value):
    """A PyTorch reference in KernelBench's file format, and the numerics policy it is to be judged under."""

    name: str = Field(min_length=1, max_length=200)
    source: str = Field(min_length=1)
    policy: NumericsPolicy = NumericsPolicy.FP32

    def workloads(self) -> tuple[Workload, ...]:
        """Return the shapes and dtypes that it is judged at; none where it has one shape, that of its file."""
        return declared(self.source)

    def at(self, workload: Workload) -> Problem:
        """Return one of its workloads as a problem of its own."""
        name = f"{self.name[:90]} [{workload.name}]"
        return Problem(name=name, source=specialised(self.source, workload), policy=self.policy)

    def _identity(self) -> Any:
        return {"source": self.source, "policy": self.policy.value}


def check_source(source: str) -> None:
    """Refuse a file that cannot be a problem, without running it: size, syntax, required names, workloads.

    Raises :class:`InvalidProblem`, whose ``where`` names the line.
    """
    size = len(source.encode())
    if size > MAX_SOURCE_BYTES:
        raise InvalidProblem(
            f"the problem file has {size} bytes; at most {MAX_SOURCE_BYTES} are accepted",
            hint="make large tensors in get_inputs() rather than writing them out",
            where="problem.source",
        )
    if "\0" in source:
        raise InvalidProblem("the problem file contains a NUL byte", where="problem.source")
    try:
        tree = parse(source)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise _invalid_python(error) from error
    defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    missing = [name for name in REQUIRED_NAMES if name not in defined]
    if missing:
        raise InvalidProblem(
            f"the problem file does not define {', '.join(missing)} at its top level",
            hint="KernelBench's format: class Model(nn.Module), get_inputs(), get_init_inputs()",
            where="problem.source",
        )
    model = defined["Model"]
    if not isinstance(model, ast.ClassDef):
        raise InvalidProblem("Model must be a class", where=f"problem.source:{model.lineno}")
    inherits = any(ast.unparse(base).rpartition(".")[2] not in ("Module", "object") for base in model.bases)
    if not inherits and not any(isinstance(node, ast.FunctionDef) and node.name == "forward" for node in model.body):
        raise InvalidProblem("class Model has no forward method", where=f"problem.source:{model.lineno}")
    for name in ("get_inputs", "get_init_inputs"):
        if not isinstance(defined[name], ast.FunctionDef):
            raise InvalidProblem(f"{name} must be a function", where=f"problem.source:{defined[name].lineno}")
    for workload in declared(source):
        unknown = next((v for v in workload.values.values() if isinstance(v, str) and v not in _ITEMSIZE), None)
        if unknown is not None:
            raise InvalidProblem(
                f"workload {workload.name!r}: {unknown} is no dtype that a kernel can be given",
                hint=f"one of {', '.join(DType)}",
                where="problem.source",
            )
    try:
        check_compiles(source)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise _invalid_python(error) from error


def _invalid_python(error: Exception) -> InvalidProblem:
    line = getattr(error, "lineno", None) or 1
    reason = getattr(error, "msg", None) or "it is nested too deeply"
    return InvalidProblem(
        f"the problem file is not valid Python: line {line}: {reason}",
        hint="run it with python3 first",
        where=f"problem.source:{line}",
    )
