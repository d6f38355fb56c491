"""The judge of a batch, in two halves: one notes what a step asks, the other answers with what came back.

A device step asks its judge exactly once; between the two halves lies the file. Both stand where a worker has
:class:`gpu_worker.evaluator.Evaluator` (:class:`workers.judge.Judge`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from cupilot.domain.batches.files import to_object
from cupilot.domain.batches.manifest import Operation, Question
from cupilot.domain.batches.results import BatchRecord
from cupilot.domain.evaluation import Evaluation, Preparation, PreparationResult, Tracing
from cupilot.domain.imported import ImportedKernel
from cupilot.domain.job import AgentKind
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import Problem
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.transitions import Stale
from cupilot.storage.queue.steps import Claim
from workers.judge import Judge
from workers.stages import InfrastructureFailure, infrastructure
from workers.tools import Tools

if TYPE_CHECKING:
    from cupilot.storage.pool.index import StrategyPool


Objects = Mapping[str, str]
"""Texts of a batch's objects by their hashes."""

_TERMS = ("incumbent", "candidate", "fresh", "tunables", "timeout")
"""Fields of a question that are no objects, and do not follow from them."""


class Asked(Exception):
    """A step has asked its judge: the question, and the objects that it names."""

    def __init__(self, question: Question, objects: Mapping[str, str]) -> None:
        super().__init__(question.operation.value)
        self.question = question
        self.objects = objects


class BatchJudge:
    """Puts what it is asked into one question, and hands it on."""

    builds_ahead = 0

    def _answer(self, asked: Asked) -> BatchRecord:
        """Return the answer to a question."""
        raise NotImplementedError

    def prepare(self, problem: Problem, *, timeout: float, cancelled: Callable[[], bool]) -> PreparationResult:  # noqa: ARG002
        """See :class:`workers.judge.Judge`."""
        answer = self._answer(_asked(Operation.PREPARE, problem, timeout=timeout)).preparation
        assert answer is not None
        return answer

    def trace(self, problem: Problem, *, timeout: float, cancelled: Callable[[], bool]) -> Tracing:  # noqa: ARG002
        """See :class:`workers.judge.Judge`."""
        answer = self._answer(_asked(Operation.TRACE, problem, timeout=timeout)).tracing
        assert answer is not None
        return answer

    def evaluate(
        self,
        problem: Problem,
        preparation: Preparation,
        kernel: Kernel | ImportedKernel,
        *,
        incumbent: float | None,
        candidate: bool = True,
        fresh: bool = False,
        timeout: float,
        cancelled: Callable[[], bool],  # noqa: ARG002
    ) -> Evaluation:
        """See :class:`workers.judge.Judge`."""
        terms = {"incumbent": incumbent, "candidate": candidate, "fresh": fresh, "timeout": timeout}
        answer = self._answer(_asked(Operation.EVALUATE, problem, preparation, kernel, **terms)).evaluation
        assert answer is not None
        return answer

    def confirm(
        self,
        problem: Problem,
        preparation: Preparation,
        kernel: Kernel | ImportedKernel,
        *,
        tunables: Mapping[str, int],
        timeout: float,
        cancelled: Callable[[], bool],  # noqa: ARG002
    ) -> Evaluation:
        """See :class:`workers.judge.Judge`."""
        terms = {"tunables": dict(tunables), "timeout": timeout}
        answer = self._answer(_asked(Operation.CONFIRM, problem, preparation, kernel, **terms)).evaluation
        assert answer is not None
        return answer

    def build_ahead(self, preparation: Preparation, kernels: Sequence[Kernel]) -> int:  # noqa: ARG002
        """Build nothing."""
        return 0

    def end_builds(self) -> None:
        """Do nothing."""


class AskingJudge(BatchJudge):
    """Raises :class:`Asked` with whatever it is asked."""

    def _answer(self, asked: Asked) -> BatchRecord:
        raise asked


class AnsweringJudge(BatchJudge):
    """Answers the question that was exported with the record that came back."""

    def __init__(self, question: Question, record: BatchRecord, objects: Callable[[Question], Objects]) -> None:
        """Answer the question with the record; ``objects`` returns those that a question of the batch names."""
        self._question = question
        self._record = record
        self._objects = objects

    def _answer(self, asked: Asked) -> BatchRecord:
        """Return the record.

        Raises :class:`Stale` where the step asks something else by now, and :class:`InfrastructureFailure` where the
        machine gave no answer.
        """
        if not asked.question.same_subject(self._question) and not asked.question.same_subject(self._anew()):
            raise Stale("the step asks for something else than what was exported")
        if self._record.failure is not None:
            raise infrastructure(self._record.failure)
        return self._record

    def _anew(self) -> Question:
        """Return the question as this version of the code asks it: a field that is new changes the hash of a value."""
        question, objects = self._question, self._objects(self._question)
        problem = Problem.model_validate_json(objects[question.problem])
        terms = {name: getattr(question, name) for name in _TERMS}
        if question.preparation is None or question.kernel is None:
            return _asked(question.operation, problem, **terms).question
        preparation = Preparation.model_validate_json(objects[question.preparation])
        kind = ImportedKernel if question.imported else Kernel
        kernel = kind.model_validate_json(objects[question.kernel])
        return _asked(question.operation, problem, preparation, kernel, **terms).question


def batch_tools(settings: Settings, database: Database, judge: Judge) -> Tools:
    """Return the tools of a device step whose judge is one of these: it needs no others."""
    return Tools(settings=settings, database=database, agents=_no_agents, judge=lambda: judge, pool=_no_pool)


def _asked(
    operation: Operation,
    problem: Problem,
    preparation: Preparation | None = None,
    kernel: Kernel | ImportedKernel | None = None,
    **terms: object,
) -> Asked:
    values = {"problem": problem, "preparation": preparation, "kernel": kernel}
    objects = {name: to_object(value) for name, value in values.items() if value is not None}
    question = Question.model_validate(
        {
            "operation": operation,
            **{name: key for name, (key, _) in objects.items()},
            "problem_hash": problem.content_hash(),
            "kernel_hash": kernel.content_hash() if kernel is not None else None,
            "imported": isinstance(kernel, ImportedKernel),
            **terms,
        }
    )
    return Asked(question, dict(objects.values()))


def _no_agents(kind: AgentKind, claim: Claim, cancelled: Callable[[], bool]) -> NoReturn:  # noqa: ARG001
    raise InfrastructureFailure("a batch has no agents")


def _no_pool() -> StrategyPool:
    raise InfrastructureFailure("a batch has no strategy pool")
