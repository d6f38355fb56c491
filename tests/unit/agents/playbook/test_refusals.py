"""Refusals where the playbook has no kernel: the line of the user's file, what is near it, and how to go on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from agents.interface import NoTemplate
from agents.playbook.templates.launches import as_launches
from cupilot.domain.problem import Graph, ProblemFacts, Target
from tests.unit.agents.playbook.references import trace

SOURCE = """import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return operator_of(x)
"""


def refusal(function: Callable[[torch.Tensor], torch.Tensor], line: int | None, source: str = SOURCE) -> NoTemplate:
    """Return the error for a function of a matrix, all of whose calls are made by a line."""
    facts: ProblemFacts
    facts, _ = trace(function, {"x": torch.rand(4, 8)})
    nodes = tuple(node.model_copy(update={"line": line}) for node in facts.graph.nodes)
    facts = facts.model_copy(update={"graph": Graph(nodes=nodes, outputs=facts.graph.outputs)})
    with pytest.raises(NoTemplate) as caught:
        as_launches(facts, Target.CPU, source)
    return caught.value


def test_a_refusal_names_the_users_line_its_text_and_the_way_on() -> None:
    error = refusal(lambda x: torch.logcumsumexp(x, 1), 5)
    assert "`return operator_of(x)` in line 5, which calls aten.logcumsumexp.default" in error.message
    assert error.where == "problem.source:5"
    assert error.hint is not None
    assert "near it are supported: " in error.hint
    assert "logsumexp" in error.hint
    assert "--agents hybrid" in error.hint


@pytest.mark.parametrize(("line", "source"), [(None, SOURCE), (6, SOURCE), (5, "")])
def test_a_line_that_the_file_does_not_have_is_not_quoted(line: int | None, source: str) -> None:
    error = refusal(lambda x: torch.logcumsumexp(x, 1), line, source)
    assert error.message.startswith("the playbook has no kernel for aten.logcumsumexp.default (result [4, 8])")


def test_a_tensor_given_by_keyword_that_no_lowering_reads_is_refused() -> None:
    """An attention mask that was overlooked once gave a kernel for another operator."""
    x, mask = torch.rand(1, 2, 4, 8), torch.zeros(4, 4)
    facts, _ = trace(
        lambda x, mask: torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask),
        {"x": x, "mask": mask},
    )
    nodes = tuple(
        node.model_copy(update={"kwargs": {"unheard_of": node.kwargs["attn_mask"]}})
        if "attn_mask" in node.kwargs
        else node
        for node in facts.graph.nodes
    )
    facts = facts.model_copy(update={"graph": Graph(nodes=nodes, outputs=facts.graph.outputs)})
    with pytest.raises(NoTemplate, match="its argument unheard_of is not supported"):
        as_launches(facts, Target.CPU)
