"""Problem files are read, never run; tensors know their extent."""

from __future__ import annotations

from pathlib import Path

import pytest

from cupilot.domain.errors import InvalidProblem
from cupilot.domain.problem import MAX_SOURCE_BYTES, DType, NumericsPolicy, Problem, Role, TensorSpec, check_source
from tests.unit.cupilot.factories import facts, tensor

GOOD = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x
def get_inputs():
    return [torch.ones(3)]
def get_init_inputs():
    return []
"""


def test_a_problem_file_is_accepted_without_running_it(tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    check_source(GOOD + f"\nopen({str(trace)!r}, 'w')\n")
    assert not trace.exists()


@pytest.mark.parametrize(
    ("source", "message", "where"),
    [
        ("def f(:\n", "not valid Python: line 1", "problem.source:1"),
        (GOOD + "x = (\n", "not valid Python", "problem.source:10"),
        (GOOD + "from __future__ import annotations\n", "not valid Python: line 10", "problem.source:10"),
        ("(" * 5000, "not valid Python", "problem.source:1"),
        (GOOD.replace("get_inputs", "inputs"), "does not define get_inputs", "problem.source"),
        ("x = 1", "Model, get_inputs, get_init_inputs", "problem.source"),
        (GOOD.replace("class Model(torch.nn.Module)", "def Model()"), "Model must be a class", "problem.source:3"),
        (GOOD.replace("def forward", "def backward"), "no forward method", "problem.source:3"),
        (GOOD.replace("def get_inputs()", "class get_inputs"), "get_inputs must be a function", "problem.source:6"),
        (GOOD + "#" * MAX_SOURCE_BYTES, "at most 262144", "problem.source"),
        (GOOD + "\0", "NUL byte", "problem.source"),
        (GOOD.replace("class Model", "if True:\n  class Other:\n    pass\nclass NotModel"), "Model", "problem.source"),
    ],
)
def test_what_cannot_be_a_problem_is_refused_with_its_place(source: str, message: str, where: str) -> None:
    with pytest.raises(InvalidProblem, match=message) as caught:
        check_source(source)
    assert caught.value.where == where
    assert (caught.value.code, caught.value.status) == ("invalid_problem", 422)


def test_a_model_may_inherit_its_forward_method() -> None:
    base = GOOD.replace("class Model", "class Base")
    check_source(base + "class Model(Base):\n    pass\n")
    check_source(GOOD.replace("torch.nn.Module", "torch.nn.Linear").replace("def forward", "def backward"))


def test_size_is_counted_in_bytes_not_characters() -> None:
    with pytest.raises(InvalidProblem, match="bytes"):
        check_source(GOOD + "#" + "é" * (MAX_SOURCE_BYTES // 2))


def test_a_problem_is_its_source_and_policy_not_its_name() -> None:
    one = Problem(name="a", source=GOOD)
    assert one.content_hash() == Problem(name="b", source=GOOD).content_hash()
    assert one.content_hash() != Problem(name="a", source=GOOD, policy=NumericsPolicy.HALF).content_hash()
    assert one.content_hash() != Problem(name="a", source=GOOD + "#").content_hash()


def test_contiguous_tensor() -> None:
    spec = tensor("x", 4, 5, 6)
    assert (spec.numel, spec.nbytes, spec.storage_elements, spec.contiguous) == (120, 480, 120, True)


@pytest.mark.parametrize(
    ("shape", "strides", "elements", "contiguous"),
    [
        ((5, 4), (1, 5), 20, False),
        ((4, 5), (8, 1), 29, False),
        ((4, 5), (0, 1), 5, False),
        ((1, 5), (99, 1), 5, True),
        ((0, 5), (5, 1), 0, True),
        ((), (), 1, True),
    ],
)
def test_strides_decide_the_length_of_the_buffer(
    shape: tuple[int, ...], strides: tuple[int, ...], elements: int, contiguous: bool
) -> None:
    spec = TensorSpec(name="x", role=Role.INPUT, dtype=DType.BFLOAT16, shape=shape, strides=strides)
    assert spec.storage_elements == elements
    assert spec.contiguous is contiguous


def test_every_dtype_has_a_size() -> None:
    assert {dtype.itemsize for dtype in DType} == {1, 2, 4, 8}


def test_facts_find_tensors_by_name_and_role() -> None:
    found = facts(tensor("x", 2), tensor("w", 3, role=Role.PARAMETER), tensor("out", 2, role=Role.OUTPUT))
    assert found.tensor("w").shape == (3,)
    assert [spec.name for spec in found.with_role(Role.INPUT, Role.OUTPUT)] == ["x", "out"]
    with pytest.raises(KeyError):
        found.tensor("y")
