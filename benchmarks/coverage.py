"""Says which built-in problems the playbook has kernels for: ``python -m benchmarks.coverage``.

Traces each problem at its small size, renders the plain kernel for both targets under every policy, and compiles the
CUDA one for sm_90a with NVRTC; needs torch and no card. Judges nothing. So it does, more briefly, for each problem
in half precision. With names, everything else stays what it is in the record. Writes
``benchmarks/results/coverage.json``, from which ``benchmarks.coverage_page`` writes ``docs/coverage.md``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from agents.interface import AgentError, Briefing
from agents.playbook import agents
from agents.playbook.operators import Launches
from agents.playbook.translator import operator_of
from benchmarks import records
from cupilot.domain import problems
from cupilot.domain.hardware import Device
from cupilot.domain.header import render
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import NumericsPolicy, ProblemFacts, Target
from cupilot.domain.strategy import Strategy
from gpu_worker.judge.refusal import UnusableReference
from gpu_worker.reference.reference import Reference
from gpu_worker.targets.cpu_judge import CpuJudgeDevice
from gpu_worker.targets.cuda import installation
from gpu_worker.targets.cuda.nvrtc import Program

DEVICES = {
    Target.CUDA: Device(
        target=Target.CUDA,
        uid="",
        name="",
        arch="sm_90",
        units=132,
        memory_bytes=80 * 2**30,
        cache_bytes=50 * 2**20,
        shared_bytes_per_block=232448,
        registers_per_unit=65536,
        threads_per_unit=2048,
    ),
    Target.CPU: Device(
        target=Target.CPU,
        uid="",
        name="",
        arch="x86-64",
        units=2,
        memory_bytes=2**33,
        cache_bytes=2**20,
    ),
}
"""Devices of the usual kind, which plain kernels do not depend on."""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0 when every problem has a kernel for both targets under every policy."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="PROBLEM", help="look at these again; without any, at all")
    names = parser.parse_args(argv).names
    head = records.stamp()
    kept = records.read("coverage") if names else {"problems": [], "half_types": None}
    before = {item["problem"]: item for item in kept["problems"]}
    rows = []
    for suite in problems.SUITES:
        for name in problems.names(suite):
            known = None if name in names else before.get(name)
            rows.append(known or {"suite": suite, "problem": name, **row(name)})
            print(rows[-1], flush=True)
    half = kept["half_types"] or half_types()
    records.write(records.RESULTS / "coverage.json", {**head, "half_types": half, "problems": rows}, tables=True)
    return 0 if all(not item["refused"] for item in rows) else 1


def half_types() -> dict[str, Any]:
    """Return how many problems there are in half precision, and which have no kernel, with the reason."""
    names = [f"{name}_{dtype}" for name in problems.names() for dtype in problems.HALF_TYPES]
    names = [name for name in names if problems.is_name(name)]
    refused = {}
    for name in names:
        try:
            reasons = list(row(name)["refused"].values())
        except UnusableReference as error:
            reasons = [str(error)]
        if reasons:
            refused[name] = reasons[0]
    return {"problems": len(names), "refused": refused}


def row(name: str) -> dict[str, Any]:
    """Return the family of a problem, the launches of its plain kernel, and what is refused, with the reason."""
    found: dict[str, Any] = {"family": "", "launches": 0, "refused": {}}
    facts = facts_of(name)
    for policy in NumericsPolicy:
        for target in Target:
            try:
                family, kernel = plain_kernel(facts.model_copy(update={"policy": policy}), target)
            except AgentError as error:
                found["refused"][f"{target.value} {policy.value}"] = error.message
                continue
            if target is Target.CUDA:
                found |= {"family": family, "launches": len(kernel.plan.launches)}
                if log := compile_log(kernel, facts):
                    found["refused"][f"{target.value} {policy.value}"] = log
    return found


def facts_of(name: str) -> ProblemFacts:
    """Trace a built-in problem, which is ours and needs no sandbox."""
    problem = problems.load(name)
    device: Any = CpuJudgeDevice(threads=1, cache_bytes=2**20, memory_bytes=2**33)
    return Reference(problem.source, problem.policy, device, seed=0).facts(problem.content_hash())


def plain_kernel(facts: ProblemFacts, target: Target) -> tuple[str, Kernel]:
    """Return the family and the plain kernel; raises AgentError where there is none."""
    problem = problems.load(problems.name_of(facts.problem_hash) or "")
    briefing = Briefing(problem=problem, facts=facts, target=target, device=DEVICES[target], placement=None)
    operator = operator_of(briefing)
    kernel = agents().translator.translate(briefing, Strategy(techniques=()), (), 0)
    return "compiler" if isinstance(operator, Launches) else type(operator).__name__.lower(), kernel


def compile_log(kernel: Kernel, facts: ProblemFacts) -> str:
    """Return what NVRTC says against a kernel; empty where it compiles."""
    headers = {"problem.h": render(facts, kernel.plan.values())}
    program = Program(installation.nvrtc(), kernel.source, headers)
    options = ["--std=c++17", "-arch=sm_90a", *(f"-I{folder}" for folder in installation.include_folders())]
    return "" if program.compile(options) else program.log()[:500]


if __name__ == "__main__":
    sys.exit(main())
