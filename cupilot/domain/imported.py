"""An imported kernel: a file that people already have, host code included.

Either a ``ModelNew`` file in KernelBench's format (plain torch, ``torch.utils.cpp_extension.load_inline``, Triton), or
the source of a torch extension (``PYBIND11_MODULE``, ``TORCH_LIBRARY``). Only the text is looked at here: it runs in a
sandboxed runner (:mod:`gpu_worker.imported`), and what is measured of it is marked ``imported``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from pydantic import Field, field_validator

from cupilot.domain.errors import Conflict, InvalidInput, InvalidPlan
from cupilot.domain.problem import Target
from cupilot.domain.strategy import Strategy, TechniqueUse
from cupilot.domain.syntax import parse
from cupilot.domain.value import Value, Vocabulary

MAX_SOURCE_BYTES = 1024 * 1024
"""Files that carry CUDA sources as strings are larger than device code alone."""

CLASS = "ModelNew"

EXPORTS = "PYBIND11_MODULE or TORCH_LIBRARY"
_EXPORTING = re.compile(r"^\s*(PYBIND11_MODULE|TORCH_LIBRARY(_FRAGMENT)?)\s*\(", re.MULTILINE)
_PYTHON = re.compile(r"^(from\s+[\w.]+\s+)?import\s+\w[^;{]*$", re.MULTILINE)
_PYTHON_BLOCK = re.compile(r"^\s*(async\s+)?(def|class)\s+\w[^{;]*$", re.MULTILINE)
_C = re.compile(r"^\s*#\s*include\s*[<\"]", re.MULTILINE)
_C_LINE = re.compile(r"[;{}]\s*(//.*)?$|^\s*//", re.MULTILINE)
_CUDA = re.compile(r"__global__|__device__|<<<|\bcuda|\bcub::|\bcutlass\b|ATen/cuda|c10/cuda")


class KernelKind(Vocabulary):
    """Kind of a kernel: whose host code its measurement rests on."""

    PLANNED = "planned"
    """Device code and a launch plan: no host code of the kernel's but the functions of a ``cpu`` kernel."""
    IMPORTED = "imported"
    """A ``ModelNew`` file or a torch extension: allocation, launches and parameters are in its author's hands."""


class ImportedFile(Conflict):
    """The request needs device code with a launch plan, which an imported file is not."""

    code = "imported_file"


class InvalidImport(InvalidInput):
    """A file is neither a ``ModelNew`` file nor the source of a torch extension."""

    code = "invalid_import"


class ImportedKernel(Value):
    """One file for one target."""

    target: Target
    source: str = Field(min_length=1)

    @property
    def file_name(self) -> str:
        """File name; its suffix decides how the file is built."""
        return file_name(self.source, self.target)

    @field_validator("source")
    @classmethod
    def _bounded(cls, source: str) -> str:
        if len(source.encode()) > MAX_SOURCE_BYTES:
            raise ValueError(f"the file is larger than {MAX_SOURCE_BYTES} bytes")
        if "\0" in source:
            raise ValueError("the file contains a NUL byte")
        return source

    def tuned(self, values: Mapping[str, int]) -> ImportedKernel:
        """Return this file; raise InvalidPlan for any value."""
        if values:
            raise InvalidPlan(f"an imported file has no tunable {next(iter(values))!r}")
        return self

    def tunable_values(self) -> dict[str, int]:
        """Return no values: what the file tunes is its own affair."""
        return {}


def is_extension(source: str) -> bool:
    """Return whether a text is the C++ or CUDA source of a torch extension, and not a Python file that holds one."""
    return _EXPORTING.search(source) is not None and _PYTHON.search(source) is None


def file_name(source: str, target: Target) -> str:
    """Return ``modelnew.py``, or ``extension.cu`` where a torch extension has CUDA to be compiled, else
    ``extension.cpp``.
    """
    if not is_extension(source):
        return "modelnew.py"
    return "extension.cu" if target is Target.CUDA and _CUDA.search(source) else "extension.cpp"


def with_function(source: str, name: str | None) -> str:
    """Return an extension's source that says which of its functions is the kernel; as it is where ``name`` is None.

    The choice is part of the file, so that whoever has the file judges the same. It comes last, for line numbers' sake.
    """
    if name is None:
        return source
    if not is_extension(source):
        raise InvalidImport(
            f"{name} cannot be chosen: the file is not the source of a torch extension",
            hint=f"a {CLASS} file has one entry, its class",
            where="kernel.function",
        )
    if re.fullmatch(r"[A-Za-z_]\w*", name) is None:
        raise InvalidImport(f"{name!r} is not a function name", where="kernel.function")
    return f"{source.rstrip()}\n// cupilot: function {name}\n"


def check_import(source: str) -> None:
    """Refuse a file that cannot be an imported kernel, without running it.

    A torch extension has to export something; anything else is Python, without syntax errors, with a class
    ``ModelNew``. Raises :class:`InvalidImport`, whose ``where`` names the line. A class that only running the file
    would define, such as one that is imported, is accepted.
    """
    if is_extension(source):
        return
    if _C.search(source) and not _PYTHON.search(source):
        raise _exports_nothing()
    try:
        tree = parse(source)
    except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
        if _looks_like_c(source):
            raise _exports_nothing() from error
        line = getattr(error, "lineno", None) or 1
        reason = getattr(error, "msg", None) or "it is nested too deeply"
        raise InvalidImport(
            f"the file is not valid Python: line {line}: {reason}",
            hint="run it with python3 first",
            where=f"kernel.source:{line}",
        ) from error
    if not any(CLASS in [getattr(node, field, "") for field in ("id", "name", "asname")] for node in ast.walk(tree)):
        raise InvalidImport(
            f"the file does not define {CLASS}",
            hint=f"KernelBench's format: class {CLASS}(nn.Module), constructed and called like the reference's Model; "
            f"or the source of a torch extension, with {EXPORTS}",
            where="kernel.source",
        )


def _looks_like_c(source: str) -> bool:
    """Return whether a text that is not Python reads like C++ or CUDA source, and not like Python with an error."""
    return _C_LINE.search(source) is not None and not (_PYTHON.search(source) or _PYTHON_BLOCK.search(source))


def _exports_nothing() -> InvalidImport:
    return InvalidImport(
        f"the file is C++ or CUDA source that exports nothing to Python: it has no {EXPORTS}",
        hint=f"a torch extension is accepted, with its header (#include <torch/extension.h>) and "
        f'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{ m.def("forward", &forward); }}, or a Python file with a class '
        f"{CLASS}; a kernel with a launch plan is judged by python -m gpu_worker judge PROBLEM FILE --plan PLAN.json",
        where="kernel.source",
    )


_SIGNS: dict[Target, dict[str, str]] = {
    Target.CUDA: {
        "vector_loads": r"\b(float|int|uint)[24]\b|\bld\.global(\.\w+)*\.v[24]\b",
        "read_only_cache": r"__ldg\(",
        "loop_unrolling": r"#\s*pragma\s+unroll|\btl\.static_range\b",
        "launch_bounds": r"__launch_bounds__",
        "warp_shuffle_reduction": r"__shfl_|__reduce_\w+_sync",
        "online_softmax": r"(?i)\bonline[ _-]?softmax",
        "fast_exp": r"\b__expf\(|\bex2\.approx",
        "async_copy": r"\bcp\.async|memcpy_async",
        "tensor_cores": r"\bwmma::|\bmma_sync\b|\bw?g?mma(_async)?\.sync|\btl\.dot\(",
    },
    Target.CPU: {
        "threads": r"#\s*pragma\s+omp\s+parallel",
        "simd": r"#\s*pragma\s+omp\b.*\bsimd\b|\b_mm(256|512)?_\w+\(",
    },
}
"""Techniques of the catalogue that a file's own text shows, and by what."""

_WAYS = (("triton", r"\btriton\.jit\b"), ("load_inline", r"\bload_inline\b"), ("cpp_extension", r"\bcpp_extension\b"))


def toolkit_of(source: str) -> str:
    """Return how a file makes its kernels, by its text: ``triton``, ``load_inline``, ``cpp_extension`` or ``torch``.

    ``extension`` where it is the source of one.
    """
    if is_extension(source):
        return "extension"
    return next((name for name, sign in _WAYS if re.search(sign, source)), "torch")


def visible_strategy(kernel: ImportedKernel) -> Strategy:
    """Return the strategy that a file's text shows; its machine code is not read.

    Techniques that other means than the text would show (tiling, splitting, the order of work) are not claimed.
    """
    shown = [name for name, sign in _SIGNS[kernel.target].items() if re.search(sign, kernel.source)]
    toolkit = toolkit_of(kernel.source)
    return Strategy(
        techniques=tuple(TechniqueUse(id=name) for name in shown),
        rationale=f"Read from the text of an imported {toolkit} file; what else it does is not known.",
    )
