"""Step ``ablate``: the playbook writes the winner without each of its techniques, where it can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy.orm import Session

from cupilot.domain.attribution import Credit, CreditOutcome
from cupilot.domain.kernel import Kernel
from cupilot.domain.states import StepKind, StrategyOrigin
from cupilot.domain.strategy import Strategy
from cupilot.jobs.attribution import end_when_done
from cupilot.storage.db.tables.jobs import Candidate, Generation, Job
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.jobs.credits import store_credit
from cupilot.storage.jobs.evolving import add_strategy, store_kernel
from cupilot.storage.jobs.jobs import job_spec
from cupilot.storage.jobs.progress import kernel_as_measured, preparation_of, strategy_of
from cupilot.storage.queue.steps import Claim, add_step, device_queue
from workers.handlers.handler import Handler
from workers.handlers.rows import candidate_of
from workers.tools import Tools

if TYPE_CHECKING:
    from agents.interface import Briefing
    from agents.playbook.ablation import Ablation


@dataclass(frozen=True)
class AblateInput:
    """Input of the step ``ablate``, read in one transaction."""

    briefing: Briefing
    strategy: Strategy
    kernel: Kernel


def load(session: Session, claim: Claim) -> AblateInput:
    """Read the winner."""
    from agents.interface import Briefing

    job = session.get_one(Job, claim.job_id)
    winner = session.get_one(Candidate, claim.candidate_id)
    kernel = kernel_as_measured(session, winner)
    assert kernel is not None
    briefing = Briefing.of(job_spec(session, job), preparation_of(job))
    return AblateInput(briefing, strategy_of(session, winner), kernel)


def work(step: AblateInput, tools: Tools, cancelled: Callable[[], bool]) -> list[Ablation]:  # noqa: ARG001
    """Write the variants with the playbook."""
    return tools.ablations(step.briefing, step.strategy, step.kernel)


def store(session: Session, job: Job, step: Step, ablations: list[Ablation]) -> None:
    """Queue a measurement of each kernel that differs, as many as the budget allows; credit the others at once."""
    winner = candidate_of(session, step)
    left = int(step.payload["limit"])
    for position, ablation in enumerate(ablations):
        if ablation.kernel is not None and not ablation.same_code and left > 0:
            left -= 1
            _measure(session, job, winner, position, ablation)
        else:
            store_credit(session, winner, position, _unmeasured(ablation))
    end_when_done(session, job, winner)


ABLATE = Handler(load, work, store)


def _measure(session: Session, job: Job, winner: Candidate, position: int, ablation: Ablation) -> None:
    assert ablation.kernel is not None
    assert ablation.way is not None
    strategy = add_strategy(session, job, ablation.strategy, StrategyOrigin.ABLATION)
    add_step(
        session,
        job,
        StepKind.ATTRIBUTE,
        f"attribute/{position}",
        queue=device_queue(preparation_of(job).environment.device),
        candidate=winner,
        generation=session.get_one(Generation, winner.generation_id),
        payload={
            "position": position,
            "technique": ablation.technique,
            "removed": list(ablation.removed),
            "way": ablation.way.value,
            "kernel": store_kernel(session, ablation.kernel),
            "strategy": str(strategy.id),
        },
    )


def _unmeasured(ablation: Ablation) -> Credit:
    if ablation.same_code:
        outcome, note = CreditOutcome.SAME_CODE, None
    elif ablation.kernel is None:
        outcome, note = CreditOutcome.NOT_SEPARABLE, ablation.note
    else:
        outcome, note = CreditOutcome.NOT_MEASURED, "the budget of extra evaluations was used up"
    return Credit(technique=ablation.technique, removed=ablation.removed, outcome=outcome, way=ablation.way, note=note)
