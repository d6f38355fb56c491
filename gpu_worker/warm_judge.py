"""The judge that stays warm for one problem, and one kernel's way through it: a runner, an order, its findings.

Starts and ends the judge's process; decides no verdict and catches no death, which is the evaluator's business.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cupilot.evaluation import Baseline, Comparison, Failure, FailureKind, LawResult
from cupilot.imported import ImportedKernel
from cupilot.kernel import ResolvedPlan
from gpu_worker import endings
from gpu_worker.bytecode import Bytecode
from gpu_worker.imported import ImportedHost
from gpu_worker.judge_process import JudgeProcess, JudgeTimeout
from gpu_worker.runner_process import RunnerProcess
from gpu_worker.sandbox import Sandbox
from gpu_worker.targets.base import HostTarget
from gpu_worker.verdict import Measured


class JudgeUseless(Exception):
    """The judge refused a problem that another one had prepared, or gave an answer that makes no sense."""


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
    """At most one judge process, and the problem that it has open."""

    def __init__(self, host: HostTarget, sandbox: Sandbox, bytecode: Bytecode) -> None:
        self._host = host
        self._sandbox = sandbox
        self._bytecode = bytecode
        self._process: JudgeProcess | None = None
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
        """End the process, and the runner that waits for a kernel."""
        if self._process is not None:
            self._process.close()
        if self._spare is not None:
            self._spare.close()
        self._process = self._spare = self.problem = None

    def start(self, *, subprocesses: bool = False) -> JudgeProcess:
        """A fresh process with no problem open."""
        self._bytecode.ensure(self._host, self._sandbox, compiling=subprocesses)
        self._process = JudgeProcess(self._host, self._sandbox, self._bytecode, subprocesses=subprocesses)
        self._process.wait_ready()
        return self._process

    def open(self, measured: Measured, call: Call) -> JudgeProcess:
        """A process that has the problem open: the warm one where it does, and the call is not a confirmation."""
        key = measured.problem.content_hash()
        warm = self._process is not None and self._process.alive() and self.problem == key
        if self._process is not None and warm and not call.thorough:
            return self._process
        self.close()
        process = self.start(subprocesses=call.thorough)
        facts = measured.preparation.facts.model_dump(mode="json")
        request = {"op": "open", "problem": measured.problem.model_dump(mode="json"), "facts": facts}
        answer = process.ask(request, call.remaining(), call.cancelled)
        if answer.get("failure"):
            failure = Failure.model_validate(answer["failure"])
            raise JudgeUseless(f"opening the prepared problem again: {failure.message}")
        self.problem = key
        return process

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
        self._process.on_stage = self._staged
        hold = order["imported"] or not self._host.trusts_runner
        request = {"op": "judge", "order": order | {"binary": runner.give(Path(order["binary"]))}, "hold": hold}
        channel = [runner.take_channel()]

        def cancelled() -> bool:
            runner.overrun()
            return call.cancelled()

        try:
            answer = self._process.ask(request, call.remaining(), cancelled, descriptors=channel, hold=runner.hold)
            self._take(measured, answer, runner)
        except (ValidationError, KeyError, TypeError, AttributeError) as error:
            raise JudgeUseless(f"its findings make no sense: {str(error)[:500]}") from error
        except JudgeTimeout as error:
            self.close()
            measured.failure = Failure(kind=FailureKind.TIMEOUT, message=f"the evaluation: {error}")

    def _take(self, measured: Measured, answer: dict[str, Any], runner: RunnerProcess) -> None:
        if answer.get("failure"):
            self.close()
            measured.failure = Failure.model_validate(answer["failure"])
            return
        findings = answer["findings"]
        measured.laws = tuple(LawResult.model_validate(item) for item in findings["laws"])
        measured.comparisons = tuple(Comparison.model_validate(item) for item in findings["comparisons"])
        measured.audited = bool(findings["audited"])
        measured.notes = tuple(str(note) for note in findings["notes"])
        measured.handover_us = findings["handover_us"]
        occupancy = findings["facts"].get("occupancy_pct")
        if self._host.trusts_runner and isinstance(occupancy, float):
            measured.occupancy_pct = occupancy
        if findings["failure"]:
            measured.failure = Failure.model_validate(findings["failure"])
        elif findings["lost"] and runner.overrun():
            measured.failure = Failure(kind=FailureKind.POLICY_BREACH, message="it started hundreds of processes")
        elif findings["lost"]:
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
