"""Decide a candidate's next stage from the outcome of the last one. Pure; runs no stage itself.

A method gives each of its operators a :class:`Pipeline`: the stage that it opens with, how often it may be mended,
whether its strategy is aligned. After the opening, all go the same way::

    strategy crossover:   cross -> translate   \\
    initial:                       translate    |
    code crossover (sce):             merge     |-> evaluate -> (revise -> evaluate)* -> align -> end
    code written freely:              write     |
    first of all:  (convert -> check)+ -> write /
    worked on with tools:                act -> evaluate -> (act -> evaluate)* -> end
    asked about a kernel that beat the floor: revise -> evaluate -> align -> end

Between the evaluation of a kernel that counts and its alignment stand the performance revisions: improve -> evaluate,
so often as the pipeline has rounds for. An improvement that is wrong or no faster is not mended: the candidate keeps
the better kernel, and the next round begins from that.

An agent with tools whose kernel the job already has acts once more in the same round; its own budget bounds that.

Translate, revise, improve and align are cuPilot's Algorithm 1 (lines 3 to 7 for one individual); merge is its ablation;
write, convert and check are EvoEngineer's and The AI CUDA Engineer's.

Workers and the local driver ask the same two functions: :func:`first` and :func:`following`. A failure of kind
``infrastructure`` is no outcome of a candidate: whoever runs the stage tries it again elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from cupilot.domain.evaluation import FailureKind, Verdict

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
"""Failures that the Kernel Revisor may mend. Not: results too good to be true, a broken reference, and faults of the
infrastructure. A kernel that beat the floor stays what it is; it is asked about in a candidate of its own
(docs/decisions/0012)."""


NOT_CONVERTED = "not_converted"
"""Reason of a candidate whose reference could not be made a function: no conversion computed the same."""


class Stage(StrEnum):
    """One unit of a candidate's work; the values are those of :class:`cupilot.domain.states.StepKind`."""

    CROSS = "cross"
    """SCE Manager: one strategy from two parents'."""
    TRANSLATE = "translate"
    """Strategy Translator: a kernel for the strategy."""
    MERGE = "merge"
    """Strategy Translator: one kernel from two parents' kernels."""
    CONVERT = "convert"
    """Kernel Engineer: the reference as a pure function."""
    CHECK = "check"
    """The judge, on a device: whether that function computes what the reference does."""
    ACT = "act"
    """Kernel Agent: works with tools, until a kernel is to be measured."""
    WRITE = "write"
    """Kernel Engineer: a kernel, with the insight it rests on."""
    EVALUATE = "evaluate"
    """The judge, on a device."""
    REVISE = "revise"
    """Kernel Revisor: a mended kernel."""
    IMPROVE = "improve"
    """Kernel Revisor: a right kernel, made faster within its strategy."""
    ALIGN = "align"
    """Strategy Translator: the strategy as the code really follows it."""


class Ending(StrEnum):
    """Final state of a candidate; the values are those of :class:`cupilot.domain.states.CandidateState`."""

    EVALUATED = "evaluated"
    """With an evaluation, whatever its verdict."""
    DUPLICATE = "duplicate"
    """The job already has this strategy or kernel; nothing was measured."""
    FAILED = "failed"
    """Without an evaluation; the reason says why."""


@dataclass(frozen=True)
class Next:
    """Next stage of a candidate."""

    stage: Stage
    round: int = 0
    """Round it belongs to: 0 for the first kernel, n for the n-th revision and its evaluation."""
    improvements: int = 0
    """Number of those revisions, the last ones, that were for performance."""
    repeats: int = 0
    """Times that the stage was repeated within its round, because it came to a kernel that the job already has."""

    @property
    def repairs(self) -> int:
        """Number of those revisions that mended a failure."""
        return self.round - self.improvements


@dataclass(frozen=True)
class End:
    """End of a candidate's pipeline."""

    ending: Ending
    reason: str | None = None
    """Machine-readable: why it ended like this, where that is not plain from the evaluation."""
    question: bool = False
    """True if its kernel is faster than the roofline bound: the Revisor is asked about it once, in a new candidate."""


@dataclass(frozen=True)
class Done:
    """An agent succeeded: a new strategy, a new kernel or a conversion; or a conversion passed its check."""


@dataclass(frozen=True)
class Duplicate:
    """An agent's strategy or kernel is one that the job already has."""


@dataclass(frozen=True)
class AgentFailed:
    """An agent failed at its task, or the Revisor stopped repairing."""

    reason: str
    """Code of the :class:`agents.interface.AgentError`, or ``gave_up``."""


@dataclass(frozen=True)
class WrongConversion:
    """A conversion that does not compute what the reference does."""


@dataclass(frozen=True)
class Judged:
    """An evaluation's result."""

    verdict: Verdict
    failure: FailureKind | None = None
    near_floor: bool = False
    """True if the kernel is so close to the roofline bound that no revision can gain much."""


Outcome = Done | Duplicate | AgentFailed | WrongConversion | Judged


@dataclass(frozen=True)
class Pipeline:
    """Pipeline of an operator's candidates from proposal to end."""

    opening: Stage
    repair_rounds: int
    """Times that a candidate's kernel may be mended, and its conversion, where it has one."""
    alignment: bool
    """True if the strategy of a kernel that counts is aligned with its code."""
    questions: bool = False
    """True if the Revisor is asked about a kernel faster than the roofline bound while repair rounds are left."""
    performance_rounds: int = 0
    """Times that a right kernel may be made faster."""
    repairing: Stage = Stage.REVISE
    """The stage that mends a kernel."""
    improving: Stage = Stage.IMPROVE
    """The stage that makes a right kernel faster."""


def first(pipeline: Pipeline) -> Next:
    """Return the stage that a candidate begins with."""
    return Next(pipeline.opening)


def following(pipeline: Pipeline, done: Next, outcome: Outcome) -> Next | End:
    """Return what comes after the stage ``done`` that came to ``outcome``.

    Raises ValueError where the outcome cannot be one of that stage, and for an infrastructure failure, which is to
    be tried again rather than recorded.
    """
    if (done.stage is Stage.EVALUATE) != isinstance(outcome, Judged) or (
        isinstance(outcome, WrongConversion) and done.stage is not Stage.CHECK
    ):
        raise ValueError(f"{outcome} is no outcome of {done.stage.value}")
    match outcome:
        case Judged():
            return _after_evaluation(pipeline, done, outcome)
        case WrongConversion():
            again = done.round < pipeline.repair_rounds
            return Next(Stage.CONVERT, done.round + 1) if again else End(Ending.FAILED, NOT_CONVERTED)
        case Done():
            return _after_agent(done)
        case Duplicate() if done.stage is Stage.ACT:
            return replace(done, repeats=done.repeats + 1)
        case Duplicate() | AgentFailed() if done.improvements and done.stage is not Stage.ALIGN:
            return _aligned(pipeline, done)
        case Duplicate():
            return _without_new_kernel(done, End(Ending.DUPLICATE, f"duplicate_{_made_by(done.stage)}"))
        case AgentFailed():
            return _without_new_kernel(done, End(Ending.FAILED, outcome.reason))


def step_key(ordinal: int, stage: Next) -> str:
    """Return the name of a candidate's stage within its job, e.g. ``c12/revise/1``: no two stages share one."""
    repeated = f"/{stage.repeats}" if stage.repeats else ""
    return f"c{ordinal}/{stage.stage.value}/{stage.round}{repeated}"


def _after_evaluation(pipeline: Pipeline, done: Next, judged: Judged) -> Next | End:
    if judged.failure is FailureKind.INFRASTRUCTURE:
        raise ValueError("an infrastructure failure says nothing about the candidate; try the evaluation again")
    if judged.verdict.counts or done.improvements:
        if done.improvements < pipeline.performance_rounds and not judged.near_floor:
            return Next(pipeline.improving, done.round + 1, done.improvements + 1)
        return _aligned(pipeline, done)
    if _repairable(judged) and done.repairs < pipeline.repair_rounds:
        return Next(pipeline.repairing, done.round + 1)
    # Only strategies of kernels that count are ever crossed or reused as good; those of failures stay as asked for,
    # which is what the pool has to warn of.
    question = pipeline.questions and done.repairs < pipeline.repair_rounds and _beat_the_floor(judged)
    return End(Ending.EVALUATED, question=question)


def _aligned(pipeline: Pipeline, done: Next) -> Next | End:
    """Return what follows once the candidate's kernel is final."""
    if not pipeline.alignment:
        return End(Ending.EVALUATED)
    return Next(Stage.ALIGN, done.round, done.improvements)


def _beat_the_floor(judged: Judged) -> bool:
    return judged.verdict is Verdict.QUARANTINED and judged.failure is FailureKind.BELOW_FLOOR


def _repairable(judged: Judged) -> bool:
    return judged.verdict is not Verdict.QUARANTINED and judged.failure in REPAIRABLE


def _after_agent(done: Next) -> Next | End:
    match done.stage:
        case Stage.CROSS:
            return Next(Stage.TRANSLATE)
        case Stage.CONVERT:
            return Next(Stage.CHECK, done.round)
        case Stage.CHECK:
            return Next(Stage.WRITE)
        case Stage.ALIGN:
            return End(Ending.EVALUATED)
        case _:
            return Next(Stage.EVALUATE, done.round, done.improvements)


def _without_new_kernel(done: Next, otherwise: End) -> End:
    """Keep the evaluation of a candidate that was measured before the agent stopped."""
    if done.stage is Stage.ALIGN or (done.stage in (Stage.REVISE, Stage.ACT) and done.round > 0):
        return End(Ending.EVALUATED, otherwise.reason)
    return otherwise


def _made_by(stage: Stage) -> str:
    return "strategy" if stage in (Stage.CROSS, Stage.ALIGN) else "kernel"
