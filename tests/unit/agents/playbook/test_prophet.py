"""The Prophet's rules: causes with evidence, severities, and advice that can be followed."""

from __future__ import annotations

import pytest
import torch

from agents.interface import Briefing, Diagnosis
from agents.playbook import agents
from agents.playbook.ladders import parse
from cupilot.domain.evaluation import Evaluation, FailureKind
from cupilot.domain.problem import NumericsPolicy, Target
from cupilot.domain.roofline import Zone
from cupilot.domain.strategy import Strategy
from cupilot.domain.technique import catalogue
from tests.unit.agents.playbook.briefings import briefing, placement
from tests.unit.agents.playbook.evaluations import attempt, audited, failed
from tests.unit.agents.playbook.references import trace

PROPHET = agents().prophet
PLAIN = Strategy(techniques=())


def softmax(target: Target = Target.CUDA) -> Briefing:
    facts, _ = trace(lambda x: torch.softmax(x, 1), {"x": torch.zeros(64, 1024)})
    return briefing(facts, target)


def product(policy: NumericsPolicy) -> Briefing:
    facts, _ = trace(torch.matmul, {"a": torch.zeros(512, 512), "b": torch.zeros(512, 512)}, policy=policy)
    return briefing(facts, Target.CUDA, Zone.COMPUTE)


def metrics(floor: float, memory: float, compute: float, **more: float) -> dict[str, float]:
    return {"floor_pct": floor, "memory_throughput_pct": memory, "compute_throughput_pct": compute, **more}


def diagnosed(brief: Briefing, evaluation: Evaluation | None, strategy: Strategy = PLAIN) -> Diagnosis:
    found = PROPHET.diagnose(brief, attempt(strategy, evaluation))
    assert found == PROPHET.diagnose(brief, attempt(strategy, evaluation))
    for advice in found.advice:
        technique = catalogue().get(advice.technique)
        assert technique is not None
        assert brief.target in technique.targets
        assert strategy.use(advice.technique) is None
        assert advice.reason
        assert any(change.metric in advice.expected for change in technique.expected)
    return found


@pytest.mark.parametrize(("floor", "severity"), [(96.0, "none"), (85.0, "minor"), (50.0, "major"), (20.0, "critical")])
def test_severity_follows_the_distance_from_the_floor(floor: float, severity: str) -> None:
    found = diagnosed(softmax(), audited(metrics(floor, floor, 1.0), placement()))
    assert found.severity == severity
    assert f"floor_pct = {floor:.0f}" in found.evidence
    assert "inferred" in found.evidence
    assert bool(found.advice) == (severity != "none")


def test_waiting_for_memory_and_being_limited_by_it_are_told_apart() -> None:
    waiting = diagnosed(softmax(), audited(metrics(30.0, 30.0, 1.0), placement()))
    limited = diagnosed(softmax(), audited(metrics(75.0, 85.0, 1.0), placement()))
    assert "waited for" in waiting.cause
    assert "bandwidth is the limit" in limited.cause
    assert waiting.advice[0].technique == "vector_loads"


def test_advice_leaves_out_what_the_strategy_has_and_what_cannot_be_applied() -> None:
    has = parse("vector_loads, register_rows: ")
    found = diagnosed(softmax(), audited(metrics(30.0, 30.0, 1.0), placement()), has)
    names = [item.technique for item in found.advice]
    assert names
    assert not {"vector_loads", "register_rows", "column_slices", "one_pass_moments", "thread_coarsening"} & set(names)
    odd, _ = trace(lambda x: torch.softmax(x, 1), {"x": torch.zeros(64, 1021)})
    found = diagnosed(briefing(odd, Target.CUDA), audited(metrics(30.0, 30.0, 1.0), placement()))
    assert "vector_loads" not in [item.technique for item in found.advice]


def test_spills_and_low_occupancy_come_before_the_roofline() -> None:
    slow = metrics(30.0, 30.0, 1.0, occupancy_pct=12.0)
    found = diagnosed(softmax(), audited(slow, placement(), spill_bytes=64, registers=255))
    assert "spill" in found.cause
    assert "spill_bytes = 64" in found.evidence
    found = diagnosed(softmax(), audited(slow, placement(), registers=255))
    assert "few warps" in found.cause
    assert "occupancy_pct = 12" in found.evidence


def test_compute_bound_products_are_sent_to_the_units_that_the_policy_allows() -> None:
    slow = audited(metrics(10.0, 2.0, 10.0), placement(Zone.COMPUTE))
    strict = [item.technique for item in diagnosed(product(NumericsPolicy.FP32), slow).advice]
    loose = [item.technique for item in diagnosed(product(NumericsPolicy.TF32), slow).advice]
    assert strict[0] == "register_blocking", "which brings shared tiles along"
    assert loose[0] == "tensor_cores"
    assert "tensor_cores" not in strict


def test_nothing_is_advised_that_would_replace_something_better() -> None:
    conflicts = {"shared_load_conflicts": 40.0, "shared_store_conflicts": 0.0, "shared_wavefronts": 100.0}
    slow = audited(metrics(14.0, 2.0, 14.0, **conflicts), placement(Zone.COMPUTE))
    has = parse("shared_tiling, tensor_cores, async_copy(stages=3): ")
    found = diagnosed(product(NumericsPolicy.TF32), slow, has)
    names = [item.technique for item in found.advice]
    assert names
    assert not {"register_blocking", "double_buffering"} & set(names)
    plain = diagnosed(product(NumericsPolicy.TF32), slow, parse("shared_tiling, double_buffering: "))
    assert [item.technique for item in plain.advice][:3] == ["tensor_cores", "register_blocking", "async_copy"]


def test_few_warps_are_no_fault_of_warpgroups_that_tensor_maps_feed() -> None:
    waiting = {"stall_barrier": 4.0, "stall_wait": 1.0}
    slow = audited(metrics(70.0, 12.0, 70.0, occupancy_pct=19.0, **waiting), placement(Zone.COMPUTE))
    feeds = "shared_tiling(tile_m=256, tile_k=32), tensor_cores, warpgroup_mma, tma_loads(stages=4): "
    found = diagnosed(product(NumericsPolicy.TF32), slow, parse(feeds))
    assert "few warps" not in found.cause
    assert not {"launch_bounds", "double_buffering", "async_copy"} & {item.technique for item in found.advice}
    assert "cluster_multicast" in {item.technique for item in found.advice}
    others = diagnosed(
        product(NumericsPolicy.TF32), slow, parse("shared_tiling(tile_k=32), tensor_cores, async_copy: ")
    )
    assert "few warps" in others.cause


def test_products_that_the_compiler_serialised_are_the_first_cause() -> None:
    reason = "wgmma.mma_async instructions are serialized due to insufficient register resources"
    log = f"ptxas info    : (C7512) Potential Performance Loss: {reason} for the function 'multiply'"
    slow = audited(metrics(70.0, 12.0, 70.0), placement(Zone.COMPUTE), log=log)
    found = diagnosed(product(NumericsPolicy.TF32), slow, parse("shared_tiling(tile_k=32), tensor_cores: "))
    assert found.cause == "each warpgroup product waits for the one before"
    assert found.evidence.startswith(reason)


def test_the_cpu_has_its_own_advice() -> None:
    found = diagnosed(softmax(Target.CPU), audited(metrics(10.0, 10.0, 1.0), placement()))
    assert [item.technique for item in found.advice][:2] == ["threads", "simd"]


def test_a_failure_is_the_diagnosis() -> None:
    found = diagnosed(softmax(), failed(FailureKind.WRONG_VALUE, "largest error 3.0 at [0, 5]"))
    assert found.severity == "critical"
    assert "wrong_value" in found.cause
    assert "largest error 3.0" in found.evidence
    assert found.advice == ()
    assert "does not run" in diagnosed(softmax(), failed(FailureKind.CRASH)).cause


def test_an_unmeasured_kernel_gets_first_steps() -> None:
    found = diagnosed(softmax(), None)
    assert found.evidence == "no evaluation"
    assert found.advice


def test_problems_without_template_are_diagnosed_too() -> None:
    facts, _ = trace(torch.i0, {"x": torch.zeros(64, 64)})
    found = diagnosed(briefing(facts, Target.CUDA), audited(metrics(30.0, 30.0, 1.0), placement()))
    assert found.severity == "critical"
    assert found.advice
