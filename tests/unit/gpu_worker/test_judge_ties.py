"""Answers that turn on the order of equal elements: found in preparation, and no kernel is refused for its order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from cupilot.domain.evaluation import FailureKind
from gpu_worker.judge import laws, ties
from tests.unit.gpu_worker.test_judge_measuring import Subject, audit

TOP_P = """(lambda values, order: x.masked_fill(~torch.zeros_like(x, dtype=torch.bool).scatter(
            1, order, values.softmax(1).cumsum(1) < 0.7), -50.0))(*x.sort(dim=1, descending=True))"""
FEW_VALUES = "(2 * torch.randn(64, 256)).bfloat16().float()"


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def top_p(x: torch.Tensor, share: float = 0.7) -> torch.Tensor:
    """The first of equal elements first."""
    values, order = x.double().sort(dim=1, descending=True, stable=True)
    keep = torch.zeros_like(x, dtype=torch.bool).scatter(1, order, values.softmax(1).cumsum(1) < share)
    return x.masked_fill(~keep, -50.0)


def first_first(given: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
    outputs[0].copy_(top_p(given[0]))


def last_first(given: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
    outputs[0].copy_(top_p(given[0].flip(1)).flip(1))


def too_few(given: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
    outputs[0].copy_(top_p(given[0], 0.65))


def test_a_law_whose_answer_turns_on_ties_is_left_out() -> None:
    admission = Subject(TOP_P, "2 * torch.randn(64, 256)").admit()
    names = [item.law for item in admission.laws]
    assert names[0] == laws.OWN
    assert "constant_rows" not in names
    assert f"law constant_rows left out: {ties.REASON}" in admission.notes


@pytest.mark.parametrize("kernel", [first_first, last_first])
def test_on_own_inputs_with_ties_either_order_is_right(kernel: object) -> None:
    subject = Subject(TOP_P, FEW_VALUES)
    assert any(note.startswith(f"law own: {ties.REASON}") for note in subject.admit().notes)
    assert audit(subject, kernel) is None  # type: ignore[arg-type]


def test_what_no_order_of_ties_explains_is_wrong() -> None:
    failure = audit(Subject(TOP_P, FEW_VALUES), too_few)
    assert failure is not None
    assert failure.kind is FailureKind.WRONG_VALUE


@pytest.mark.parametrize("expression", [
    "x.sort(1).values",
    "tuple(x.topk(4))",
    "x.argmax(1)",
    "x.gather(1, x.sort(dim=1, stable=True).indices).cumsum(1)",
    "x.cumsum(1)",
])  # fmt: skip
def test_what_does_not_turn_on_ties_keeps_its_laws(expression: str) -> None:
    subject = Subject(expression, "torch.randint(0, 9, (64, 32)).float()")
    assert not any(ties.REASON in note for note in subject.admit().notes)


@pytest.mark.parametrize(("expression", "first", "last"), [
    ("x.argmax(1)", [1], [2]),
    ("x.argmax()", [1], [2]),
    ("x.min(1)[1]", [0], [3]),
    ("x.sort(dim=1, descending=True)[1]", [1, 2, 0, 3], [2, 1, 3, 0]),
    ("x.topk(3, largest=False)[1]", [0, 3, 1], [3, 0, 2]),
    ("x.argsort(dim=1, stable=True)", [0, 3, 1, 2], [0, 3, 1, 2]),
])  # fmt: skip
def test_equal_elements_come_in_the_order_that_is_asked_for(expression: str, first: list[int], last: list[int]) -> None:
    subject = Subject(expression, "torch.randn(1, 4)")
    given = [torch.tensor([[0.0, 1.0, 1.0, 0.0]])]
    for order, wanted in zip(ties.ORDERS, (first, last), strict=True):
        (index,) = subject.reference.run_exact(given, ties=order)
        assert index.flatten().tolist() == wanted
