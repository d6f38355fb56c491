"""Strategies of the pool that a job cannot apply."""

from __future__ import annotations

import pytest

from cupilot.domain.problem import Target
from tests.unit.agents.playbook.briefings import briefing
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
    assert objection(job, strategy(technique)) == reason
