"""A refusal is foretold in its own words before a job is queued: exactly after a trace, else from the text."""

from __future__ import annotations

import pytest
import torch

from agents.interface import NoTemplate
from agents.playbook.compiler.lowering import supported
from agents.playbook.foresight import REFUSED, aten_name, by_text, foreseen, said
from agents.playbook.recognition.values import base_name
from agents.playbook.templates.launches import as_launches
from cupilot.domain.problem import Graph, NumericsPolicy, ProblemFacts, Target
from tests.unit.agents.playbook.references import trace

SOURCE = """import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.linalg import qr


class Model(nn.Module):
    def forward(self, x):
        y = F.gelu(x)
        return torch.i0(y)


def get_inputs():
    return [torch.bernoulli(torch.rand(4, 8))]


def get_init_inputs():
    return []
"""
FUNCTIONS = [(module, name) for module, names in REFUSED.items() for name in names]


def facts_of(line: int = 10) -> ProblemFacts:
    facts, _ = trace(lambda x: torch.i0(torch.nn.functional.gelu(x)), {"x": torch.rand(4, 8)})
    nodes = tuple(node.model_copy(update={"line": line}) for node in facts.graph.nodes)
    return facts.model_copy(update={"graph": Graph(nodes=nodes, outputs=facts.graph.outputs)})


def notes(source: str = SOURCE, facts: ProblemFacts | None = None) -> list[str]:
    return foreseen(source, NumericsPolicy.FP32, Target.CUDA, facts)


def test_a_traced_problem_is_refused_in_the_words_of_the_job_itself() -> None:
    facts = facts_of()
    with pytest.raises(NoTemplate) as caught:
        as_launches(facts, Target.CUDA, SOURCE)
    (note,) = notes(facts=facts)
    assert said(caught.value) in note
    assert "`return torch.i0(y)` in line 10" in note
    assert "cupilot submit FILE --agents hybrid" in note


def test_a_traced_problem_with_a_kernel_is_said_to_have_one() -> None:
    facts, _ = trace(torch.nn.functional.gelu, {"x": torch.rand(4, 8)})
    assert notes(facts=facts) == ["The playbook has a kernel for this problem on cuda."]


def test_16_bits_have_templates_on_cuda_and_one_strategy_on_cpu() -> None:
    facts, _ = trace(torch.nn.functional.gelu, {"x": torch.rand(4, 8).bfloat16()})
    assert notes(facts=facts) == ["The playbook has a kernel for this problem on cuda."]
    (note,) = foreseen(SOURCE, NumericsPolicy.FP32, Target.CPU, facts)
    assert "one strategy for this problem on cpu" in note


def test_the_text_alone_shows_calls_that_are_refused_with_their_lines() -> None:
    (error,) = by_text(SOURCE)
    with pytest.raises(NoTemplate) as caught:
        as_launches(facts_of(), Target.CUDA, SOURCE)
    assert error.message == caught.value.message.replace(" (result [4, 8])", "")
    assert (error.hint, error.where) == (caught.value.hint, caught.value.where)
    (note,) = notes()
    assert note.startswith("Once it is reached, this ends the job as no_template: ")


def test_names_that_were_imported_and_other_modules_are_told_apart() -> None:
    source = SOURCE.replace("torch.i0(y)", "qr(y), self.mode(y), numpy.i0(y)")
    assert ["aten.linalg_qr.default" in error.message for error in by_text(source)] == [True]


NEVER_TRACED = """

def orthogonal(size):
    return torch.linalg.qr(torch.rand(size, size))[0]


class Unused(nn.Module):
    def forward(self, x):
        return torch.linalg.svd(x)


class Prepared(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(orthogonal(8))
        self.places = torch.multinomial(torch.rand(8), 4)

    def forward(self, x):
        return torch.linalg.svdvals(x)

    def reset(self):
        self.weight.data = torch.linalg.pinv(self.weight)


class Model(Prepared):
    def forward(self, x):
        return x @ self.weight
"""
TRACED = """

def spectrum(x):
    return torch.linalg.eigvals(x)


class Base(nn.Module):
    def forward(self, x):
        return torch.linalg.qr(x)


class Block(Base):
    def forward(self, x):
        return spectrum(super().forward(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.scaled(x)

    def scaled(self, x):
        return torch.i0(x)
"""


def test_calls_that_only_prepare_parameters_or_inputs_are_no_obstacle() -> None:
    assert list(by_text("import torch\nfrom torch import nn\n" + NEVER_TRACED)) == []


def test_calls_are_followed_from_forward_through_methods_functions_and_submodules() -> None:
    found = [error.message for error in by_text("import torch\nfrom torch import nn\n" + TRACED)]
    assert [message.rpartition("calls aten.")[2].split(".")[0] for message in found] == [
        "linalg_eigvals",
        "linalg_qr",
        "i0",
    ]


@pytest.mark.parametrize(
    "call", [f"torch{'.a' * 900}()", f"torch{'.a' * 20_000}()", "-" * 5_000 + "x", "x" + "()" * 5_000]
)
def test_a_text_that_is_deeply_nested_ends_nothing(call: str) -> None:
    assert list(by_text(f"import torch\n\n\nclass Model:\n    def forward(self, x):\n        return {call}\n")) == []


def test_a_text_without_such_a_call_promises_nothing() -> None:
    (note,) = notes(SOURCE.replace("torch.i0(y)", "torch.relu(y)"))
    assert "known once the problem has been traced" in note


@pytest.mark.parametrize(("module", "name"), FUNCTIONS)
def test_what_is_said_to_be_refused_is_an_operator_that_no_lowering_knows(module: str, name: str) -> None:
    known = {base_name(op) for op in supported()}
    aten = aten_name(module, name)
    assert hasattr(torch.ops.aten, aten), aten
    assert aten not in known
    place = {"torch": torch, "torch.linalg": torch.linalg, "torch.special": torch.special}
    assert hasattr(place.get(module, torch.nn.functional), name)


@pytest.mark.parametrize(
    "function",
    [torch.i0, torch.special.i0e, lambda x: torch.special.chebyshev_polynomial_t(x, 3), torch.unique,
     lambda x: torch.polygamma(1, x), lambda x: torch.mode(x)[0],
     lambda x: torch.linalg.qr(x)[0], torch.linalg.svdvals,
     lambda x: torch.histc(x, 4), lambda x: torch.bincount((x * 3).long().flatten())],
)  # fmt: skip
def test_such_a_call_is_refused_once_it_is_traced(function: object) -> None:
    facts, _ = trace(function, {"x": torch.rand(4, 8)})  # type: ignore[arg-type]
    with pytest.raises(NoTemplate):
        as_launches(facts, Target.CPU, "")
