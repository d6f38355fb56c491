"""Every step of a candidate: reads the stage's view from rows, runs the stage, stores what was settled.

What a stage reads, asks and settles is in :mod:`agents.stages` and :mod:`workers.stages`; what follows from its outcome
in :mod:`cupilot.jobs.flow`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from sqlalchemy.orm import Session

from cupilot.domain.evaluation import Evaluation, Preparation
from cupilot.domain.evolution.ai_cuda_engineer import AiCudaEngineerConfig
from cupilot.domain.evolution.fitness import speed_bounds
from cupilot.domain.evolution.novelty import strategy_key
from cupilot.domain.evolution.pipeline import Duplicate
from cupilot.domain.evolution.seeds import stage_seed
from cupilot.domain.job import AgentKind, JobSpec
from cupilot.domain.pool import Lesson
from cupilot.domain.states import EvaluationPurpose, StepKind, StrategyOrigin
from cupilot.domain.strategy import Strategy
from cupilot.domain.technique import catalogue
from cupilot.jobs.flow import Challenger, advance, config_of, stage_of
from cupilot.jobs.learning import correct, learn
from cupilot.jobs.remeasuring import measures_again
from cupilot.storage.db.tables.jobs import Candidate, EvaluationRow, Job, StrategyRow
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.experiments.experiments import pool_cutoff
from cupilot.storage.jobs.evolving import (
    add_evaluation,
    add_notes,
    add_strategy,
    replace_kernel,
    set_alignment,
    set_kernel,
    set_strategy,
    store_evaluation,
    store_kernel,
)
from cupilot.storage.jobs.jobs import job_spec
from cupilot.storage.jobs.progress import (
    file_of,
    has_kernel,
    notes_of,
    preparation_of,
    speed_of,
    strategies_of,
)
from cupilot.storage.jobs.steering import banned_techniques
from cupilot.storage.pool.lessons import lessons
from cupilot.storage.pool.solved import solved
from cupilot.storage.pool.techniques import enter_techniques
from cupilot.storage.queue.steps import Claim, pin
from workers.handlers.handler import Handler
from workers.handlers.rows import candidate_of, learned_of, reader_of
from workers.retrieval import lessons_for, similar_solved
from workers.stages import Check, Evaluate, JudgedStage, Judgement
from workers.tools import Tools

if TYPE_CHECKING:
    from agents.interface import Alignment, Briefing, Example
    from agents.stage import AgentStage, Settled

LESSONS, LESSONS_BESIDE_PARENTS = 2, 1
"""Changes on similar problems that the Translator is shown, and where it is shown parents' kernels too."""
SHOWN_TO_AGENTS = 3
"""Kernels of similar problems that an agent with tools may look at."""
LISTS_TECHNIQUES = (StepKind.CROSS, StepKind.ALIGN, StepKind.ACT)
"""Steps whose prompts list the techniques that there are, also those that earlier jobs invented."""


@dataclass(frozen=True)
class AgentInput:
    """Input of a step that asks agents, read in one transaction."""

    claim: Claim
    team: str
    spec: JobSpec
    preparation: Preparation
    briefing: Briefing
    seed: int
    view: AgentStage
    pool_until: datetime | None
    """Pool entries made later are not looked at: an experiment's jobs must not teach each other."""
    began: datetime
    """Time of the job's submission: lessons are of what was known then, so that equal jobs evolve alike."""


@dataclass(frozen=True)
class JudgeInput:
    """Input of a step that asks the judge, read in one transaction."""

    spec: JobSpec
    preparation: Preparation
    view: JudgedStage


def load_asked(session: Session, claim: Claim) -> AgentInput:
    """Read what the stage may know of the candidate and its job."""
    from agents.interface import Briefing
    from agents.stages import STAGES

    job = session.get_one(Job, claim.job_id)
    candidate = session.get_one(Candidate, claim.candidate_id)
    spec, preparation, stage = job_spec(session, job), preparation_of(job), stage_of(claim)
    learned = learned_of(session, job, spec, claim) if claim.kind in LISTS_TECHNIQUES else ()
    return AgentInput(
        claim=claim,
        team=str(job.team_id),
        spec=spec,
        preparation=preparation,
        briefing=Briefing.of(spec, preparation, banned=banned_techniques(session, job.id), learned=learned),
        seed=stage_seed(spec.seed, candidate.ordinal, stage),
        view=STAGES[stage.stage].read(reader_of(session, candidate, spec.method, stage)),
        pool_until=pool_cutoff(session, job),
        began=job.created_at,
    )


def ask_agents(step: AgentInput, tools: Tools, cancelled: Callable[[], bool]) -> Settled:
    """Run the stage, with kernels of similar problems where its operator shows them."""
    from agents.stages import Act, Translate, Write, run_stage

    view = step.view
    if isinstance(view, Write | Act) and view.wants_examples and step.spec.method.pool:
        view = view.with_examples(_examples(step, tools))
    if isinstance(view, Translate) and step.spec.method.pool and step.spec.agents is not AgentKind.PLAYBOOK:
        view = view.with_lessons(_lessons(step, tools, LESSONS_BESIDE_PARENTS if view.parents else LESSONS))
    return run_stage(view, lambda: tools.agents(step.spec.agents, step.claim, cancelled), step.briefing, step.seed)


def store_settled(session: Session, job: Job, step: Step, settled: Settled) -> None:
    """Store what was settled, unless the job has it already, and continue."""
    candidate, outcome, challenger = candidate_of(session, step), settled.outcome, None
    if settled.notes:
        add_notes(session, candidate, **settled.notes)
    if _is_duplicate(session, job, settled):
        outcome = Duplicate()
    else:
        challenger = _store_parts(session, job, step, candidate, settled)
    advance(session, job, candidate, stage_of(step), outcome, challenger=challenger)


def load_judged(session: Session, claim: Claim) -> JudgeInput:
    """Read the kernel, or the conversion, that the step was made for."""
    job = session.get_one(Job, claim.job_id)
    view: JudgedStage
    if claim.kind is StepKind.CHECK:
        view = Check(notes_of(session.get_one(Candidate, claim.candidate_id)))
    else:
        beaten = claim.candidate_id if stage_of(claim).improvements else job.best_candidate_id
        incumbent = session.get_one(Candidate, beaten).speedup if beaten is not None else None
        view = Evaluate(file_of(session, claim.payload["kernel"]), incumbent, fresh=measures_again(session, job))
    return JudgeInput(job_spec(session, job), preparation_of(job), view)


def ask_judge(step: JudgeInput, tools: Tools, cancelled: Callable[[], bool]) -> Judgement:
    """Run the stage."""
    return step.view.run(step.spec.problem, step.preparation, tools.step_judge(cancelled))


def store_judgement(session: Session, job: Job, step: Step, judgement: Judgement) -> None:
    """Keep the measurement, or what was wrong with the conversion; learn from it, and go on."""
    candidate, evaluation = candidate_of(session, step), judgement.evaluation
    if judgement.notes:
        add_notes(session, candidate, **judgement.notes)
    if evaluation is not None:
        improved = candidate.kernel_hash if stage_of(step).improvements else None
        strategy = session.get_one(StrategyRow, UUID(step.payload["strategy"])).body
        row = _store_evaluation(session, job, step, candidate, evaluation)
        learn(session, job, row, evaluation, strategy, improved=improved)
    advance(session, job, candidate, stage_of(step), judgement.outcome)


def _store_evaluation(
    session: Session, job: Job, step: Step, candidate: Candidate, evaluation: Evaluation
) -> EvaluationRow:
    """Store a measurement; one for performance makes its kernel the candidate's where it is faster, by lower bound."""
    purpose, weight = EvaluationPurpose.EVALUATE, config_of(job).utilisation_weight
    if stage_of(step).improvements:
        bounds = speed_bounds(evaluation, preparation_of(job))
        if bounds is None or bounds[0] <= speed_of(session, job, candidate)[0]:
            return store_evaluation(session, job, candidate, step, evaluation, purpose=purpose)
        _replace_kernel(session, candidate, Challenger.of(step))
    return add_evaluation(session, job, candidate, step, evaluation, purpose=purpose, utilisation_weight=weight)


def _replace_kernel(session: Session, candidate: Candidate, challenger: Challenger) -> None:
    replace_kernel(session, candidate, challenger.kernel)
    set_strategy(session, candidate, session.get_one(StrategyRow, challenger.strategy))
    add_notes(session, candidate, **challenger.notes)


ASKED = Handler(load_asked, ask_agents, store_settled)
JUDGED = Handler(load_judged, ask_judge, store_judgement)


def _is_duplicate(session: Session, job: Job, settled: Settled) -> bool:
    if settled.kernel is not None:
        return has_kernel(session, job, settled.kernel)
    if settled.strategy is None:
        return False
    tried = {strategy_key(strategy, catalogue()) for strategy in strategies_of(session, job.id)}
    return strategy_key(settled.strategy, catalogue()) in tried


def _store_parts(session: Session, job: Job, step: Step, candidate: Candidate, settled: Settled) -> Challenger | None:
    """Store what the candidate gets; return the kernel that it gets only if that proves faster than its own."""
    if settled.repair is not None:
        add_notes(session, candidate, repairs=(*notes_of(candidate).repairs, settled.repair))
    strategy = candidate.strategy_id
    if settled.strategy is not None:
        assert settled.origin is not None
        strategy = add_strategy(session, job, settled.strategy, settled.origin).id
        _enter(session, job, settled.strategy, settled.origin)
    if settled.alignment is not None:
        _set_alignment(session, job, candidate, settled.alignment)
    if settled.kernel is not None and stage_of(step).improvements:
        assert strategy is not None
        return Challenger(store_kernel(session, settled.kernel), strategy, settled.kernel_notes)
    if settled.strategy is not None:
        set_strategy(session, candidate, session.get_one(StrategyRow, strategy))
    if settled.kernel is not None:
        set_kernel(session, candidate, settled.kernel, repair_round=step.payload["round"])
        add_notes(session, candidate, **settled.kernel_notes)
    return None


def _enter(session: Session, job: Job, strategy: Strategy, origin: StrategyOrigin) -> None:
    """Enter invented techniques into the team's catalogue; only a strategy that was thought out names any."""
    if origin is StrategyOrigin.CROSSOVER:
        enter_techniques(session, job, [strategy], origin)


def _set_alignment(session: Session, job: Job, candidate: Candidate, alignment: Alignment) -> None:
    """Keep both strategies: the one that was asked for and the one that the code follows, also in the pool."""
    row = add_strategy(session, job, alignment.strategy, StrategyOrigin.ALIGNMENT)
    set_alignment(session, candidate, row, alignment.fidelity)
    enter_techniques(session, job, [alignment.strategy], StrategyOrigin.ALIGNMENT)
    correct(session, session.get_one(EvaluationRow, candidate.evaluation_id), strategy=alignment.strategy)


def _lessons(step: AgentInput, tools: Tools, limit: int) -> list[Lesson]:
    """Return what changes were worth on similar problems, as the step's first attempt found them."""
    known = step.pool_until or step.began
    similar = lessons_for(tools, step.team, step.spec, step.preparation, before=known, limit=limit)
    with tools.database.transaction() as session:
        return lessons(session, UUID(step.team), pin(session, step.claim, "lessons", similar))


def _examples(step: AgentInput, tools: Tools) -> list[Example]:
    """Return the best kernels of the most similar other problems, as the step's first attempt found them."""
    from agents.interface import Example

    config = step.spec.method
    limit = config.retrieved if isinstance(config, AiCudaEngineerConfig) else SHOWN_TO_AGENTS
    similar = similar_solved(tools, step.team, step.spec, step.preparation, before=step.pool_until, limit=limit)
    with tools.database.transaction() as session:
        ids = pin(session, step.claim, "examples", similar)
        return [
            Example(
                problem=example.problem_name,
                reference=example.reference,
                kernel=example.kernel,
                speedup=example.speedup,
                insight=example.insight,
            )
            for example in solved(session, step.team, ids)
        ]
