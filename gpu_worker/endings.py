"""Failures from the ends of child processes, and from errors that end a call: exit codes, signals, exceptions."""

from __future__ import annotations

import signal

from pydantic import JsonValue, ValidationError

from cupilot.domain.errors import InvalidPlan, InvalidTensorMap
from cupilot.domain.evaluation import Failure, FailureKind
from gpu_worker.judge_process import JudgeLost, JudgeTimeout, JudgingFailed, ReferenceEnded
from gpu_worker.runner_process import RunnerProcess
from gpu_worker.sandbox.child import Finished
from gpu_worker.sandbox.watch import Excess

KILLED = (
    "from outside, or because the machine lacked memory: its kernel log (dmesg) says which; give it more memory, or run"
    " fewer workers there"
)
"""Advice for a process that may not kill itself and got SIGKILL."""

_SIGNALS: dict[int, tuple[FailureKind, str]] = {
    signal.SIGSEGV: (FailureKind.ILLEGAL_ACCESS, "it read or wrote memory that is not its own"),
    signal.SIGBUS: (FailureKind.ILLEGAL_ACCESS, "it read or wrote memory that does not exist"),
    signal.SIGFPE: (FailureKind.CRASH, "it divided an integer by zero"),
    signal.SIGILL: (FailureKind.CRASH, "it executed an illegal instruction"),
    signal.SIGABRT: (FailureKind.CRASH, "it aborted"),
    signal.SIGSYS: (
        FailureKind.POLICY_BREACH,
        "it made a system call that kernels may not make (starting processes, opening files or sockets, mapping shared"
        " memory)",
    ),
    signal.SIGXCPU: (FailureKind.TIMEOUT, "it used up its processor time"),
    signal.SIGKILL: (FailureKind.INFRASTRUCTURE, f"it was killed {KILLED}"),
    signal.SIGXFSZ: (FailureKind.POLICY_BREACH, "it wrote a file that is too large"),
}

_ALLOCATION_FAILED = ("bad_alloc", "MemoryError", "Cannot allocate memory", "can't allocate memory")


def runner_ending(runner: RunnerProcess) -> Failure:
    """Return why a runner ended, which may have been killed for the processes that it started."""
    if runner.overrun():
        return Failure(kind=FailureKind.POLICY_BREACH, message="it started hundreds of processes")
    return kernel_ending(runner.ending())


def kernel_ending(finished: Finished) -> Failure:
    """Return why a runner ended while its kernel was at work."""
    if finished.timed_out:
        return Failure(kind=FailureKind.POLICY_BREACH, message="the kernel closed the runner's channel")
    if finished.excess is not None:
        return _excessive("kernel", finished.excess)
    if finished.code >= 0:
        message = f"the kernel ended its process with exit code {finished.code}"
        details: dict[str, JsonValue] = {"exit_code": finished.code, "stderr": finished.stderr[-2000:]}
        return Failure(kind=FailureKind.CRASH, message=message, details=details)
    name = _name(-finished.code)
    kind, what = _SIGNALS.get(-finished.code, (FailureKind.CRASH, f"signal {name}"))
    if kind is FailureKind.CRASH and any(text in finished.stderr for text in _ALLOCATION_FAILED):
        kind, what = FailureKind.OUT_OF_MEMORY, "an allocation failed"
    return Failure(
        kind=kind,
        message=f"the kernel crashed: {what} ({name})",
        details={"signal": name, "stderr": finished.stderr[-2000:]},
    )


def _name(number: int) -> str:
    """Return the name of a signal, or its number: realtime ones have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _excessive(program: str, excess: Excess, when: str = "") -> Failure:
    if excess is Excess.MEMORY:
        message = f"the {program} was stopped{when} because its processes used more memory than it may have"
        return Failure(kind=FailureKind.OUT_OF_MEMORY, message=message)
    message = f"the {program} was stopped{when} because it started too many threads or processes"
    kind = FailureKind.POLICY_BREACH if program == "kernel" else FailureKind.INVALID_PROBLEM
    return Failure(kind=kind, message=message)


def judge_ending(finished: Finished, stage: str) -> Failure:
    """Return why a judge ended: it runs no code of users, so the machine is at fault."""
    what = "did not start" if stage == "starting" else f"ended while {stage}"
    details: dict[str, JsonValue] = {"stderr": finished.stderr[-2000:], "exit_code": finished.code}
    message = f"the judge process {what}{_last_words(finished)}"
    return Failure(kind=FailureKind.INFRASTRUCTURE, message=message, details=details)


def _last_words(finished: Finished) -> str:
    """Return what follows a message: of a Python process that failed its exception; where it said nothing, where to
    look."""
    if finished.code == -signal.SIGKILL:
        return f": it was killed {KILLED}"
    lines = finished.stderr.strip().splitlines()
    said = lines[-1].strip()[:500] if lines else f"it said nothing, and its exit status was {finished.code}"
    return f": {said} (python -m gpu_worker device, on that machine, tests what a judge needs)"


def reference_ending(finished: Finished, stage: str) -> Failure:
    """Return why a reference process ended while its problem was prepared."""
    if finished.timed_out:
        message = f"the reference closed its connection to the judge, or wrote to it, while {stage}"
        return Failure(kind=FailureKind.INVALID_PROBLEM, message=message)
    if finished.excess is not None:
        return _excessive("reference", finished.excess, f" while {stage}")
    if finished.code >= 0:
        message = f"the reference ended the process with exit code {finished.code} while {stage}"
        details: dict[str, JsonValue] = {"exit_code": finished.code, "stderr": finished.stderr[-2000:]}
        return Failure(kind=FailureKind.INVALID_PROBLEM, message=message, details=details)
    name = _name(-finished.code)
    kind = FailureKind.INVALID_PROBLEM
    if finished.code == -signal.SIGKILL:
        # Its own limit makes allocations fail; who is killed may have been killed for somebody else's memory.
        message = f"the reference process was killed while {stage} (SIGKILL), {KILLED}"
        return Failure(kind=FailureKind.INFRASTRUCTURE, message=message, details={"stderr": finished.stderr[-2000:]})
    if any(text in finished.stderr for text in _ALLOCATION_FAILED):
        kind = FailureKind.OUT_OF_MEMORY
    elif finished.code == -signal.SIGXCPU:
        kind = FailureKind.TIMEOUT
    message = f"the reference crashed while {stage} ({name})"
    return Failure(kind=kind, message=message, details={"signal": name, "stderr": finished.stderr[-2000:]})


def unanswered(error: Exception, subject: str) -> Failure:
    """Return why there is no answer about a problem file, ``subject`` in messages."""
    if isinstance(error, ReferenceEnded):
        return reference_ending(error.finished, error.stage)
    if isinstance(error, JudgeLost):
        return judge_ending(error.finished, error.stage)
    if isinstance(error, JudgeTimeout):
        return Failure(kind=FailureKind.TIMEOUT, message=f"{subject}: {error}")
    if isinstance(error, JudgingFailed | ValidationError):
        message = f"{subject}: the judge gave no valid answer: {str(error)[:2000]}"
        return Failure(kind=FailureKind.INVALID_PROBLEM, message=message)
    return Failure(kind=FailureKind.INFRASTRUCTURE, message=str(error)[:2000])


def machine_failure(error: JudgingFailed | OSError) -> Failure:
    """Return the failure of an evaluation that an error ended, which says nothing about the kernel."""
    if not isinstance(error, JudgeLost | ReferenceEnded):
        return Failure(kind=FailureKind.INFRASTRUCTURE, message=f"the judge failed: {error}")
    message = f"the judge failed: {error}{_last_words(error.finished)}"
    details: dict[str, JsonValue] = {"stderr": error.finished.stderr[-2000:]}
    return Failure(kind=FailureKind.INFRASTRUCTURE, message=message, details=details)


def invalid_plan(error: InvalidPlan) -> Failure:
    """Return the failure of a kernel whose plan does not fit its problem."""
    message = error.message if error.hint is None else f"{error.message} ({error.hint})"
    details: dict[str, JsonValue] = {"code": error.code}
    if isinstance(error, InvalidTensorMap):
        details["rule"] = error.rule
    if error.where:
        details["where"] = error.where
    return Failure(kind=FailureKind.INVALID_PLAN, message=message, details=details)
