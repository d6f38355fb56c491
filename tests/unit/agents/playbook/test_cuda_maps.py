"""Maps on CUDA take packs of elements with wide loads, and compute bit for bit what single elements would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from agents.playbook.compiler.cuda import launches, maps
from agents.playbook.compiler.packs import Motion, Packs
from agents.playbook.compiler.program import rendered
from agents.playbook.compiler.terms import Term, compare, modulo, number, over, plus, times, variable
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import ProblemFacts, Target
from tests.unit.agents.playbook.emulation import run_cuda
from tests.unit.agents.playbook.nvrtc import compile_cuda, opcodes
from tests.unit.agents.playbook.operators_under_test import Case
from tests.unit.agents.playbook.references import trace
from tests.unit.agents.playbook.test_compiler import compare_all

pytestmark = pytest.mark.builds

BF16, F16 = torch.bfloat16, torch.float16


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))
    return values.to(dtype) if dtype.is_floating_point else (values * 3).to(dtype)


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def shuffled(x: torch.Tensor) -> torch.Tensor:
    return x.to(memory_format=torch.channels_last) * 2


def whole(*shape: int) -> torch.Tensor:
    return random(*shape, dtype=torch.int64).abs()


def of(function: Callable[..., Any], *tensors: torch.Tensor) -> Case:
    return Case(function, dict(zip("abc", tensors, strict=False)))


WIDE = {
    "bfloat16": (of(lambda a, b: F.gelu(a * b + 1), random(37, 64, dtype=BF16), random(64, dtype=BF16)), 8),
    "float16": (of(lambda a: torch.tanh(a) / 3, random(37, 24, dtype=F16)), 8),
    "float32": (of(lambda a, b: torch.relu(a - b), random(5, 7, 12), random(7, 1)), 4),
    "float64": (of(lambda a: a * a, random(5, 6, dtype=torch.float64)), 2),
    "int8": (of(lambda a: a * 2 - 1, random(6, 16, dtype=torch.int8)), 16),
    "mixed": (of(lambda a, b: a * b, random(6, 16, dtype=BF16), random(6, 16)), 4),
    "mask": (of(lambda a, m: a.masked_fill(m > 0, -1.0), random(6, 16), random(6, 16, dtype=torch.int8)), 4),
    "odd_rows": (of(lambda a, b: a * 2 + b, random(8, 7, 7), random(8, 7, 7)), 4),
    "few_factors": (of(lambda a: a[:, :4] + a[:, 4:], random(6, 8, dtype=BF16)), 4),
    "gate": (of(lambda a: F.silu(a.chunk(2, -1)[0]) * a.chunk(2, -1)[1], random(6, 48, dtype=BF16)), 8),
    "rotary": (of(rotated, random(3, 5, 16), random(5, 16), random(5, 16)), 4),
    "bias_of_odd_planes": (of(lambda a, b: a + b, random(4, 3, 5, 5), random(3, 1, 1)), 4),
    "embedding": (of(lambda t, i: F.embedding(i, t), random(9, 12), whole(4, 3)), 4),
    "cat": (of(lambda a, b: torch.cat([a, b * 2], 1), random(5, 8), random(5, 4)), 4),
    "triangle": (of(torch.tril, random(12, 12)), 4),
    "pad": (of(lambda a: F.pad(a, (4, 8, 1, 2)), random(6, 8)), 4),
    "positions": (of(lambda a: a + torch.arange(12) / 7, random(6, 12)), 4),
    "channels_last": (of(shuffled, random(2, 8, 3, 5).to(memory_format=torch.channels_last)), 4),
    "created": (of(lambda a: torch.ones(3, 8, dtype=a.dtype) * 2, random(3)), 4),
    "two_outputs": (of(lambda a, b: (a + b, torch.relu(a + b) * a), random(6, 12), random(6, 12)), 4),
}
"""Cases, and the elements of a pack."""


def kernel_of(case: Case) -> tuple[Kernel, ProblemFacts]:
    facts, _ = trace(case.function, case.inputs, case.parameters)
    source, plan = rendered(facts, Target.CUDA)
    return Kernel(target=Target.CUDA, source=source, plan=plan), facts


@pytest.mark.parametrize("name", list(WIDE))
def test_packs_compute_the_bits_of_single_elements(name: str, builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case, width = WIDE[name]
    kernel, facts = kernel_of(case)
    assert f"{width}> o0;" in kernel.source
    assert compile_cuda(kernel, facts) == ""
    results = run_cuda(kernel, facts, case.inputs, builds)
    compare_all(results, case)
    monkeypatch.setattr(maps, "width_of", lambda *_: 1)
    single, facts = kernel_of(case)
    assert "pack<" not in single.source.split("\n\n")[-1]
    for packed, own in zip(results, run_cuda(single, facts, case.inputs, builds), strict=True):
        assert torch.equal(packed.view(torch.uint8), own.view(torch.uint8))


@pytest.mark.parametrize("name", ["bfloat16", "float32", "gate", "rotary"])
def test_packs_of_large_maps_are_two_in_flight(name: str, builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "MANY_BLOCKS", 0)
    case, _ = WIDE[name]
    kernel, facts = kernel_of(case)
    assert "u < 2" in kernel.source
    assert compile_cuda(kernel, facts) == ""
    compare_all(run_cuda(kernel, facts, case.inputs, builds), case)


def test_wide_loads_are_in_the_machine_code() -> None:
    case = of(lambda a, b: torch.relu(a * b), random(512, 4096, dtype=BF16), random(4096, dtype=BF16))
    found = opcodes(*kernel_of(case))
    assert {name for name in found if name.startswith(("LDG", "STG"))} == {"LDG.E.128.CONSTANT", "STG.E.128"}


@pytest.mark.parametrize(
    "case",
    [
        of(lambda a: a + 1, random(5, 7)),
        of(lambda a: a.flip(1), random(6, 8)),
        of(lambda a: a[:, 1:9] * 2, random(6, 12)),
        of(lambda a: a.repeat_interleave(2, 1), random(6, 8)),
    ],
)
def test_elements_that_lie_apart_or_askew_are_loaded_one_by_one(case: Case, builds: Path) -> None:
    kernel, facts = kernel_of(case)
    assert "fetch<" not in kernel.source.split("\n\n")[-1]
    compare_all(run_cuda(kernel, facts, case.inputs, builds), case)


F64, I64 = torch.float64, torch.int64
TRANSPOSED = {
    "ragged": of(lambda a, b: a.T.contiguous() + b.contiguous(), random(33, 41), random(41, 33)),
    "whole": of(lambda a: a.T.contiguous() * 2, random(64, 32)),
    "result_of_other_strides": of(lambda a, b: a.T + b, random(33, 41), random(41, 33)),
    "batches": of(lambda a: torch.relu(a.transpose(1, 2)).contiguous(), random(3, 9, 40)),
    "small_items": of(lambda a: a.transpose(0, 1).contiguous() + 1, random(70, 130, dtype=BF16)),
    "half": of(lambda a: a.transpose(0, 1).contiguous() + 1, random(12, 34, dtype=F16)),
    "to_channels_last": of(lambda a: a.permute(0, 2, 3, 1).contiguous() * 2, random(2, 12, 5, 7)),
    "from_channels_last": of(
        lambda a, b: a.permute(0, 3, 1, 2).contiguous() * b, random(2, 5, 7, 12), random(12, 1, 1)
    ),
    "heads": of(lambda a: a.permute(0, 2, 3, 1).contiguous(), random(2, 9, 3, 8)),
    "two": of(lambda a, b: (a.T * b.T).contiguous() / 3, random(33, 12), random(33, 12, dtype=BF16)),
    "doubles": of(lambda a: a.T.contiguous() * a.T.contiguous(), random(33, 12, dtype=F64)),
    "integers": of(lambda a: a.T.contiguous() + 1, random(33, 12, dtype=I64)),
    "padded": of(lambda a: F.pad(a, (3, 2, 1, 0)).T.contiguous(), random(30, 11)),
    "row_by_index": of(lambda a, i: a.T.contiguous() + a[i].T.contiguous(), random(9, 12), whole(9)),
    "symmetric": of(lambda a: a + a.T.contiguous(), random(40, 40)),
}


@pytest.mark.parametrize("name", list(TRANSPOSED))
def test_tiles_compute_the_bits_of_single_elements(name: str, builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = TRANSPOSED[name]
    kernel, facts = kernel_of(case)
    assert "__shared__" in kernel.source
    assert compile_cuda(kernel, facts) == ""
    results = run_cuda(kernel, facts, case.inputs, builds)
    compare_all(results, case)
    monkeypatch.setattr(launches, "transpose_of", lambda _: None)
    single, facts = kernel_of(case)
    assert "__shared__" not in single.source
    for tiled, own in zip(results, run_cuda(single, facts, case.inputs, builds), strict=True):
        assert torch.equal(tiled.view(torch.uint8), own.view(torch.uint8))


@pytest.mark.parametrize(
    "case",
    [
        of(lambda a: a.permute(0, 2, 1, 3).contiguous(), random(2, 8, 8, 8)),
        of(lambda a: a.T.contiguous(), random(40, 3)),
        of(lambda a: a.flip(1), random(16, 16)),
    ],
)
def test_maps_that_read_along_the_axis_that_they_write_need_no_tile(case: Case) -> None:
    kernel, _ = kernel_of(case)
    assert "__shared__" not in kernel.source


def test_motion_of_index_terms_is_that_of_their_values() -> None:
    """Against the values of every pack."""
    j = variable("j", 96)
    terms = [
        *(over(j, divisor) for divisor in (2, 3, 4, 8, 12)),
        *(modulo(j, divisor) for divisor in (3, 4, 6, 8, 24)),
        over(plus(j, number(2)), 4),
        modulo(plus(times(j, 2), number(4)), 16),
        over(modulo(j, 24), 8),
        modulo(over(j, 4), 3),
        plus(times(over(j, 12), 20), modulo(j, 12)),
        *(
            compare(op, modulo(j, 24), number(bound))
            for op in ("lt", "le", "gt", "ge", "eq")
            for bound in (7, 8, 9, 11)
        ),
        *(compare(op, modulo(j, 12), over(j, 12)) for op in ("lt", "ge")),
        *(compare(op, times(modulo(j, 24), -1), number(-8)) for op in ("lt", "le", "gt", "ge")),
    ]
    for width in (2, 4, 8):
        packs = Packs(j, width)
        for term in terms:
            check(packs.motion(term), [value(term, at) for at in range(96)], width)


def check(motion: Motion, values: list[int], width: int) -> None:
    if motion.step is None:
        return
    for first in range(0, len(values), width):
        pack = values[first : first + width]
        assert pack == [pack[0] + motion.step * k for k in range(width)]
        if isinstance(pack[0], bool):
            continue
        offset = pack[0] - motion.rest
        assert offset % motion.modulus == 0 if motion.modulus else offset == 0


def value(term: Term, at: int) -> int:
    operators = {
        "add": lambda a, b: a + b, "mul": lambda a, b: a * b, "div": lambda a, b: a // b, "mod": lambda a, b: a % b,
        "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
        "eq": lambda a, b: a == b,
    }  # fmt: skip
    if term.op == "index":
        return at
    if term.op == "const":
        return term.data
    return operators[term.op](*(value(arg, at) for arg in term.args))


WIDE_TRANSPOSES = {
    "matrices": of(lambda a: a.transpose(1, 2).contiguous(), random(2, 72, 136, dtype=BF16)),
    "two_of_them": of(
        lambda a, b: torch.relu(a.T + b.T).contiguous(), random(64, 64, dtype=F16), random(64, 64, dtype=F16)
    ),
    "by_column": of(lambda a: (a.T * torch.arange(80)).contiguous(), random(80, 64, dtype=BF16)),
}


@pytest.mark.parametrize("name", list(WIDE_TRANSPOSES))
def test_transposes_of_16_bits_read_and_write_packs(name: str, builds: Path) -> None:
    case = WIDE_TRANSPOSES[name]
    kernel, facts = kernel_of(case)
    assert "fetch<8>" in kernel.source
    assert compile_cuda(kernel, facts) == ""
    compare_all(run_cuda(kernel, facts, case.inputs, builds), case)
