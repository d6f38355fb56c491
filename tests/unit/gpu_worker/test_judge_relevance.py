"""Bytes that the floor does not count: claimed by the graph and tried, or found by changing them."""

from __future__ import annotations

import pytest
import torch

from cupilot.domain.problem import NumericsPolicy
from gpu_worker.judge import relevance as relevance_module
from gpu_worker.judge import structure
from gpu_worker.judge.counting import compulsory_bytes
from gpu_worker.judge.reference_link import ReferenceLink
from gpu_worker.judge.relevance import Relevance, relevance
from gpu_worker.targets.cpu_judge import CpuJudgeDevice
from tests.unit.gpu_worker.served import Served

SOURCE = """
import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def forward(self, {arguments}):
        {forward}

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return []
"""


def found(forward: str, inputs: str, arguments: str = "x") -> tuple[ReferenceLink, Relevance, int, int]:
    """With the least bytes by the graph alone, and after everything was tried."""
    device = CpuJudgeDevice(threads=1, cache_bytes=2**20, memory_bytes=2**30)
    source = SOURCE.format(forward=forward, inputs=inputs, arguments=arguments)
    served = Served(source, NumericsPolicy.FP32, device)
    reference, facts = served.link, served.facts
    given = reference.draw(7)
    result = relevance(reference, facts.graph, facts.tensors, given)
    zeros = structure.zero_shares(facts.tensors, given)
    proven = compulsory_bytes(
        facts.graph, facts.tensors, zeros, whole=result.whole, observed=result.observed, needless=result.needless
    )
    return reference, result, facts.compulsory_bytes, proven


@pytest.mark.parametrize(
    ("forward", "inputs", "arguments", "least"),
    [
        ("return x[:2] * 2", "torch.randn(8, 16)", "x", 2 * (2 * 16 * 4)),
        ("return x[:, ::2].select(0, 3) * 2", "torch.randn(8, 16)", "x", (8 * 8 + 8) * 4),
        ("return x * 2", "torch.randn(8, 16), torch.randn(99)", "x, unused", 2 * 8 * 16 * 4),
        ("return x * 2", "torch.randn(8, 16), torch.randint(5, (9,))", "x, unused", 2 * 8 * 16 * 4),
        ("return t[i] * 2", "torch.randn(100, 4), torch.tensor([3, 5])", "t, i", 2 * 8 + 2 * (2 * 4 * 4)),
        ("return F.embedding(i, t)", "torch.arange(3), torch.randn(100, 8)", "i, t", 3 * 8 + 2 * 3 * 8 * 4),
        ("return t.gather(0, i) + 1", "torch.randn(100, 2), torch.ones(1, 2).long()", "t, i", 2 * 8 + 2 * 2 * 4),
        ("return x.diagonal() + 1", "torch.randn(9, 9)", "x", 2 * 9 * 4),
    ],
)
def test_what_the_graph_does_not_read_moves_nothing(forward: str, inputs: str, arguments: str, least: int) -> None:
    _, result, by_graph, proven = found(forward, inputs, arguments)
    assert result.whole == frozenset()
    assert by_graph == proven == least


@pytest.mark.parametrize(
    ("forward", "inputs", "arguments", "least"),
    [
        ("return x[:, :2].sin() + x[:, :2].cos()", "torch.randn(8, 16)", "x", 2 * 8 * 2 * 4),
        ("return x[:, :8].sin() + x[:, :8].cos()", "torch.randn(8, 16)", "x", 2 * 8 * 8 * 4),
        ("return x[:4] * x[2:6]", "torch.randn(8, 16)", "x", (6 + 4) * 16 * 4),
        ("return F.embedding(i, t)", "torch.arange(6) % 2, torch.randn(100, 8)", "i, t", 6 * 8 + (2 + 6) * 8 * 4),
    ],
)
def test_what_is_read_twice_counts_once(forward: str, inputs: str, arguments: str, least: int) -> None:
    _, _, by_graph, proven = found(forward, inputs, arguments)
    assert by_graph > proven == least


def test_elements_of_an_expanded_input_lie_at_one_place() -> None:
    _, _, by_graph, proven = found("return x + y", "torch.randn(8, 16), torch.randn(1, 16).expand(8, 16)", "x, y")
    assert by_graph == proven == (2 * 8 * 16 + 16) * 4


def test_a_claim_that_a_change_refutes_does_not_lower_the_floor() -> None:
    hidden = "return x[:2] * (1.0 + float(x.untyped_storage()[4 * 16 * 5 + 3]))"  # read behind the graph's back
    _, result, by_graph, proven = found(hidden, "torch.randn(8, 16)")
    assert result.whole == {"x"}
    assert by_graph == 2 * (2 * 16 * 4)
    assert proven == by_graph + 6 * 16 * 4
    assert "an output moves with what the traced graph does not read of x" in result.notes[0]


def test_an_input_that_is_refused_when_it_is_changed_matters() -> None:
    hidden = "assert x.untyped_storage()[4 * 16 * 5 + 3] < 127; return x[:2] * 2"
    _, result, _, _ = found(hidden, "torch.rand(8, 16)")
    assert result.whole == {"x"}


@pytest.mark.parametrize(
    ("forward", "inputs", "words", "needless"),
    [
        ("return F.conv2d(x, x.new_ones(1, 2, 1, 1), stride=(1, 2))", "torch.randn(2, 2, 6, 6)",
         "indices 1, 3, 5... of dimension 3", 2 * 2 * 6 * 3 * 4),
        ("return F.conv2d(x, x.new_ones(1, 2, 1, 1), stride=2)", "torch.randn(2, 2, 6, 6)",
         "indices 1, 3, 5... of dimension 2 and indices 1, 3, 5... of dimension 3", 2 * 2 * 27 * 4),
        ("return x.t()[:4] * 2", "torch.randn(6, 8)", "the second half of dimension 1", 6 * 4 * 4),
    ],
)  # fmt: skip
def test_what_moves_no_output_lowers_the_floor(forward: str, inputs: str, words: str, needless: int) -> None:
    _, result, by_graph, proven = found(forward, inputs)
    assert result.notes == (f"changing {words} of x moves no output: the roofline bound leaves {needless} bytes out",)
    assert by_graph - proven == needless


@pytest.mark.parametrize("forward", ["return torch.relu(x)", "return x.sum(1)", "return x.softmax(1)"])
def test_what_moves_an_output_counts(forward: str) -> None:
    _, result, by_graph, proven = found(forward, "torch.randn(6, 8)")
    assert result.notes == ()
    assert by_graph == proven


def test_what_a_rounded_mean_hides_counts() -> None:
    forward = "return -(x.log_softmax(1) * y.softmax(1)).sum(1).mean()"
    inputs = "torch.randn(512, 64).bfloat16(), torch.randn(512, 64).bfloat16()"
    _, result, by_graph, proven = found(forward, inputs, "x, y")
    assert result.notes == ()
    assert by_graph == proven


def test_parts_that_stand_in_for_each_other_are_not_both_left_out() -> None:
    _, result, by_graph, proven = found("return torch.where(x[:4] == 1, x[:4], x[4:])", "torch.ones(8, 4)")
    assert by_graph - proven == 4 * 4 * 4
    assert "changing the first half of dimension 0 of x moves no output" in result.notes[0]


@pytest.mark.parametrize("forward", ["return x.clamp(min=1e6)", "return x.clamp(max=-1e6)", "return x.clamp(-2, 2)"])
def test_a_part_that_matters_at_extremes_only_matters(forward: str) -> None:
    _, result, _, _ = found(forward, "torch.randn(6, 8)")
    assert result.notes == ()


def short(*_: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


def test_what_was_refuted_counts_though_memory_ends_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relevance_module, "_parts", short)
    hidden = "return x[:2] * (1.0 + float(x.untyped_storage()[4 * 16 * 5 + 3])) + y[:2]"
    _, result, _, _ = found(hidden, "torch.randn(8, 16), torch.randn(2, 16)", "x, y")
    assert result.whole == {"x"}
    assert [note.split()[0] for note in result.notes] == ["an", "there"]


def test_where_memory_is_short_the_graph_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReferenceLink, "reads", short)
    _, result, by_graph, proven = found("return x[:2] * 2", "torch.randn(8, 16)")
    assert result.notes == ("there was no memory to try which parts of the inputs matter",)
    assert by_graph == proven
