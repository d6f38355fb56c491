"""Compiles CUDA kernels with NVRTC for these tests; needs no GPU."""

from __future__ import annotations

from cupilot.domain.header import render
from cupilot.domain.kernel import Kernel, resolve
from cupilot.domain.problem import ProblemFacts
from gpu_worker.targets.cuda import installation
from gpu_worker.targets.cuda.nvrtc import Program

OPTIONS = ["--std=c++17", "-arch=sm_90a", *(f"-I{folder}" for folder in installation.include_folders())]


def compile_cuda(kernel: Kernel, facts: ProblemFacts, *flags: str) -> str:
    """Compile for sm_90a; the log, empty when NVRTC had nothing to say. Fails the test on an error."""
    resolve(kernel, facts)
    header = render(facts, kernel.plan.values())
    program = Program(installation.nvrtc(), kernel.source, {"problem.h": header})
    compiled = program.compile([*OPTIONS, *flags])
    assert compiled, program.log()[:4000] + "\n" + kernel.source
    return program.log().strip()
