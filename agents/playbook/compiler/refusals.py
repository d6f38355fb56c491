"""The one way to say that the playbook has no kernel: which call, what near it is supported, and how to go on."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache

from agents.interface import NoTemplate
from agents.playbook.compiler.lowering import supported
from agents.playbook.recognition.values import base_name
from cupilot.domain.problem import GraphNode, ProblemFacts

LINE_CHARACTERS = 120
"""Of the user's line, so many are quoted."""

_FAMILIES = (
    "pointwise calls, casts, indexing and shape changes, reductions, norms, losses, softmax, scans, top-k and sort, "
    "matrix products, convolutions, pooling, resizing and attention"
)


def unsupported(facts: ProblemFacts, node: GraphNode | None, reason: str, source: str = "") -> NoTemplate:
    """Return the error for a call without a kernel, or for a graph as a whole; ``source`` is the problem's file."""
    going_on = "`--agents hybrid` (or `llm`) lets a model write the kernel"
    if node is None:
        seen = ", ".join(dict.fromkeys(item.op for item in facts.graph.nodes)) or "no operator at all"
        return NoTemplate(
            f"the playbook has no kernel for this reference: {reason} (operators seen: {seen})",
            hint=f"supported: {_FAMILIES}; {going_on}",
        )
    near = _near(base_name(node.op))
    words = f"near it are supported: {', '.join(near)}" if near else f"supported: {_FAMILIES}"
    shapes = ", ".join(str(list(shape)) for shape in node.shapes)
    result = f" (result {shapes})" if shapes else ""
    return NoTemplate(
        f"the playbook has no kernel for {_called(node, source)}{result}: {reason}",
        hint=f"{words}; {going_on}",
        where=None if node.line is None else f"problem.source:{node.line}",
    )


@cache
def _near(name: str) -> list[str]:
    """Return supported calls with similar names. Strategies are held against a graph one by one, each with an error."""
    return get_close_matches(name, sorted({base_name(other) for other in supported()}), n=3, cutoff=0.5)


def _called(node: GraphNode, source: str) -> str:
    """Return the call by its line of the user's file where that is known, then by its name in PyTorch's graph."""
    lines = source.splitlines()
    if node.line is None or not 0 < node.line <= len(lines):
        return node.op
    return f"`{lines[node.line - 1].strip()[:LINE_CHARACTERS]}` in line {node.line}, which calls {node.op}"
