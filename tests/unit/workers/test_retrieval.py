"""Strategies of the pool that a job cannot apply."""

from __future__ import annotations

import pytest
import torch

from cupilot.domain.job import AgentKind
from cupilot.domain.problem import Target
from tests.unit.agents.playbook.briefings import briefing
from tests.unit.agents.playbook.references import trace
from tests.unit.storage.references import facts, strategy
from workers.retrieval import objection


@pytest.mark.parametrize(
    ("technique", "arch", "reason"),
    [
        ("tma_loads", "sm_80", "sm_80 lacks what tma_loads needs"),
        ("warpgroup_mma", "sm_100", "sm_100 lacks what warpgroup_mma needs"),
        ("vector_loads", "sm_80", None),
        ("fast_exp", "sm_90", "fast_exp is banned from the job"),
    ],
)
def test_what_the_device_lacks_or_a_person_banned_is_no_advice(technique: str, arch: str, reason: str | None) -> None:
    job = briefing(facts("softmax"), Target.CUDA)
    device = job.device.model_copy(update={"arch": arch})
    job = job.model_copy(update={"device": device, "banned": ("fast_exp",)})
    assert objection(job, AgentKind.LLM, strategy(technique)) == reason


def test_what_no_template_renders_is_advice_for_a_model() -> None:
    softmax, _ = trace(lambda x: torch.softmax(x, 1), {"x": torch.zeros(128, 4096)}, op_class="softmax")
    job = briefing(softmax, Target.CUDA)
    assert (objection(job, AgentKind.PLAYBOOK, strategy("cluster_rows")) or "").startswith("cluster_rows: ")
    assert objection(job, AgentKind.LLM, strategy("cluster_rows")) is None
    assert objection(job, AgentKind.HYBRID, strategy("cluster_rows")) is None
