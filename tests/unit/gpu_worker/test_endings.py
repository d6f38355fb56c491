"""What the end of a judge means for the problem that it was preparing."""

from __future__ import annotations

import signal

import pytest

from cupilot.domain.evaluation import FailureKind
from gpu_worker.endings import kernel_ending, reference_ending
from gpu_worker.sandbox.child import Finished
from gpu_worker.sandbox.watch import Excess


@pytest.mark.parametrize(
    ("finished", "kind"),
    [
        (Finished(0, "", ""), FailureKind.INVALID_PROBLEM),
        (Finished(-signal.SIGSEGV, "", ""), FailureKind.INVALID_PROBLEM),
        (Finished(-signal.SIGABRT, "", "std::bad_alloc"), FailureKind.OUT_OF_MEMORY),
        (Finished(-signal.SIGXCPU, "", ""), FailureKind.TIMEOUT),
        (Finished(-signal.SIGKILL, "", ""), FailureKind.INFRASTRUCTURE),
        (Finished(-signal.SIGKILL, "", "", excess=Excess.MEMORY), FailureKind.OUT_OF_MEMORY),
        (Finished(-signal.SIGKILL, "", "", excess=Excess.THREADS), FailureKind.INVALID_PROBLEM),
        (Finished(-40, "", ""), FailureKind.INVALID_PROBLEM),
        (Finished(250, "", ""), FailureKind.INVALID_PROBLEM),
    ],
    ids=[
        "left",
        "segfault",
        "allocation failed",
        "processor time",
        "killed from outside",
        "memory",
        "threads",
        "realtime signal",
        "large exit code",
    ],
)
def test_a_reference_is_blamed_for_what_it_did_only(finished: Finished, kind: FailureKind) -> None:
    failure = reference_ending(finished, "the first forward pass")
    assert failure.kind is kind
    assert "the first forward pass" in failure.message


@pytest.mark.parametrize(
    ("excess", "kind"),
    [
        (None, FailureKind.INFRASTRUCTURE),
        (Excess.MEMORY, FailureKind.OUT_OF_MEMORY),
        (Excess.THREADS, FailureKind.POLICY_BREACH),
    ],
)
def test_a_kernel_is_blamed_for_what_it_takes(excess: Excess | None, kind: FailureKind) -> None:
    assert kernel_ending(Finished(-signal.SIGKILL, "", "", excess=excess)).kind is kind
