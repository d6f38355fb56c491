"""Techniques that a device lacks are neither offered nor taken from an answer."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from agents.interface import Briefing
from agents.llm import answers, offered
from agents.llm.gateway import AnswerError
from cupilot.domain.problem import NumericsPolicy, Target
from cupilot.domain.technique import catalogue
from tests.unit.agents.playbook.briefings import briefing
from tests.unit.agents.playbook.references import trace

ROWS = (lambda x: torch.softmax(x, 1), {"x": torch.zeros(64, 65536)}, "softmax")
PRODUCT = (torch.mm, {"x": torch.zeros(512, 512), "y": torch.zeros(512, 512)}, "matmul")


def on(arch: str, problem: Any, policy: NumericsPolicy) -> Briefing:
    function, inputs, op_class = problem
    facts, _ = trace(function, inputs, policy=policy, op_class=op_class)
    about = briefing(facts, Target.CUDA)
    return about.model_copy(update={"device": about.device.model_copy(update={"arch": arch})})


@pytest.mark.parametrize(
    ("arch", "technique", "fits"),
    [
        ("sm_80", "cluster_rows", False),
        ("sm_90", "cluster_rows", True),
        ("sm_120", "cluster_rows", True),
        ("sm_80", "warpgroup_mma", False),
        ("sm_90", "warpgroup_mma", True),
        ("sm_100", "warpgroup_mma", False),
    ],
)
def test_a_technique_is_offered_where_its_device_has_it(arch: str, technique: str, fits: bool) -> None:
    rows = technique == "cluster_rows"
    about = on(arch, ROWS, NumericsPolicy.FP32) if rows else on(arch, PRODUCT, NumericsPolicy.TF32)
    assert (f"- {technique} (" in offered.techniques(catalogue(), about)) is fits


def test_matrix_instructions_are_offered_for_products_that_no_template_writes() -> None:
    text = offered.techniques(catalogue(), on("sm_90", PRODUCT, NumericsPolicy.HALF))
    assert all(f"- {technique} (" in text for technique in ("tensor_cores", "tma_loads", "warpgroup_mma"))


def names(about: Briefing) -> set[str]:
    return set(re.findall(r"^- (\w+) \(", offered.techniques(catalogue(), about), re.MULTILINE))


@pytest.mark.parametrize(
    ("problem", "techniques"),
    [
        (PRODUCT, {"threads", "simd", "cache_blocking", "micro_kernel", "packing"}),
        (ROWS, {"threads", "simd", "multiple_accumulators"}),
        ((lambda x: torch.softmax(x, 1), {"x": torch.zeros(2, 65536)}, "softmax"), {"split_rows"}),
    ],
    ids=["product", "rows", "few rows"],
)
def test_techniques_that_need_another_one_are_offered_beside_it(problem: Any, techniques: set[str]) -> None:
    function, inputs, op_class = problem
    facts, _ = trace(function, inputs, op_class=op_class)
    assert techniques <= names(briefing(facts, Target.CPU))


def test_tiles_are_offered_for_a_product_so_deep_that_its_sums_are_split() -> None:
    deep = (torch.mm, {"x": torch.zeros(64, 2**18), "y": torch.zeros(2**18, 64)}, "matmul")
    assert {"shared_tiling", "register_blocking", "split_k"} <= names(on("sm_90", deep, NumericsPolicy.FP32))


def test_what_requires_a_banned_technique_is_not_offered() -> None:
    about = on("sm_90", PRODUCT, NumericsPolicy.TF32)
    requiring = {"register_blocking", "bank_padding", "double_buffering", "async_copy", "tensor_cores", "warpgroup_mma"}
    assert requiring < names(about)
    assert not requiring & names(about.model_copy(update={"banned": ("shared_tiling",)}))


def test_a_strategy_that_the_device_lacks_is_refused() -> None:
    names = ("shared_tiling", "tensor_cores", "tma_loads", "warpgroup_mma")
    asked = {"techniques": [{"id": name} for name in names]}
    answers.proposed(asked, catalogue(), on("sm_90", PRODUCT, NumericsPolicy.TF32))
    with pytest.raises(AnswerError, match="warpgroup_mma: sm_100 lacks"):
        answers.proposed(asked, catalogue(), on("sm_100", PRODUCT, NumericsPolicy.TF32))
