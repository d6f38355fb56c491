"""Facts of a function of tensors, traced as the judge does, and cpu kernels compiled and run against it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cupilot.domain.kernel import Kernel, resolve
from cupilot.domain.problem import DType, NumericsPolicy, ProblemFacts, Role, TensorSpec
from gpu_worker.build import Builder
from gpu_worker.reference.trace import trace as trace_graph
from gpu_worker.sandbox.sandbox import Sandbox
from gpu_worker.targets.base import BuildFacts
from gpu_worker.targets.cpu_host import CpuHost
from gpu_worker.targets.cpu_toolchain import CpuToolchain


def spec_of(name: str, role: Role, tensor: torch.Tensor) -> TensorSpec:
    dtype = DType(str(tensor.dtype).removeprefix("torch."))
    return TensorSpec(name=name, role=role, dtype=dtype, shape=tuple(tensor.shape), strides=tuple(tensor.stride()))


def trace(
    function: Callable[..., Any],
    inputs: dict[str, torch.Tensor],
    parameters: dict[str, torch.Tensor] | None = None,
    *,
    policy: NumericsPolicy = NumericsPolicy.FP32,
    op_class: str = "other",
) -> tuple[ProblemFacts, list[torch.Tensor]]:
    """Facts of ``function(*inputs)``, and its results."""
    parameters = parameters or {}
    kept: list[Any] = []

    def call() -> list[torch.Tensor]:
        kept.append(function(*inputs.values()))
        return list(kept[0]) if isinstance(kept[0], tuple | list) else [kept[0]]

    with torch.no_grad():
        graph, matmul_flops, _, results, _ = trace_graph(call, {**inputs, **parameters})
    outputs = [f"out{i}" for i in range(len(results))] if len(results) > 1 else ["out"]
    tensors = (
        *(spec_of(name, Role.INPUT, tensor) for name, tensor in inputs.items()),
        *(spec_of(name, Role.PARAMETER, tensor) for name, tensor in parameters.items()),
        *(spec_of(name, Role.OUTPUT, tensor) for name, tensor in zip(outputs, results, strict=True)),
    )
    size = sum(item.nbytes for item in tensors)
    facts = ProblemFacts(
        problem_hash="0" * 64,
        policy=policy,
        tensors=tensors,
        graph=graph,
        op_class=op_class,
        flops=float(size) + matmul_flops,
        matmul_flops=matmul_flops,
        compulsory_bytes=size,
    )
    return facts, results


def build_cpu(kernel: Kernel, facts: ProblemFacts, builds: Path) -> Path:
    """Compile a cpu kernel as the evaluator does, once; the compiler's words on failure."""
    built = _builder(builds).build_kernel(kernel, facts)
    assert built.failure is None, built.failure.message + "\n" + kernel.source
    return built.binary


class _Uninspected(CpuToolchain):
    """Without the disassembly, which takes as long as the compiler, and without what is refused by it."""

    def inspect_program(self, folder: Path) -> None:  # noqa: ARG002
        return None

    def refusal(self, kernel_source: str, facts: BuildFacts, problem: ProblemFacts) -> None:  # noqa: ARG002
        return None


@cache
def _builder(builds: Path) -> Builder:
    return Builder(_Uninspected(), Sandbox(), builds, CpuHost().device.arch)


def run_cpu(kernel: Kernel, facts: ProblemFacts, tensors: dict[str, torch.Tensor], builds: Path) -> list[torch.Tensor]:
    """Compile and run a cpu kernel over poisoned outputs and workspace; its outputs."""
    library = ctypes.CDLL(str(build_cpu(kernel, facts, builds)))
    plan = resolve(kernel, facts)
    buffers: dict[str, np.ndarray[Any, Any]] = {}
    for spec in facts.tensors:
        buffers[spec.name] = aligned(spec.storage_elements * spec.dtype.itemsize, np.dtype(np.uint8))
        buffers[spec.name].fill(0xCB)
        if spec.role is not Role.OUTPUT:
            flat = torch.as_strided(tensors[spec.name].detach(), (spec.storage_elements,), (1,))
            buffers[spec.name][:] = flat.contiguous().view(torch.uint8).numpy()
    for name, size in plan.workspace.items():
        buffers[name] = aligned(size, np.dtype(np.uint8))
        buffers[name].fill(0xCB)
    for launch in plan.launches:
        getattr(library, launch.kernel)(*(ctypes.c_void_p(buffers[name].ctypes.data) for name in launch.args))
    return [as_tensor(buffers[spec.name], spec) for spec in outputs_of(facts)]


def as_tensor(buffer: np.ndarray[Any, Any], spec: TensorSpec) -> torch.Tensor:
    """The tensor that lies in a buffer."""
    flat = torch.from_numpy(buffer.copy()).view(getattr(torch, spec.dtype.value))
    return torch.as_strided(flat, spec.shape, spec.strides).contiguous()


def outputs_of(facts: ProblemFacts) -> Sequence[TensorSpec]:
    return facts.with_role(Role.OUTPUT)


def aligned(count: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An array on a 64-byte boundary, as the evaluator's buffers are."""
    raw = np.zeros(count * dtype.itemsize + 64, dtype=np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + count * dtype.itemsize].view(dtype)
