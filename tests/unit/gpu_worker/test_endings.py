"""What the end of a judge means for the problem that it was preparing."""

from __future__ import annotations

import signal

import pytest

from cupilot.evaluation import FailureKind
from gpu_worker.endings import reference_ending
from gpu_worker.sandbox import Finished


@pytest.mark.parametrize(
    ("finished", "kind"),
    [
        (Finished(0, "", ""), FailureKind.INVALID_PROBLEM),
        (Finished(-signal.SIGSEGV, "", ""), FailureKind.INVALID_PROBLEM),
        (Finished(-signal.SIGABRT, "", "std::bad_alloc"), FailureKind.OUT_OF_MEMORY),
        (Finished(-signal.SIGXCPU, "", ""), FailureKind.TIMEOUT),
        (Finished(-signal.SIGKILL, "", ""), FailureKind.INFRASTRUCTURE),
    ],
    ids=["left", "segfault", "allocation failed", "processor time", "killed from outside"],
)
def test_a_reference_is_blamed_for_what_it_did_only(finished: Finished, kind: FailureKind) -> None:
    failure = reference_ending(finished, "the first forward pass")
    assert failure.kind is kind
    assert "the first forward pass" in failure.message
