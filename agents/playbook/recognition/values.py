"""The reference's graph as recognition sees it: dead calls left out, aliases followed, nothing interpreted.

Also the one place that says no: :func:`refuse` makes the error that lists what was seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from agents.interface import NoTemplate
from cupilot.domain.problem import DType, GraphNode, ProblemFacts, Role, TensorSpec

SUPPORTED = (
    "pointwise expressions, reductions along one range of axes (sum, mean, max, min, argmax, argmin, norms, variance), "
    "softmax, log-softmax, layer norm and other row norms, and matrix products (mm, bmm, addmm, matmul)"
)

ALIASES = frozenset(
    {
        "aten.detach.default",
        "aten.alias.default",
        "aten.clone.default",
        "aten.contiguous.default",
        "aten.lift_fresh.default",
        "aten.lift_fresh_copy.default",
        "aten.positive.default",
    }
)
"""Calls whose result has the values and the shape of their first argument."""

CONSTANT = "constant"
"""The tracer's name for a small tensor that the reference made itself; its only argument is the list of its values."""

HALVES = (DType.FLOAT16, DType.BFLOAT16)
FLOATS = (DType.FLOAT32, *HALVES)
"""Types of tensors that templates read and write, by falling precision; all are computed with in float32."""

CASTS = frozenset({"aten._to_copy.default", "aten.to.dtype", "aten.type_as.default"})
"""Calls that change the type of their first argument."""

VIEWS = frozenset(
    {
        "aten.view.default",
        "aten._unsafe_view.default",
        "aten.reshape.default",
        "aten.unsqueeze.default",
        "aten.squeeze.dim",
        "aten.squeeze.dims",
        "aten.squeeze.default",
        "aten.expand.default",
        "aten.slice.Tensor",
        "aten.t.default",
        "aten.transpose.int",
        "aten.permute.default",
        "aten.mT.default",
    }
)


@dataclass
class View:
    """The live part of a problem's graph."""

    facts: ProblemFacts
    nodes: tuple[GraphNode, ...]
    producers: dict[str, tuple[GraphNode, int]] = field(default_factory=dict)
    """The call that made a value, and which of its results the value is."""
    specs: dict[str, TensorSpec] = field(default_factory=dict)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The values that the reference returns."""
        return self.facts.graph.outputs

    @property
    def output_specs(self) -> tuple[TensorSpec, ...]:
        """The tensors that the values go to, in the same order."""
        return self.facts.with_role(Role.OUTPUT)


def view(facts: ProblemFacts) -> View:
    """Return the live part of the graph; raises NoTemplate for what no family can handle."""
    live = _live(facts)
    result = View(facts=facts, nodes=live)
    for node in live:
        for index, name in enumerate(node.results):
            result.producers[name] = (node, index)
    for spec in facts.with_role(Role.INPUT, Role.PARAMETER, Role.BUFFER):
        result.specs[spec.name] = spec
    if len(result.outputs) != len(result.output_specs):
        raise refuse(facts, "the graph's outputs and the output tensors do not match")
    _check_in_place(facts, live)
    return result


def _live(facts: ProblemFacts) -> tuple[GraphNode, ...]:
    return tuple(needed_calls(facts.graph.nodes, facts.graph.outputs))


def needed_calls(nodes: Sequence[GraphNode], names: Iterable[str]) -> list[GraphNode]:
    """Return the calls that these values depend on, in order."""
    needed = set(names)
    live: list[GraphNode] = []
    for node in reversed(nodes):
        if needed.intersection([*node.results, *updated(node)]):
            live.append(node)
            needed.update(references(node))
    return live[::-1]


def updated(node: GraphNode) -> list[str]:
    """Return the values that a call changes without a mark of it: running statistics of a batch norm in training."""
    if "batch_norm" not in node.op or argument(node, 5, "training") is not True:
        return []
    return [name for at in (3, 4) if (name := reference(argument(node, at, ""))) is not None]


def _check_in_place(facts: ProblemFacts, live: tuple[GraphNode, ...]) -> None:
    """Refuse in-place calls together with views: the values that alias would have to be tracked."""
    in_place = any(is_in_place(node.op) for node in facts.graph.nodes)
    if in_place and any(node.op in VIEWS for node in live):
        raise refuse(facts, "it changes tensors in place while views of them may exist")


def is_in_place(op: str) -> bool:
    """Return whether an overload changes its first argument, by PyTorch's naming rule."""
    return base_name(op).endswith("_") and not base_name(op).endswith("__")


def base_name(op: str) -> str:
    """Return ``aten.add_.Tensor`` -> ``add_``."""
    return op.split(".")[1] if op.count(".") >= 1 else op


def out_of_place(op: str) -> str:
    """Return the overload without the mark of an in-place call: ``aten.add_.Tensor`` -> ``aten.add.Tensor``."""
    if not is_in_place(op):
        return op
    namespace, name, *rest = op.split(".")
    return ".".join([namespace, name[:-1], *rest])


def reference(argument: object) -> str | None:
    """Return the value that an argument refers to, or None for anything else."""
    if isinstance(argument, dict) and set(argument) == {"ref"}:
        name = argument["ref"]
        return name if isinstance(name, str) else None
    return None


def references(node: GraphNode) -> list[str]:
    """Return all values that a call reads."""
    names: list[str] = []
    stack: list[object] = [*node.args, *node.kwargs.values()]
    while stack:
        item = stack.pop()
        name = reference(item)
        if name is not None:
            names.append(name)
        elif isinstance(item, list | tuple):
            stack.extend(item)
    return names


def number(value: object) -> float | None:
    """Return a number argument, whole ones exactly; infinities and NaN come as text. None for anything else."""
    if isinstance(value, str) and value in ("inf", "-inf", "nan"):
        return float(value)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def argument(node: GraphNode, index: int, name: str, default: object = None) -> object:
    """Return an argument by position or keyword."""
    if index < len(node.args):
        return node.args[index]
    return node.kwargs.get(name, default)


def require_float(facts: ProblemFacts, spec: TensorSpec) -> None:
    """Refuse a tensor that templates cannot read or write: no float of 32 or 16 bits, or not dense in C order."""
    if spec.dtype not in FLOATS:
        raise refuse(facts, f"{spec.name} is {spec.dtype.value}; templates exist for {', '.join(FLOATS)}")
    if not spec.contiguous:
        raise refuse(facts, f"{spec.name} is not contiguous")


def halves(view: View, names: Iterable[str]) -> dict[str, DType]:
    """Return the types of those tensors that are stored in 16 bits."""
    types = {name: view.facts.tensor(name).dtype for name in names}
    return {name: dtype for name, dtype in types.items() if dtype in HALVES}


def refuse(facts: ProblemFacts, reason: str) -> NoTemplate:
    """Return the error that says which operators were seen, why there is no template, and what there is one for."""
    seen = ", ".join(dict.fromkeys(node.op for node in facts.graph.nodes)) or "no operator at all"
    return NoTemplate(
        f"no playbook template for this reference: {reason} (operators seen: {seen})", hint=f"supported: {SUPPORTED}"
    )
