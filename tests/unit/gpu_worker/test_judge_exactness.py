"""The law of whole numbers: kept where answers are exact, left out with the reason elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from cupilot.domain.problem import DType, NumericsPolicy, Role
from gpu_worker.judge import exactness, laws
from gpu_worker.judge.deviation import ABSOLUTE, Expected, deviation
from tests.unit.gpu_worker.records import spec
from tests.unit.gpu_worker.test_judge_measuring import Subject


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def unit(expression: str, inputs: str = "torch.rand(64, 32)", policy: NumericsPolicy = NumericsPolicy.FP32) -> float:
    subject = Subject(expression, inputs, policy)
    given = [item for item in subject.specs if item.role is not Role.OUTPUT]
    return exactness.quantum(subject.reference, subject.cases.get(laws.INTEGERS).given, given, policy)


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("x.sum(dim=1)", 1.0),
        ("x.sum()", 1.0),
        ("x.mean(dim=1)", 2.0**-5),
        ("nn.functional.avg_pool1d(x, 3, padding=1)", 1 / 3),
        ("torch.cumsum(x, dim=1).flip(0)", 1.0),
        ("x * 3.14", 3.14),
        ("x.t() * 0.5 + 1", 0.5),
        ("nn.functional.conv1d(x[:, None], x.new_ones(1, 1, 5), padding=2)", 1.0),
    ],
)
def test_the_unit_of_linear_operators_is_found(expression: str, wanted: float) -> None:
    assert unit(expression) == pytest.approx(wanted, rel=1e-9)


def test_a_sample_of_a_large_output_sees_every_column() -> None:
    assert unit("torch.cat([x.new_zeros(4096, 1), x.cumsum(1)], 1)[:, :-1]", "torch.rand(4096, 64)") == 1.0


@pytest.mark.parametrize(
    ("expression", "inputs", "policy", "words"),
    [
        ("torch.relu(x)", "torch.rand(64, 32)", NumericsPolicy.FP32, "not linear in x"),
        ("x @ x.T", "torch.rand(64, 32)", NumericsPolicy.FP32, "not linear in x"),
        ("torch.log(x)", "torch.rand(64, 32)", NumericsPolicy.FP32, "not finite"),
        ("x.argmax(dim=1)", "torch.rand(64, 32)", NumericsPolicy.FP32, "not a floating-point tensor"),
        ("x - x.mean(dim=1, keepdim=True)", "torch.rand(64, 32)", NumericsPolicy.FP32, "both signs"),
        ("x.mean()", "torch.rand(300, 512)", NumericsPolicy.FP32, "no power of two"),
        ("x.sum(dim=1)", "torch.rand(64, 512)", NumericsPolicy.HALF, "not exact in half"),
        (
            "(x @ x.new_ones(32, 64)) @ x.new_ones(64, 8)",
            "torch.rand(64, 32)",
            NumericsPolicy.TF32,
            "not exact in tf32",
        ),
    ],
)
def test_what_has_no_exact_answers_is_left_out(
    expression: str, inputs: str, policy: NumericsPolicy, words: str
) -> None:
    with pytest.raises(exactness.NotExact, match=words):
        unit(expression, inputs, policy)


def test_admission_keeps_the_law_with_an_absolute_tolerance_or_says_why_not() -> None:
    linear = Subject("x.mean(dim=1)").admit()
    law = next(item for item in linear.laws if item.law == laws.INTEGERS)
    assert law.tolerance == 0.25 / 32
    assert law.reference_error == 0.0
    assert {"zeros", "constant", "previous_output", "half_of_rows"} <= law.rejects
    assert not [note for note in linear.notes if laws.INTEGERS in note]
    curved = Subject("torch.softmax(x, dim=1)").admit()
    assert laws.INTEGERS not in [item.law for item in curved.laws]
    assert "law integers left out: not linear in x" in curved.notes


def test_whole_numbers_keep_structure_and_reach_every_parameter() -> None:
    torch.manual_seed(1)
    tensors = [torch.rand(64, 64).tril(), torch.randint(0, 10, (64,)), torch.zeros(128)]
    specs = [spec("x", (64, 64)), spec("labels", (64,), dtype=DType.INT64), spec("bias", (128,), Role.PARAMETER)]
    x, labels, bias = laws.apply(laws.INTEGERS, tensors, specs, seed=5)
    assert torch.equal(x == 0, tensors[0] == 0)
    assert torch.equal(labels, tensors[1])
    for tensor in (x[x != 0], bias):
        assert set(tensor.tolist()) == {-2.0, -1.0, 1.0, 2.0}


def test_an_absolute_unit_excuses_no_far_element() -> None:
    wanted = torch.tensor([1.0, 1e6], dtype=torch.float64)
    assert deviation(Expected(wanted, ABSOLUTE), torch.tensor([1.0, 1e6 + 1])) == 1.0


def test_extremes_are_planted_only_where_no_number_of_them_leads_to_overflow() -> None:
    """A row of products overflows on the way, in one order of multiplication earlier than in another."""
    products = Subject("torch.cumprod(x, dim=1)", "torch.exp(0.01 * torch.randn(8, 65536))").admit()
    assert laws.PLANTED_EXTREMES not in [item.law for item in products.laws]
    assert any("leave the range of their type" in note for note in products.notes)
    sums = Subject("torch.cumsum(x, dim=1)", "torch.randn(8, 4096)").admit()
    assert laws.PLANTED_EXTREMES in [item.law for item in sums.laws]
