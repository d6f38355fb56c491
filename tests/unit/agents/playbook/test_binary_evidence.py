"""Evidence of templates in the machine code that NVRTC makes of them; no GPU is needed to build."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from agents.playbook import agents
from agents.playbook.evidence import missing
from agents.playbook.ladders import parse
from cupilot.domain.evaluation import BuildReport
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import ProblemFacts, Target
from cupilot.domain.strategy import Strategy
from gpu_worker.build import Builder
from gpu_worker.sandbox.sandbox import Sandbox
from gpu_worker.targets.cuda.toolchain import CudaToolchain
from tests.unit.agents.playbook.briefings import briefing
from tests.unit.agents.playbook.references import trace

pytestmark = pytest.mark.slow

ARCH = "sm_90"


def built(text: str, folder: Path) -> tuple[Strategy, Kernel, BuildReport]:
    """A template's softmax over long rows, with the techniques of ``text``."""
    facts, _ = trace(lambda x: torch.softmax(x, 1), {"x": torch.zeros(64, 40_960)})
    strategy = parse(text)
    kernel = agents().translator.translate(briefing(facts, Target.CUDA), strategy, (), 0)
    return strategy, kernel, report(kernel, facts, folder)


def report(kernel: Kernel, facts: ProblemFacts, folder: Path) -> BuildReport:
    made = Builder(CudaToolchain(ARCH), Sandbox(), folder, ARCH).build_kernel(kernel, facts)
    assert made.failure is None, made.failure
    return made.build.report


@pytest.mark.parametrize(
    "text",
    [
        "vector_loads, cluster_rows(blocks=4), register_rows, warp_shuffle_reduction: ",
        "vector_loads, cluster_rows(blocks=4), shared_rows, streaming_access: ",
        "vector_loads, warp_shuffle_reduction, streaming_access, loop_unrolling: ",
        "warp_shuffle_reduction, read_only_cache: ",
    ],
)
def test_what_templates_write_is_seen_in_the_binary(text: str, tmp_path: Path) -> None:
    assert missing(*built(text, tmp_path)) == {}


@pytest.mark.parametrize("technique", ["cluster_rows", "streaming_access", "read_only_cache"])
def test_a_technique_that_only_the_source_names_is_not_there(technique: str, tmp_path: Path) -> None:
    _, kernel, _ = built("vector_loads, warp_shuffle_reduction: ", tmp_path)
    # without __restrict__, or the compiler takes the read-only path by itself
    named = (
        kernel.source.replace("__restrict__", "")
        + "\n__device__ float unused(float* p) { __stcs(p, 1.0f); return __ldg(p); }\n"
    )
    launches = tuple(launch.model_copy(update={"cluster": ("2",)}) for launch in kernel.plan.launches)
    plan = kernel.plan.model_copy(update={"launches": launches})
    claimed = kernel.model_copy(update={"source": named, "plan": plan})
    facts, _ = trace(lambda x: torch.softmax(x, 1), {"x": torch.zeros(64, 40_960)})
    found = missing(parse(f"{technique}: "), claimed, report(claimed, facts, tmp_path))
    assert found[technique].startswith("the binary has no ")
