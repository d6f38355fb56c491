"""Compare two problem files, call by call. Strict: whatever is not provably the same counts as different.

Compared are the traces that the judge made (:class:`cupilot.domain.problem.ProblemFacts`): the same tensors in the same
order, the same ATen calls with the same arguments, the same outputs. The names of tensors and of values do not count.
"""

from __future__ import annotations

from typing import Any

from cupilot.domain.problem import GraphNode, ProblemFacts, TensorSpec


def difference(original: ProblemFacts, other: ProblemFacts) -> str | None:
    """Describe what the other does differently, in a sentence for its author; None where it does the same."""
    own, others = original.tensors, other.tensors
    if [_kind(spec) for spec in own] != [_kind(spec) for spec in others]:
        return f"its tensors are {_listed(others)}; the original's are {_listed(own)}"
    names = {spec.name: f"tensor {place}" for place, spec in enumerate(own)}
    other_names = {spec.name: f"tensor {place}" for place, spec in enumerate(others)}
    for position, node in enumerate(original.graph.nodes):
        if position >= len(other.graph.nodes):
            return f"it ends after {position} operations; the original goes on with {node.op}"
        counterpart = other.graph.nodes[position]
        if _call(node, names) != _call(counterpart, other_names):
            return f"operation {position + 1} is {_shown(counterpart)}; the original's is {_shown(node)}"
        names |= {name: f"{position}.{place}" for place, name in enumerate(node.results)}
        other_names |= {name: f"{position}.{place}" for place, name in enumerate(counterpart.results)}
    if len(other.graph.nodes) > len(original.graph.nodes):
        return f"it goes on with {_shown(other.graph.nodes[len(original.graph.nodes)])}, where the original ends"
    if [names.get(output) for output in original.graph.outputs] != [
        other_names.get(output) for output in other.graph.outputs
    ]:
        return "it returns other values than the original"
    return None


def _kind(spec: TensorSpec) -> tuple[Any, ...]:
    return spec.role, spec.dtype, spec.shape, spec.strides


def _listed(specs: tuple[TensorSpec, ...]) -> str:
    return ", ".join(f"{spec.name} ({spec.role.value}, {spec.dtype.value} {list(spec.shape)})" for spec in specs)


def _call(node: GraphNode, names: dict[str, str]) -> tuple[Any, ...]:
    return node.op, _renamed(list(node.args), names), _renamed(node.kwargs, names), node.shapes, node.dtypes


def _renamed(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, dict):
        if set(value) == {"ref"}:
            return {"ref": names.get(str(value["ref"]), value["ref"])}
        return {key: _renamed(item, names) for key, item in value.items()}
    return [_renamed(item, names) for item in value] if isinstance(value, list) else value


def _shown(node: GraphNode) -> str:
    arguments = [str(value) for value in node.args] + [f"{name}={value}" for name, value in node.kwargs.items()]
    return f"{node.op}({', '.join(arguments)})"[:300]
