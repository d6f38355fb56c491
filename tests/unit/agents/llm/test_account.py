"""The account of a kernel that beat the floor: its work, its launches, its memory, and never a time."""

from __future__ import annotations

import pytest

from agents.interface import Attempt, Briefing
from agents.llm.account import account
from cupilot.domain.evaluation import BuildReport, Evaluation, Failure, FailureKind, Verdict
from cupilot.domain.kernel import Kernel, Launch, LaunchPlan, Tunable, Workspace
from cupilot.domain.problem import Target
from cupilot.domain.strategy import Strategy

SOURCE = """
// __device__ float told_in_a_comment[4];
__device__ float cached[1024];
__device__ unsigned int launches = 0;
__device__ const float table[2] = {1.0f, 2.0f};
static __device__ __forceinline__ float twice(float x) { return 2.0f * x; }
__global__ void rows(const float* x, float* out) {
    __shared__ float parts[32];
}
"""


def _attempt(briefing: Briefing, instructions: dict[str, int]) -> Attempt:
    plan = LaunchPlan(
        launches=(Launch(kernel="rows", args=("x", "out"), grid=("X_ROWS / 2",), block=("BLOCK",)),),
        tunables={"BLOCK": Tunable(value=64, choices=(64, 128))},
        workspace=(Workspace(name="partial", bytes="X_ROWS * 4"),),
    )
    kernel = Kernel(target=Target.CUDA, source=SOURCE, plan=plan)
    evaluation = Evaluation(
        kernel_hash=kernel.content_hash(),
        problem_hash=briefing.problem.content_hash(),
        verdict=Verdict.QUARANTINED,
        failure=Failure(kind=FailureKind.BELOW_FLOOR, message="1.234 us is faster than 5.678 us"),
        build=BuildReport(ok=True, compiler="nvrtc", seconds=0.1, instructions=instructions),
        tunables={"BLOCK": 128},
    )
    return Attempt(strategy=Strategy(techniques=()), kernel=kernel, evaluation=evaluation)


def test_threads_are_held_against_the_elements_of_the_output_as_it_was_measured(briefing: Briefing) -> None:
    told = account(briefing, _attempt(briefing, {}))
    assert "launch `rows`: 32x1x1 blocks of 128x1x1 threads, 4096 in all; 4 elements of `out` a thread" in told
    assert "65536 bytes" in told
    assert "131072 bytes that must be moved" in told
    assert "1.234" not in told
    assert "5.678" not in told


@pytest.mark.parametrize(
    ("instructions", "words"),
    [
        ({"global_load": 3, "vector_load_128": 2, "barrier": 9}, "global_load 3, vector_load_128 2 ("),
        ({"barrier": 9}, "no load and no store of global memory"),
        ({}, "nothing is known of its loads and stores"),
    ],
)
def test_loads_and_stores_are_counted_by_width(briefing: Briefing, instructions: dict[str, int], words: str) -> None:
    assert words in account(briefing, _attempt(briefing, instructions))


def test_memory_that_outlives_a_launch_is_named(briefing: Briefing) -> None:
    told = account(briefing, _attempt(briefing, {}))
    line = next(line for line in told.splitlines() if "outlives" in line)
    assert line.endswith("`__device__ float cached[1024]`, `__device__ unsigned int launches = 0`")
    assert "workspace: `partial`" in told
