"""The judge's side of the line to a runner: when its clock starts, and what a runner may say of itself."""

from __future__ import annotations

import time

import pytest

from cupilot.evaluation import FailureKind
from gpu_worker.channel import Channel
from gpu_worker.judge.runner_link import KernelFailed, RunnerLink


def test_a_held_runner_is_released_to_its_order_and_the_clock_starts_with_that() -> None:
    """Between the two, threads of a kernel could do what is to be timed."""
    ours, theirs = Channel.pair()

    def release() -> float:
        assert theirs.pending(), "the order lies there before anything can run"
        theirs.receive(1.0)
        theirs.send({"ok": True, "seconds": 1.0})
        return time.perf_counter() - 5.0

    with ours, theirs:
        host, reported = RunnerLink(ours).run([0], 1.0, release)
    assert host >= 5.0, "by the moment of the release, not by that of its confirmation"
    assert reported == 1.0


@pytest.mark.parametrize("said", [FailureKind.INFRASTRUCTURE, FailureKind.CLOCK_MISMATCH, FailureKind.BELOW_FLOOR])
@pytest.mark.parametrize("trusted", [True, False])
def test_host_code_of_a_kernel_speaks_of_itself_only(said: FailureKind, trusted: bool) -> None:
    ours, theirs = Channel.pair()
    with ours, theirs:

        def release() -> None:
            theirs.receive(1.0)
            theirs.send({"ok": False, "kind": said.value, "message": "not me"})

        with pytest.raises(KernelFailed, match="not me") as caught:
            RunnerLink(ours, trusted=trusted).run([0], 1.0, release)
    assert caught.value.kind is (said if trusted else FailureKind.CRASH)
