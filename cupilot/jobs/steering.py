"""Apply directives to the evolution: survivors, stages that do not begin, candidates that a person adds.

The job is locked throughout, so a directive is in force from the next decision on and never in the middle of one.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from cupilot.domain.evolution.pipeline import Stage
from cupilot.domain.evolution.population import Member, Operator
from cupilot.domain.kernel import Kernel
from cupilot.domain.states import StrategyOrigin
from cupilot.domain.steering import DirectiveKind
from cupilot.storage.db.tables.jobs import Candidate, Directive, Generation, Job, StrategyRow
from cupilot.storage.jobs.evolving import add_candidate, add_strategy, set_kernel, set_strategy
from cupilot.storage.jobs.progress import kernel_of
from cupilot.storage.jobs.steering import banned_in, banned_strategies, banned_techniques, in_force, mark_done
from cupilot.storage.pool.techniques import enter_techniques


def injections(session: Session, job: Job) -> Sequence[Directive]:
    """Return what people want tried and is not yet, the oldest first."""
    return in_force(session, job.id, DirectiveKind.INJECT)


def add_injected(session: Session, job: Job, generation: Generation, directive: Directive) -> Candidate:
    """Return the candidate that an injection becomes, with its strategy and, where it came with one, its kernel."""
    candidate = add_candidate(session, job, generation, Operator.INJECTED)
    strategy = directive.strategy
    assert strategy is not None
    set_strategy(session, candidate, add_strategy(session, job, strategy, StrategyOrigin.IDEA))
    enter_techniques(session, job, [strategy], StrategyOrigin.IDEA)
    if directive.kernel_hash is not None:
        kernel: Kernel = kernel_of(session, directive.kernel_hash)
        set_kernel(session, candidate, kernel, repair_round=0)
    mark_done(session, directive, candidate)
    return candidate


def steered(session: Session, job: Job, population: Sequence[Member], survivors: Sequence[str]) -> list[str]:
    """Return a selection's survivors as people want them: without banned strategies, with pinned candidates."""
    pinned = {str(directive.candidate_id) for directive in in_force(session, job.id, DirectiveKind.PIN)}
    banned = {strategy.signature() for strategy in banned_strategies(session, job.id)}
    left = {member.candidate for member in population if member.strategy.signature() in banned} - pinned
    kept = [survivor for survivor in survivors if survivor not in left]
    return kept + [
        member.candidate for member in population if member.candidate in pinned and member.candidate not in kept
    ]


def forbidden(session: Session, job: Job, candidate: Candidate, stage: Stage) -> bool:
    """Return whether a stage would go on with what is banned: write a strategy's kernel, or measure free code.

    Free code is held to banned techniques only: of its strategy no more is known than the traces in its source.
    """
    looked_at = stage in (Stage.TRANSLATE, Stage.EVALUATE) and candidate.operator is not Operator.INJECTED
    if not looked_at or candidate.strategy_id is None:
        return False
    row = session.get_one(StrategyRow, candidate.strategy_id)
    strategy = row.body
    if stage is Stage.TRANSLATE:
        return banned_in(session, job.id, strategy) is not None
    return row.origin is StrategyOrigin.CODE and not set(strategy.ids()).isdisjoint(banned_techniques(session, job.id))
