"""g++ with OpenMP as the compiler of the ``cpu`` target, and what a disassembly says about its binaries.

``-march=native``: the cache key's arch therefore names this machine's vector extensions. No ``-ffast-math``: a kernel
that wants relaxed arithmetic says so in its own source.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from cupilot.domain.errors import Unavailable
from cupilot.domain.problem import NumericsPolicy, ProblemFacts
from gpu_worker.targets.base import Access, BuildFacts, Program

FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fopenmp",
    "-shared",
    "-fPIC",
    "-fno-exceptions",
    "-Wl,-z,defs",  # a call of a function that does not exist is a build error, not a crash at load
)

_PATTERNS = {
    "simd_512": re.compile(r"%zmm\d"),
    "simd_256": re.compile(r"%ymm\d"),
    "simd_128": re.compile(r"%xmm\d.*%xmm\d"),
    "fma": re.compile(r"\tvfn?m(?:add|sub|addsub|subadd)\w*"),
    "nontemporal_store": re.compile(r"\t(?:v?movnt\w+)"),
    "prefetch": re.compile(r"\tprefetch\w*"),
    "gather": re.compile(r"\tvp?gather\w+"),
    "bf16_dot": re.compile(r"\tvdpbf16ps"),
    "half_arithmetic": re.compile(r"\tv(?:add|sub|mul|div|max|min|sqrt|rcp|rsqrt|fn?m(?:add|sub)\w*)[ps]h\b"),
    "tile_product": re.compile(r"\ttdp\w+"),
    "omp_parallel": re.compile(r"call.*<GOMP_parallel"),
    "omp_loop": re.compile(r"call.*<GOMP_loop"),
    "libm_call": re.compile(r"call.*<(?:expf?|logf?|tanhf?|erff?|powf?|sinf?|cosf?|exp2f?|_ZGV\w+)@plt"),
}
"""objdump in AT&T syntax; one match a line counts one instruction."""

_HALF_ONLY = {
    "bf16_dot": "bfloat16 dot products (vdpbf16ps)",
    "half_arithmetic": "half-precision arithmetic (AVX512-FP16)",
    "tile_product": "matrix tiles of 8 or 16 bits (AMX)",
}
"""Instructions that only the half policy allows."""


class CpuToolchain:
    """Builds shared objects with the system's g++."""

    suffix = ".cpp"
    products: tuple[str, ...] = ("kernel.bin",)
    flags = FLAGS

    def __init__(self) -> None:
        self.compiler = _version()

    def compile_program(self, folder: Path) -> Program:
        """Run g++ on ``kernel.cpp``; see :class:`gpu_worker.targets.base.Toolchain`."""
        argv = ("g++", *FLAGS, "-I", str(folder), "-o", str(folder / "kernel.bin"), str(folder / "kernel.cpp"))
        return Program(argv, Access(writable=(folder,), subprocesses=True))

    def inspect_program(self, folder: Path) -> Program | None:
        """Return a disassembly by binutils, where installed."""
        if shutil.which("objdump") is None:
            return None
        argv = ("objdump", "-d", "--no-show-raw-insn", "-j", ".text", str(folder / "kernel.bin"))
        return Program(argv, Access(read_only=(folder,)))

    def facts(self, compile_log: str, inspection: str) -> BuildFacts:  # noqa: ARG002  g++ prints no facts
        """Return counts of telling instruction families."""
        counts = dict.fromkeys(_PATTERNS, 0) if inspection else {}
        for line in inspection.splitlines():
            for name, pattern in _PATTERNS.items():
                if pattern.search(line):
                    counts[name] += 1
        return BuildFacts(instructions={name: count for name, count in counts.items() if count})

    def refusal(self, kernel_source: str, facts: BuildFacts, problem: ProblemFacts) -> str | None:  # noqa: ARG002
        """Refuse arithmetic in half precision is for the half policy only."""
        if problem.policy is NumericsPolicy.HALF:
            return None
        arithmetic = next((words for name, words in _HALF_ONLY.items() if facts.instructions.get(name)), None)
        return f"the binary uses {arithmetic}, which only the half policy allows" if arithmetic else None


@cache
def _version() -> str:
    path = shutil.which("g++")
    if path is None:
        raise Unavailable("no C++ compiler: g++ is not installed", hint="install g++ (Debian: apt-get install g++)")
    done = subprocess.run([path, "-dumpfullversion"], capture_output=True, text=True, check=True)
    return f"g++ {done.stdout.strip()}"
