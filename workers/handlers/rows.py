"""A candidate and its job as value objects, read from rows.

Imports agents only where something is read for them: a GPU worker's machine has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy.orm import Session

from cupilot.domain.evolution.methods import MethodConfig, agent_limits
from cupilot.domain.evolution.pipeline import Next
from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.job import JobSpec
from cupilot.domain.standing import LearnedTechnique
from cupilot.domain.strategy import Strategy
from cupilot.storage.db.tables.jobs import Candidate, Generation, Job
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.experiments.experiments import pool_cutoff
from cupilot.storage.jobs.progress import (
    ancestors_of,
    candidates_of,
    evaluation_of,
    kernel_as_measured,
    kernel_of,
    notes_of,
    outcomes_of,
    parents_of,
    rounds_of,
    strategies_of,
    strategy_of,
)
from cupilot.storage.pool.techniques import learned_techniques
from cupilot.storage.queue.steps import Claim, pin

if TYPE_CHECKING:
    from agents.interface import Attempt
    from agents.stage import CandidateReader, Proposed

LEARNED = "learned"


@dataclass(frozen=True)
class _Reader:
    """See :class:`agents.stages.CandidateReader`."""

    session: Session
    candidate: Candidate
    proposed: Proposed

    def strategy(self) -> Strategy:
        return strategy_of(self.session, self.candidate)

    def measured(self) -> Attempt:
        from agents.interface import Attempt

        assert self.candidate.kernel_hash is not None
        assert self.candidate.evaluation_id is not None
        return Attempt(
            strategy=self.strategy(),
            kernel=kernel_of(self.session, self.candidate.kernel_hash),
            evaluation=evaluation_of(self.session, self.candidate.evaluation_id),
        )

    def trials(self) -> list[Attempt]:
        return _trials(self.session, self.candidate)

    def parent_trials(self) -> list[Attempt]:
        return _trials(self.session, self._parents()[0])

    def lineage(self, limit: int) -> list[Attempt]:
        ancestors = ancestors_of(self.session, self.candidate)[-limit:]
        return [trial for ancestor in ancestors for trial in _trials(self.session, ancestor)]

    def parents(self) -> list[Attempt]:
        return [attempt_of(self.session, parent) for parent in self._parents()]

    def attempts(self, ids: Sequence[str]) -> list[Attempt]:
        return attempts_of(self.session, ids)

    def tried(self) -> list[Strategy]:
        return strategies_of(self.session, self.candidate.job_id)

    def outcomes(self) -> Mapping[str, str]:
        return outcomes_of(self.session, self.candidate.job_id)

    def _parents(self) -> list[Candidate]:
        return parents_of(self.session, self.candidate)


def reader_of(session: Session, candidate: Candidate, method: MethodConfig, stage: Next) -> CandidateReader:
    """Return the candidate's reader for a stage that asks agents."""
    from agents.stage import Proposed

    generation = session.get_one(Generation, candidate.generation_id).number
    notes, limits = notes_of(candidate), agent_limits(method)
    proposed = Proposed(method.name, candidate.operator, generation, notes, limits, stage.repeats)
    return _Reader(session, candidate, proposed)


def attempts_of(session: Session, ids: Sequence[str]) -> list[Attempt]:
    """Return the candidates of these ids as agents see them, in this order; those that are gone are left out."""
    return [attempt_of(session, candidate) for candidate in candidates_of(session, ids)]


def attempt_of(session: Session, candidate: Candidate) -> Attempt:
    """Return a candidate as agents see it."""
    from agents.interface import Attempt

    notes = notes_of(candidate)
    return Attempt(
        strategy=strategy_of(session, candidate),
        kernel=kernel_as_measured(session, candidate),
        evaluation=evaluation_of(session, candidate.evaluation_id) if candidate.evaluation_id else None,
        name=notes.name,
        insight=notes.insight,
    )


def learned_of(session: Session, job: Job, spec: JobSpec, claim: Claim) -> tuple[LearnedTechnique, ...]:
    """Return the invented techniques promoted when the job was submitted, as the step's first attempt saw them.

    Not those that the job itself proves on its way: equal jobs evolve alike, and an experiment's do not teach each
    other. None where the job does without the pool.
    """
    if not isinstance(spec.method, SceConfig) or not spec.method.pool:
        return ()
    learned = learned_techniques(session, job.team_id, job.target, pool_cutoff(session, job) or job.created_at)
    if not learned and LEARNED not in claim.payload:
        return ()
    pinned = pin(session, claim, LEARNED, [technique.model_dump(mode="json") for technique in learned])
    return tuple(LearnedTechnique.model_validate(technique) for technique in pinned)


def candidate_of(session: Session, step: Step) -> Candidate:
    """Return the candidate that a step belongs to, as it is now."""
    return session.get_one(Candidate, step.candidate_id, populate_existing=True)


def _trials(session: Session, candidate: Candidate) -> list[Attempt]:
    from agents.interface import Attempt

    notes = notes_of(candidate)
    return [
        Attempt(
            strategy=trial.strategy,
            kernel=trial.kernel,
            evaluation=trial.evaluation,
            insight=notes.change(place, candidate.operator),
        )
        for place, trial in enumerate(rounds_of(session, candidate))
    ]
