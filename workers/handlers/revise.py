"""Step ``revise``: the Kernel Revisor mends a candidate's kernel after a failed evaluation.

A candidate that opens with it is the answer about its parent's kernel, which beat the floor and stays in quarantine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.orm import Session

from agents.interface import Agents, Attempt, Revision
from cupilot.domain.evolution.pipeline import Done, Duplicate, Outcome, Refused
from cupilot.domain.evolution.population import Operator
from cupilot.domain.evolution.seeds import stage_seed
from cupilot.domain.states import StrategyOrigin
from cupilot.jobs.flow import advance
from cupilot.storage.db.tables.jobs import Candidate, Job
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.jobs.evolving import add_strategy, give_kernel, give_notes, give_strategy
from cupilot.storage.jobs.progress import ancestors_of, has_kernel, notes_of, parents_of, rounds_of
from cupilot.storage.queue.steps import Claim
from workers.handlers.common import Assignment, ask, candidate_of, engineer_of, load_assignment, stage_of
from workers.tools import Tools

GAVE_UP = "gave_up"
MAX_ANCESTORS = 16
"""Ancestors whose trials are looked at, the youngest ones."""


@dataclass(frozen=True)
class Wish:
    """What is asked for."""

    assignment: Assignment
    operator: Operator
    history: list[Attempt]
    """The candidate's kernels with what the judge said to each, oldest first."""
    lineage: list[Attempt]
    """The same of its ancestors."""


def load(session: Session, claim: Claim) -> Wish:
    """All former rounds of the candidate, or of the one that is asked about."""
    candidate, assignment = load_assignment(session, claim)
    of = candidate if assignment.stage.round else parents_of(session, candidate)[0]
    ancestors = ancestors_of(session, candidate)[-MAX_ANCESTORS:]
    lineage = [trial for one in ancestors for trial in _trials(session, one)]
    return Wish(assignment, candidate.operator, _trials(session, of), lineage)


def work(wish: Wish, tools: Tools, cancelled: Callable[[], bool]) -> Revision | Refused:  # noqa: ARG001
    """Ask the revisor."""
    assignment = wish.assignment
    seed = stage_seed(assignment.spec.seed, assignment.ordinal, assignment.stage)

    def question(agents: Agents) -> Revision | None:
        if wish.operator is Operator.TRANSLATION:
            return engineer_of(agents).mend(assignment.briefing, wish.history, seed)
        return agents.revisor.revise(assignment.briefing, wish.history, seed, lineage=wish.lineage)

    return ask(tools, assignment, question) or Refused(GAVE_UP)


def store(session: Session, job: Job, step: Step, answer: Revision | Refused) -> None:
    """Give the candidate the mended kernel, unless the job has it already."""
    candidate = candidate_of(session, step)
    outcome: Outcome
    if isinstance(answer, Refused):
        outcome = answer
    elif has_kernel(session, job, answer.kernel):
        outcome = Duplicate()
    else:
        give_notes(session, candidate, repairs=(*notes_of(candidate).repairs, answer.note))
        give_strategy(session, candidate, add_strategy(session, job, answer.strategy, StrategyOrigin.REVISION))
        give_kernel(session, candidate, answer.kernel, repair_round=step.payload["round"])
        outcome = Done()
    advance(session, job, candidate, stage_of(step), outcome)


def _trials(session: Session, candidate: Candidate) -> list[Attempt]:
    """Every kernel of a candidate that was measured, each with the Revisor's note on what it had changed."""
    notes = ("", *notes_of(candidate).repairs)
    return [
        Attempt(
            strategy=one.strategy,
            kernel=one.kernel,
            evaluation=one.evaluation,
            insight=notes[place] if place < len(notes) else "",
        )
        for place, one in enumerate(rounds_of(session, candidate))
    ]
