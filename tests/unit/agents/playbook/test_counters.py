"""The Prophet's rules on what Nsight Compute counted on an H200: real evaluations from ``benchmarks/results``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from agents.interface import Attempt, Briefing, Diagnosis
from agents.playbook import agents
from cupilot.evaluation import Evaluation
from cupilot.kernel import Kernel
from cupilot.problem import NumericsPolicy, Target
from cupilot.roofline import Zone
from cupilot.strategy import Strategy
from tests.unit.agents.playbook.briefings import briefing, placement
from tests.unit.agents.playbook.evaluations import attempt, audited
from tests.unit.agents.playbook.references import trace

RESULTS = Path(__file__).parents[4] / "benchmarks/results/h200_fp32"


def measured(name: str, brief: Briefing) -> tuple[Briefing, Attempt]:
    """A winner of the H200, in a job whose facts have the size that it was measured at."""
    folder = RESULTS / name
    evaluation = Evaluation.model_validate_json((folder / "evaluation.json").read_bytes())
    strategy = Strategy.model_validate_json((folder / "strategy.json").read_bytes())
    kernel = Kernel(
        target=Target.CUDA,
        source=(folder / "kernel.cu").read_text(encoding="utf-8"),
        plan=json.loads((folder / "plan.json").read_text(encoding="utf-8")),
    )
    place = evaluation.placement
    assert place is not None
    least = round(place.memory_floor_us * 1e-6 * 4.519e12)
    facts = brief.facts.model_copy(update={"compulsory_bytes": least})
    whole = brief.model_copy(update={"facts": facts, "placement": place})
    return whole, Attempt(strategy=strategy, kernel=kernel, evaluation=evaluation)


def rows() -> Briefing:
    facts, _ = trace(lambda x: torch.softmax(x, 1), {"x": torch.zeros(64, 8192)}, op_class="softmax")
    return briefing(facts, Target.CUDA)


def product(policy: NumericsPolicy = NumericsPolicy.FP32) -> Briefing:
    facts, _ = trace(torch.matmul, {"a": torch.ones(512, 512), "b": torch.ones(512, 512)}, policy=policy)
    return briefing(facts, Target.CUDA, Zone.COMPUTE)


def diagnosed(brief: Briefing, one: Attempt) -> Diagnosis:
    return agents().prophet.diagnose(brief, one)


def test_a_softmax_that_reads_its_rows_twice_is_told_so_with_the_bytes() -> None:
    found = diagnosed(*measured("softmax", rows()))
    assert found.severity == "major"
    assert "1.50 times the least possible" in found.cause
    assert "19.3 GB, compulsory 12.9 GB" in found.evidence
    assert found.advice[0].technique in ("register_rows", "shared_rows", "cluster_rows")


def test_a_product_short_of_the_arithmetic_roof_is_compute_bound_and_not_blamed_for_memory() -> None:
    found = diagnosed(*measured("matmul", product()))
    assert found.severity == "major"
    assert "arithmetic rate" in found.cause
    assert "compute_throughput_pct = 59" in found.evidence
    assert "tensor_cores" not in [one.technique for one in found.advice], "the policy is fp32"
    everything = " ".join(one.reason for one in found.advice)
    assert "memory traffic" not in everything


@pytest.mark.parametrize("name", ["gelu", "layer_norm_rows"])
def test_a_kernel_near_the_memory_roof_has_only_minor_faults(name: str) -> None:
    found = diagnosed(*measured(name, rows()))
    assert found.severity == "minor"
    assert "memory bandwidth is the limit" in found.cause


def test_idle_tensor_cores_are_the_first_thing_to_mend_between_the_ridges_and_above() -> None:
    metrics = {
        "floor_pct": 12.0,
        "memory_throughput_pct": 20.0,
        "compute_throughput_pct": 12.0,
        "tensor_pipe_pct": 0.0,
        "stall_barrier": 4.0,
        "stall_long_scoreboard": 6.0,
        "load_efficiency_pct": 25.0,
    }
    for zone in (Zone.MIDDLE, Zone.COMPUTE):
        brief = product(NumericsPolicy.TF32)
        found = diagnosed(brief, attempt(Strategy(techniques=()), audited(metrics, placement(zone))))
        assert found.severity == "critical"
        assert "although the numerics policy allows tensor cores" in found.cause
        assert found.advice[0].technique == "tensor_cores"
    strict = diagnosed(product(), attempt(Strategy(techniques=()), audited(metrics, placement(Zone.COMPUTE))))
    assert "tensor" not in strict.cause


def test_scattered_loads_conflicts_and_barriers_are_found() -> None:
    metrics = {
        "floor_pct": 70.0,
        "memory_throughput_pct": 70.0,
        "compute_throughput_pct": 2.0,
        "load_efficiency_pct": 12.5,
        "shared_bank_conflicts": 132 * 1000.0 * 500,
        "kernel_time_us": 1000.0,
        "stall_barrier": 6.0,
        "stall_wait": 2.0,
    }
    found = diagnosed(rows(), attempt(Strategy(techniques=()), audited(metrics, placement())))
    assert "scattered" in found.cause
    assert "load_efficiency_pct = 12" in found.evidence
