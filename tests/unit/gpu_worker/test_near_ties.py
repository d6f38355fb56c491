"""Whole numbers that were rounded from next to a tie: either neighbour is right, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from cupilot.domain.evaluation import FailureKind
from gpu_worker.judge import laws, near_ties
from tests.unit.gpu_worker.test_judge_measuring import Subject, audit

QUANTISE = "torch.clamp(torch.round(x / (x.abs().amax(dim=-1, keepdim=True) / 127.0)), -128, 127).to(torch.int8)"
ROWS = "torch.randn(64, 4096)"
TIED = "torch.cat([torch.full((64, 1), 3.0), (torch.randint(-126, 126, (64, 4095)) + 0.5) * (3.0 / 127.0)], dim=1)"
"""Rows in which almost every element lies next to a tie."""
FEW_TIED = "torch.cat([torch.full((64, 1), 3.0), torch.randn(64, 4095).clamp(-2.9, 2.9)], dim=1)"


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def quantised(x: torch.Tensor, rounded: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> torch.Tensor:
    return rounded(x, x.abs().amax(dim=-1, keepdim=True)).clamp(-128, 127).to(torch.int8)


def by_division(x: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    return (x / (largest / 127.0)).round()


def by_product(x: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    return (x * (1.0 / (largest / 127.0))).round()


def too_coarse(x: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    return (x.bfloat16().float() / (largest / 127.0)).round()


def biased(x: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    return (x / (largest / 127.0) + 1e-3).round()


def two_off(x: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    exact = x.double() / (largest.double() / 127.0)
    near = (exact - exact.floor() - 0.5).abs() < 1e-4
    return (exact.round() + 2 * near).float()


def one_wrong(x: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    whole = by_division(x, largest)
    exact = x[0].double() / (largest[0].double() / 127.0)
    whole[0, (exact - exact.round()).abs().argmin()] += 1  # far from a tie
    return whole


def _kernel(rounded: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> object:
    def body(given: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        outputs[0].copy_(quantised(given[0], rounded))

    return body


@pytest.mark.parametrize("rounded", [by_division, by_product])
def test_quantisers_may_round_near_ties_to_either_side(rounded: Callable[..., torch.Tensor]) -> None:
    for _ in range(3):
        assert audit(Subject(QUANTISE, ROWS), _kernel(rounded)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("rounded", [too_coarse, biased, two_off, one_wrong])
def test_other_whole_numbers_are_wrong(rounded: Callable[..., torch.Tensor]) -> None:
    failure = audit(Subject(QUANTISE, ROWS), _kernel(rounded))  # type: ignore[arg-type]
    assert failure is not None
    assert failure.kind in (FailureKind.WRONG_VALUE, FailureKind.UNWRITTEN_OUTPUT)  # poison of a byte is often right


def _explained(subject: Subject, given: list[torch.Tensor], got: torch.Tensor) -> bool:
    case = subject.cases.expect(laws.OWN, given)
    settled = near_ties.settled([got], near_ties.neighbours(subject.reference, case))
    return torch.equal(settled[0], case.expected[0].values)


def test_quantised_values_that_are_scaled_back_have_near_ties_too() -> None:
    scale = "(x.abs().amax(dim=-1, keepdim=True) / 127.0)"
    subject = Subject(f"torch.round(x / {scale}) * {scale}", ROWS)

    def scaled_back(given: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        scales = given[0].abs().amax(dim=-1, keepdim=True) / 127.0
        outputs[0].copy_((given[0] * (1.0 / scales)).round() * scales)

    def not_quantised(given: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        outputs[0].copy_(given[0])

    assert all(item.tolerance < 1e-3 for item in subject.admit().laws)
    for _ in range(2):
        assert audit(subject, scaled_back) is None
    assert audit(subject, not_quantised) is not None


def test_what_is_exact_in_float64_has_no_neighbour() -> None:
    """Halves as they are given: a kernel that rounds them away from zero is wrong."""
    subject = Subject("x.round().to(torch.int32)", "torch.randn(4, 64)")
    given = torch.randn(4, 64)
    given[0, 0], given[1, 1] = 2.5, -0.5
    away = torch.where(given.frac().abs() == 0.5, given.sign() * (given.abs() + 0.5), given.round()).to(torch.int32)
    assert not _explained(subject, [given], away)
    assert _explained(subject, [given], given.round().to(torch.int32))


def test_where_much_lies_next_to_a_tie_nothing_may_differ() -> None:
    subject = Subject(QUANTISE, TIED)
    given = subject.reference.draw(1)
    exact = subject.reference.run_exact(given)[0]
    assert _explained(subject, given, exact)
    assert not _explained(subject, given, quantised(given[0], lambda x, m: by_division(x * (1 + 2**-22), m)))


def test_floors_and_casts_have_near_ties_at_whole_numbers() -> None:
    for expression in ("(x * 10 / 3).floor().to(torch.int32)", "(x * 10 / 3).to(torch.int32)"):
        subject = Subject(expression, "torch.rand(4, 64)")
        given = torch.rand(4, 64)
        given[0, 0] = 0.3 * 2  # 2.0000000x in float64 of a float32
        exact = subject.reference.run_exact([given])[0]
        other, wrong = exact.clone(), exact.clone()
        other[0, 0] = 1 if int(exact[0, 0]) == 2 else 2
        wrong[0, 0] = 3
        assert _explained(subject, [given], other)
        assert not _explained(subject, [given], wrong)


def test_quantisers_keep_their_laws() -> None:
    admission = Subject(QUANTISE, FEW_TIED).admit()
    assert {"own", "signed", "wide_range"} <= {item.law.partition("/")[0] for item in admission.laws}
    assert not any("whole numbers, as a quantiser" in note for note in admission.notes)


def test_no_place_in_a_table_is_moved() -> None:
    """One further may be beyond its end, which would end a GPU's context."""
    subject = Subject("torch.arange(8.0)[(x * 7.9999999).to(torch.int64)]", "torch.rand(4, 64)")
    given = torch.full((4, 64), 1.0)
    assert near_ties.neighbours(subject.reference, subject.cases.expect(laws.OWN, [given])) == [[]]


@pytest.mark.parametrize(
    ("expression", "turns"),
    [
        ("x.round()", True),
        ("(x * 3).to(torch.int32)", True),
        ("x.to(torch.bfloat16).float() * 2", False),
        ("x > 0", False),
        ("x[(x[:, 0] * 3).to(torch.int64)]", False),
    ],
)
def test_only_graphs_that_round_are_run_again(expression: str, turns: bool) -> None:
    assert near_ties.rounds(Subject(expression).reference.graph) is turns
