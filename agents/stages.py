"""A candidate's stages that ask agents, one class a stage: its inputs, its questions, its result.

A stage is a frozen view. ``read`` takes from a candidate all that the stage may know, before anything is asked; ``run``
asks the agents and says what the candidate gets from it. Two drivers run the same stages: the workers, which keep
candidates in rows (:mod:`workers.handlers.candidate`), and :mod:`workers.local`, which keeps them in memory. Whether a
job already has a strategy or a kernel is theirs to say, because it is theirs to store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from agents.interface import (
    AgentError,
    Agents,
    Attempt,
    Briefing,
    Conversion,
    Example,
    InitialStrategy,
    KernelEngineer,
    Work,
    WriteInput,
)
from agents.stage import AgentStage, CandidateReader, Settled
from cupilot.domain.errors import CupilotError
from cupilot.domain.evolution.novelty import strategy_key
from cupilot.domain.evolution.pipeline import AgentFailed, Stage
from cupilot.domain.evolution.population import Operator
from cupilot.domain.model_call import CostBudgetReached
from cupilot.domain.pool import Lesson, PoolMatch
from cupilot.domain.states import StrategyOrigin
from cupilot.domain.strategy import Strategy, union
from cupilot.domain.technique import catalogue

logger = logging.getLogger(__name__)

GAVE_UP = "gave_up"
"""Reason of a refusal: the Revisor sees nothing more to change."""
MAX_ANCESTORS = 16
"""Ancestors whose trials the Revisor is shown, the youngest ones."""


@dataclass(frozen=True)
class Cross:
    """SCE Manager: one strategy from two parents'."""

    first: Attempt
    second: Attempt
    tried: Sequence[Strategy]
    outcomes: Mapping[str, str]

    @classmethod
    def read(cls, candidate: CandidateReader) -> Self:
        """See :class:`AgentStage`."""
        first, second = candidate.parents()
        return cls(first, second, candidate.tried(), candidate.outcomes())

    def run(self, agents: Agents, briefing: Briefing, seed: int) -> Settled:
        """See :class:`AgentStage`."""
        strategy = agents.manager.crossover(briefing, self.first, self.second, self.tried, seed, outcomes=self.outcomes)
        return Settled(strategy=strategy, origin=StrategyOrigin.CROSSOVER)


@dataclass(frozen=True)
class Translate:
    """Strategy Translator: a kernel for the candidate's strategy."""

    strategy: Strategy
    parents: Sequence[Attempt]
    """The kernels to start from, the fitter first; none for the first generation."""
    lessons: Sequence[Lesson] = ()
    """Changes of kernels on similar problems, with their worth."""

    @classmethod
    def read(cls, candidate: CandidateReader) -> Self:
        """See :class:`AgentStage`."""
        return cls(candidate.strategy(), candidate.parents())

    def with_lessons(self, lessons: Sequence[Lesson]) -> Self:
        """Return the same with what similar problems teach, which a driver looks up in its pool."""
        return replace(self, lessons=tuple(lessons))

    def run(self, agents: Agents, briefing: Briefing, seed: int) -> Settled:
        """See :class:`AgentStage`."""
        kernel = agents.translator.translate(briefing, self.strategy, self.parents, seed, lessons=self.lessons)
        return Settled(kernel=kernel)


@dataclass(frozen=True)
class Merge:
    """Strategy Translator: one kernel from two parents' kernels, which claims the techniques of both."""

    first: Attempt
    second: Attempt

    @classmethod
    def read(cls, candidate: CandidateReader) -> Self:
        """See :class:`AgentStage`."""
        first, second = candidate.parents()
        return cls(first, second)

    def run(self, agents: Agents, briefing: Briefing, seed: int) -> Settled:
        """See :class:`AgentStage`."""
        kernel = agents.translator.merge(briefing, self.first, self.second, seed)
        strategy = union(self.first.strategy, self.second.strategy)
        return Settled(kernel=kernel, strategy=strategy, origin=StrategyOrigin.MERGE)


@dataclass(frozen=True)
class Convert:
    """Kernel Engineer: the reference as a pure function."""

    attempts: Sequence[Conversion]
    """Conversions that were wrong, oldest first."""

    @classmethod
    def read(cls, candidate: CandidateReader) -> Self:
        """See :class:`AgentStage`."""
        wrong = candidate.proposed.notes.conversions
        return cls([Conversion(source=source, complaint=complaint) for source, complaint in wrong])

    def run(self, agents: Agents, briefing: Briefing, seed: int) -> Settled:
        """See :class:`AgentStage`."""
        return Settled(notes={"functional": _engineer(agents).convert(briefing, self.attempts, seed)})


@dataclass(frozen=True)
class Write:
    """Kernel Engineer: a kernel, written freely, from what the operator shows and no more."""

    write_input: WriteInput

    @classmethod
    def read(cls, candidate: CandidateReader) -> Self:
        """See :class:`AgentStage`."""
        proposed, notes = candidate.proposed, candidate.proposed.notes
        insights_only = proposed.operator in (Operator.REWRITE, Operator.CODE_CROSSOVER, Operator.MUTATION)
        best = candidate.attempts([notes.best] if notes.best else [])
        shown = candidate.attempts(notes.inspirations)
        write_input = WriteInput(
            method=proposed.method,
            operator=proposed.operator,
            generation=proposed.generation,
            place=notes.place,
            places=notes.places,
            best=best[0] if best else None,
            parents=tuple(candidate.parents()),
            shown=() if insights_only else tuple(shown),
            insights=tuple(attempt.insight for attempt in shown if attempt.insight) if insights_only else (),
            functional=notes.functional,
        )
        return cls(write_input)

    @property
    def wants_examples(self) -> bool:
        """True if the operator shows kernels of similar problems."""
        return self.write_input.operator is Operator.COMPOSITION

    def with_examples(self, examples: Sequence[Example]) -> Self:
        """Return the same with kernels of similar problems, which a driver looks up in its pool."""
        return replace(self, write_input=self.write_input.model_copy(update={"examples": tuple(examples)}))

    def run(self, agents: Agents, briefing: Briefing, seed: int) -> Settled:
        """See :class:`AgentStage`."""
        draft = _engineer(agents).write(briefing, self.write_input, seed)
        return Settled(
            kernel=draft.kernel,
            strategy=draft.strategy,
            origin=StrategyOrigin.CODE,
            notes={"name": draft.name, "insight": draft.insight},
        )


@dataclass(frozen=True)
class Act:
    """Kernel Agent: works with tools until a kernel is to be measured, or nothing is left to gain."""

    work: Work

    @classmethod
    def read(cls, candidate: CandidateReader) -> Self:
        """See :class:`AgentStage`."""
        proposed = candidate.proposed
        assert proposed.limits is not None
        parents = candidate.parents()
        # The rationale of what a freely written kernel shows is its writer's insight.
        trials = [trial.model_copy(update={"insight": trial.strategy.rationale}) for trial in candidate.trials()]
        work = Work(
            limits=proposed.limits,
            book=proposed.notes.book,
            parent=parents[0] if parents else None,
            trials=tuple(trials),
            repeats=proposed.repeats,
        )
        return cls(work)

    @property
    def wants_examples(self) -> bool:
        """True: one of the tools shows kernels of similar problems."""
        return True

    def with_examples(self, examples: Sequence[Example]) -> Self:
        """Return the same with kernels of similar problems, which a driver looks up in its pool."""
        return replace(self, work=self.work.model_copy(update={"examples": tuple(examples)}))

    def run(self, agents: Agents, briefing: Briefing, seed: int) -> Settled:
        """See :class:`AgentStage`."""
        if agents.agent is None:
            raise AgentError("these agents cannot work with tools", hint="use agents of kind llm or hybrid")
        turn = agents.agent.act(briefing, self.work, seed)
        draft, notes = turn.draft, {"book": turn.book}
        if draft is None:
            return Settled(AgentFailed(turn.reason), notes=notes)
        return Settled(
            kernel=draft.kernel,
            strategy=draft.strategy,
            origin=StrategyOrigin.CODE,
            repair=draft.insight if self.work.trials else None,
            notes=notes,
            kernel_notes={"name": draft.name, "insight": draft.insight},
        )


@dataclass(frozen=True)
class Revise:
    """Kernel Revisor: a repaired kernel, after a failed evaluation.

    A candidate that opens with it answers for its parent's kernel, which beat the floor and stays in quarantine.
    """

    operator: Operator
    history: Sequence[Attempt]
    """The trials of the kernel in question, oldest first."""
    lineage: Sequence[Attempt]
    """The trials of the candidate's ancestors."""

    @classmethod
    def read(cls, candidate: CandidateReader) -> Self:
        """See :class:`AgentStage`."""
        history = candidate.trials() or candidate.parent_trials()
        return cls(candidate.proposed.operator, history, candidate.lineage(MAX_ANCESTORS))

    def run(self, agents: Agents, briefing: Briefing, seed: int) -> Settled:
        """See :class:`AgentStage`."""
        if self.operator is Operator.TRANSLATION:
            revision = _engineer(agents).repair(briefing, self.history, seed)
        else:
            revision = agents.revisor.revise(briefing, self.history, seed, lineage=self.lineage)
        if revision is None:
            return Settled(AgentFailed(GAVE_UP))
        return Settled(
            kernel=revision.kernel,
            strategy=revision.strategy,
            origin=StrategyOrigin.REVISION,
            repair=revision.note,
        )


@dataclass(frozen=True)
class Improve:
    """Kernel Revisor: the candidate's right kernel, made faster within its strategy."""

    attempt: Attempt
    """The fastest of its kernels."""
    history: Sequence[Attempt]
    """All of them, oldest first."""

    @classmethod
    def read(cls, candidate: CandidateReader) -> Self:
        """See :class:`AgentStage`."""
        return cls(candidate.measured(), candidate.trials())

    def run(self, agents: Agents, briefing: Briefing, seed: int) -> Settled:
        """See :class:`AgentStage`."""
        revision = agents.revisor.improve(briefing, self.attempt, self.history, seed)
        if revision is None:
            return Settled(AgentFailed(GAVE_UP))
        return Settled(kernel=revision.kernel, repair=revision.note)


@dataclass(frozen=True)
class Align:
    """Strategy Translator: the strategy as the measured code really follows it."""

    attempt: Attempt

    @classmethod
    def read(cls, candidate: CandidateReader) -> Self:
        """See :class:`AgentStage`."""
        return cls(candidate.measured())

    def run(self, agents: Agents, briefing: Briefing, seed: int) -> Settled:  # noqa: ARG002 - every stage is asked alike
        """See :class:`AgentStage`."""
        return Settled(alignment=agents.translator.align(briefing, self.attempt))


STAGES: Mapping[Stage, type[AgentStage]] = {
    Stage.CROSS: Cross,
    Stage.TRANSLATE: Translate,
    Stage.MERGE: Merge,
    Stage.CONVERT: Convert,
    Stage.WRITE: Write,
    Stage.ACT: Act,
    Stage.REVISE: Revise,
    Stage.IMPROVE: Improve,
    Stage.ALIGN: Align,
}
"""Every stage that asks agents; the others ask the judge (:mod:`workers.stages`)."""


def run_stage(view: AgentStage, agents: Callable[[], Agents], briefing: Briefing, seed: int) -> Settled:
    """Run a stage; it is refused where the agents cannot do it, or the job has no money left for it."""
    try:
        return view.run(agents(), briefing, seed)
    except (AgentError, CostBudgetReached) as error:
        logger.info("agents refused: %s", error)
        return Settled(AgentFailed(error.code))


@dataclass(frozen=True)
class InitialStrategies:
    """The SCE Manager's answer for a generation."""

    strategies: Sequence[InitialStrategy] = ()
    refusal: CupilotError | None = None
    """Why there are none."""

    def new(self, tried: Iterable[Strategy]) -> list[InitialStrategy]:
        """Return those that ask for other code than the strategies already tried, and than each other."""
        taken = {strategy_key(strategy, catalogue()) for strategy in tried}
        new = []
        for initial in self.strategies:
            key = strategy_key(initial.strategy, catalogue())
            if key not in taken:
                taken.add(key)
                new.append(initial)
        return new


def initial_strategies(
    agents: Callable[[], Agents],
    briefing: Briefing,
    pool: Sequence[PoolMatch],
    count: int,
    seed: int,
    *,
    tried: Sequence[Strategy],
    outcomes: Mapping[str, str],
    seeds: Sequence[Attempt],
) -> InitialStrategies:
    """Ask for at most ``count`` initial strategies; ``seeds`` are the kernels that an epoch begins from."""
    try:
        strategies = agents().manager.initial_strategies(
            briefing, pool, count, seed, taken=tried, seeds=seeds, outcomes=outcomes
        )
    except (AgentError, CostBudgetReached) as error:
        return InitialStrategies(refusal=error)
    return InitialStrategies(strategies[:count])


def _engineer(agents: Agents) -> KernelEngineer:
    if agents.engineer is None:
        raise AgentError("these agents cannot write kernels freely", hint="use agents of kind llm or hybrid")
    return agents.engineer
