"""One whole ``sce`` job in one process: no database, no queue, no HTTP; the same method, pipeline, seeds and judge.

What the workers do with rows and steps this does with objects and calls, one candidate after the other. It neither
prints nor writes files: a :class:`Listener` is told what happened.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from agents.interface import AgentError, Agents
from benchmarks.local_pipeline import Candidate, Judge, Pipeline, retried
from benchmarks.local_pool import LocalPool
from cupilot.domain.evaluation import Preparation, PreparationResult, Verdict
from cupilot.domain.evolution.fitness import member
from cupilot.domain.evolution.methods import method_for
from cupilot.domain.evolution.pipeline import End, Ending
from cupilot.domain.evolution.population import Member, Operator, Proposal
from cupilot.domain.evolution.seeds import generation_rng, initialise_seed
from cupilot.domain.job import AgentKind, JobSpec

CONFIRMATION_TRIES = 3
"""Kernels that are measured again at most, as in the service."""

LATE = "wall_seconds"


class Listener(Protocol):
    """Whoever wants to know how a job goes on."""

    def prepared(self, preparation: Preparation) -> None:
        """The reference is usable."""
        ...

    def finished(self, candidate: Candidate) -> None:
        """A candidate is final."""
        ...

    def generation(self, number: int, population: list[Member], survivors: tuple[str, ...]) -> None:
        """A generation is over; ``population`` are the former survivors and its measured candidates."""
        ...

    def confirmed(self, candidate: Candidate) -> None:
        """A candidate was measured again in fresh processes."""
        ...


@dataclass
class LocalJob:
    """A job from its specification to its best kernel."""

    spec: JobSpec
    judge: Judge
    agents: Agents
    pool: LocalPool
    listener: Listener
    confirms: bool = True
    """Whether the best kernel is measured again in fresh processes."""
    result: PreparationResult | None = None
    pipeline: Pipeline | None = None
    stop: str | None = None
    """Why the evolution ended."""
    best: Candidate | None = None
    seconds: float = 0.0
    started: float = field(default_factory=time.monotonic)

    @property
    def candidates(self) -> list[Candidate]:
        """All candidates so far, in order."""
        return self.pipeline.candidates if self.pipeline else []

    def run(self) -> None:
        """Evolve, then confirm the best, if it is to be; ``stop`` and ``best`` say how it went.

        No candidate is begun after the budget's wall seconds; the best so far is still confirmed.
        """
        self.result = self.judge.prepare(self.spec.problem)
        if self.result.preparation is None:
            assert self.result.failure is not None
            self.stop = self.result.failure.kind.value
        else:
            self.listener.prepared(self.result.preparation)
            self.pipeline = Pipeline(self.spec, self.result.preparation, self.judge, self.agents, self.pool)
            self._evolve(self.pipeline)
            self._confirm(self.pipeline)
        self.seconds = time.monotonic() - self.started

    def _evolve(self, pipeline: Pipeline) -> None:
        method = method_for(self.spec.method)
        survivors: list[Member] = []
        number = 0
        while self.stop is None:
            proposals = method.propose(survivors, number, generation_rng(self.spec.seed, number))
            new = self._generation(pipeline, number, proposals)
            population = survivors + [one for one in (_member(pipeline, candidate) for candidate in new) if one]
            kept = method.select(population)
            self.listener.generation(number, population, kept)
            survivors = [one for one in population if one.candidate in kept]
            reason = method.should_stop(population, number)
            self.stop = self.stop or (reason.value if reason else None) or (LATE if self._late() else None)
            number += 1

    def _generation(self, pipeline: Pipeline, number: int, proposals: list[Proposal]) -> list[Candidate]:
        new = [pipeline.add(number, one) for one in proposals if one.operator is not Operator.INITIAL]
        new += self._initial(pipeline, number, [one for one in proposals if one.operator is Operator.INITIAL])
        for candidate in new:
            if self._late():
                candidate.end = End(Ending.FAILED, LATE)
            else:
                pipeline.live(candidate)
            self.listener.finished(candidate)
            if candidate.end is not None and candidate.end.question and self.spec.agents is not AgentKind.PLAYBOOK:
                answer = Proposal(operator=Operator.MUTATION, parents=(candidate.id,))
                new.append(pipeline.add(number, answer, candidate.strategy))
        return new

    def _initial(self, pipeline: Pipeline, number: int, proposals: list[Proposal]) -> list[Candidate]:
        if not proposals:
            return []
        count = len(proposals)
        facts, device = pipeline.briefing.facts, pipeline.briefing.device
        matches = self.pool.retrieve(facts, device.device_class) if self.spec.method.pool else []
        seed = initialise_seed(self.spec.seed, number)
        try:
            found = self.agents.manager.initial_strategies(
                pipeline.briefing, matches, count, seed, taken=pipeline.tried, seeds=pipeline.seeds(proposals)
            )
        except AgentError as error:
            self.stop = error.code if not pipeline.candidates else None
            return []
        new: list[Candidate] = []
        for one in found[:count]:
            if not pipeline.has(one.strategy):
                new.append(pipeline.add(number, proposals[len(new)], one.strategy))
        return new

    def _confirm(self, pipeline: Pipeline) -> None:
        """Measure the best again; where its speed does not hold, the next best."""
        for candidate in _counting(pipeline)[: CONFIRMATION_TRIES if self.confirms else 0]:
            assert candidate.kernel is not None
            assert candidate.latest is not None
            kernel = candidate.kernel.tuned(candidate.latest.tunables)
            again = partial(self.judge.confirm, self.spec.problem, pipeline.preparation, kernel)
            candidate.confirmation = retried(again)
            self.listener.confirmed(candidate)
            if candidate.confirmation is not None and candidate.confirmation.verdict is Verdict.REPRODUCED:
                break
        self.best = next(iter(_counting(pipeline)), None)

    def _late(self) -> bool:
        return time.monotonic() - self.started > self.spec.budgets.wall_seconds


def _counting(pipeline: Pipeline) -> list[Candidate]:
    """Candidates that count: the reproduced first, then the fastest."""
    found = [(one.latest, one) for one in pipeline.candidates if one.latest is not None and one.latest.verdict.counts]
    found.sort(key=lambda pair: (-pair[0].verdict.rank, -(pair[0].speedup or 0.0), pair[1].ordinal))
    return [candidate for _, candidate in found]


def _member(pipeline: Pipeline, candidate: Candidate) -> Member | None:
    if candidate.evaluation is None or candidate.strategy is None:
        return None
    return member(
        candidate=candidate.id,
        ordinal=candidate.ordinal,
        generation=candidate.generation,
        strategy=candidate.strategy,
        evaluation=candidate.evaluation,
        placement=pipeline.preparation.placement,
        utilisation_weight=pipeline.spec.method.utilisation_weight,
    )
