"""The judge, the reference process of one problem, and one kernel's way through them: a runner, an order, its findings.

Starts and ends these processes; decides no verdict and catches no death, which is the evaluator's business.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cupilot.domain.evaluation import Baseline, Failure, FailureKind
from cupilot.domain.imported import ImportedKernel
from cupilot.domain.kernel import ResolvedPlan
from cupilot.domain.problem import Problem
from gpu_worker import endings
from gpu_worker.bytecode import Bytecode
from gpu_worker.imported import ImportedHost
from gpu_worker.judge_answers import JudgeFindings, failure_from
from gpu_worker.judge_process import JudgeProcess, JudgeTimeout, JudgingFailed
from gpu_worker.reference_process import ReferenceProcess
from gpu_worker.runner_process import RunnerProcess
from gpu_worker.sandbox.child import Finished
from gpu_worker.sandbox.sandbox import Sandbox
from gpu_worker.targets.base import HostTarget
from gpu_worker.verdict import Measured

PROBLEMS_A_JUDGE = 100
"""After so many the judge is started afresh: what its libraries keep for each problem does not add up for ever."""


class JudgeUseless(JudgingFailed):
    """The judge refused a problem that another one had prepared, or gave an answer that makes no sense."""


class ReferenceEnded(JudgingFailed):
    """The reference process ended, or said something that makes no sense."""

    def __init__(self, stage: str, why: str, finished: Finished) -> None:
        super().__init__(f"the reference process ended while {stage} ({why})")
        self.stage = stage
        self.finished = finished


class TooManyProcesses(JudgingFailed):
    """The reference started an absurd number of processes."""

    def __init__(self) -> None:
        super().__init__("the reference started hundreds of processes")


@dataclass(frozen=True)
class Call:
    """What holds for the whole of one evaluation."""

    deadline: float
    cancelled: Callable[[], bool]
    thorough: bool
    incumbent: float | None = None
    """Speedup over eager of the best kernel so far, if there is one."""
    candidate: bool = True
    """Whether the kernel may become the best: only such a one's hardware counters are read."""

    def remaining(self) -> float:
        """Seconds until the deadline, at least one."""
        return max(self.deadline - time.monotonic(), 1.0)


class WarmJudge:
    """At most one judge process, the problem that it has open, and that problem's reference process."""

    def __init__(self, host: HostTarget, sandbox: Sandbox, bytecode: Bytecode) -> None:
        self._host = host
        self._sandbox = sandbox
        self._bytecode = bytecode
        self._process: JudgeProcess | None = None
        self._reference: ReferenceProcess | None = None
        self._opened = 0
        """Problems that the present judge process was given."""
        self._spare: RunnerProcess | None = None
        """Started, and given no kernel yet."""
        self.problem: str | None = None
        """Hash of the problem that the process has open."""
        self.on_stage: Callable[[str], None] | None = None
        """Told which stage of judging a kernel has begun."""

    @property
    def torch(self) -> str | None:
        """The process's version of torch; None where there is no process."""
        return self._process.torch if self._process is not None else None

    def close(self) -> None:
        """End all processes: judge, reference, and the runner that waits for a kernel."""
        self.close_problem()
        if self._process is not None:
            self._process.close()
        if self._spare is not None:
            self._spare.close()
        self._process = self._spare = None

    def close_problem(self) -> None:
        """End the reference process; the judge has no problem open then."""
        if self._reference is not None:
            self._reference.close()
        self._reference = self.problem = None

    def put(
        self,
        operation: str,
        problem: Problem,
        timeout: float,
        cancelled: Callable[[], bool],
        *,
        compiling: bool = False,
        **fields: Any,
    ) -> dict[str, Any]:
        """The judge's answer to a request about a problem, whose reference is started for it."""
        self.close_problem()
        self._bytecode.ensure(self._host, self._sandbox, compiling=compiling)
        reference = ReferenceProcess(self._host, self._sandbox, self._bytecode, compiling=compiling)
        self._reference = reference
        process = self._ready()
        self._opened += 1
        request = {"op": operation, "problem": problem.model_dump(mode="json"), **fields}
        answer = process.ask(request, timeout, self._watching(cancelled), descriptors=[reference.channel()])
        self._check_reference(process, answer)
        reference.pause()
        if answer.get("last"):
            self.close()
        return answer

    def _ready(self) -> JudgeProcess:
        """The judge process, started if there is none of use."""
        if self._process is not None and (not self._process.alive() or self._opened >= PROBLEMS_A_JUDGE):
            self._process.close()
            self._process = None
        if self._process is None:
            self._process = JudgeProcess(self._host, self._sandbox, self._bytecode)
            self._opened = 0
            self._process.wait_ready()
        return self._process

    def _watching(self, cancelled: Callable[[], bool]) -> Callable[[], bool]:
        """``cancelled``, with a look at how many processes the reference has."""

        def look() -> bool:
            if self._reference is not None and self._reference.overrun():
                raise TooManyProcesses
            return cancelled()

        return look

    def _check_reference(self, process: JudgeProcess, answer: dict[str, Any]) -> None:
        if "reference_lost" in answer and self._reference is not None:
            raise ReferenceEnded(process.stage, str(answer["reference_lost"])[:500], self._reference.ending())

    def open(self, measured: Measured, call: Call) -> None:
        """Have the judge open the problem, unless it has done so already and the call is no confirmation."""
        key = measured.problem.content_hash()
        if self._process is not None and self._process.alive() and self.problem == key and not call.thorough:
            return
        if call.thorough:
            self.close()
        facts = measured.preparation.facts.model_dump(mode="json")
        answer = self.put(
            "open", measured.problem, call.remaining(), call.cancelled, compiling=call.thorough, facts=facts
        )
        if answer.get("failure"):
            failure = failure_from(answer["failure"])
            raise JudgeUseless(f"opening the prepared problem again: {failure.message}")
        self.problem = key

    def judge(self, measured: Measured, order: dict[str, Any], call: Call) -> None:
        """Have the open judge work on a kernel in a runner of its own; what it found goes into ``measured``."""
        runner = self._runner(order)
        try:
            self.judge_in(runner, measured, order, call)
        finally:
            runner.close()

    def _runner(self, order: dict[str, Any]) -> RunnerProcess:
        if order["imported"]:
            host = ImportedHost(self._host, self._bytecode)
            return RunnerProcess(host, self._sandbox, limits=host.limits)
        return self.fresh_runner()

    def fresh_runner(self) -> RunnerProcess:
        """A runner that no kernel has been in: the one that was started ahead, or one started now where that failed."""
        spare, self._spare = self._spare, None
        if spare is not None and spare.alive():
            return spare
        if spare is not None:
            spare.close()
        return RunnerProcess(self._host, self._sandbox)

    def _staged(self, name: str) -> None:
        """The judge has begun a stage; while it audits, nothing is timed, and the next kernel's runner may start.

        Of a sweep's point nothing is audited: the runner for the whole judgement then starts while it is screened.
        """
        if self.on_stage is not None:
            self.on_stage(name)
        if name == "auditing" and self._host.starts_runners_ahead and self._spare is None:
            # Whatever keeps it from starting says nothing about the kernel under way; the next one starts its own.
            with suppress(Exception):
                self._spare = RunnerProcess(self._host, self._sandbox)

    def judge_in(self, runner: RunnerProcess, measured: Measured, order: dict[str, Any], call: Call) -> None:
        """As :meth:`judge`, in a runner that the caller keeps."""
        assert self._process is not None
        assert self._reference is not None
        self._process.on_stage = self._staged
        hold = order["imported"] or not self._host.trusts_runner
        request = {"op": "judge", "order": order | {"binary": runner.give(Path(order["binary"]))}, "hold": hold}
        channel = [runner.take_channel()]

        def cancelled() -> bool:
            runner.overrun()
            return call.cancelled()

        self._reference.resume()
        try:
            answer = self._process.ask(
                request, call.remaining(), self._watching(cancelled), descriptors=channel, hold=runner.hold
            )
            self._check_reference(self._process, answer)
            self._reference.pause()
            self._take(measured, answer, runner)
        except (ValidationError, KeyError, TypeError, AttributeError) as error:
            raise JudgeUseless(f"its findings make no sense: {str(error)[:500]}") from error
        except JudgeTimeout as error:
            self.close()
            measured.failure = Failure(kind=FailureKind.TIMEOUT, message=f"the evaluation: {error}")

    def _take(self, measured: Measured, answer: dict[str, Any], runner: RunnerProcess) -> None:
        if answer.get("failure"):
            self.close()
            measured.failure = failure_from(answer["failure"])
            return
        findings = JudgeFindings.model_validate(answer["findings"])
        measured.laws = findings.laws
        measured.comparisons = findings.comparisons
        measured.audited = findings.audited
        measured.notes = findings.notes
        measured.handover_us = findings.handover_us
        occupancy = findings.facts.get("occupancy_pct")
        if self._host.trusts_runner and isinstance(occupancy, float):
            measured.occupancy_pct = occupancy
        if findings.failure is not None:
            measured.failure = findings.failure
        elif findings.lost and runner.overrun():
            measured.failure = Failure(kind=FailureKind.POLICY_BREACH, message="it started hundreds of processes")
        elif findings.lost:
            measured.failure = endings.kernel_ending(runner.ending())
        elif measured.eager() is None:
            raise KeyError("neither a failure nor a time")


def order_of(
    measured: Measured, plan: ResolvedPlan, binary: Path, call: Call, baselines: list[Baseline]
) -> dict[str, Any]:
    """The fields of the judge's ``KernelOrder``."""
    return {
        "binary": str(binary),
        "launches": [launch.model_dump(mode="json") for launch in plan.launches],
        "workspace": plan.workspace,
        "laws": list(measured.preparation.laws),
        "tolerances": measured.preparation.tolerances,
        "thorough": call.thorough,
        "incumbent": call.incumbent,
        "baselines": [baseline.value for baseline in baselines],
        "imported": isinstance(measured.kernel, ImportedKernel),
    }
