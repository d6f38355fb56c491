"""The Prophet's rules on what Nsight Compute counted on an H200: real evaluations from ``benchmarks/results``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from agents.interface import Attempt, Briefing, Diagnosis
from agents.playbook import agents
from agents.playbook.counters import Finding, counted
from benchmarks import evolved
from cupilot.domain.evaluation import Profile, ProfileSource
from cupilot.domain.problem import NumericsPolicy, Target
from cupilot.domain.roofline import Placement, Zone
from cupilot.domain.strategy import Strategy, TechniqueUse
from tests.unit.agents.playbook.briefings import briefing, placement
from tests.unit.agents.playbook.evaluations import attempt, audited
from tests.unit.agents.playbook.references import trace

RUN = "h200_fp32"
SOFTMAX = evolved.job(RUN, "softmax")
BANDWIDTH = SOFTMAX["peaks"]["bandwidth"]
"""Bytes a second, as measured in that run."""
THREE_READINGS = {
    "memory_throughput_pct": 46.9965, "compute_throughput_pct": 2.07328, "floor_pct": 46.9965,
    "operations_a_byte": 0.625, "registers": 32.0, "spill_bytes": 0.0, "static_shared_bytes": 512.0,
    "register_occupancy_pct": 100.0, "kernel_time_us": 6095.776, "dram_throughput_pct": 87.79,
    "sm_throughput_pct": 29.84, "achieved_occupancy_pct": 96.51, "issue_active_pct": 29.78, "l1_hit_pct": 0.0,
    "l2_hit_pct": 25.77, "load_efficiency_pct": 100.0, "store_efficiency_pct": 100.0, "tensor_pipe_pct": 0.41,
    "fma_pipe_pct": 16.22, "shared_bank_conflicts": 12369585.0, "dram_read_bytes": 19327601664.0,
    "dram_write_bytes": 6423679232.0, "local_load_instructions": 0.0, "local_store_instructions": 0.0,
    "branch_efficiency_pct": 100.0, "waves_per_unit": 15.52, "stall_long_scoreboard": 45.71,
    "stall_short_scoreboard": 0.44, "stall_barrier": 1.89, "stall_mio_throttle": 0.21, "stall_lg_throttle": 0.01,
    "stall_math_pipe_throttle": 0.09, "stall_no_instruction": 0.09, "stall_wait": 1.3,
    "load_sectors_per_request": 16.0, "l2_throughput_pct": 91.07, "store_sectors_per_request": 16.0,
    "l1_throughput_pct": 17.73, "l2_read_hit_pct": 0.0, "lsu_pipe_pct": 3.54, "tma_load_bytes": 0.0,
    "occupancy_pct": 100.0,
}  # fmt: skip
"""Counters of an H200 for a softmax of that run which reads its rows three times."""


def measured(name: str, brief: Briefing) -> tuple[Briefing, Attempt]:
    """A winner of the H200, in a job whose facts have the size that it was measured at."""
    return whole(brief, evolved.winner(RUN, name), evolved.job(RUN, name)["placement"])


def three_readings(brief: Briefing) -> tuple[Briefing, Attempt]:
    """The H200's softmax that keeps nothing of its rows."""
    counts = {"float_arithmetic": 435, "global_load": 15, "instructions": 1136, "shared_memory": 7, "shuffle": 30,
              "special_function": 62, "vector_load_128": 15, "vector_store_128": 5}  # fmt: skip
    profile = Profile(source=ProfileSource.MEASURED, metrics=THREE_READINGS)
    evaluation = audited({}, registers=32, spill_bytes=0, instructions=counts)
    evaluation = evaluation.model_copy(update={"profile": profile})
    uses = (TechniqueUse(id="vector_loads", parameters={"width": 4}), TechniqueUse(id="warp_shuffle_reduction"))
    strategy = Strategy(techniques=(*uses, TechniqueUse(id="loop_unrolling", parameters={"factor": 4})))
    return whole(brief, attempt(strategy, evaluation), SOFTMAX["placement"])


def whole(brief: Briefing, one: Attempt, placement: Mapping[str, Any]) -> tuple[Briefing, Attempt]:
    """The job with facts of the size that the kernel was measured at."""
    place = Placement.model_validate(placement)
    least = round(place.memory_floor_us * 1e-6 * BANDWIDTH)
    facts = brief.facts.model_copy(update={"compulsory_bytes": least})
    assert one.evaluation is not None
    placed = one.model_copy(update={"evaluation": one.evaluation.model_copy(update={"placement": place})})
    return brief.model_copy(update={"facts": facts, "placement": place}), placed


def rows() -> Briefing:
    facts, _ = trace(lambda x: torch.softmax(x, 1), {"x": torch.zeros(64, 8192)}, op_class="softmax")
    return briefing(facts, Target.CUDA)


def product(policy: NumericsPolicy = NumericsPolicy.FP32) -> Briefing:
    facts, _ = trace(torch.matmul, {"a": torch.ones(512, 512), "b": torch.ones(512, 512)}, policy=policy)
    return briefing(facts, Target.CUDA, Zone.COMPUTE)


def diagnosed(brief: Briefing, one: Attempt) -> Diagnosis:
    return agents().prophet.diagnose(brief, one)


def test_a_softmax_that_reads_its_rows_again_is_told_so_with_the_bytes() -> None:
    found = diagnosed(*three_readings(rows()))
    assert found.severity == "major"
    assert "2.00 times the least possible" in found.cause
    assert "25.8 GB, compulsory 12.9 GB" in found.evidence
    assert found.advice[0].technique in ("register_rows", "shared_rows", "cluster_rows")


def test_a_row_that_no_block_can_keep_is_kept_by_a_cluster_and_what_it_keeps_it_in_is_named() -> None:
    """At the size that it was measured at; on short rows register_rows or shared_rows would do."""
    facts, _ = trace(lambda x: torch.softmax(x, 1), {"x": torch.empty(2, 393_216)}, op_class="softmax")
    found = diagnosed(*three_readings(briefing(facts, Target.CUDA)))
    assert found.advice[0].technique == "cluster_rows"
    assert found.advice[0].reason.endswith("; together with shared_rows")
    older = briefing(facts, Target.CUDA)
    older = older.model_copy(update={"device": older.device.model_copy(update={"arch": "sm_80"})})
    assert "cluster_rows" not in [item.technique for item in diagnosed(*three_readings(older)).advice]


def test_a_product_short_of_the_arithmetic_roof_is_compute_bound_and_not_blamed_for_memory() -> None:
    found = diagnosed(*measured("matmul", product()))
    assert found.severity == "major"
    assert "arithmetic is the limit" in found.cause, "and not the 8 bytes that spill"
    assert "compute_throughput_pct = 66" in found.evidence
    assert "tensor_cores" not in [advice.technique for advice in found.advice], "the policy is fp32"
    everything = " ".join(advice.reason for advice in found.advice)
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


def told(metrics: dict[str, float], zone: Zone, brief: Briefing | None = None) -> list[Finding]:
    """All that counters show of a kernel in this zone."""
    one = attempt(Strategy(techniques=()), audited(metrics, placement(zone)))
    return [*counted(brief or rows(), one, zone)]


def only(metrics: dict[str, float], zone: Zone) -> Finding:
    [finding] = told(metrics, zone)
    return finding


def test_sectors_a_request_tell_scattered_loads_where_no_share_was_counted() -> None:
    found = only({"load_sectors_per_request": 32.0}, Zone.MEMORY)
    assert "scattered" in found.cause
    assert found.evidence == "load_sectors_per_request = 32"
    assert told({"load_sectors_per_request": 16.0}, Zone.MEMORY) == [], "16 bytes by each thread"
    whole = {"load_efficiency_pct": 94.0, "load_sectors_per_request": 17.6}
    assert told(whole, Zone.MEMORY) == [], "nearly all of what is fetched is used"


def test_narrow_loads_are_found_by_the_queue_they_fill() -> None:
    metrics = {"load_efficiency_pct": 100.0, "load_sectors_per_request": 4.0, "stall_lg_throttle": 9.0}
    found = only({**metrics, "stall_long_scoreboard": 21.0}, Zone.MEMORY)
    assert "narrow" in found.cause
    assert found.techniques[0] == "vector_loads"
    assert "stall_lg_throttle = 9.00" in found.evidence
    assert told({**metrics, "stall_long_scoreboard": 60.0}, Zone.MEMORY) == [], "the queue is not what is waited for"


def test_a_warp_groups_product_is_not_taken_for_one_on_cuda_cores() -> None:
    brief = product(NumericsPolicy.TF32)
    busy = {"tensor_pipe_pct": 2.5, "tensor_active_pct": 40.0}
    assert told(busy, Zone.COMPUTE, brief) == []
    [found] = told({"tensor_pipe_pct": 0.0, "tensor_active_pct": 0.0}, Zone.COMPUTE, brief)
    assert "tensor_active_pct = 0" in found.evidence


def test_conflicts_are_judged_by_the_wavefronts_that_they_add() -> None:
    metrics = {"shared_bank_conflicts": 1e9, "kernel_time_us": 1.0, "shared_wavefronts": 1000.0}
    found = only({**metrics, "shared_load_conflicts": 150.0, "shared_store_conflicts": 50.0}, Zone.COMPUTE)
    assert found.evidence.endswith("20 % of shared_wavefronts")
    assert found.techniques[0] == "bank_padding"
    few = {**metrics, "shared_load_conflicts": 10.0, "shared_store_conflicts": 0.0}
    assert told(few, Zone.COMPUTE) == [], "what global accesses collide in is not shared memory's"


def test_local_memory_divergence_and_an_idle_tail_are_named_with_their_numbers() -> None:
    assert "local memory" in only({"local_load_instructions": 8e4, "local_store_instructions": 0.0}, Zone.MEMORY).cause
    assert only({"branch_efficiency_pct": 55.0}, Zone.MIDDLE).evidence == "branch_efficiency_pct = 55"
    assert "48 %" in only({"waves_per_unit": 1.04}, Zone.COMPUTE).cause
    fine = {"local_load_instructions": 0.0, "local_store_instructions": 0.0, "branch_efficiency_pct": 100.0}
    for waves in (0.5, 1.0, 1.9, 20.1):
        assert told({**fine, "waves_per_unit": waves}, Zone.COMPUTE) == []


@pytest.mark.parametrize(
    ("reason", "zone", "technique"),
    [
        ("stall_barrier", Zone.MEMORY, "warp_per_row"),
        ("stall_long_scoreboard", Zone.COMPUTE, "async_copy"),
        ("stall_mio_throttle", Zone.COMPUTE, "register_blocking"),
        ("stall_short_scoreboard", Zone.MIDDLE, "register_blocking"),
        ("stall_math_pipe_throttle", Zone.MIDDLE, "tensor_cores"),
        ("stall_no_instruction", Zone.COMPUTE, "split_k"),
    ],
)
def test_what_warps_wait_for_most_is_a_cause(reason: str, zone: Zone, technique: str) -> None:
    found = only({reason: 6.0, "stall_wait": 2.0}, zone)
    assert found.severity == "minor"
    assert f"{reason} = 6.00" in found.evidence
    assert "of 8.00 stall cycles" in found.evidence
    assert found.techniques[0] == technique
    assert told({reason: 1.0, "stall_wait": 9.0}, zone) == []


def test_waiting_for_memory_is_no_news_where_memory_is_the_limit() -> None:
    assert told({"stall_long_scoreboard": 30.0, "stall_wait": 1.0}, Zone.MEMORY) == []
