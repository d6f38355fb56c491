"""Compiles CUDA kernels with NVRTC for these tests, equal ones once; needs no GPU."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from tempfile import TemporaryDirectory

from cupilot.domain.header import render
from cupilot.domain.kernel import Kernel, resolve
from cupilot.domain.problem import ProblemFacts
from gpu_worker.targets.cuda import installation
from gpu_worker.targets.cuda.nvrtc import Program

LOGS = Path(__file__).parents[4] / ".pytest_cache/d/gpu_worker/nvrtc"
"""Folder of what NVRTC said of texts that it compiled; it outlives the run."""

OPTIONS = ["--std=c++17", "-arch=sm_90a", *(f"-I{folder}" for folder in installation.include_folders())]


def compile_cuda(kernel: Kernel, facts: ProblemFacts, *flags: str) -> str:
    """Compile for sm_90a; the log, empty when NVRTC had nothing to say. Fails the test on an error."""
    resolve(kernel, facts)
    header = render(facts, kernel.plan.values())
    text = "\0".join([_packages(), *OPTIONS, *flags, header, kernel.source])
    known = LOGS / hashlib.sha256(text.encode()).hexdigest()
    if known.exists():
        return known.read_text()
    program = Program(installation.nvrtc(), kernel.source, {"problem.h": header})
    compiled = program.compile([*OPTIONS, *flags])
    assert compiled, program.log()[:4000] + "\n" + kernel.source
    log = program.log().strip()
    LOGS.mkdir(parents=True, exist_ok=True)
    scratch = LOGS / f"{known.name}.{os.getpid()}"
    scratch.write_text(log)
    scratch.replace(known)
    return log


@cache
def _packages() -> str:
    """Return the versions of NVIDIA's packages, which hold the compiler and its headers."""
    names = {item.metadata["Name"]: item.version for item in distributions()}
    return " ".join(f"{name}={names[name]}" for name in sorted(names) if name.startswith("nvidia"))


def opcodes(kernel: Kernel, facts: ProblemFacts) -> list[str]:
    """Opcodes of a kernel's machine code for sm_90a, with their modifiers, in order."""
    program = Program(installation.nvrtc(), kernel.source, {"problem.h": render(facts, kernel.plan.values())})
    assert program.compile(OPTIONS), program.log()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(program.cubin())
        command = [str(installation.disassembler()), str(path)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][\w.]+)", text)
