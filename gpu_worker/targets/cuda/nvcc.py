"""nvcc beside NVRTC as the compiler of the ``cuda`` target, for kernels that need the headers of a toolkit and a host.

Same architecture, language and optimisation; the same sandbox, digested messages and reading of the machine code. What
differs: nvcc's own headers, none precompiled, and functions without ``__device__`` belong to the host.
"""

from __future__ import annotations

from pathlib import Path

from gpu_worker.targets.base import Access, Program, Toolchain
from gpu_worker.targets.cuda import installation
from gpu_worker.targets.cuda.toolchain import (
    CubinReader,
    CudaToolchain,
    architecture,
    compiler_program,
    python_access,
)

NVRTC, NVCC = "nvrtc", "nvcc"
BUILDERS = (NVRTC, NVCC)
"""The first is what a worker uses unless told."""


class NvccToolchain(CubinReader):
    """Builds cubins for one architecture; needs a toolkit and a host compiler, and neither GPU nor driver."""

    def __init__(self, arch: str, *, line_info: bool = False) -> None:
        """Find nvcc for ``arch``, e.g. ``sm_90``; raises Unavailable if there is none."""
        super().__init__()
        self._nvcc = installation.nvcc()
        self.compiler = installation.nvcc_version()
        self.flags = (
            f"--gpu-architecture={architecture(arch)}",
            "--std=c++17",
            "--expt-relaxed-constexpr",
            "--ptxas-options=-v",
            *(("-lineinfo",) if line_info else ()),
        )

    def compile_program(self, folder: Path) -> Program:
        """Run nvcc on ``kernel.cu``; see :class:`gpu_worker.targets.base.Toolchain`."""
        toolkit = self._nvcc.parent.parent
        access = python_access(Access(read_only=(toolkit,), writable=(folder,), subprocesses=True))
        return compiler_program("nvcc", str(folder), str(self._nvcc), *self.flags, access=access)


def toolchain(arch: str, builder: str | None) -> Toolchain:
    """Return the toolchain that a builder of :data:`BUILDERS` means; NVRTC where none is named."""
    return NvccToolchain(arch) if builder == NVCC else CudaToolchain(arch)
