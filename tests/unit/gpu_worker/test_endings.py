"""Failures from the ends of judges, references and kernels."""

from __future__ import annotations

import signal

import pytest

from cupilot.domain.evaluation import Failure, FailureKind
from gpu_worker.endings import judge_ending, kernel_ending, machine_failure, reference_ending
from gpu_worker.judge_process import JudgeLost
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


def test_a_judge_that_ended_is_told_with_its_last_words() -> None:
    said = "Traceback (most recent call last):\n  ...\nModuleNotFoundError: No module named 'numpy'\n"
    finished = Finished(1, "", said)
    told = judge_ending(finished, "starting").message
    assert told.startswith("the judge process did not start: ModuleNotFoundError: No module named 'numpy' (")
    failure = machine_failure(JudgeLost("timing", finished))
    assert "the judge ended while timing: ModuleNotFoundError: No module named 'numpy' (" in failure.message
    assert "Traceback" in str(failure.details["stderr"])
    assert judge_ending(Finished(3, "", ""), "timing").message.startswith(
        "the judge process ended while timing: it said nothing, and its exit status was 3 ("
    )


KILLED = Finished(-signal.SIGKILL, "", "")


@pytest.mark.parametrize(
    "failure",
    [
        kernel_ending(KILLED),
        reference_ending(KILLED, "timing"),
        judge_ending(KILLED, "timing"),
        machine_failure(JudgeLost("timing", KILLED)),
    ],
    ids=["kernel", "reference", "judge", "judge of an evaluation"],
)
def test_what_the_machine_killed_says_where_to_look_and_what_to_change(failure: Failure) -> None:
    assert failure.kind is FailureKind.INFRASTRUCTURE
    assert "(dmesg)" in failure.message
    assert "give it more memory, or run fewer workers" in failure.message
