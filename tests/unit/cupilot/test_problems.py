"""The built-in problems: every file is a problem, small sizes are small, full sizes are the published ones."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cupilot.domain import problems
from cupilot.domain.errors import NotFound
from cupilot.domain.problem import NumericsPolicy, Problem, check_source
from cupilot.domain.problems import HALF_TYPES

if TYPE_CHECKING:
    import torch

LEVEL1 = list(csv.DictReader(Path(__file__).with_name("level1.csv").read_text().splitlines()))
"""KernelBench's level 1: shapes of inputs, parameters and output of each operator; float32 where nothing is said."""

ONE_TYPE = {"half_gelu_bias", "half_rms_norm", "matmul_scalar"}
VARIANTS = [f"{name}_{dtype}" for name in problems.names() if name not in ONE_TYPE for dtype in HALF_TYPES]


def test_there_is_one_for_every_operator_the_playbook_promises() -> None:
    promised = {"softmax", "log_softmax", "layer_norm", "rms_norm", "l2_norm", "l1_norm", "gelu", "relu", "swish"}
    promised |= {
        "sum_reduction",
        "mean_reduction",
        "max_reduction",
        "argmax",
        "matmul",
        "matmul_large_k",
        "batched_matmul",
    }
    assert promised <= set(problems.names())
    assert sorted(name for suite in problems.SUITES for name in problems.names(suite)) == problems.names()
    assert len(problems.names("fusion") + problems.names("inference")) >= 60


def test_a_problem_is_built_in_by_its_text_and_not_by_its_name() -> None:
    for size, policy in (("small", NumericsPolicy.FP32), ("full", NumericsPolicy.HALF)):
        shipped = problems.load("softmax", size=size, policy=policy)  # type: ignore[arg-type]
        assert problems.name_of(shipped.content_hash()) == "softmax"
        assert problems.name_of(Problem(**{**shipped.model_dump(), "name": "zeus"}).content_hash()) == "softmax"
        other = Problem(name="softmax", source=shipped.source + "\n", policy=policy)
        assert problems.name_of(other.content_hash()) is None
    half = problems.load("softmax_bfloat16", policy=NumericsPolicy.HALF)
    assert problems.name_of(half.content_hash()) == half.name == "softmax_bfloat16"
    assert set(problems.hashes().values()) - set(problems.names()) == set(VARIANTS)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_type_at_the_end_of_a_name_is_that_of_parameters_and_inputs(name: str) -> None:
    torch = pytest.importorskip("torch")
    source = problems.load(name).source
    check_source(source)
    with torch.device("meta"):
        model, inputs = _run(source)
    tensors = [*inputs, *model.parameters(), *model.buffers()]
    types = {str(item.dtype) for item in tensors if item.is_floating_point()}
    assert types == {f"torch.{name.rpartition('_')[2]}"}


@pytest.mark.parametrize("name", ["softmax_float32", "softmax_", "_bfloat16", "half_rms_norm_bfloat16", "zeus_float16"])
def test_only_half_precision_types_make_a_name(name: str) -> None:
    assert not problems.is_name(name)
    with pytest.raises(NotFound):
        problems.load(name)


@pytest.mark.parametrize("name", problems.names())
def test_source_is_a_problem_at_both_sizes_and_needs_nothing_but_torch(name: str) -> None:
    for size in ("small", "full"):
        source = problems.load(name, size=size).source
        check_source(source)
        assert "small:" not in source
        assert set(re.findall(r"^(?:import|from) (\w+)", source, re.MULTILINE)) <= {"torch", "math"}


def test_small_replaces_the_marked_sizes_only() -> None:
    small, full = problems.load("softmax").source, problems.load("softmax", size="full").source
    assert "ROWS = 2048\nCOLS = 8192\n" in small
    assert "ROWS = 4096\nCOLS = 393216\n" in full
    assert small.replace("2048", "4096").replace("8192", "393216") == full


def test_the_policy_is_the_callers() -> None:
    problem = problems.load("matmul", policy=NumericsPolicy.TF32)
    assert (problem.name, problem.policy) == ("matmul", NumericsPolicy.TF32)
    assert problem.content_hash() != problems.load("matmul").content_hash()


def test_an_unknown_name_says_what_there_is() -> None:
    with pytest.raises(NotFound) as caught:
        problems.load("sofmax")
    assert caught.value.hint is not None
    assert "softmax" in caught.value.hint


def test_all_hundred_operators_of_level_1_are_there() -> None:
    numbers = {}
    for name in problems.names("level1"):
        said = re.search(r"^KernelBench level 1, number (\d+)\.$", problems.load(name).source, re.MULTILINE)
        if said:
            numbers[int(said[1])] = name
    assert numbers == {int(facts["number"]): facts["name"] for facts in LEVEL1}
    assert sorted(numbers) == list(range(1, 101))


@pytest.mark.parametrize("facts", LEVEL1, ids=lambda facts: facts["name"])
def test_a_full_size_is_the_published_one(facts: dict[str, str]) -> None:
    """On the meta device, which knows shapes and no values, so that gigabytes cost nothing."""
    torch = pytest.importorskip("torch")
    with torch.device("meta"), torch.no_grad():
        model, inputs = _run(problems.load(facts["name"], size="full").source)
        output = model(*inputs)
        state = [(name, tensor) for name, tensor in model.named_parameters()]
    assert [_shape(item) for item in inputs] == facts["inputs"].split()
    assert [f"{name}={_shape(tensor)}" for name, tensor in state] == facts["params"].split()
    assert _shape(output) == facts["output"]


@pytest.mark.parametrize("name", problems.names())
def test_the_small_size_runs_and_uses_every_input(name: str) -> None:
    """Run as a user would; these files are ours, so this is the one place outside the sandbox where that is right."""
    torch = pytest.importorskip("torch")
    shrunk = re.sub(
        r"^([A-Z]+ = )(\d+)$", lambda m: f"{m[1]}{min(int(m[2]), 32)}", problems.load(name).source, flags=re.M
    )
    torch.manual_seed(0)
    model, inputs = _run(shrunk)
    with torch.no_grad():
        output = model(*inputs)
        assert torch.isfinite(output.double()).all()
        for index in range(len(inputs)):
            changed = [_changed(one) if position == index else one for position, one in enumerate(inputs)]
            assert not torch.equal(model(*changed), output)


def _changed(value: torch.Tensor | float) -> torch.Tensor | float:
    if isinstance(value, float):
        return value + 1
    return value.roll(1, -1) * 3 + 1 if value.is_floating_point() else value.flip(0)


def _run(source: str) -> tuple[torch.nn.Module, list[Any]]:
    namespace: dict[str, Any] = {"__name__": "problem"}
    exec(compile(source, "problem", "exec"), namespace)
    return namespace["Model"](*namespace["get_init_inputs"]()), namespace["get_inputs"]()


def _shape(value: torch.Tensor | float) -> str:
    """As the facts write it: ``128x512``, ``32768:int64``, ``scalar:float32``, ``scalar(3.14)``."""
    if isinstance(value, float):
        return f"scalar({value})"
    dtype = str(value.dtype).removeprefix("torch.")
    size = "x".join(str(side) for side in value.shape)
    return size or "scalar" if dtype == "float32" else f"{size}:{dtype}"
