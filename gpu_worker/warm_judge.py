"""The processes that judge kernels: a judge, the reference process of its open problem, and a runner for each kernel.

Starts, asks and ends them. Decides no verdict; a process that ends is an exception here, which the stages handle.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from cupilot.domain.evaluation import FailureKind
from cupilot.domain.problem import Problem, ProblemFacts
from gpu_worker import endings
from gpu_worker.bytecode import Bytecode
from gpu_worker.imported import ImportedHost
from gpu_worker.judge_process import JudgeProcess, JudgingFailed, OnStage, ReferenceEnded, UnusableJudge
from gpu_worker.messages import judge as messages
from gpu_worker.reference_process import ReferenceProcess
from gpu_worker.runner_process import RunnerProcess
from gpu_worker.sandbox.sandbox import Sandbox
from gpu_worker.stages import Call
from gpu_worker.targets.base import HostTarget

logger = logging.getLogger(__name__)

PROBLEMS_A_JUDGE = 100
"""After so many the judge is started afresh: what its libraries keep for each problem does not add up for ever."""

_A = TypeVar("_A", messages.Prepared, messages.Traced, messages.Opened, messages.Judged)
_P = TypeVar("_P", RunnerProcess, ReferenceProcess)


class TooManyProcesses(JudgingFailed):
    """The reference started an absurd number of processes."""

    def __init__(self) -> None:
        super().__init__("the reference started hundreds of processes")


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
        self._spare_runner: RunnerProcess | None = None
        """Started, and given no kernel yet."""
        self._spare_reference: ReferenceProcess | None = None
        """Started, and given no problem yet."""
        self.problem: str | None = None
        """Hash of the problem that the process has open."""
        self.torch: str | None = None
        """Version of torch in the present judge process, or in the last one; None where there was none yet."""
        self._tight: set[str] = set()
        """Hashes of problems for which there was too little memory."""

    def close(self) -> None:
        """End all processes: judge, reference, and those that wait for a problem or a kernel."""
        self.close_problem()
        for process in (self._process, self._spare_runner, self._spare_reference):
            if process is not None:
                process.close()
        self._process = self._spare_runner = self._spare_reference = None

    def close_problem(self) -> None:
        """End the reference process; the judge has no problem open then."""
        if self._reference is not None:
            self._reference.close()
        self._reference = self.problem = None

    def prepare(
        self, problem: Problem, timeout: float, cancelled: Callable[[], bool]
    ) -> messages.Prepared | messages.Unusable:
        """Prepare a problem: admit it, and time PyTorch on it; the problem is open then."""
        request = messages.PrepareRequest(problem=problem)
        answer = self._ask_about(request, messages.Prepared, timeout, cancelled)
        if isinstance(answer, messages.Prepared):
            self.problem = problem.content_hash()
        return answer

    def spare(self, problem: Problem) -> bool:
        """Spare memory from the next opening of a problem on; False where that was done before."""
        spared = self._spares(problem)
        self._tight.add(problem.content_hash())
        return not spared

    def _spares(self, problem: Problem) -> bool:
        return problem.content_hash() in self._tight

    def trace(
        self, problem: Problem, timeout: float, cancelled: Callable[[], bool]
    ) -> messages.Traced | messages.Unusable:
        """Trace a problem only."""
        return self._ask_about(messages.TraceRequest(problem=problem), messages.Traced, timeout, cancelled)

    def open(self, problem: Problem, facts: ProblemFacts, call: Call) -> None:
        """Open a prepared problem unless it is open already, in fresh processes for a confirmation."""
        key = problem.content_hash()
        lives = self._process is not None and self._process.alive()
        answers = self._reference is not None and self._reference.alive()
        if lives and answers and self.problem == key and not call.thorough:
            return
        if call.thorough:
            self.close()
        request = messages.OpenRequest(problem=problem, facts=facts)
        answer = self._ask_about(request, messages.Opened, call.remaining(), call.cancelled, compiling=call.thorough)
        if isinstance(answer, messages.Unusable):
            raise UnusableJudge(f"opening the prepared problem again: {answer.failure.message}")
        self.problem = key

    def judge(
        self, order: messages.KernelOrder, call: Call, on_stage: OnStage | None = None
    ) -> messages.Judged | messages.Unusable:
        """Verify and time a kernel for the open problem, in a runner of its own."""
        runner = self.runner(imported=order.imported)
        try:
            return self.judge_in(runner, order, call, on_stage)
        finally:
            runner.close()

    def judge_in(
        self, runner: RunnerProcess, order: messages.KernelOrder, call: Call, on_stage: OnStage | None = None
    ) -> messages.Judged | messages.Unusable:
        """Judge as :meth:`judge` does, in a runner that the caller keeps."""
        assert self._process is not None
        assert self._reference is not None
        order = order.model_copy(update={"binary": runner.give(Path(order.binary))})
        reference = self._reference
        holds = order.imported or not self._host.trusts_runner

        def hold(on: bool) -> messages.Held:
            held = runner.hold(on)
            if on:
                runner.pin_threads()
                reference.pin_threads()
            return held

        def cancelled() -> bool:
            runner.overrun()
            return call.cancelled()

        def begun(stage: str) -> None:
            if on_stage is not None:
                on_stage(stage)
            if stage == "auditing" and not order.screening and not order.only_timing:
                self._start_spare_runner()

        self._spare_reference = _alive(self._spare_reference)
        if self._spare_reference is not None:
            self._spare_reference.pause()
        reference.resume()
        answer = self._process.ask(
            messages.JudgeRequest(order=order, hold=holds),
            call.remaining(),
            self._watching(cancelled),
            descriptors=[runner.take_channel()],
            hold=hold,
            on_stage=begun,
        )
        accepted = self._accepted(answer, messages.Judged)
        reference.pause()
        if self._spare_reference is not None:
            self._spare_reference.resume()
        if isinstance(accepted, messages.Unusable):
            self.close()
        elif accepted.failure is None and accepted.lost:
            return accepted.failed(endings.runner_ending(runner))
        return accepted

    def runner(self, *, imported: bool = False) -> RunnerProcess:
        """Return a runner that no kernel has been in: the one that was started ahead, or one that is started now."""
        if imported:
            host = ImportedHost(self._host, self._bytecode)
            return RunnerProcess(host, self._sandbox, limits=host.limits)
        spare, self._spare_runner = self._spare_runner, None
        return _alive(spare) or RunnerProcess(self._host, self._sandbox)

    def _start_spare_runner(self) -> None:
        """Start the next kernel's runner while one is audited: nothing is timed then."""
        if self._host.starts_ahead and self._spare_runner is None:
            self._spare_runner = _started(lambda: RunnerProcess(self._host, self._sandbox))

    def _start_reference(self, *, compiling: bool) -> ReferenceProcess:
        """Return a reference process that no problem has been in; one that was started ahead starts no compiler."""
        self._bytecode.ensure(self._host, self._sandbox, compiling=compiling)
        spare = None
        if not compiling:
            spare, self._spare_reference = self._spare_reference, None
        return _alive(spare) or ReferenceProcess(self._host, self._sandbox, self._bytecode, compiling=compiling)

    def _start_spare_reference(self) -> None:
        """Start the next problem's reference process, for it takes seconds to import PyTorch; no kernel is judged now.

        It opens the device when it is asked about a problem. While a kernel is judged it is stopped.
        """
        if self._host.starts_ahead and self._spare_reference is None:
            self._spare_reference = _started(
                lambda: ReferenceProcess(self._host, self._sandbox, self._bytecode, compiling=False)
            )

    def _ask_about(
        self,
        request: messages.ProblemRequest,
        expected: type[_A],
        timeout: float,
        cancelled: Callable[[], bool],
        *,
        compiling: bool = False,
    ) -> _A | messages.Unusable:
        """Ask about a problem, whose reference process is started for it; again where it has to spare memory."""
        until = time.monotonic() + timeout
        request = request.model_copy(update={"sparing": self._spares(request.problem)})
        answer = self._asked(request, expected, timeout, cancelled, compiling=compiling)
        short = isinstance(answer, messages.Unusable) and answer.failure.kind is FailureKind.OUT_OF_MEMORY
        if short and self.spare(request.problem):
            return self._ask_about(request, expected, until - time.monotonic(), cancelled, compiling=compiling)
        return answer

    def _asked(
        self,
        request: messages.ProblemRequest,
        expected: type[_A],
        timeout: float,
        cancelled: Callable[[], bool],
        *,
        compiling: bool,
    ) -> _A | messages.Unusable:
        self.close_problem()
        self._reference = reference = self._start_reference(compiling=compiling)
        process = self._ready()
        self._opened += 1
        answer = process.ask(
            request,
            timeout,
            self._watching(cancelled),
            descriptors=[reference.channel()],
            on_stage=lambda _: reference.pin_threads(),
        )
        accepted = self._accepted(answer, expected)
        reference.pause()
        if isinstance(accepted, messages.Unusable) and accepted.last:
            self.close()
        if not compiling:
            self._start_spare_reference()
        return accepted

    def _ready(self) -> JudgeProcess:
        """Return the judge process, started if there is none, or only a dead or an old one."""
        if self._process is not None and (not self._process.alive() or self._opened >= PROBLEMS_A_JUDGE):
            self._process.close()
            self._process = None
        if self._process is None:
            self._process = JudgeProcess(self._host, self._sandbox, self._bytecode)
            self._opened = 0
            self._process.wait_ready()
            self.torch = self._process.torch
        return self._process

    def _watching(self, cancelled: Callable[[], bool]) -> Callable[[], bool]:
        """Return ``cancelled`` with a look at how many processes the reference has."""

        def look() -> bool:
            if self._reference is not None and self._reference.overrun():
                raise TooManyProcesses
            return cancelled()

        return look

    def _accepted(self, answer: messages.Answer, expected: type[_A]) -> _A | messages.Unusable:
        """Return an answer of the expected kind; raises :class:`ReferenceEnded` and :class:`UnusableJudge`."""
        if isinstance(answer, messages.ReferenceGone):
            assert self._process is not None
            assert self._reference is not None
            raise ReferenceEnded(self._process.stage, answer.reason[:500], self._reference.ending())
        if not isinstance(answer, expected | messages.Unusable):
            raise UnusableJudge(f"its answer is {answer.kind!r}")
        return answer


def _alive(process: _P | None) -> _P | None:
    """Return a process that was started ahead, unless it has ended since."""
    if process is None or process.alive():
        return process
    process.close()
    return None


def _started(start: Callable[[], _P]) -> _P | None:
    """Start a process ahead; None for lack of memory, for the process or for the thread that reads its output.

    That says nothing about the kernel under way; the next one starts a process of its own.
    """
    try:
        return start()
    except (OSError, RuntimeError) as error:
        logger.warning("no process could be started ahead: %s", error)
        return None
