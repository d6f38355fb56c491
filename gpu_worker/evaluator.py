"""The supervisor: prepares problems and evaluates kernels by driving sandboxed compilers, judges and runners.

Imports neither torch nor CUDA, runs no code of users or models, and turns every death of a child into a result. Holds
one warm judge, for the problem it worked on last. Not thread safe. Each call waits for the card and then has it to
itself; its timeout begins then. The way of a kernel: :meth:`Evaluator._stages`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from pydantic import ValidationError

from cupilot.code_version import code_version
from cupilot.domain.data_sheets import stated_peaks
from cupilot.domain.errors import InvalidPlan, Unavailable
from cupilot.domain.evaluation import BuildReport, Evaluation, Failure, Preparation, PreparationResult, Tracing
from cupilot.domain.hardware import Device, Environment, Peaks
from cupilot.domain.imported import ImportedKernel
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import Problem, ProblemFacts, Target
from cupilot.domain.roofline import place
from gpu_worker import endings, imported, workloads
from gpu_worker.build import Builder, BuiltKernel
from gpu_worker.build_ahead import BuildAhead, spare_cores
from gpu_worker.bytecode import Bytecode
from gpu_worker.judge_process import Interrupted, JudgingFailed, ReferenceEnded, UnusableJudge
from gpu_worker.judging import Judging
from gpu_worker.messages.judge import Prepared, Unusable
from gpu_worker.peaks import PeakStore
from gpu_worker.profiling import Profiling
from gpu_worker.reuse import EvaluationStore, Recall, reused
from gpu_worker.sandbox.sandbox import Sandbox
from gpu_worker.stages import Call, EvaluationInput, StageResults
from gpu_worker.sweep import Sweep
from gpu_worker.targets.base import HostTarget
from gpu_worker.targets.registry import open_host
from gpu_worker.turns import Cancelled, exclusive_device
from gpu_worker.verdict import conclude
from gpu_worker.warm_judge import WarmJudge


def never_cancelled() -> bool:
    """Return False: the default of ``cancelled``."""
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
        compile_baseline: bool = True,
        autotune: bool | None = None,
    ) -> None:
        """Make an evaluator; with ``reuse``, :meth:`evaluate` returns the stored evaluation of a known kernel.

        ``sweep`` is how many values of a kernel's tunables may be tried beside its own: 0 for none, by default as many
        as suit the target. ``builder`` is ``nvrtc`` (by default) or ``nvcc``, for ``cuda``. ``compile_baseline`` is
        whether :meth:`confirm` also compares with ``torch.compile``, and ``autotune`` whether with its max-autotune
        mode too, by default where that suits the target.
        """
        self._host: HostTarget = open_host(target, device=device, threads=threads, builder=builder)
        self._sandbox = sandbox or Sandbox()
        work_dir = work_dir.resolve()
        # A CPU's binaries are for its own instructions (-march=native), which the name of its arch tells in part only.
        built_for = self.device.uid if target is Target.CPU else self.device.arch
        self._builder = Builder(self._host.toolchain, self._sandbox, work_dir / "builds", built_for)
        self._peaks = PeakStore(self._host, self._sandbox, work_dir / "peaks")
        self._judge = WarmJudge(self._host, self._sandbox, Bytecode(work_dir / "bytecode"))
        self._imported = work_dir / "imported"
        self._known = EvaluationStore(work_dir / "evaluations") if reuse else None
        self._ahead = BuildAhead(self._builder, spare_cores(self._host))
        autotune = compile_baseline and (self._host.autotunes if autotune is None else autotune)
        points = self._host.sweep_points if sweep is None else sweep
        self._judging = Judging(self._host, self._judge, compile_baseline=compile_baseline, autotune=autotune)
        self._sweep = Sweep(self._host, self._builder, self._ahead, self._judge, self._judging, limit=points)
        self._profiling = Profiling(self._host)
        self._recall = Recall(self._sweep, self._profiling, self._build)

    @property
    def device(self) -> Device:
        """Device that kernels run on."""
        return self._host.device

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the warm judge, and builds that were begun ahead."""
        self._judge.close()
        self._ahead.end(wait=True)

    def build_ahead(self, preparation: Preparation, kernels: Iterable[Kernel]) -> int:
        """Begin to build kernels whose turn comes later, while others are measured; return how many were begun.

        None are where timing needs every core, as on ``cpu`` with all threads. May be called at any time.
        """
        return self._ahead.begin(kernels, preparation.facts)

    def end_builds(self) -> None:
        """Kill builds that were begun ahead, and forget those that wait; their results are not kept."""
        self._ahead.end()

    def prepare(
        self, problem: Problem, *, timeout: float = 300, cancelled: Callable[[], bool] = never_cancelled
    ) -> PreparationResult:
        """Run the reference in a sandbox, admit the problem, time PyTorch, place it on the roofline.

        At each of its workloads where it has any; ``timeout`` is for each.
        """
        with exclusive_device(self.device, cancelled):
            return workloads.prepare_each(problem, lambda part: self._prepared(part, timeout, cancelled))

    def _prepared(self, problem: Problem, timeout: float, cancelled: Callable[[], bool]) -> PreparationResult:
        """Prepare a problem of one shape."""
        try:
            answer = self._judge.prepare(problem, timeout, cancelled)
            if isinstance(answer, Unusable):
                return PreparationResult(failure=answer.failure)
            return PreparationResult(preparation=self._preparation(problem, answer))
        except (Interrupted, JudgingFailed, Unavailable, OSError, ValidationError) as error:
            return PreparationResult(failure=self._failure_of(error, "the reference"))
        except BaseException:
            self._judge.close()
            raise
        finally:
            if self._judge.problem is None:
                self._judge.close_problem()

    def trace(
        self, problem: Problem, *, timeout: float = 300, cancelled: Callable[[], bool] = never_cancelled
    ) -> Tracing:
        """Run a problem file once, in a sandbox, and trace what it computes; nothing is admitted or timed."""
        with exclusive_device(self.device, cancelled):
            try:
                answer = self._judge.trace(problem, timeout, cancelled)
                return Tracing(failure=answer.failure) if isinstance(answer, Unusable) else Tracing(facts=answer.facts)
            except (Interrupted, JudgingFailed, Unavailable, OSError) as error:
                return Tracing(failure=self._failure_of(error, "the file"))
            except BaseException:
                self._judge.close()
                raise
            finally:
                self._judge.close_problem()

    def _failure_of(self, error: Exception, subject: str) -> Failure:
        """Return why there is no answer about a problem file; raises :class:`Cancelled` where the call was."""
        if not isinstance(error, ReferenceEnded):
            self._judge.close()
        if isinstance(error, Interrupted):
            raise Cancelled from error
        return endings.unanswered(error, subject)

    def evaluate(
        self,
        problem: Problem,
        preparation: Preparation,
        kernel: Kernel | ImportedKernel,
        *,
        incumbent: float | None = None,
        candidate: bool = True,
        fresh: bool = False,
        timeout: float = 180,
        cancelled: Callable[[], bool] = never_cancelled,
    ) -> Evaluation:
        """Build, check, time and profile one kernel, side by side with PyTorch eager; then look for better tunables.

        The evaluation's ``tunables`` are those that the times belong to. An imported file is verified and timed in the
        same way, and marked (``Evaluation.kernel_kind``). ``incumbent`` is the speedup over eager to be beaten: a
        kernel that is certainly slower is timed no further, and its hardware counters are not read. Nor are they for a
        kernel that is no ``candidate`` to be the best, such as a winner without one of its techniques. A ``fresh``
        evaluation is measured, not recalled. Of a problem with workloads, each is evaluated, within ``timeout``; no
        ``incumbent`` ends that early.
        """
        best = None if preparation.workloads else incumbent

        def evaluated(subject: EvaluationInput) -> Evaluation:
            deadline = time.monotonic() + timeout
            call = Call(deadline, cancelled, thorough=False, incumbent=best, candidate=candidate, fresh=fresh)
            return self._evaluation(subject, call)

        with exclusive_device(self.device, cancelled):
            return workloads.evaluate_each(EvaluationInput(problem, preparation, kernel), evaluated)

    def confirm(
        self,
        problem: Problem,
        preparation: Preparation,
        kernel: Kernel | ImportedKernel,
        *,
        tunables: Mapping[str, int] | None = None,
        timeout: float = 300,
        cancelled: Callable[[], bool] = never_cancelled,
    ) -> Evaluation:
        """Evaluate again in fresh processes with fresh seeds, longer, twice, and against further baselines.

        With the ``tunables`` that an evaluation chose, where they are not the plan's own; none others are tried.
        ``reproduced`` when both times agree; an evaluation that holds but whose times do not agree stays ``audited``.
        """

        def confirmed(subject: EvaluationInput) -> Evaluation:
            return self._evaluation(subject, Call(time.monotonic() + timeout, cancelled, thorough=True))

        with exclusive_device(self.device, cancelled):
            self._judge.close()
            try:
                return workloads.evaluate_each(EvaluationInput(problem, preparation, kernel, tunables or {}), confirmed)
            finally:
                self._judge.close()

    def _evaluation(self, subject: EvaluationInput, call: Call) -> Evaluation:
        """Take a kernel through the stages, and conclude from their results."""
        subject, results = self._with_known_peaks(subject), StageResults()
        try:
            for reached in self._stages(subject, call):
                results = reached
        except Interrupted as error:
            self._judge.close()
            raise Cancelled from error
        except InvalidPlan as error:
            results = replace(results, interruption=endings.invalid_plan(error))
        except (JudgingFailed, OSError) as error:
            self._judge.close()
            results = replace(results, interruption=endings.machine_failure(error))
        except BaseException:  # what the judge still answers would be taken for the next kernel's
            self._judge.close()
            raise
        phases, seconds = call.phases.until_now(), call.phases.elapsed()
        recalled = results.recalled
        if recalled is not None and recalled.evaluation is not None and results.interruption is None:
            return reused(recalled.evaluation, recalled.report, subject.kernel, phases, seconds)
        try:
            concluded = self._concluded(subject, results)
        except (Unavailable, OSError) as error:  # of measuring the device's peaks again
            interruption = endings.unanswered(error, "the peaks")
            concluded = self._concluded(subject, StageResults(results.built, interruption=interruption))
        evaluation = concluded.model_copy(update={"phases": phases, "seconds": seconds})
        if self._known is not None and recalled is not None:
            self._known.put(recalled.key, evaluation)
        return evaluation

    def _stages(self, subject: EvaluationInput, call: Call) -> Iterator[StageResults]:
        """Yield the results so far after each stage, until one fails; see :mod:`gpu_worker.stages`."""
        kernel = subject.tuned()
        call.phases.enter("build")
        built = self._build(kernel, subject.preparation.facts)
        results = StageResults(built)
        yield results
        if results.failure is not None:
            return

        if self._known is not None and not call.thorough:
            environment = self._environment(built.build.report)
            recalled = self._recall.look_up(self._known, subject, built, environment, call)
            results = replace(results, recalled=recalled)
            yield results
            if recalled.evaluation is not None:
                return

        self._sweep.build_ahead(subject, call)
        judged = self._judging.judge(subject, built, call)
        if isinstance(kernel, ImportedKernel):
            results = replace(results, built=imported.with_runner_log(built, judged.failure))
        results = replace(results, judged=judged)
        yield results
        if results.failure is not None:
            return

        if call.thorough:
            results = replace(results, confirmation=self._judging.confirm(subject, built, call))
            yield results
        if isinstance(kernel, ImportedKernel):
            return
        if call.thorough:
            self._judge.close()  # the replay allocates all tensors again
            memory = self._host.watched_memory(built.binary, built.plan, subject.preparation.facts.tensors)
            results = replace(results, memory=memory)
        else:
            results = replace(results, sweep=self._sweep.improve(subject, built, judged, call))
        yield results
        yield replace(results, profile=self._profiling.profile(subject, results, call))

    def _concluded(self, subject: EvaluationInput, results: StageResults) -> Evaluation:
        """Return the evaluation with the environment that it was made in."""
        report = results.standing_build.build.report if results.standing_build is not None else None
        environment = self._environment(report)
        evaluation = conclude(subject, results, self._host, self._peaks_again)
        return evaluation.model_copy(update={"environment": environment, "measurement": uuid.uuid4().hex})

    def _with_known_peaks(self, subject: EvaluationInput) -> EvaluationInput:
        """Return what is to be evaluated with the highest peaks that are known of the device, and a bound by them."""
        preparation = subject.preparation
        peaks = self._peaks.at_least(preparation.peaks)
        if peaks == preparation.peaks:
            return subject
        placement = place(preparation.facts, peaks, stated_peaks(self.device.name))
        return replace(subject, preparation=preparation.model_copy(update={"peaks": peaks, "placement": placement}))

    def _peaks_again(self) -> Peaks:
        """Measure the device's peaks once more, without what the judge holds of its memory."""
        self._judge.close()
        return self._peaks.again()

    def _build(self, kernel: Kernel | ImportedKernel, facts: ProblemFacts) -> BuiltKernel:
        """Build a kernel; raises InvalidPlan where it is for another target, or its plan does not fit the problem."""
        if kernel.target is not self._host.target:
            raise InvalidPlan(f"a {kernel.target.value} kernel cannot run on {self._host.target.value}")
        if isinstance(kernel, ImportedKernel):
            return imported.stage(kernel, self._imported, self._sandbox)
        ahead = self._ahead.taken(kernel, facts)
        built = self._builder.build_kernel(kernel, facts)
        return built.made_ahead() if ahead and built.build.report.cached else built

    def _preparation(self, problem: Problem, answer: Prepared) -> Preparation:
        facts = answer.facts
        if facts.problem_hash != problem.content_hash():
            raise UnusableJudge("facts of another problem")
        peaks = self._peaks.get()
        return Preparation(
            facts=facts,
            placement=place(facts, peaks, stated_peaks(self.device.name)),
            peaks=peaks,
            environment=self._environment(None),
            baseline_us=answer.baseline_us,
            laws=answer.laws,
            tolerances=answer.tolerances,
            admission=answer.admission,
            notes=answer.notes,
            host_bound=answer.host_bound,
        )

    def _environment(self, build: BuildReport | None) -> Environment:
        changes = {
            "torch": self._judge.torch,
            "compiler": build.compiler if build is not None else self._host.toolchain.compiler,
            "sandbox": self._sandbox.kind,
            "code_version": code_version(),
        }
        return self._host.environment().model_copy(update=changes)
