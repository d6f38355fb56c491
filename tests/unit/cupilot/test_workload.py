"""Workloads as a problem file declares them, and the file of each."""

from __future__ import annotations

import pytest

from cupilot.domain.errors import InvalidProblem
from cupilot.domain.problem import Problem, check_source
from cupilot.domain.workload import declared, shares, specialised

REST = """
class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2

def get_inputs():
    return [torch.rand(ROWS, COLS, dtype=DTYPE)]

def get_init_inputs():
    return []
"""
SOURCE = f"""import torch
ROWS = 64; COLS = (
    32 *
    2)
DTYPE: torch.dtype = torch.float32  # the file's own
WORKLOADS = [
    {{"name": "one row", "values": {{"ROWS": 1, "DTYPE": "float16"}}, "weight": 3}},
    {{"name": "wide", "values": {{"COLS": 4096}}}},
]
{REST}"""


def test_a_workload_is_the_file_with_its_constants_replaced() -> None:
    check_source(SOURCE)
    one_row, wide = declared(SOURCE)
    assert (one_row.name, one_row.weight, wide.weight) == ("one row", 3, 1)
    assert shares((one_row, wide)) == (0.75, 0.25)
    assert one_row.text == "ROWS 1, DTYPE float16"
    lines = specialised(SOURCE, one_row).splitlines()
    assert lines[1:3] == ["ROWS = 1; COLS = (", "    32 *"]
    assert lines[4] == "DTYPE: torch.dtype = torch.float16  # the file's own"
    assert specialised(SOURCE, wide).splitlines()[1] == "ROWS = 64; COLS = ("
    assert specialised(SOURCE, wide).splitlines()[2].strip() == "4096)"
    for workload in (one_row, wide):
        made = Problem(name="p", source=SOURCE).at(workload)
        assert made.workloads() == ()
        assert made.name == f"p [{workload.name}]"
        assert made.source.count("\n") == SOURCE.count("\n")
        compile(made.source, "p", "exec")


def test_a_problem_without_a_declaration_has_no_workloads() -> None:
    plain = SOURCE.replace("WORKLOADS", "SHAPES")
    assert Problem(name="p", source=plain).workloads() == ()
    assert Problem(name="p", source="WORKLOADS = [").workloads() == ()


@pytest.mark.parametrize(
    ("declaration", "said"),
    [
        ("[dict(name='x')]", "literals"),
        ("{'a': 1}", "list of at most"),
        ("[{'name': 'x'}]", "values: Field required"),
        ("[{'name': 'x', 'values': {'ROWS': 2}, 'weight': 0}]", "weight"),
        ("[{'name': 'x', 'values': {'ROWS': [2]}}]", "values.ROWS"),
        ("[{'name': 'x', 'values': {'DTYPE': 'float16()'}}]", "is not a dtype"),
        ("[{'name': 'x', 'values': {'DTYPE': 'float8'}}]", "float8 is no dtype"),
        ("[{'name': 'x', 'values': {'HEADS': 2}}]", "sets HEADS, which is no constant"),
        ("[{'name': 'x', 'values': {}}, {'name': 'x', 'values': {}}]", "two workloads"),
        ("[{'name': str(i), 'values': {}} for i in range(3)]", "literals"),
        (str([{"name": str(i), "values": {}} for i in range(65)]), "at most 64"),
    ],
)
def test_declarations_that_cannot_be_used(declaration: str, said: str) -> None:
    with pytest.raises(InvalidProblem, match=said) as refusal:
        check_source(f"import torch\nROWS = COLS = 1\nROWS = 4\nDTYPE = 0\nWORKLOADS = {declaration}\n{REST}")
    assert (refusal.value.where or "").startswith("problem.source")
