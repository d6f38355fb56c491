"""A candidate's stages that ask the judge, each once, as :mod:`agents.stages` are those that ask agents.

Run by GPU workers, whose machines have neither agents nor a model library, and by :mod:`workers.local`, which has no
database: imports none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from cupilot.domain.errors import InvalidProblem
from cupilot.domain.evaluation import LACKS_MEMORY, Evaluation, Failure, FailureKind, Preparation, Tracing
from cupilot.domain.evolution.fitness import floor_share
from cupilot.domain.evolution.notes import Notes
from cupilot.domain.evolution.pipeline import Done, Judged, Outcome, WrongConversion
from cupilot.domain.imported import ImportedKernel
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import Problem
from cupilot.domain.roofline import NEAR_FLOOR
from cupilot.domain.sameness import difference

MAX_COMPLAINT = 2_000


class InfrastructureFailure(Exception):
    """The step failed through no fault of its kernel or problem; it is to be retried elsewhere."""


class LacksMemory(InfrastructureFailure):
    """The judge had too little memory for the problem, so that the job's other kernels will fare no better there."""


def infrastructure(failure: Failure) -> InfrastructureFailure:
    """Return the exception for a failure that says nothing about the kernel or the problem."""
    lacks_memory = failure.details.get("code") == LACKS_MEMORY
    return (LacksMemory if lacks_memory else InfrastructureFailure)(failure.message)


def raise_infrastructure(failure: Failure | None) -> None:
    """Raise :class:`InfrastructureFailure` for a failure that says nothing about the kernel or the problem."""
    if failure is not None and failure.kind is FailureKind.INFRASTRUCTURE:
        raise infrastructure(failure)


class StageJudge(Protocol):
    """The judge as a stage asks it.

    Raises :class:`InfrastructureFailure` where an answer says nothing about the kernel.
    """

    def trace(self, problem: Problem) -> Tracing:
        """Run a problem file once and return what it computes."""

    def evaluate(
        self,
        problem: Problem,
        preparation: Preparation,
        kernel: Kernel | ImportedKernel,
        *,
        incumbent: float | None,
        fresh: bool = False,
    ) -> Evaluation:
        """Build, judge, time and profile a kernel; ``incumbent`` is the speedup of the job's best one.

        ``fresh`` is whether to measure it whatever is known of it.
        """


@dataclass(frozen=True)
class Judgement:
    """Result of a stage: its outcome, and what the candidate gets from it."""

    outcome: Outcome
    evaluation: Evaluation | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Changed fields of :class:`cupilot.domain.evolution.notes.Notes`."""


class JudgedStage(Protocol):
    """One stage, as a view of its candidate."""

    def run(self, problem: Problem, preparation: Preparation, judge: StageJudge) -> Judgement:
        """Ask the judge."""


@dataclass(frozen=True)
class Check:
    """The check that the candidate's conversion makes the same calls as the reference."""

    notes: Notes
    """They hold the conversion, and those that were wrong before it."""

    def run(self, problem: Problem, preparation: Preparation, judge: StageJudge) -> Judgement:
        """See :class:`JudgedStage`."""
        complaint = self._complaint(problem, preparation, judge)
        if complaint is None:
            return Judgement(Done())
        wrong = (*self.notes.conversions, (self.notes.functional, complaint[:MAX_COMPLAINT]))
        return Judgement(WrongConversion(), notes={"functional": "", "conversions": wrong})

    def _complaint(self, problem: Problem, preparation: Preparation, judge: StageJudge) -> str | None:
        functional = self.notes.functional
        if functional == problem.source:
            return None
        try:
            converted = Problem(name=problem.name, source=functional, policy=problem.policy)
        except InvalidProblem as error:
            return error.message
        tracing = judge.trace(converted)
        if tracing.facts is None:
            assert tracing.failure is not None
            return tracing.failure.message
        return difference(preparation.facts, tracing.facts)


@dataclass(frozen=True)
class Evaluate:
    """The measurement of the candidate's kernel."""

    kernel: Kernel | ImportedKernel
    incumbent: float | None = None
    """Speedup to beat: of the job's best kernel so far, or of the candidate's own where this is to improve it. A
    certainly slower kernel is not measured to the end."""
    fresh: bool = False
    """True if the kernel is to be measured, even where an evaluation of it is known."""

    def run(self, problem: Problem, preparation: Preparation, judge: StageJudge) -> Judgement:
        """See :class:`JudgedStage`."""
        evaluation = judge.evaluate(problem, preparation, self.kernel, incumbent=self.incumbent, fresh=self.fresh)
        failure = evaluation.failure.kind if evaluation.failure else None
        share = floor_share(evaluation, evaluation.placement or preparation.placement)
        near = share is not None and share >= NEAR_FLOOR
        return Judgement(Judged(evaluation.verdict, failure, near), evaluation)
