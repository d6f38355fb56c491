"""Describe a kernel that is faster than the roofline bound: the work, the launches, the code, its memory.

For the one question that the Kernel Revisor is asked about it (docs/decisions/0012). Names no time, no floor and no
share of one: those would say how much slower to be, and not what is missing.
"""

from __future__ import annotations

import re
from math import prod

from agents.interface import Attempt, Briefing
from cupilot.domain.errors import InvalidPlan
from cupilot.domain.evaluation import BuildReport
from cupilot.domain.kernel import Kernel, ResolvedLaunch, resolve
from cupilot.domain.problem import ProblemFacts, Role, Target

TRAFFIC = (
    "global_load",
    "vector_load_128",
    "global_store",
    "vector_store_128",
    "async_copy",
    "tma_load",
    "tma_store",
    "atomic",
)
"""Instruction families that reach memory outside the chip (:mod:`gpu_worker.targets.cuda.sass`)."""

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_LASTING = {
    Target.CUDA: re.compile(r"^[^\n()]*\b__(?:device|managed)__\b[^\n();{]*[;=\[{]", re.MULTILINE),
    Target.CPU: re.compile(r"^[^\n()]*\b(?:static|thread_local)\b[^\n();{]*[;=\[{]", re.MULTILINE),
}
"""Declarations of variables, not functions, that outlive a launch."""
_UNCHANGING = re.compile(r"\b(?:const|constexpr)\b")


def without_times(briefing: Briefing) -> Briefing:
    """Return the briefing without anything that tells how fast a kernel may be."""
    return briefing.model_copy(update={"placement": None, "peaks": None, "baseline_us": None})


def account(briefing: Briefing, attempt: Attempt) -> str:
    """Return what has to be moved and what the kernel shows of moving it, as lines of text."""
    assert attempt.kernel is not None
    evaluation = attempt.evaluation
    kernel = attempt.kernel.tuned(evaluation.tunables) if evaluation else attempt.kernel
    build = evaluation.build if evaluation else None
    lines = [*_work(briefing.facts), *_launches(kernel, briefing.facts), *_code(build), *_memory(kernel)]
    return "\n".join(f"- {line}" for line in lines)


def _work(facts: ProblemFacts) -> list[str]:
    inputs = [tensor for tensor in facts.tensors if tensor.role is not Role.OUTPUT]
    made = facts.with_role(Role.OUTPUT)
    return [
        *(f"given: `{tensor.name}`, {tensor.numel} elements, {tensor.nbytes} bytes" for tensor in inputs),
        *(f"to be written: `{tensor.name}`, {tensor.numel} elements, {tensor.nbytes} bytes" for tensor in made),
        f"the judge counts {facts.compulsory_bytes} bytes that must be moved, and {facts.flops:.3g} operations",
    ]


def _launches(kernel: Kernel, facts: ProblemFacts) -> list[str]:
    """Return each launch's threads against the elements of the outputs that it is given."""
    try:
        plan = resolve(kernel, facts)
    except InvalidPlan as error:
        return [f"the launch plan cannot be read: {error.message}"]
    outputs = {tensor.name: tensor.numel for tensor in facts.with_role(Role.OUTPUT)}
    return [_launch(launch, outputs, kernel.target) for launch in plan.launches]


def _launch(launch: ResolvedLaunch, outputs: dict[str, int], target: Target) -> str:
    elements = [(name, outputs[name]) for name in launch.args if name in outputs]
    if target is Target.CPU:
        shape, threads = "one call", 1
    else:
        threads = prod(launch.grid) * prod(launch.block)
        sizes = " blocks of ".join("x".join(map(str, size)) for size in (launch.grid, launch.block))
        shape = f"{sizes} threads, {threads} in all"
    shares = ", ".join(f"{count / threads:.6g} elements of `{name}` a thread" for name, count in elements)
    return f"launch `{launch.kernel}`: {shape}; {shares or 'it is given no output'}"


def _code(build: BuildReport | None) -> list[str]:
    """Return the instructions that reach memory, as the binary has them: a loop's count once."""
    counts = build.instructions if build else {}
    if not counts:
        return ["machine code: nothing is known of its loads and stores"]
    counted = ", ".join(f"{name} {counts[name]}" for name in TRAFFIC if name in counts)
    note = "(a loop's instructions count once; those of 128 bits are counted among all too)"
    return [f"machine code: {counted or 'no load and no store of global memory'} {note}"]


def _memory(kernel: Kernel) -> list[str]:
    """Return where results of an earlier launch could be kept."""
    source = _COMMENT.sub("", kernel.source)
    declared = (match.group().strip(" \t;={") for match in _LASTING[kernel.target].finditer(source))
    lasting = [f"`{declaration[:120]}`" for declaration in declared if not _UNCHANGING.search(declaration)]
    kept = [f"`{buffer.name}`" for buffer in kernel.plan.workspace]
    return [
        f"memory of its own that outlives a launch: {', '.join(lasting) or 'none is declared'}",
        f"workspace: {', '.join(kept) or 'none'}",
    ]
