"""Operator recognition: an exact structural reading of the reference's ATen graph, or a clear refusal.

Never a kernel for the wrong operator: a graph is recognised only if every call in it is understood with all of its
arguments.
"""

from __future__ import annotations

from agents.playbook.operators import Operator
from agents.playbook.recognition.matmul import PRODUCTS, recognise_product
from agents.playbook.recognition.reductions import REDUCING
from agents.playbook.recognition.rows import recognise_pointwise, recognise_rows
from agents.playbook.recognition.values import out_of_place, refuse, view
from cupilot.domain.problem import ProblemFacts


def recognise(facts: ProblemFacts) -> Operator:
    """Return the operator that the reference computes.

    Raises :class:`agents.interface.NoTemplate` saying what was seen.
    """
    graph = view(facts)
    if not graph.nodes:
        raise refuse(facts, "it computes nothing")
    if any(node.op in PRODUCTS for node in graph.nodes):
        return recognise_product(graph)
    reducing = next((node for node in graph.nodes if out_of_place(node.op) in REDUCING), None)
    return recognise_pointwise(graph) if reducing is None else recognise_rows(graph, reducing)


__all__ = ["recognise"]
