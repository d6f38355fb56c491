"""Takes the candidates of one local job through their pipelines, one stage after the other.

The workers' handlers without rows: the same agents, the same judge, the same decisions
(:mod:`cupilot.domain.evolution.pipeline`) and the same seeds, so a job evolves here as it does there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from agents.interface import (
    AgentError,
    Agents,
    Alignment,
    Attempt,
    Briefing,
    Commission,
    Conversion,
    KernelEngineer,
)
from benchmarks.local_pool import LocalPool
from cupilot.domain.evaluation import Evaluation, FailureKind, Preparation, PreparationResult, Tracing
from cupilot.domain.evolution.methods import method_for
from cupilot.domain.evolution.novelty import kernel_key, strategy_key
from cupilot.domain.evolution.pipeline import (
    Done,
    Duplicate,
    End,
    Ending,
    Judged,
    Mistaken,
    Next,
    Outcome,
    Refused,
    Stage,
    first,
    following,
)
from cupilot.domain.evolution.population import Operator, Proposal
from cupilot.domain.evolution.seeds import stage_seed
from cupilot.domain.job import JobSpec
from cupilot.domain.kernel import Kernel
from cupilot.domain.pool import entry_of
from cupilot.domain.problem import Problem
from cupilot.domain.sameness import difference
from cupilot.domain.strategy import Strategy, union
from cupilot.domain.technique import catalogue

INFRASTRUCTURE_TRIES = 3
TEAM = "local"


class Judge(Protocol):
    """The part of :class:`gpu_worker.evaluator.Evaluator` that a job needs."""

    def prepare(self, problem: Problem, /) -> PreparationResult:
        """Check the reference, time the baseline, place the problem."""
        ...

    def trace(self, problem: Problem, /) -> Tracing:
        """Run a problem file once and say what it computes."""
        ...

    def evaluate(self, problem: Problem, preparation: Preparation, kernel: Kernel, /) -> Evaluation:
        """Measure a kernel."""
        ...

    def confirm(self, problem: Problem, preparation: Preparation, kernel: Kernel, /) -> Evaluation:
        """Measure a kernel again, in fresh processes and against every baseline."""
        ...


@dataclass
class Candidate:
    """An individual, and how far it has come."""

    ordinal: int
    generation: int
    proposal: Proposal
    strategy: Strategy | None = None
    history: list[Attempt] = field(default_factory=list)
    """Its measured kernels, oldest first; the last one is what it is."""
    confirmation: Evaluation | None = None
    alignment: Alignment | None = None
    name: str = ""
    insight: str = ""
    """What its writer called it, and why it should be fast."""
    functional: str = ""
    conversions: list[tuple[str, str]] = field(default_factory=list)
    """Conversions of the reference that were wrong, each with what was wrong."""
    end: End | None = None
    seconds: float = 0.0

    @property
    def id(self) -> str:
        """Name within the job."""
        return f"c{self.ordinal}"

    @property
    def kernel(self) -> Kernel | None:
        """The kernel that was measured last."""
        return self.history[-1].kernel if self.history else None

    @property
    def evaluation(self) -> Evaluation | None:
        """What selection goes by."""
        return self.history[-1].evaluation if self.history else None

    @property
    def latest(self) -> Evaluation | None:
        """What the job reports: the confirmation, where there was one."""
        return self.confirmation or self.evaluation


@dataclass
class Pipeline:
    """All that the stages of one job's candidates share."""

    spec: JobSpec
    preparation: Preparation
    judge: Judge
    agents: Agents
    pool: LocalPool
    candidates: list[Candidate] = field(default_factory=list)
    tried: list[Strategy] = field(default_factory=list)
    """Every strategy of the job, as asked for and as aligned."""
    kernels: set[str] = field(default_factory=set)
    """Keys of every kernel of the job (:func:`cupilot.domain.evolution.novelty.kernel_key`)."""

    @property
    def briefing(self) -> Briefing:
        """What the agents may know."""
        return Briefing(
            problem=self.spec.problem,
            facts=self.preparation.facts,
            target=self.spec.target,
            device=self.preparation.environment.device,
            placement=self.preparation.placement if self.spec.method.roofline_guidance else None,
            peaks=self.preparation.peaks if self.spec.method.roofline_guidance else None,
            baseline_us=self.preparation.baseline_us.median,
            compiler=self.preparation.environment.compiler,
        )

    def add(self, generation: int, proposal: Proposal, strategy: Strategy | None = None) -> Candidate:
        """A new candidate, with its strategy where the operator needs no stage to find one."""
        candidate = Candidate(len(self.candidates), generation, proposal, strategy)
        self.candidates.append(candidate)
        if strategy is not None:
            self.tried.append(strategy)
        return candidate

    def has(self, strategy: Strategy) -> bool:
        """Whether the job tried a strategy that asks for the same code."""
        return strategy_key(strategy, catalogue()) in {strategy_key(one, catalogue()) for one in self.tried}

    def named(self, ids: Iterable[str]) -> list[Candidate]:
        """The candidates of these ids, in this order."""
        by_id = {one.id: one for one in self.candidates}
        return [by_id[one] for one in ids]

    def seeds(self, proposals: Iterable[Proposal]) -> list[Attempt]:
        """The kernels that these begin from, each once."""
        ids = dict.fromkeys(parent for proposal in proposals for parent in proposal.parents)
        return [_attempt(one) for one in self.named(ids)]

    def ancestors(self, candidate: Candidate) -> list[Candidate]:
        """All that a candidate comes from, the oldest first."""
        found: dict[str, Candidate] = {}
        todo = list(candidate.proposal.parents)
        while todo:
            parent = self.named([todo.pop()])[0]
            if parent.id not in found:
                found[parent.id] = parent
                todo += parent.proposal.parents
        return sorted(found.values(), key=lambda one: one.ordinal)

    def live(self, candidate: Candidate) -> None:
        """Take a candidate to its end."""
        started = time.monotonic()
        life = _Life(self, candidate)
        course = method_for(self.spec.method).course(candidate.proposal.operator)
        stage: Next | End = first(course)
        while isinstance(stage, Next):
            try:
                outcome = life.do(stage)
            except AgentError as error:
                outcome = Refused(error.code)
            stage = outcome if isinstance(outcome, End) else following(course, stage, outcome)
        candidate.end = stage
        candidate.seconds = time.monotonic() - started

    def remember(self, candidate: Candidate) -> None:
        """Tell the pool what the candidate's last measurement taught."""
        assert candidate.strategy is not None
        assert candidate.evaluation is not None
        entry = entry_of(
            candidate.evaluation,
            id=f"{self.spec.problem.name}/{candidate.id}/{len(candidate.history)}",
            team=TEAM,
            problem_name=self.spec.problem.name,
            facts=self.preparation.facts,
            target=self.spec.target,
            device_class=self.preparation.environment.device.device_class,
            zone=self.preparation.placement.zone,
            strategy=candidate.strategy,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        self.pool.add(entry)


class _Life:
    """One candidate between two stages: holds the kernel that is written but not yet measured."""

    def __init__(self, pipeline: Pipeline, candidate: Candidate) -> None:
        self.pipeline = pipeline
        self.candidate = candidate
        self.kernel: Kernel | None = None
        self.note = ""
        """What the Revisor changed in it."""

    def do(self, stage: Next) -> Outcome | End:
        """Do one stage; an agent that cannot raises :class:`AgentError`."""
        seed = stage_seed(self.pipeline.spec.seed, self.candidate.ordinal, stage)
        match stage.stage:
            case Stage.CROSS:
                return self._cross(seed)
            case Stage.TRANSLATE:
                return self._translate(seed)
            case Stage.MERGE:
                return self._merge(seed)
            case Stage.CONVERT:
                return self._convert(seed)
            case Stage.CHECK:
                return self._check()
            case Stage.WRITE:
                return self._write(seed)
            case Stage.REVISE:
                return self._revise(seed)
            case Stage.EVALUATE:
                return self._evaluate()
            case Stage.ALIGN:
                return self._align()

    def _cross(self, seed: int) -> Outcome:
        line = self.pipeline
        one, other = (_attempt(parent) for parent in self._parents())
        strategy = line.agents.manager.crossover(line.briefing, one, other, line.tried, seed)
        if line.has(strategy):
            return Duplicate()
        self._give_strategy(strategy)
        return Done()

    def _merge(self, seed: int) -> Outcome:
        line = self.pipeline
        one, other = (_attempt(parent) for parent in self._parents())
        outcome = self._give_kernel(line.agents.translator.merge(line.briefing, one, other, seed))
        if isinstance(outcome, Done):
            self._give_strategy(union(one.strategy, other.strategy))
        return outcome

    def _convert(self, seed: int) -> Outcome:
        line = self.pipeline
        attempts = [Conversion(source=source, complaint=why) for source, why in self.candidate.conversions]
        self.candidate.functional = engineer_of(line.agents).convert(line.briefing, attempts, seed)
        return Done()

    def _check(self) -> Outcome:
        line, source = self.pipeline, self.candidate.functional
        if source == line.spec.problem.source:
            return Done()
        tracing = line.judge.trace(line.spec.problem.model_copy(update={"source": source}))
        if tracing.facts is not None:
            complaint = difference(line.preparation.facts, tracing.facts)
        else:
            assert tracing.failure is not None
            complaint = tracing.failure.message
        if complaint is None:
            return Done()
        self.candidate.conversions.append((source, complaint))
        return Mistaken()

    def _write(self, seed: int) -> Outcome:
        line, proposal = self.pipeline, self.candidate.proposal
        shown = [_attempt(one) for one in line.named(proposal.inspirations)]
        best = [_attempt(one) for one in line.named([proposal.best] if proposal.best else [])]
        drawn = proposal.operator in (Operator.REWRITE, Operator.CODE_CROSSOVER, Operator.MUTATION)
        commission = Commission(
            method=line.spec.method.name,
            operator=proposal.operator,
            generation=self.candidate.generation,
            place=proposal.place,
            places=proposal.places,
            best=best[0] if best else None,
            parents=tuple(_attempt(one) for one in self._parents()),
            shown=() if drawn else tuple(shown),
            insights=tuple(one.insight for one in shown if one.insight) if drawn else (),
            functional=self.candidate.functional,
        )
        draft = engineer_of(line.agents).write(line.briefing, commission, seed)
        self.candidate.name, self.candidate.insight = draft.name, draft.insight
        outcome = self._give_kernel(draft.kernel)
        if isinstance(outcome, Done):
            self._give_strategy(draft.strategy)
        return outcome

    def _translate(self, seed: int) -> Outcome:
        assert self.candidate.strategy is not None
        parents = self._parents()
        parent = parents[0].kernel if parents else None
        line = self.pipeline
        kernel = line.agents.translator.translate(line.briefing, self.candidate.strategy, parent, seed)
        return self._give_kernel(kernel)

    def _revise(self, seed: int) -> Outcome:
        line = self.pipeline
        history = self.candidate.history or self._parents()[0].history
        if self.candidate.proposal.operator is Operator.TRANSLATION:
            revision = engineer_of(line.agents).mend(line.briefing, history, seed)
        else:
            lineage = [one for ancestor in line.ancestors(self.candidate) for one in ancestor.history]
            revision = line.agents.revisor.revise(line.briefing, history, seed, lineage=lineage)
        if revision is None:
            return Refused("gave_up")
        outcome = self._give_kernel(revision.kernel)
        if isinstance(outcome, Done):
            self._give_strategy(revision.strategy)
            self.note = revision.note
        return outcome

    def _evaluate(self) -> Outcome | End:
        assert self.kernel is not None
        assert self.candidate.strategy is not None
        line, kernel = self.pipeline, self.kernel
        evaluation = retried(lambda: line.judge.evaluate(line.spec.problem, line.preparation, kernel))
        if evaluation is None:
            measured = self.candidate.evaluation is not None
            return End(Ending.EVALUATED if measured else Ending.FAILED, FailureKind.INFRASTRUCTURE.value)
        attempt = Attempt(strategy=self.candidate.strategy, kernel=kernel, evaluation=evaluation, insight=self.note)
        self.candidate.history.append(attempt)
        line.remember(self.candidate)
        return Judged(evaluation.verdict, evaluation.failure.kind if evaluation.failure else None)

    def _align(self) -> Outcome:
        line = self.pipeline
        self.candidate.alignment = line.agents.translator.align(line.briefing, self.candidate.history[-1])
        self._give_strategy(self.candidate.alignment.strategy)
        line.remember(self.candidate)
        return Done()

    def _give_strategy(self, strategy: Strategy) -> None:
        self.candidate.strategy = strategy
        self.pipeline.tried.append(strategy)

    def _give_kernel(self, kernel: Kernel) -> Outcome:
        key = kernel_key(kernel)
        if key in self.pipeline.kernels:
            return Duplicate()
        self.pipeline.kernels.add(key)
        self.kernel = kernel
        return Done()

    def _parents(self) -> list[Candidate]:
        return self.pipeline.named(self.candidate.proposal.parents)


def retried(measure: Callable[[], Evaluation]) -> Evaluation | None:
    """The first measurement that says something about the kernel; None where the machine fails again and again."""
    for _ in range(INFRASTRUCTURE_TRIES):
        evaluation = measure()
        if evaluation.failure is None or evaluation.failure.kind is not FailureKind.INFRASTRUCTURE:
            return evaluation
    return None


def _attempt(parent: Candidate) -> Attempt:
    assert parent.strategy is not None
    return Attempt(
        strategy=parent.strategy,
        kernel=parent.kernel,
        evaluation=parent.evaluation,
        name=parent.name,
        insight=parent.insight,
    )


def engineer_of(agents: Agents) -> KernelEngineer:
    """Whoever writes kernels freely; AgentError where nobody does."""
    if agents.engineer is None:
        raise AgentError("these agents cannot write kernels freely")
    return agents.engineer
