"""Names that nothing defines are found in a problem's text, and no others."""

from __future__ import annotations

import pytest

from cupilot.domain import problems
from cupilot.domain.undefined import undefined_names

FILE = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x):
        return {}


def get_inputs():
    return [torch.randn(3)]


def get_init_inputs():
    return []
"""
IN_LINE = "Line 9 of the problem's file: "


@pytest.mark.parametrize(
    ("expression", "sentences"),
    [
        ("torch.relu(x)", []),
        ("torch.rellu(x)", [f"{IN_LINE}PyTorch has no `torch.rellu`; did you mean relu?"]),
        ("F.softmx(x, -1)", [f"{IN_LINE}PyTorch has no `torch.nn.functional.softmx`; did you mean softmax?"]),
        ("nn.functional.gelu(torch.special.erf(x))", []),
        ("torch.relu(x) + y", [f"{IN_LINE}`y` is not defined anywhere in the file."]),
        ("torh.relu(x)", [f"{IN_LINE}`torh` is not defined anywhere in the file; did you mean torch?"]),
        ("[y + (z := y) for y in range(int(x[0]))], z", []),
        ("(lambda a: a + len(x))(x)", []),
        ("torch.relu(x", []),
    ],
)
def test_what_nothing_defines_is_named_with_its_line(expression: str, sentences: list[str]) -> None:
    assert undefined_names(FILE.format(expression)) == sentences


def test_files_that_import_everything_are_left_alone() -> None:
    assert undefined_names("from torch import *\n" + FILE.format("anything(x)")) == []


def test_built_in_problems_are_whole() -> None:
    assert [name for name in problems.names()[::5] if undefined_names(problems.load(name).source)] == []
