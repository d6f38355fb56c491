"""The supervisor: prepares problems and evaluates kernels by driving sandboxed compilers, judges and runners.

Imports neither torch nor CUDA, runs no code of users or models, and turns every death of a child into a result. Holds
one warm judge, for the problem it worked on last. Not thread safe. Each call has a card to itself and waits for it; its
timeout begins when it has it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from pydantic import JsonValue, ValidationError

import cupilot
from cupilot.domain.errors import InvalidPlan, InvalidTensorMap, Unavailable
from cupilot.domain.evaluation import (
    MAX_LOG_CHARACTERS,
    Baseline,
    BuildReport,
    Evaluation,
    Failure,
    FailureKind,
    Preparation,
    PreparationResult,
    Tracing,
)
from cupilot.domain.hardware import Device, Environment, Peaks
from cupilot.domain.imported import ImportedKernel
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import Problem, ProblemFacts, Target
from cupilot.domain.roofline import place
from gpu_worker import endings, imported
from gpu_worker.build import Builder, BuiltKernel
from gpu_worker.build_ahead import BuildAhead, spare_cores
from gpu_worker.bytecode import Bytecode
from gpu_worker.judge_answers import JudgePreparation, failure_from
from gpu_worker.judge_process import Interrupted, JudgeLost, JudgeTimeout, JudgingFailed
from gpu_worker.peaks import PeakStore
from gpu_worker.phases import Phases
from gpu_worker.profiling import Profiling
from gpu_worker.reuse import EvaluationStore, key_of, of_this_source, reused
from gpu_worker.sandbox.sandbox import Sandbox
from gpu_worker.sweep import Sweep, can_vary, worthwhile
from gpu_worker.targets.base import HostTarget
from gpu_worker.targets.registry import open_host
from gpu_worker.turns import Cancelled, alone_on
from gpu_worker.verdict import Measured, conclude
from gpu_worker.warm_judge import Call, ReferenceEnded, WarmJudge, order_of

_FAULTS = frozenset({FailureKind.ILLEGAL_ACCESS, FailureKind.CRASH, FailureKind.TIMEOUT})
"""Failures that may leave a device unusable."""


def never() -> bool:
    """The default of ``cancelled``."""
    return False


class Evaluator:
    """Builds, judges, times and profiles kernels on one device."""

    def __init__(
        self,
        target: Target,
        work_dir: Path,
        *,
        device: str | None = None,
        threads: int | None = None,
        sandbox: Sandbox | None = None,
        reuse: bool = False,
        sweep: int | None = None,
        builder: str | None = None,
        autotune: bool | None = None,
    ) -> None:
        """With ``reuse``, :meth:`evaluate` gives the stored evaluation of a kernel that it has judged before.

        ``sweep`` is how many values of a kernel's tunables may be tried beside its own: 0 for none, by default what
        suits the target. ``builder`` is ``nvrtc`` (by default) or ``nvcc``, for ``cuda``. ``autotune`` is whether
        :meth:`confirm` also compares with ``torch.compile max-autotune``, by default where that suits the target.
        """
        self._host: HostTarget = open_host(target, device=device, threads=threads, builder=builder)
        self._sandbox = sandbox or Sandbox()
        work_dir = work_dir.resolve()
        self._builder = Builder(self._host.toolchain, self._sandbox, work_dir / "builds", self._host.device.arch)
        self._peaks = PeakStore(self._host, self._sandbox, work_dir / "peaks")
        self._judge = WarmJudge(self._host, self._sandbox, Bytecode(work_dir / "bytecode"))
        self._imported = work_dir / "imported"
        self._known = EvaluationStore(work_dir / "evaluations") if reuse else None
        self._ahead = BuildAhead(self._builder, spare_cores(self._host))
        self._sweep = Sweep(self._host, self._builder, self._judge, self._enter)
        self._points = self._host.sweep_points if sweep is None else sweep
        self._autotune = self._host.autotunes if autotune is None else autotune
        self._profiling = Profiling(self._host)
        self._phases = Phases()

    @property
    def device(self) -> Device:
        """The device that kernels run on."""
        return self._host.device

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the warm judge and builds that nobody has asked for yet."""
        self._judge.close()
        self._ahead.end(wait=True)

    def build_ahead(self, preparation: Preparation, kernels: Iterable[Kernel]) -> int:
        """Begin to build kernels whose turn comes later, while others are measured; returns how many were begun.

        None where timing needs every core, as on ``cpu`` with all threads. May be called at any time.
        """
        return self._ahead.begin(kernels, preparation.facts)

    def end_builds(self) -> None:
        """Kill builds that were begun ahead, and forget those that wait; nothing is kept of them."""
        self._ahead.end()

    def prepare(
        self, problem: Problem, *, timeout: float = 300, cancelled: Callable[[], bool] = never
    ) -> PreparationResult:
        """Run the reference in a sandbox, admit the problem, time PyTorch, place it on the roofline."""
        with alone_on(self.device, cancelled):
            return self._prepare(problem, timeout, cancelled)

    def _prepare(self, problem: Problem, timeout: float, cancelled: Callable[[], bool]) -> PreparationResult:
        try:
            answer = self._judge.put("prepare", problem, timeout, cancelled)
            if answer.get("failure"):
                return PreparationResult(failure=failure_from(answer["failure"]))
            preparation = self._preparation(problem, answer["preparation"])
            self._judge.problem = problem.content_hash()
            return PreparationResult(preparation=preparation)
        except (Interrupted, JudgingFailed, Unavailable, OSError, ValidationError, KeyError, TypeError) as error:
            return PreparationResult(failure=self._no_answer(error, "the reference"))
        finally:
            if self._judge.problem is None:
                self._judge.close_problem()

    def _no_answer(self, error: Exception, subject: str) -> Failure:
        """Why a problem file came to no answer; raises :class:`Cancelled` where nobody wants one any more."""
        if not isinstance(error, ReferenceEnded):
            self._judge.close()
        if isinstance(error, Interrupted):
            raise Cancelled from error
        if isinstance(error, ReferenceEnded):
            return endings.reference_ending(error.finished, error.stage)
        if isinstance(error, JudgeLost):
            return endings.judge_ending(error.finished, error.stage)
        if isinstance(error, JudgeTimeout):
            return Failure(kind=FailureKind.TIMEOUT, message=f"{subject}: {error}")
        if isinstance(error, JudgingFailed | ValidationError | KeyError | TypeError):
            message = f"{subject}: the judge gave no valid answer: {str(error)[:2000]}"
            return Failure(kind=FailureKind.INVALID_PROBLEM, message=message)
        return Failure(kind=FailureKind.INFRASTRUCTURE, message=str(error)[:2000])

    def trace(self, problem: Problem, *, timeout: float = 300, cancelled: Callable[[], bool] = never) -> Tracing:
        """Run a problem file once, in a sandbox, and say what it computes; nothing is admitted or timed."""
        with alone_on(self.device, cancelled):
            return self._trace(problem, timeout, cancelled)

    def _trace(self, problem: Problem, timeout: float, cancelled: Callable[[], bool]) -> Tracing:
        try:
            answer = self._judge.put("trace", problem, timeout, cancelled)
            if answer.get("failure"):
                return Tracing(failure=failure_from(answer["failure"]))
            return Tracing(facts=ProblemFacts.model_validate(answer["facts"]))
        except (Interrupted, JudgingFailed, Unavailable, OSError, ValidationError, KeyError, TypeError) as error:
            return Tracing(failure=self._no_answer(error, "the file"))
        finally:
            self._judge.close_problem()

    def evaluate(
        self,
        problem: Problem,
        preparation: Preparation,
        kernel: Kernel | ImportedKernel,
        *,
        incumbent: float | None = None,
        candidate: bool = True,
        timeout: float = 180,
        cancelled: Callable[[], bool] = never,
    ) -> Evaluation:
        """Build, check, time and profile one kernel, side by side with PyTorch eager; then look for better tunables.

        The evaluation's ``tunables`` are those that the times belong to. An imported file is held to the same laws and
        clocks, and marked (``Evaluation.kernel_kind``). ``incumbent`` is the speedup over eager that is to be beaten:
        a kernel that is certainly slower is timed no further, and its hardware counters are not read. Nor are they of
        what is no ``candidate`` to be the best, such as a winner without one of its techniques.
        """
        with alone_on(self.device, cancelled):
            call = Call(time.monotonic() + timeout, cancelled, thorough=False, incumbent=incumbent, candidate=candidate)
            return self._evaluate(Measured(problem, preparation, kernel), call)

    def confirm(
        self,
        problem: Problem,
        preparation: Preparation,
        kernel: Kernel | ImportedKernel,
        *,
        tunables: Mapping[str, int] | None = None,
        timeout: float = 300,
        cancelled: Callable[[], bool] = never,
    ) -> Evaluation:
        """Evaluate again in fresh processes with fresh seeds, longer, twice, and with torch.compile as a baseline too.

        With the ``tunables`` that an evaluation chose, where they are not the plan's own; none others are tried.
        ``reproduced`` when both times agree; an evaluation that holds but whose times do not agree stays ``audited``.
        """
        with alone_on(self.device, cancelled):
            self._judge.close()
            try:
                call = Call(time.monotonic() + timeout, cancelled, thorough=True)
                return self._evaluate(Measured(problem, preparation, kernel, tunables=dict(tunables or {})), call)
            finally:
                self._judge.close()

    def _evaluate(self, measured: Measured, call: Call) -> Evaluation:
        started = time.monotonic()
        self._phases = Phases()
        try:
            self._measure(measured, call)
        except Interrupted as error:
            self._judge.close()
            raise Cancelled from error
        except InvalidPlan as error:
            message = error.message if error.hint is None else f"{error.message} ({error.hint})"
            rule: dict[str, JsonValue] = {"rule": error.rule} if isinstance(error, InvalidTensorMap) else {}
            told: dict[str, JsonValue] = {"code": error.code, **rule, **({"where": error.where} if error.where else {})}
            measured.failure = Failure(kind=FailureKind.INVALID_PLAN, message=message, details=told)
        except (JudgingFailed, OSError) as error:
            self._judge.close()
            details: dict[str, JsonValue] = {}
            if isinstance(error, JudgeLost | ReferenceEnded):
                details["stderr"] = error.finished.stderr[-2000:]
            message = f"the judge failed: {error}"
            measured.failure = Failure(kind=FailureKind.INFRASTRUCTURE, message=message, details=details)
        measured.phases = self._phases.until_now()
        measured.seconds = time.monotonic() - started
        if measured.known is not None:
            return reused(measured.known, measured)
        if measured.eager() is not None:
            measured.peaks = self._peaks.at_least(measured.preparation.peaks)
        measured.environment = self._environment(measured.build)
        evaluation = conclude(measured, self._host, remeasure=self._peaks.again)
        evaluation = evaluation.model_copy(update={"measurement": uuid.uuid4().hex})
        if self._known is not None and measured.key is not None:
            self._known.put(measured.key, evaluation)
        return evaluation

    def _measure(self, measured: Measured, call: Call) -> None:
        started = time.monotonic()
        kernel, facts = measured.tuned(), measured.preparation.facts
        if kernel.target is not self._host.target:
            raise InvalidPlan(f"a {kernel.target.value} kernel cannot run on {self._host.target.value}")
        self._phases.enter("build")
        built = self._build(kernel, facts)
        measured.build, measured.build_facts = built.build.report, built.build.facts
        measured.failure = built.failure
        if measured.failure is not None:
            return
        if self._known is not None and not call.thorough and self._recalled(self._known, measured, built, call):
            return
        if self._points > 0 and not call.thorough and isinstance(kernel, Kernel):
            self._ahead.begin(self._sweep.first_points(kernel, self._points), facts)
        self._phases.enter("open")
        self._judge.open(measured, call)
        self._judge.on_stage = self._phases.stage
        baselines = [Baseline.EAGER, Baseline.COMPILE] if call.thorough else [Baseline.EAGER]
        self._judge.judge(measured, order_of(measured, built.plan, built.binary, call, baselines), call)
        if measured.failure is not None:
            self._blame_the_device(measured)
            if measured.failure.kind is FailureKind.COMPILE_ERROR:
                measured.build = imported.unbuilt(built.build.report, measured.failure)
            return
        if call.thorough:
            again = measured.repetition()
            order = order_of(measured, built.plan, built.binary, call, [Baseline.EAGER]) | {"only_timing": True}
            self._judge.judge(again, order, call)
            measured.repeated = again
            if self._autotune and again.failure is None:
                self._compare_autotuned(measured, built, call)
        if isinstance(kernel, ImportedKernel):
            return
        if call.thorough:
            watch = self._host.watched_memory(built.binary, built.plan, facts.tensors)
            measured.failure, measured.notes = watch.failure, measured.notes + watch.notes
        elif self._points > 0 and worthwhile(measured, call, time.monotonic() - started):
            built = self._swept(measured, built, call)
        self._phases.enter("profile")
        self._profiling.promote(measured, built, call)

    def _recalled(self, store: EvaluationStore, measured: Measured, built: BuiltKernel, call: Call) -> bool:
        """Whether the same was measured before: ``measured`` has it then, with counters if it is promoted by now."""
        points = self._points if can_vary(measured.kernel) else 0
        measured.key = key_of(measured, built.plan, self._environment(measured.build), points)
        measured.known = self._same(store.get(measured.key), measured, points)
        if measured.known is not None and self._profiling.owes(measured, call):
            self._phases.enter("profile")
            self._profiling.catch_up(measured, self._build)
            store.put(measured.key, measured.known)
        return measured.known is not None

    def _same(self, known: Evaluation | None, measured: Measured, points: int) -> Evaluation | None:
        """A known evaluation, unless it rests on tunable values with which this source is other machine code."""
        if known is None or of_this_source(known, measured) or not isinstance(measured.kernel, Kernel):
            return known
        built = self._sweep.retraced(known, measured.kernel, measured.preparation.facts, points)
        if built is not None:
            measured.build = built.build.report
        return known if built is not None else None

    def _compare_autotuned(self, measured: Measured, built: BuiltKernel, call: Call) -> None:
        """Add PyTorch's best compiled code as a baseline; what goes wrong there says nothing about the kernel."""
        extra = measured.repetition()
        baselines = [Baseline.EAGER, Baseline.MAX_AUTOTUNE]
        order = order_of(measured, built.plan, built.binary, call, baselines) | {"only_timing": True}
        try:
            self._judge.judge(extra, order, call)
            why = extra.failure.message if extra.failure is not None else None
        except (JudgingFailed, OSError) as error:
            self._judge.close()
            why = str(error)
        if why is not None:
            measured.notes += (f"no {Baseline.MAX_AUTOTUNE.value} baseline: {why[:500]}",)
            return
        measured.notes += tuple(note for note in extra.notes if note not in measured.notes)
        measured.comparisons += tuple(one for one in extra.comparisons if one.baseline is Baseline.MAX_AUTOTUNE)

    def _enter(self, phase: str) -> None:
        """A phase of the evaluation under way begins."""
        self._phases.enter(phase)

    def _swept(self, measured: Measured, built: BuiltKernel, call: Call) -> BuiltKernel:
        """The build with the best tunables; a sweep that the machine spoils leaves the kernel as it was judged."""
        self._judge.on_stage = None
        try:
            return self._sweep.improve(measured, built, call, self._points)
        except (JudgingFailed, OSError):
            self._judge.close()
            return built

    def _build(self, kernel: Kernel | ImportedKernel, facts: ProblemFacts) -> BuiltKernel:
        if isinstance(kernel, ImportedKernel):
            return imported.stage(kernel, self._imported, self._sandbox)
        ahead = self._ahead.taken(kernel, facts)
        built = self._builder.build_kernel(kernel, facts)
        return built.made_ahead() if ahead and built.build.report.cached else built

    def _blame_the_device(self, measured: Measured) -> None:
        """Turn a kernel's fault into the machine's where the device does not work any more."""
        failure = measured.failure
        if failure is not None and failure.kind in _FAULTS and not self._host.healthy():
            message = f"the device does not work any more after: {failure.message}"[:MAX_LOG_CHARACTERS]
            measured.failure = Failure(kind=FailureKind.INFRASTRUCTURE, message=message, details=failure.details)

    def _preparation(self, problem: Problem, data: dict[str, Any]) -> Preparation:
        answer = JudgePreparation.model_validate(data)
        facts = ProblemFacts.model_validate(answer.facts)
        if facts.problem_hash != problem.content_hash():
            raise KeyError("facts of another problem")
        peaks: Peaks = self._peaks.get()
        return Preparation(
            facts=facts,
            placement=place(facts, peaks),
            peaks=peaks,
            environment=self._environment(None),
            baseline_us=answer.baseline_us,
            laws=answer.laws,
            tolerances=answer.tolerances,
            admission=answer.admission,
            notes=answer.notes,
        )

    def _environment(self, build: BuildReport | None) -> Environment:
        changes = {
            "torch": self._judge.torch,
            "compiler": build.compiler if build is not None else self._host.toolchain.compiler,
            "sandbox": self._sandbox.kind,
            "code_version": cupilot.__version__,
        }
        return self._host.environment().model_copy(update=changes)
