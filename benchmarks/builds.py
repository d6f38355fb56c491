"""Measure where the time of a CUDA kernel's build goes: ``python -m benchmarks.builds``.

Compiles distinct playbook kernels of level-1 problems at full size for an H200 as a GPU worker does, sandboxed and with
nothing cached, one at a time, and reads their machine code; then less and less of the same, so that differences show
what each part costs. Needs no GPU. Medians of wall seconds: let the machine do nothing else.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from agents.interface import Briefing
from benchmarks import records
from benchmarks.judge_kernels import NamedKernel, kernels_of
from benchmarks.judge_throughput import PROBLEMS
from benchmarks.prompt_pages import PAGES_OF, facts_of, recorded
from cupilot.domain import problems
from cupilot.domain.header import render
from cupilot.domain.problem import ProblemFacts, Target
from cupilot.domain.roofline import place
from gpu_worker.sandbox.limits import Limits
from gpu_worker.sandbox.sandbox import Sandbox
from gpu_worker.targets.base import Program
from gpu_worker.targets.cuda.toolchain import CudaToolchain

EMPTY = 'extern "C" __global__ void nothing() {}\n'
LIMIT_SECONDS = 120.0


def main() -> int:
    """Print the record; 0 when every kernel was built."""
    options = _options()
    toolchain = CudaToolchain("sm_90")
    compiled, read = [], []
    for facts, named in _kernels(options.kernels):
        with _folder(named.kernel.source, render(facts, named.kernel.plan.values())) as folder:
            compiled.append(_seconds(toolchain.compile_program(folder)))
            read.append(_seconds(toolchain.inspect_program(folder)))
    whole, before = statistics.median(compiled), 0.0
    parts = {}
    for name, seconds in [*_parts(toolchain, options.repetitions), ("the kernel itself", whole)]:
        parts[name] = round(1e3 * (seconds - before))
        before = seconds
    record = {
        **records.stamp(),
        "what": f"{toolchain.compiler}, sm_90",
        "kernels": len(compiled),
        "compile_ms": {"low": 1e3 * min(compiled), "median": 1e3 * whole, "high": 1e3 * max(compiled)},
        "read_machine_code_ms": 1e3 * statistics.median(read),
        "parts_ms": parts,
    }
    print(json.dumps(record, indent=1))
    if options.out:
        records.write(options.out, record)
    return 0


def _kernels(count: int) -> Iterator[tuple[ProblemFacts, NamedKernel]]:
    known = recorded(PAGES_OF["softmax"])
    for name in PROBLEMS:
        problem = problems.load(name, size="full")
        facts = facts_of(problem)
        placement = place(facts, known.peaks)
        briefing = Briefing(problem=problem, facts=facts, target=Target.CUDA, device=known.device, placement=placement)
        for named in kernels_of(briefing, count):
            yield facts, named


def _parts(toolchain: CudaToolchain, repetitions: int) -> Iterator[tuple[str, float]]:
    """Return what is there before a kernel's own text is compiled, each part with all that comes before it."""
    with _folder(EMPTY, "#pragma once\n") as folder:
        build = toolchain.compile_program(folder)
        *python, start, root = build.argv[: build.argv.index("build")]
        programs = {
            "the sandbox": ("/usr/bin/true",),
            "the interpreter": (*python, "pass"),
            "its imports": (*python, start.rpartition(";")[0], root),
            "loading NVRTC, and an empty kernel": build.argv,
        }
        for name, argv in programs.items():
            program = replace(build, argv=argv)
            yield name, statistics.median(_seconds(program) for _ in range(repetitions))


@contextmanager
def _folder(source: str, header: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cupilot-builds-") as name:
        folder = Path(name)
        (folder / "kernel.cu").write_text(source, encoding="utf-8")
        (folder / "problem.h").write_text(header, encoding="utf-8")
        yield folder


def _seconds(program: Program | None) -> float:
    assert program is not None
    started = time.monotonic()
    done = Sandbox().run(program, Limits(), LIMIT_SECONDS)
    seconds = time.monotonic() - started
    if done.code != 0:
        raise SystemExit(f"{' '.join(program.argv)} ended with {done.code}: {done.stderr[-2000:]}")
    return seconds


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.builds", description=__doc__)
    parser.add_argument("--kernels", type=int, default=4, help="distinct kernels a problem")
    parser.add_argument("--repetitions", type=int, default=15, help="of each part")
    parser.add_argument("--out", type=Path, help="the record as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
