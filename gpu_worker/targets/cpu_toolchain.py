"""g++ with OpenMP as the compiler of the ``cpu`` target, and what a disassembly says about its binaries.

``-march=native``: the cache key's arch therefore names this machine's vector extensions. No ``-ffast-math``: a kernel
that wants relaxed arithmetic says so in its own source.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from cupilot.domain.errors import Unavailable
from cupilot.domain.problem import NumericsPolicy, ProblemFacts
from gpu_worker.targets.base import Access, BuildFacts, Program
from gpu_worker.targets.elf import Image, InvalidElf

FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fopenmp",
    "-shared",
    "-fPIC",
    "-fno-exceptions",
    "-Wl,-z,separate-code",  # nothing but machine code in executable memory
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
    "unknown_code": re.compile(r"\(bad\)"),
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


_HIDDEN = {
    "unknown_code": "bytes in its code that are no instruction known to the disassembler",
    "hidden_target": "jumps into the middle of an instruction",
}

_INSTRUCTION = re.compile(r"^ *([0-9a-f]+):(\t.*)$", re.MULTILINE)
_TARGET = re.compile(r"\b([0-9a-f]+) <")
_LONGEST = 15
"""Bytes of the longest x86 instruction."""

_PLAIN_NAME = re.compile(r"[\w.]+", re.ASCII)
"""objdump takes other names of sections for patterns."""


def _hidden_targets(lines: Sequence[tuple[int, str]]) -> int:
    """Count addresses in code that instructions name and at which none begins."""
    starts = sorted({address for address, _ in lines})
    hidden = 0
    for _, text in lines:
        for target in _TARGET.findall(text):
            after = bisect_right(starts, int(target, 16))
            if 0 < after < len(starts):
                before = starts[after - 1]
                hidden += before != int(target, 16) and starts[after] - before <= _LONGEST
    return hidden


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
        """Return a disassembly of every section with machine code, by binutils, whatever its symbols are said to be.

        None where there is no disassembler or no such section has a plain name; :meth:`refusal` refuses that.
        """
        binary = folder / "kernel.bin"
        try:
            names = {section.name for section in Image.read(binary.read_bytes()).code_sections()}
        except InvalidElf:
            return None
        if shutil.which("objdump") is None or not names or not all(_PLAIN_NAME.fullmatch(name) for name in names):
            return None
        sections = [part for name in sorted(names) for part in ("-j", name)]
        argv = ("objdump", "-D", "-z", "--no-show-raw-insn", *sections, str(binary))
        return Program(argv, Access(read_only=(folder,)))

    def facts(self, compile_log: str, inspection: str) -> BuildFacts:  # noqa: ARG002  g++ prints no facts
        """Return counts of telling instruction families, and of all instructions."""
        lines = [(int(match[1], 16), match[2]) for match in _INSTRUCTION.finditer(inspection)]
        counts = {
            name: sum(pattern.search(text) is not None for _, text in lines) for name, pattern in _PATTERNS.items()
        }
        counts |= {"instructions": len(lines), "hidden_target": _hidden_targets(lines)}
        return BuildFacts(instructions={name: count for name, count in counts.items() if count})

    def refusal(self, kernel_source: str, facts: BuildFacts, problem: ProblemFacts) -> str | None:  # noqa: ARG002
        """Refuse arithmetic that is for the half policy only, and code that the disassembly does not show."""
        if not facts.instructions.get("instructions"):
            return "the machine code could not be disassembled (objdump, of binutils; sections with plain names)"
        if problem.policy is NumericsPolicy.HALF:
            return None
        hidden = next((words for name, words in _HIDDEN.items() if facts.instructions.get(name)), None)
        if hidden is not None:
            return f"the binary has {hidden}, so that its precision cannot be read"
        arithmetic = next((words for name, words in _HALF_ONLY.items() if facts.instructions.get(name)), None)
        return f"the binary uses {arithmetic}, which only the half policy allows" if arithmetic else None


@cache
def _version() -> str:
    path = shutil.which("g++")
    if path is None:
        raise Unavailable("no C++ compiler: g++ is not installed", hint="install g++ (Debian: apt-get install g++)")
    done = subprocess.run([path, "-dumpfullversion"], capture_output=True, text=True, check=True)
    return f"g++ {done.stdout.strip()}"
