"""Compiles CUDA kernels with NVRTC for these tests; needs no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nvidia.cu13
from cuda.bindings import nvrtc

from cupilot.header import render
from cupilot.kernel import Kernel, resolve
from cupilot.problem import ProblemFacts
from gpu_worker.targets.cuda.compiler import fresh_bytes

ROOT = Path(nvidia.cu13.__path__[0])
OPTIONS = ("--std=c++17", "-arch=sm_90a", f"-I{ROOT / 'include'}", f"-I{ROOT / 'include' / 'cccl'}")


def compile_cuda(kernel: Kernel, facts: ProblemFacts) -> str:
    """Compile for sm_90a; the log, empty when NVRTC had nothing to say. Fails the test on an error."""
    resolve(kernel, facts)
    header = render(facts, kernel.plan.values())
    program = _checked(
        nvrtc.nvrtcCreateProgram(kernel.source.encode(), b"kernel.cu", 1, [header.encode()], [b"problem.h"])
    )
    options = [option.encode() for option in OPTIONS]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    log = fresh_bytes(_checked(nvrtc.nvrtcGetProgramLogSize(program)))
    nvrtc.nvrtcGetProgramLog(program, log)
    text = log.split(b"\0")[0].decode(errors="replace").strip()
    nvrtc.nvrtcDestroyProgram(program)
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, text[:4000] + "\n" + kernel.source
    return text


def _checked(answer: tuple[Any, ...]) -> Any:
    assert answer[0] == nvrtc.nvrtcResult.NVRTC_SUCCESS, answer
    return answer[1]
