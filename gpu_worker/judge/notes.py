"""Notes on a prepared problem, for whoever reads its verdicts."""

from __future__ import annotations

from cupilot.domain.problem import NumericsPolicy, ProblemFacts, Role
from gpu_worker.judge import counting
from gpu_worker.judge.reference_link import ReferenceLink


def notes_on(reference: ReferenceLink, facts: ProblemFacts) -> list[str]:
    """Return what a reader should know: another standard than float64, arithmetic that differs, inputs not read."""
    notes = []
    if not reference.exact:
        notes.append("the reference does not run in float64; its float32 answer is the standard")
    if facts.policy is NumericsPolicy.TF32 and reference.device.torch_device.type == "cpu":
        notes.append("cpu has no TF32 units: PyTorch runs in float32")
    given = [spec.name for spec in facts.tensors if spec.role is not Role.OUTPUT]
    unread = [name for name in given if not counting.used(facts.graph, name)]
    if unread:
        notes.append(f"not used by the reference: {', '.join(unread)}")
    inputs = [spec.name for spec in facts.tensors if spec.role is Role.INPUT]
    lines = ", ".join(map(str, counting.numbers_read(facts.graph, inputs)))
    if lines:
        notes.append(f"forward makes numbers of input values (line {lines}): kernels have them as constants")
    return notes
