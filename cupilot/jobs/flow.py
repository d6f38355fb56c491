"""Decide what follows a finished step, in its transaction: stages, candidates' ends, generations.

The evolution's rules are pure functions in :mod:`cupilot.domain.evolution`; this module turns their answers into rows.
The job is locked throughout; whoever counts a generation's last candidate down begins what follows it.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from sqlalchemy.orm import Session

from cupilot.domain.evaluation import FailureKind
from cupilot.domain.evolution.methods import MethodConfig, method_for, read_config
from cupilot.domain.evolution.notes import Notes
from cupilot.domain.evolution.pipeline import (
    AgentFailed,
    End,
    Ending,
    Next,
    Outcome,
    Pipeline,
    Stage,
    first,
    following,
    step_key,
)
from cupilot.domain.evolution.population import Member, Operator, Proposal, StopReason
from cupilot.domain.evolution.seeds import generation_rng
from cupilot.domain.imported import ImportedKernel, visible_strategy
from cupilot.domain.job import AgentKind
from cupilot.domain.states import CandidateState, GenerationState, JobState, StepKind, StrategyOrigin
from cupilot.jobs.attribution import skip_attribution
from cupilot.jobs.budget import Exhausted, evaluations_left, exhausted, money_reached, no_evaluation
from cupilot.jobs.confirmation import begin_confirmation, conclude, reached_before
from cupilot.jobs.explanation import no_strategies
from cupilot.jobs.steering import add_injected, forbidden, injections, steered
from cupilot.storage.db.tables.jobs import Candidate, Generation, Job, StrategyRow
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.db.transitions import lock_generation, move_candidate, move_generation, record_event
from cupilot.storage.jobs.endings import end_job
from cupilot.storage.jobs.evolving import (
    add_candidate,
    add_generation,
    add_strategy,
    choose_best,
    count_down,
    cut_short,
    set_kernel,
    set_strategy,
    set_survivors,
)
from cupilot.storage.jobs.progress import file_of, members, preparation_of, strategy_of
from cupilot.storage.queue.steps import Claim, add_step, agents_queue, device_queue


def config_of(job: Job) -> MethodConfig:
    """Return the method's parameters."""
    return read_config(job.method)


def pipeline_of(job: Job, operator: Operator) -> Pipeline:
    """Return the pipeline of the job's candidates of an operator; the playbook's templates are not improved."""
    pipeline = method_for(config_of(job)).pipeline(operator)
    return replace(pipeline, performance_rounds=0) if job.agents is AgentKind.PLAYBOOK else pipeline


def begin_generation(
    session: Session, job: Job, number: int, survivors: Sequence[Member], *, only_injected: bool = False
) -> None:
    """Make the candidates that people inject and, unless it is for those only, the method proposes: as budgets allow.

    Initial strategies are written by one step for all; it counts as one until it knows how many there are.
    """
    room = max(evaluations_left(session, job), 0)
    injected = injections(session, job)[:room]
    method = method_for(config_of(job))
    wanted = [] if only_injected else list(method.propose(survivors, number, generation_rng(job.seed, number)))
    wanted = wanted[: max(len(wanted) - len(injected), 1)]  # what people inject takes a place, but never the last
    proposals = wanted[: room - len(injected)]
    initial = [proposal for proposal in proposals if proposal.operator is Operator.INITIAL]
    others = [proposal for proposal in proposals if proposal.operator is not Operator.INITIAL]
    pending = len(injected) + len(others) + (1 if initial else 0)
    generation = add_generation(session, job, number, pending=pending)
    if len(proposals) < len(wanted):
        cut_short(session, generation)
    if initial:
        seeds = [proposal.parents[0] for proposal in initial if proposal.parents]
        payload = {"count": len(initial), "number": number, "seeds": seeds}
        key = f"initialise/{number}"
        add_step(session, job, StepKind.INITIALISE, key, generation=generation, payload=payload)
    for proposal in others:
        _begin_candidate(session, job, generation, proposal)
    for directive in injected:
        candidate = add_injected(session, job, generation, directive)
        begin_stage(session, job, candidate, Next(Stage.EVALUATE if candidate.kernel_hash else Stage.TRANSLATE))
    if not proposals and not injected:
        end_generation(session, job, generation)


def begin_remeasurement(session: Session, job: Job, winner: uuid.UUID) -> None:
    """Make one candidate of an earlier job's winner, as it is, and measure it; there is nothing else to this job."""
    earlier = session.get_one(Candidate, winner)
    assert earlier.kernel_hash is not None
    generation = add_generation(session, job, 0, pending=1)
    candidate = add_candidate(session, job, generation, Operator.INITIAL)
    kept = add_strategy(session, job, strategy_of(session, earlier), StrategyOrigin.ALIGNMENT)
    set_strategy(session, candidate, kept)
    set_kernel(session, candidate, file_of(session, earlier.kernel_hash), repair_round=0)
    begin_stage(session, job, candidate, Next(Stage.EVALUATE))


def begin_import(session: Session, job: Job, kernel_hash: str) -> None:
    """Make one candidate of an imported file, with the strategy that its text shows, and measure it; nothing else."""
    kernel = file_of(session, kernel_hash)
    assert isinstance(kernel, ImportedKernel)
    generation = add_generation(session, job, 0, pending=1)
    candidate = add_candidate(session, job, generation, Operator.INITIAL)
    kept = add_strategy(session, job, visible_strategy(kernel), StrategyOrigin.ALIGNMENT)
    set_strategy(session, candidate, kept)
    set_kernel(session, candidate, kernel, repair_round=0)
    begin_stage(session, job, candidate, Next(Stage.EVALUATE))


@dataclass(frozen=True)
class Challenger:
    """A stored kernel that becomes its candidate's if it proves faster than the candidate's own."""

    kernel: str
    strategy: uuid.UUID
    """Row of the strategy that it follows or shows."""
    notes: Mapping[str, str]
    """Notes that come with it."""

    @property
    def payload(self) -> dict[str, object]:
        """Return the payload of its evaluation, from which :meth:`of` reads it."""
        return {"strategy": str(self.strategy), "kernel": self.kernel, "notes": dict(self.notes)}

    @classmethod
    def of(cls, step: Step) -> Self:
        """Return the kernel that a step measures to see whether it is faster than its candidate's own."""
        payload = step.payload
        return cls(payload["kernel"], uuid.UUID(payload["strategy"]), payload.get("notes", {}))


def advance(
    session: Session,
    job: Job,
    candidate: Candidate,
    done: Next,
    outcome: Outcome,
    *,
    challenger: Challenger | None = None,
) -> None:
    """Queue the candidate's next stage, which evaluates the challenger where there is one, or end it."""
    step = following(pipeline_of(job, candidate.operator), done, outcome)
    if isinstance(step, Next):
        begin_stage(session, job, candidate, step, challenger)
    else:
        end_candidate(session, job, candidate, step)


def begin_stage(
    session: Session, job: Job, candidate: Candidate, stage: Next, challenger: Challenger | None = None
) -> None:
    """Queue a stage of a candidate, or end the candidate where a budget forbids it; it only stops improving one."""
    reached = _forbids(session, job, stage)
    if reached is not None and _improves(stage):
        _stop_improving(session, job, candidate, stage, reached.value)
        return
    if reached is not None:
        cut_short(session, session.get_one(Generation, candidate.generation_id))
        ending = Ending.EVALUATED if candidate.evaluation_id else Ending.FAILED
        end_candidate(session, job, candidate, End(ending, reached.value))
        return
    if forbidden(session, job, candidate, stage.stage):
        end_candidate(session, job, candidate, End(Ending.FAILED, "banned"))
        return
    payload: dict[str, object] = {"round": stage.round, "improvements": stage.improvements, "repeats": stage.repeats}
    queue = agents_queue(job)
    if stage.stage in (Stage.EVALUATE, Stage.CHECK):
        queue = device_queue(preparation_of(job).environment.device)
    if stage.stage is Stage.EVALUATE:
        own = {"strategy": str(candidate.strategy_id), "kernel": candidate.kernel_hash}
        payload |= challenger.payload if challenger else own
    add_step(
        session,
        job,
        StepKind(stage.stage.value),
        step_key(candidate.ordinal, stage),
        queue=queue,
        candidate=candidate,
        generation=session.get_one(Generation, candidate.generation_id),
        payload=payload,
    )


def end_candidate(session: Session, job: Job, candidate: Candidate, end: End) -> None:
    """Make the candidate final; the last one of a generation ends the generation."""
    move_candidate(session, candidate, CandidateState(end.ending.value), reason=end.reason)
    choose_best(session, job)
    generation = lock_generation(session, candidate.generation_id)
    if end.question and job.agents is not AgentKind.PLAYBOOK:
        _ask_about(session, job, generation, candidate)
    if count_down(session, generation) == 0:
        end_generation(session, job, generation)


def end_generation(session: Session, job: Job, generation: Generation) -> None:
    """Select, then begin the next generation, or confirm the best where the method or a budget ends the evolution."""
    move_generation(session, generation, GenerationState.FINISHED)
    config = config_of(job)
    method = method_for(config)
    population = members(session, job, generation, config.utilisation_weight)
    survivors = steered(session, job, population, method.select(population))
    set_survivors(session, job, survivors)
    stop = method.should_stop(population, generation.number)
    reached = exhausted(session, job) if stop is None or _cut(stop, generation) else None
    by_id = {member.candidate: member for member in population}
    parents = [by_id[survivor] for survivor in survivors]
    if stop is not None and exhausted(session, job) is None and injections(session, job):
        begin_generation(session, job, generation.number + 1, parents, only_injected=True)
        return
    ended_by = reached or stop
    if ended_by is not None:
        record_event(session, job.id, "job.evolved", data={"ended_by": ended_by.value})
        begin_confirmation(session, job, reached)
        return
    begin_generation(session, job, generation.number + 1, parents)


def fail_generation(session: Session, job: Job, generation: Generation, reason: str, message: str) -> None:
    """Continue without initial strategies: with the job's candidates, or fail the job where it has none."""
    if job.candidates == 0:
        state = JobState.FAILED if money_reached(job) is None else JobState.BUDGET_EXHAUSTED
        end_job(session, job, state, reason=reason, message=no_strategies(session, job, message))
    elif count_down(session, generation) == 0:
        end_generation(session, job, generation)


def fail_step(session: Session, job: Job, step: Step, reason: str, message: str) -> None:
    """End the candidate, generation or job of a step whose last attempt failed."""
    if step.kind is StepKind.PREPARE:
        end_job(session, job, JobState.FAILED, reason=reason, message=message)
    elif step.kind is StepKind.CONFIRM:
        conclude(session, job, reached_before(step), failure=message)
    elif step.kind in (StepKind.ABLATE, StepKind.ATTRIBUTE):
        skip_attribution(session, job, step, message)
    elif step.candidate_id is None:
        assert step.generation_id is not None
        fail_generation(session, job, lock_generation(session, step.generation_id), reason, message)
    elif reason == FailureKind.OUT_OF_MEMORY and job.best_candidate_id is None:
        end_job(session, job, JobState.FAILED, reason=reason, message=message)  # no kernel of it can be judged
    else:
        candidate = session.get_one(Candidate, step.candidate_id, populate_existing=True)
        stage = stage_of(step)
        if _improves(stage):
            _stop_improving(session, job, candidate, stage, reason)
            return
        measured = candidate.evaluation_id is not None
        end_candidate(session, job, candidate, End(Ending.EVALUATED if measured else Ending.FAILED, reason))


def stage_of(step: Step | Claim) -> Next:
    """Return the stage of its candidate that a step is."""
    payload = step.payload
    return Next(Stage(step.kind.value), payload["round"], payload.get("improvements", 0), payload.get("repeats", 0))


def _improves(stage: Next) -> bool:
    """Return whether a stage works on a kernel that would only replace a right one."""
    return stage.improvements > 0 and stage.stage is not Stage.ALIGN


def _stop_improving(session: Session, job: Job, candidate: Candidate, stage: Next, reason: str) -> None:
    """Continue with the kernel that the candidate has."""
    advance(session, job, candidate, replace(stage, stage=Stage.IMPROVE), AgentFailed(reason))


def _ask_about(session: Session, job: Job, generation: Generation, candidate: Candidate) -> None:
    """Ask the Revisor what a kernel that beat the roofline bound leaves out; templates cannot answer.

    What comes of it is another candidate: this one keeps its kernel and verdict for the people who look at those.
    """
    count_down(session, generation, +1)
    child = add_candidate(session, job, generation, Operator.MUTATION, [candidate.id])
    if candidate.strategy_id is not None:
        set_strategy(session, child, session.get_one(StrategyRow, candidate.strategy_id))
    begin_stage(session, job, child, first(pipeline_of(job, child.operator)))


def _begin_candidate(session: Session, job: Job, generation: Generation, proposal: Proposal) -> None:
    parents = [uuid.UUID(parent) for parent in proposal.parents]
    candidate = add_candidate(session, job, generation, proposal.operator, parents, notes=Notes.of(proposal))
    begin_stage(session, job, candidate, first(pipeline_of(job, proposal.operator)))


def _cut(stop: StopReason, generation: Generation) -> bool:
    """Return whether a budget, not the method, ended the evolution: the last generation is incomplete.

    A kernel close to the roofline bound ends it however many candidates there were; every other reason counts them.
    """
    return stop is not StopReason.NEAR_FLOOR and generation.cut_short


def _forbids(session: Session, job: Job, stage: Next) -> Exhausted | None:
    """Return which budget forbids a stage; nothing is paid for a kernel that could not be measured any more."""
    match stage.stage:
        case Stage.EVALUATE:
            return no_evaluation(session, job)
        case Stage.CHECK:
            return None
        case Stage.ALIGN:
            return money_reached(job)
        case _:
            return exhausted(session, job)
