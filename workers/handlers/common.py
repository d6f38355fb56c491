"""What the handlers share: reading a candidate's job for its agents, and asking agents.

Imports the agents only where one is asked: a GPU worker's machine has none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy.orm import Session

from cupilot import tracing
from cupilot.domain.evaluation import Evaluation, FailureKind, Preparation
from cupilot.domain.evolution.pipeline import Next, Refused, Stage
from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.job import JobSpec
from cupilot.domain.model_call import CostBudgetReached
from cupilot.domain.standing import LearnedTechnique
from cupilot.domain.states import StepKind
from cupilot.storage.db.tables.jobs import Candidate, Job
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.experiments.experiments import pool_cutoff
from cupilot.storage.jobs.jobs import job_spec
from cupilot.storage.jobs.progress import evaluation_of, kernel_as_measured, notes_of, preparation_of, strategy_of
from cupilot.storage.jobs.steering import banned_techniques
from cupilot.storage.pool.techniques import learned_techniques
from cupilot.storage.queue.steps import Claim, pin
from workers.tools import Infrastructure, Tools

if TYPE_CHECKING:
    from agents.interface import Agents, Attempt, Briefing, KernelEngineer

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

LISTING = (StepKind.CROSS, StepKind.ALIGN)
"""A candidate's steps whose prompts list the techniques that there are."""

LEARNED = "learned"


@dataclass(frozen=True)
class Assignment:
    """A candidate's job, as value objects, and the claim to work on it."""

    claim: Claim
    spec: JobSpec
    preparation: Preparation
    ordinal: int
    stage: Next
    banned: tuple[str, ...] = ()
    learned: tuple[LearnedTechnique, ...] = ()

    @property
    def briefing(self) -> Briefing:
        """What the agents may know."""
        return briefing(self.spec, self.preparation, self.banned, self.learned)


def briefing(
    spec: JobSpec,
    preparation: Preparation,
    banned: tuple[str, ...] = (),
    learned: tuple[LearnedTechnique, ...] = (),
) -> Briefing:
    """What the agents may know about a job."""
    from agents.interface import Briefing

    return Briefing(
        problem=spec.problem,
        facts=preparation.facts,
        target=spec.target,
        device=preparation.environment.device,
        placement=preparation.placement if spec.method.roofline_guidance else None,
        banned=banned,
        learned=learned,
        peaks=preparation.peaks if spec.method.roofline_guidance else None,
        baseline_us=preparation.baseline_us.median,
        compiler=preparation.environment.compiler,
    )


def load_assignment(session: Session, claim: Claim) -> tuple[Candidate, Assignment]:
    """The claimed step's candidate and its job."""
    job = session.get_one(Job, claim.job_id)
    candidate = session.get_one(Candidate, claim.candidate_id)
    stage = Next(Stage(claim.kind.value), claim.payload["round"])
    spec, banned = job_spec(session, job), banned_techniques(session, job.id)
    learned = learned_of(session, job, spec, claim) if claim.kind in LISTING else ()
    return candidate, Assignment(claim, spec, preparation_of(job), candidate.ordinal, stage, banned, learned)


def learned_of(session: Session, job: Job, spec: JobSpec, claim: Claim) -> tuple[LearnedTechnique, ...]:
    """Invented techniques that results had promoted when the job was submitted, as the step's first attempt saw it.

    Not those that the job itself proves on its way: equal jobs evolve alike, and an experiment's do not teach each
    other. None where the job does without the pool.
    """
    if not isinstance(spec.method, SceConfig) or not spec.method.pool:
        return ()
    found = learned_techniques(session, job.team_id, job.target, pool_cutoff(session, job) or job.created_at)
    if not found and LEARNED not in claim.payload:
        return ()
    pinned = pin(session, claim, LEARNED, [one.model_dump(mode="json") for one in found])
    return tuple(LearnedTechnique.model_validate(one) for one in pinned)


def attempt_of(session: Session, candidate: Candidate) -> Attempt:
    """A candidate as agents see it."""
    from agents.interface import Attempt

    notes = notes_of(candidate)
    return Attempt(
        strategy=strategy_of(session, candidate),
        kernel=kernel_as_measured(session, candidate),
        evaluation=evaluation_of(session, candidate.evaluation_id) if candidate.evaluation_id else None,
        name=notes.name,
        insight=notes.insight,
    )


def engineer_of(agents: Agents) -> KernelEngineer:
    """Whoever writes kernels freely; AgentError where nobody does."""
    from agents.interface import AgentError

    if agents.engineer is None:
        raise AgentError("these agents cannot write kernels freely", hint="use agents of kind llm or hybrid")
    return agents.engineer


def candidate_of(session: Session, step: Step) -> Candidate:
    """The candidate that a step belongs to, as it is now."""
    return session.get_one(Candidate, step.candidate_id, populate_existing=True)


def stage_of(step: Step) -> Next:
    """The stage of its candidate that a step is."""
    return Next(Stage(step.kind.value), step.payload["round"])


def ask(tools: Tools, assignment: Assignment, question: Callable[[Agents], Answer]) -> Answer | Refused:
    """An agent's answer, or that it cannot do what it was asked, or that the job has no money left for it."""
    from agents.interface import AgentError

    try:
        return question(tools.agents(assignment.spec.agents, assignment.claim))
    except (AgentError, CostBudgetReached) as error:
        logger.info("refused step=%s: %s", assignment.claim.step_id, error)
        return Refused(error.code)


def check_infrastructure(evaluation: Evaluation) -> Evaluation:
    """The evaluation, if it says something about the kernel; raises :class:`Infrastructure` if it does not."""
    tracing.record_phases(evaluation.phases, evaluation.seconds)
    tracing.note(verdict=evaluation.verdict.value)
    if evaluation.failure is not None and evaluation.failure.kind is FailureKind.INFRASTRUCTURE:
        raise Infrastructure(evaluation.failure.message)
    return evaluation
