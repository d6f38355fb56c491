"""Tolerances where PyTorch rounds to 16 bits between its operators: of a kernel that does not, more is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from cupilot.domain.evaluation import FailureKind
from cupilot.domain.problem import NumericsPolicy
from gpu_worker.judge import laws
from gpu_worker.judge.cases import MOST_ERROR
from gpu_worker.judge.comparison import Bounds, Comparer
from gpu_worker.judge.deviation import ABSOLUTE, Expected, Unit, deviation, unit_of, wrong_mask
from gpu_worker.judge.refusal import UnusableReference
from gpu_worker.judge.runner_link import KernelFailed
from gpu_worker.judge.tolerance import PRECISIONS
from tests.unit.gpu_worker.test_judge_measuring import Subject, audit

Tensors = list[torch.Tensor]

ATTENTION = "torch.softmax(q @ k.mT * 0.125 + b, -1) @ v"
MASK = "torch.where(x < torch.topk(x, 8, dim=-1)[0][:, -1:], -1e4, x)"


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def attention() -> Subject:
    shapes = ("4, 512, 64", "4, 512, 64", "4, 512, 64", "512, 512")
    inputs = ", ".join(f"torch.randn({shape}, dtype=torch.bfloat16)" for shape in shapes)
    return Subject(ATTENTION, inputs, NumericsPolicy.HALF, "q, k, v, b")


def weights(given: Tensors, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v, b = (tensor.to(dtype) for tensor in given)
    return torch.softmax(q @ k.mT * 0.125 + b, -1), v


def float32_inside(given: Tensors, outputs: Tensors) -> None:
    scores, values = weights(given, torch.float32)
    outputs[0].copy_(scores @ values)


def weights_in_16_bits(given: Tensors, outputs: Tensors) -> None:
    """As a kernel on tensor cores does: float32 but for the second product's operands."""
    scores, values = weights(given, torch.float32)
    outputs[0].copy_(scores.bfloat16().float() @ values)


def as_pytorch(given: Tensors, outputs: Tensors) -> None:
    scores, values = weights(given, torch.bfloat16)
    outputs[0].copy_(scores @ values)


@pytest.mark.parametrize("kernel", [float32_inside, weights_in_16_bits])
def test_attention_in_16_bits_is_judged_where_pytorch_itself_errs_too_much(
    kernel: Callable[[Tensors, Tensors], None],
) -> None:
    subject = attention()
    admission = subject.admit()
    own = admission.laws[0]
    assert own.reference_error > MOST_ERROR >= own.tolerance
    assert any(note.startswith("law own: PyTorch itself errs") for note in admission.notes)
    assert all(item.reference_error < MOST_ERROR for item in admission.laws if item.law == laws.OFFSET)
    assert audit(subject, kernel) is None


def test_a_kernel_that_rounds_between_operators_as_pytorch_does_is_wrong_there() -> None:
    failure = audit(attention(), as_pytorch)
    assert failure is not None
    assert failure.kind is FailureKind.WRONG_VALUE


def test_float32_gets_no_such_bound() -> None:
    """An error as large of PyTorch's in float32 says that its algorithm is at fault: a kernel may have the same."""
    cancelling = "((x * x).mean(-1) - x.mean(-1) ** 2)"
    with pytest.raises(UnusableReference, match="PyTorch itself errs"):
        Subject(cancelling, "torch.randn(64, 512) + 3e3").admit()


def test_what_rounding_to_16_bits_costs_is_no_error() -> None:
    """-10,000 lies between two numbers of bfloat16: 16 off, which is 5 % of the spread of a masked row."""
    admission = Subject(MASK, "torch.randn(64, 2048, dtype=torch.bfloat16)", NumericsPolicy.HALF).admit()
    assert admission.laws[0].reference_error == 0.0
    exact = torch.tensor([0.0, -1e4] * 64, dtype=torch.float64)
    wanted = Expected(exact, unit_of(exact))
    assert deviation(wanted, exact.bfloat16()) == 0.0
    off = exact.bfloat16()
    off[1] = -9920.0  # the next number
    assert deviation(wanted, off) == pytest.approx((80 - 32) / float(exact.std(correction=0)))
    assert wrong_mask(wanted, off, 1e-3).nonzero().flatten().tolist() == [1]
    assert deviation(wanted, exact.bfloat16().float()) > 0, "float32 could have held it"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kept", [torch.float64, torch.float32])
def test_each_number_of_a_short_type_is_right_for_what_rounds_to_it(dtype: torch.dtype, kept: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(5)
    scales = torch.exp2(torch.randint(-30, 15, (4000,), generator=generator).double())
    exact = (torch.randn(4000, generator=generator, dtype=torch.float64) * scales).to(kept)
    assert deviation(Expected(exact, Unit(1e-30)), exact.to(dtype)) == 0.0
    neighbour = (exact * (1 + 3 * torch.finfo(dtype).eps)).to(dtype)
    wrong = wrong_mask(Expected(exact, Unit(1e-30)), neighbour, 0.0)
    assert bool(wrong[exact.abs() > 2e-4].all()), "three numbers on"


def test_whole_numbers_are_held_to_themselves() -> None:
    """One too many is half of bfloat16's step above 256, and no rounding."""
    exact = torch.full((8,), 257.0, dtype=torch.float64)
    assert deviation(Expected(exact, ABSOLUTE), torch.full((8,), 258.0, dtype=torch.bfloat16)) == 1.0


def test_a_near_tie_may_be_rounded_either_way() -> None:
    """Attention over values far from zero: half of a step of bfloat16 is a twentieth of the spread."""
    exact = torch.tensor([-3.523495902812594, -3.3, -3.7] * 8, dtype=torch.float64)
    got = exact.bfloat16()
    got[0] = -3.515625  # the other neighbour, 0.0001 further
    assert deviation(Expected(exact, Unit(0.157, -3.5)), got) < 1e-3


@pytest.mark.parametrize("spoilt", [torch.inf, -torch.inf, torch.nan])
def test_what_rounds_to_infinity_excuses_no_other_infinity(spoilt: float) -> None:
    exact = torch.tensor([1.0, 70_000.0] * 8, dtype=torch.float64)
    wanted = Expected(exact, unit_of(exact))
    got = torch.full((16,), spoilt, dtype=torch.float16)
    assert deviation(wanted, got) == float("inf")


def test_timed_launches_are_not_compared_with_an_answer_that_errs_so_much() -> None:
    """Twice PyTorch's own error would be allowed of them, three times what an audit allows."""
    subject = attention()
    own = subject.admit().laws[0]
    slots = subject.slots()
    given = subject.cases.get(laws.OWN).given
    for tensor, value in zip(slots.given(0), given, strict=True):
        tensor.copy_(value)
    as_pytorch(slots.given(0), slots.outputs(0))
    bounds = Bounds(
        {laws.OWN: own.tolerance}, lambda _: own.reference_error, PRECISIONS[subject.policy], subject.limits
    )
    comparer = Comparer(
        slots, subject.specs, reference=subject.reference, pytorch=None, cases=subject.cases, bounds=bounds  # type: ignore[arg-type]
    )  # fmt: skip
    assert comparer._agrees_with_pytorch(0, laws.OWN) is False


def test_where_pytorch_errs_too_much_in_one_launch_a_kernel_may_err_near_it_and_no_more() -> None:
    """A law's draws differ: of some, most of the answer is rounding, by whatever order of operations."""
    subject = Subject("(x + 2.0**22) - 2.0**22", "torch.randn(64, 32) * 1000")
    slots = subject.slots()
    slots.poison(0)
    given, got = slots.given(0)[0], slots.outputs(0)[0]
    given.copy_(torch.randn(64, 32, generator=torch.Generator().manual_seed(1)))
    bounds = Bounds({laws.OWN: 1e-3}, lambda _: 0.0, PRECISIONS[subject.policy], subject.limits)
    comparer = Comparer(
        slots, subject.specs, reference=subject.reference, pytorch=None, cases=subject.cases, bounds=bounds  # type: ignore[arg-type]
    )  # fmt: skip
    case = comparer._case_of(0, laws.OWN)
    got.copy_(torch.floor(given * 2) / 2)  # PyTorch rounds to the nearest half
    assert comparer._exact_error(0, case) > MOST_ERROR
    got.zero_()
    with pytest.raises(KernelFailed) as failed:
        comparer._exact_error(0, case)
    assert failed.value.kind is FailureKind.WRONG_VALUE


def test_no_error_of_pytorch_lets_a_constant_pass() -> None:
    subject = Subject("(x + 2.0**25) - 2.0**25", "torch.randn(64, 32) * 1000")
    slots = subject.slots()
    slots.poison(0)
    slots.given(0)[0].copy_(torch.randn(64, 32, generator=torch.Generator().manual_seed(1)))
    slots.outputs(0)[0].zero_()
    bounds = Bounds({laws.OWN: 1e-3}, lambda _: 0.0, PRECISIONS[subject.policy], subject.limits)
    comparer = Comparer(
        slots, subject.specs, reference=subject.reference, pytorch=None, cases=subject.cases, bounds=bounds  # type: ignore[arg-type]
    )  # fmt: skip
    with pytest.raises(KernelFailed):
        comparer._exact_error(0, comparer._case_of(0, laws.OWN))


def test_shapes_that_only_rounded_values_change_are_found_out() -> None:
    """As many values are above a half in each draw, but one of them no more once it is rounded."""
    subject = Subject("x[x > 0.5] * 2.0", "torch.randperm(2048) / 2048 + 2.0**-13")
    with pytest.raises(UnusableReference, match=r"shapes of its outputs depend.*mask of those that count"):
        subject.admit()
