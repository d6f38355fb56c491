"""One whole job in one process, one candidate after the other.

What the workers do with rows and steps this does with objects and calls. It neither prints nor writes files: a
:class:`Listener` is told what happened.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from agents.interface import Agents
from agents.stages import initial_strategies
from cupilot.domain.evaluation import Evaluation, Preparation, PreparationResult, Verdict
from cupilot.domain.evolution.fitness import member, speed_bounds
from cupilot.domain.evolution.methods import method_for
from cupilot.domain.evolution.pipeline import End, Ending
from cupilot.domain.evolution.population import Member, Operator, Proposal
from cupilot.domain.evolution.seeds import generation_rng, initialise_seed
from cupilot.domain.job import AgentKind, JobSpec
from workers.local.candidates import Candidate, Candidates
from workers.local.judge import Judge, retried
from workers.local.pool import LocalPool

CONFIRMATION_ATTEMPTS = 3
"""Kernels that are measured again at most, as in the service."""

LATE = "wall_seconds"


class Listener(Protocol):
    """Follows a job's progress."""

    def prepared(self, preparation: Preparation) -> None:
        """Report that the reference is usable."""

    def finished(self, candidate: Candidate) -> None:
        """Report a final candidate."""

    def generation(self, number: int, population: list[Member], survivors: tuple[str, ...]) -> None:
        """Report the end of a generation; ``population`` are the former survivors and its measured candidates."""

    def confirmed(self, candidate: Candidate) -> None:
        """Report that a candidate was measured again in fresh processes."""


@dataclass
class LocalJob:
    """A job from its specification to its best kernel."""

    spec: JobSpec
    judge: Judge
    agents: Agents
    pool: LocalPool
    listener: Listener
    confirms: bool = True
    """True if the best kernel is measured again in fresh processes."""
    result: PreparationResult | None = None
    evolved: Candidates | None = None
    """All that was evolved; None where the problem cannot be used."""
    stop: str | None = None
    """Why the evolution ended."""
    best: Candidate | None = None
    seconds: float = 0.0
    started: float = field(default_factory=time.monotonic)

    @property
    def candidates(self) -> list[Candidate]:
        """All candidates so far, in order."""
        return self.evolved.all if self.evolved else []

    def run(self) -> None:
        """Evolve, then confirm the best, if ``confirms``; ``stop`` and ``best`` say how it went.

        No candidate is begun after the budget's wall seconds; the best so far is still confirmed.
        """
        self.result = self.judge.prepare(self.spec.problem)
        if self.result.preparation is None:
            assert self.result.failure is not None
            self.stop = self.result.failure.kind.value
        else:
            self.listener.prepared(self.result.preparation)
            self.evolved = Candidates(self.spec, self.result.preparation, self.judge, self.agents, self.pool)
            self._evolve(self.evolved)
            self._confirm(self.evolved)
        self.seconds = time.monotonic() - self.started

    def _evolve(self, candidates: Candidates) -> None:
        method = method_for(self.spec.method)
        survivors: list[Member] = []
        number = 0
        while self.stop is None:
            proposals = method.propose(survivors, number, generation_rng(self.spec.seed, number))
            new = [_member(candidates, candidate) for candidate in self._generation(candidates, number, proposals)]
            population = survivors + [candidate for candidate in new if candidate is not None]
            kept = method.select(population)
            self.listener.generation(number, population, kept)
            survivors = [candidate for candidate in population if candidate.candidate in kept]
            reason = method.should_stop(population, number)
            self.stop = self.stop or (reason.value if reason else None) or (LATE if self._late() else None)
            number += 1

    def _generation(self, candidates: Candidates, number: int, proposals: list[Proposal]) -> list[Candidate]:
        initial = [proposal for proposal in proposals if proposal.operator is Operator.INITIAL]
        new = [candidates.add(number, proposal) for proposal in proposals if proposal.operator is not Operator.INITIAL]
        new += self._initial(candidates, number, initial)
        for candidate in new:
            if self._late():
                candidate.end = End(Ending.FAILED, LATE)
            else:
                candidates.run(candidate)
            self.listener.finished(candidate)
            if candidate.end is not None and candidate.end.question and self.spec.agents is not AgentKind.PLAYBOOK:
                answer = Proposal(operator=Operator.MUTATION, parents=(candidate.id,))
                new.append(candidates.add(number, answer, candidate.strategy))
        return new

    def _initial(self, candidates: Candidates, number: int, proposals: list[Proposal]) -> list[Candidate]:
        if not proposals:
            return []
        facts, device = candidates.briefing.facts, candidates.briefing.device
        answer = initial_strategies(
            lambda: self.agents,
            candidates.briefing,
            self.pool.retrieve(facts, device.device_class) if self.spec.method.pool else [],
            len(proposals),
            initialise_seed(self.spec.seed, number),
            tried=candidates.tried,
            outcomes=candidates.outcomes(),
            seeds=candidates.seeds(proposals),
        )
        if answer.refusal is not None:
            self.stop = answer.refusal.code if not candidates.all else None
            return []
        new = answer.new(candidates.tried)
        return [
            candidates.add(number, proposal, initial.strategy)
            for proposal, initial in zip(proposals, new, strict=False)
        ]

    def _confirm(self, candidates: Candidates) -> None:
        """Measure the best again, and the next best where its speed does not hold, or falls below what theirs is."""
        for candidate in _counting(candidates)[: CONFIRMATION_ATTEMPTS if self.confirms else 0]:
            if self._is_beaten(candidate, candidates):
                break
            assert candidate.tuned is not None
            again = partial(self.judge.confirm, self.spec.problem, candidates.preparation, candidate.tuned)
            candidate.confirmation = retried(again)
            self.listener.confirmed(candidate)
        self.best = next(iter(_counting(candidates)), None)

    def _is_beaten(self, candidate: Candidate, candidates: Candidates) -> bool:
        """Return whether a reproduced kernel's lower bound is not below the candidate's."""
        best = next(iter(_counting(candidates)), None)
        if best is None or best.latest is None or best.latest.verdict is not Verdict.REPRODUCED:
            return False
        assert candidate.latest is not None
        own, others = (speed_bounds(latest, candidates.preparation) for latest in (candidate.latest, best.latest))
        return own is None or others is None or own[0] <= others[0]

    def _late(self) -> bool:
        return time.monotonic() - self.started > self.spec.budgets.wall_seconds


def _counting(candidates: Candidates) -> list[Candidate]:
    """Return the candidates that count: the reproduced first, then the fastest."""
    counting = [
        (candidate.latest, candidate)
        for candidate in candidates.all
        if candidate.latest is not None and candidate.latest.verdict.counts
    ]

    def place(pair: tuple[Evaluation, Candidate]) -> tuple[int, float, int]:
        bounds = speed_bounds(pair[0], candidates.preparation) or (0.0, 0.0)
        return (-pair[0].verdict.rank, -bounds[0], pair[1].ordinal)

    counting.sort(key=place)
    return [candidate for _, candidate in counting]


def _member(candidates: Candidates, candidate: Candidate) -> Member | None:
    if candidate.evaluation is None or candidate.strategy is None:
        return None
    return member(
        candidate=candidate.id,
        ordinal=candidate.ordinal,
        generation=candidate.generation,
        strategy=candidate.strategy,
        evaluation=candidate.evaluation,
        placement=candidate.evaluation.placement or candidates.preparation.placement,
        utilisation_weight=candidates.spec.method.utilisation_weight,
        preparation=candidates.preparation,
    )
