"""A candidate's pipeline: which stage comes next, given what the last one came to. Pure; does no stage itself.

The pipeline of both operators, after cuPilot's Algorithm 1 (lines 3 to 7 for one individual)::

    crossover:  cross -> translate -> evaluate -> (revise -> evaluate)* -> align -> end
    initial:             translate -> evaluate -> (revise -> evaluate)* -> align -> end

Workers and the local driver ask the same two functions: :func:`first` and :func:`following`. A failure of kind
``infrastructure`` is no outcome of a candidate: whoever runs the stage tries it again elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cupilot.evaluation import FailureKind, Verdict
from cupilot.evolution.population import Operator
from cupilot.evolution.sce import SceConfig

REPAIRABLE = frozenset(
    {
        FailureKind.INVALID_PLAN,
        FailureKind.COMPILE_ERROR,
        FailureKind.LAUNCH_ERROR,
        FailureKind.CRASH,
        FailureKind.ILLEGAL_ACCESS,
        FailureKind.OUT_OF_MEMORY,
        FailureKind.TIMEOUT,
        FailureKind.WRONG_VALUE,
        FailureKind.UNWRITTEN_OUTPUT,
        FailureKind.NON_DETERMINISTIC,
        FailureKind.INPUT_MUTATED,
        FailureKind.OUT_OF_BOUNDS_WRITE,
        FailureKind.INSENSITIVE,
        FailureKind.POLICY_BREACH,
    }
)
"""What the Kernel Revisor may mend. Not: results too good to be true (a repair would only teach to hide them),
a broken reference, and faults of the infrastructure."""


class Stage(StrEnum):
    """One unit of a candidate's work; the values are those of :class:`cupilot.storage.states.StepKind`."""

    CROSS = "cross"
    """SCE Manager: one strategy from two parents'."""
    TRANSLATE = "translate"
    """Strategy Translator: a kernel for the strategy."""
    EVALUATE = "evaluate"
    """The judge, on a device."""
    REVISE = "revise"
    """Kernel Revisor: a mended kernel."""
    ALIGN = "align"
    """Strategy Translator: the strategy as the code really follows it."""


class Ending(StrEnum):
    """How a candidate ends; the values are those of :class:`cupilot.storage.states.CandidateState`."""

    EVALUATED = "evaluated"
    """With an evaluation, whatever its verdict."""
    DUPLICATE = "duplicate"
    """The job already has this strategy or kernel; nothing was measured."""
    FAILED = "failed"
    """Without an evaluation; the reason says why."""


@dataclass(frozen=True)
class Next:
    """A stage that is to be done."""

    stage: Stage
    round: int = 0
    """Repair round it belongs to: 0 for the first kernel, n for the n-th revision and its evaluation."""


@dataclass(frozen=True)
class End:
    """The candidate is final."""

    ending: Ending
    reason: str | None = None
    """Machine-readable: why it ended like this, where that is not plain from the evaluation."""


@dataclass(frozen=True)
class Done:
    """An agent did what it was asked: a new strategy (cross, align) or a new kernel (translate, revise)."""


@dataclass(frozen=True)
class Duplicate:
    """An agent's strategy or kernel is one that the job already has."""


@dataclass(frozen=True)
class Refused:
    """An agent could not do what it was asked, or the Revisor gave up."""

    reason: str
    """Code of the :class:`agents.interface.AgentError`, or ``gave_up``."""


@dataclass(frozen=True)
class Judged:
    """An evaluation's result."""

    verdict: Verdict
    failure: FailureKind | None = None


Outcome = Done | Duplicate | Refused | Judged


def first(operator: Operator) -> Next:
    """The stage that a proposal of this operator begins with."""
    return Next(Stage.CROSS if operator is Operator.CROSSOVER else Stage.TRANSLATE)


def following(config: SceConfig, done: Next, outcome: Outcome) -> Next | End:
    """What comes after the stage ``done`` that came to ``outcome``.

    Raises ValueError where the outcome cannot be one of that stage, and for an infrastructure failure, which is to
    be tried again rather than recorded.
    """
    if (done.stage is Stage.EVALUATE) != isinstance(outcome, Judged):
        raise ValueError(f"{outcome} is no outcome of {done.stage.value}")
    match outcome:
        case Judged():
            return _after_evaluation(config, done.round, outcome)
        case Done():
            return _after_agent(done)
        case Duplicate():
            return _without_new_kernel(done, End(Ending.DUPLICATE, f"duplicate_{_made_by(done.stage)}"))
        case Refused():
            return _without_new_kernel(done, End(Ending.FAILED, outcome.reason))


def step_key(ordinal: int, stage: Next) -> str:
    """Name of a candidate's stage within its job, e.g. ``c12/revise/1``: no two stages share one."""
    return f"c{ordinal}/{stage.stage.value}/{stage.round}"


def _after_evaluation(config: SceConfig, repair_round: int, judged: Judged) -> Next | End:
    if judged.failure is FailureKind.INFRASTRUCTURE:
        raise ValueError("an infrastructure failure says nothing about the candidate; try the evaluation again")
    if judged.verdict.counts:
        return Next(Stage.ALIGN, repair_round) if config.alignment else End(Ending.EVALUATED)
    if _repairable(judged) and repair_round < config.repair_rounds:
        return Next(Stage.REVISE, repair_round + 1)
    # Only strategies of kernels that count are ever crossed or reused as good; those of failures stay as asked for,
    # which is what the pool has to warn of.
    return End(Ending.EVALUATED)


def _repairable(judged: Judged) -> bool:
    return judged.verdict is not Verdict.QUARANTINED and judged.failure in REPAIRABLE


def _after_agent(done: Next) -> Next | End:
    match done.stage:
        case Stage.CROSS:
            return Next(Stage.TRANSLATE)
        case Stage.ALIGN:
            return End(Ending.EVALUATED)
        case _:
            return Next(Stage.EVALUATE, done.round)


def _without_new_kernel(done: Next, otherwise: End) -> End:
    """A candidate that was measured before the agent stopped keeps that evaluation."""
    if done.stage in (Stage.REVISE, Stage.ALIGN):
        return End(Ending.EVALUATED, otherwise.reason)
    return otherwise


def _made_by(stage: Stage) -> str:
    return "strategy" if stage in (Stage.CROSS, Stage.ALIGN) else "kernel"
