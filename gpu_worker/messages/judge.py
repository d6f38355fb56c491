"""Messages between supervisor and judge: requests, events while one is worked on, and answers.

The judge reads what references and kernels report, and its answers become part of records that are kept: so every list,
string and number of an answer is bounded. The bounds are here and not in :mod:`cupilot.domain.evaluation`, so that
records that were stored before remain valid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    StrictBool,
    TypeAdapter,
    field_validator,
)

from cupilot.domain.evaluation import Baseline, Comparison, Failure, Interval, LawResult
from cupilot.domain.kernel import ResolvedLaunch
from cupilot.domain.problem import Problem, ProblemFacts
from gpu_worker.channel import finite
from gpu_worker.messages.bounds import MAX_ITEMS, modest, small

NAME_CHARACTERS = 200
"""Of an input distribution, a null kernel or a stage; the longest has 60."""

REASON_CHARACTERS = 2000
"""Of the reason why a reference process was lost."""

MAX_NOTES = 200
NOTE_CHARACTERS = 2000
"""Of a note. Its longest parts, what a compiler or a reference raised, are cut at 500."""

MAX_COUNT = 2**53
"""Of pairs and launches: beyond, JSON's readers lose digits."""


def short_notes(notes: Iterable[str]) -> tuple[str, ...]:
    """Cut notes to the number and length that an answer may hold."""
    return tuple(note[:NOTE_CHARACTERS] for note in islice(notes, MAX_NOTES))


def _finite_interval(interval: Interval) -> Interval:
    if not 0.0 <= interval.low <= interval.high < math.inf:
        raise ValueError("a measured interval is finite, and not negative")
    return interval


def _possible(comparison: Comparison) -> Comparison:
    for interval in (comparison.kernel_us, comparison.baseline_us, comparison.speedup):
        _finite_interval(interval)
    if not (0 <= comparison.pairs <= MAX_COUNT and 0 <= comparison.launches <= MAX_COUNT):
        raise ValueError("impossible numbers of pairs or launches")
    return comparison


Name = Annotated[str, Field(max_length=NAME_CHARACTERS)]
Notes = Annotated[tuple[Annotated[str, Field(max_length=NOTE_CHARACTERS)], ...], Field(max_length=MAX_NOTES)]
BoundedFailure = Annotated[Failure, BeforeValidator(small), BeforeValidator(modest)]


class Message(BaseModel):
    """A message, or a part of one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def as_json(self) -> dict[str, Any]:
        """Return the message for the channel."""
        data: dict[str, Any] = finite(self.model_dump(mode="json"))
        return data


# Requests


class KernelOrder(Message):
    """A kernel to be verified and timed."""

    binary: str
    """Path under which the runner finds the machine code, or the imported file."""
    launches: tuple[ResolvedLaunch, ...]
    workspace: dict[str, int]
    laws: tuple[str, ...]
    """Input distributions to verify the kernel on."""
    tolerances: dict[str, float]
    thorough: bool
    """True if to measure as for a confirmation."""
    incumbent: float | None
    """Speedup over eager below which a kernel need not be measured tightly; None for the judge's default."""
    baselines: tuple[Baseline, ...]
    only_timing: bool = False
    """Time again, and verify on the problem's own inputs only."""
    screening: bool = False
    """Estimate the speed from few blocks on one filling of the slots, and check launches of the first block only."""
    imported: bool = False
    """True if ``binary`` is a file with host code of its own, which runs in the runner; it has no launches then."""


class _AboutProblem(Message):
    problem: Problem
    sparing: StrictBool = False
    """True if there was too little memory for it before: what is not in use is given back at once."""


class PrepareRequest(_AboutProblem):
    """Admit a problem and time PyTorch on it; answered by :class:`Prepared`."""

    op: Literal["prepare"] = "prepare"


class TraceRequest(_AboutProblem):
    """Trace a problem, and admit nothing; answered by :class:`Traced`."""

    op: Literal["trace"] = "trace"


class OpenRequest(_AboutProblem):
    """Open a problem that was prepared before; answered by :class:`Opened`."""

    op: Literal["open"] = "open"
    facts: ProblemFacts


class JudgeRequest(Message):
    """Verify and time a kernel for the open problem; answered by :class:`Judged`."""

    op: Literal["judge"] = "judge"
    order: KernelOrder
    hold: bool
    """True if the runner holds host code of the kernel's, and is stopped while nothing is asked of it."""


ProblemRequest: TypeAlias = PrepareRequest | TraceRequest | OpenRequest
"""Requests that come with the line to a reference process."""
Request: TypeAlias = ProblemRequest | JudgeRequest
REQUESTS: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="op")])

# Events


class Ready(Message):
    """The judge has imported all that it needs."""

    event: Literal["ready"] = "ready"
    torch: Annotated[str, Field(max_length=100)]
    """Version of torch."""


class StageBegun(Message):
    """The judge begins a stage of a request."""

    event: Literal["stage"] = "stage"
    name: Name
    limit: Annotated[float, Field(strict=True, allow_inf_nan=False)]
    """Seconds that the stage may take."""


class HoldRequest(Message):
    """Stop or continue the runner; answered by :class:`Held`."""

    event: Literal["hold"] = "hold"
    on: StrictBool


class Held(Message):
    """The runner was stopped or continued."""

    at: float
    """Moment since or until which the runner stands still, by :func:`time.perf_counter`, which all processes share."""
    awake: float = 0.0
    """Processor seconds that the runner used while it was stopped."""


Event: TypeAlias = StageBegun | HoldRequest
EVENTS: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="event")])

# Answers


class Prepared(Message):
    """Result of a preparation; see :class:`cupilot.domain.evaluation.Preparation`."""

    kind: Literal["prepared"] = "prepared"
    facts: ProblemFacts
    """Bounded by the size of the message."""
    laws: Annotated[tuple[Name, ...], Field(max_length=MAX_ITEMS)]
    tolerances: Annotated[dict[Name, FiniteFloat], Field(max_length=MAX_ITEMS)]
    admission: Annotated[dict[Name, StrictBool], Field(max_length=MAX_ITEMS)]
    notes: Notes
    baseline_us: Annotated[Interval, AfterValidator(_finite_interval)]
    host_bound: StrictBool = False


class Traced(Message):
    """Facts of a traced problem."""

    kind: Literal["traced"] = "traced"
    facts: ProblemFacts


class Opened(Message):
    """The problem is open, with the facts that it was prepared with."""

    kind: Literal["opened"] = "opened"


class VerificationResult(Message):
    """Result of verifying a kernel: of loading it, and of its launches on each input distribution."""

    laws: Annotated[tuple[LawResult, ...], BeforeValidator(modest)] = ()
    """Input distributions on which it was right, those before a failure too."""
    audited: StrictBool = False
    """True if it was right on all that were ordered."""
    facts: Annotated[dict[str, Any], BeforeValidator(small), BeforeValidator(modest)] = {}
    """Facts that the runner reported when it loaded the kernel."""
    failure: BoundedFailure | None = None
    lost: StrictBool = False
    """True if the runner ended; the supervisor knows how."""

    @field_validator("laws")
    @classmethod
    def _named(cls, laws: tuple[LawResult, ...]) -> tuple[LawResult, ...]:
        if any(len(law.law) > NAME_CHARACTERS for law in laws):
            raise ValueError("the name of an input distribution is too long")
        return laws


class TimingResult(Message):
    """Result of timing a kernel against the baselines."""

    comparisons: Annotated[
        tuple[Annotated[Comparison, AfterValidator(_possible)], ...],
        Field(max_length=len(Baseline)),
        BeforeValidator(modest),
    ] = ()
    """Those before a failure too."""
    notes: Notes = ()
    handover_us: Annotated[FiniteFloat, Field(ge=0.0)] | None = None
    """Microseconds that copying an imported file's outputs takes, which its times contain."""
    failure: BoundedFailure | None = None
    lost: StrictBool = False
    """True if the runner ended; the supervisor knows how."""


class Judged(Message):
    """Result of judging a kernel; a kernel that fails its verification is not timed."""

    kind: Literal["judged"] = "judged"
    verification: VerificationResult
    timing: TimingResult | None = None

    @property
    def failure(self) -> Failure | None:
        """The failure of the stage that the kernel did not pass."""
        return self.verification.failure or (self.timing.failure if self.timing is not None else None)

    @property
    def lost(self) -> bool:
        """Return whether the runner ended."""
        return self.verification.lost or (self.timing is not None and self.timing.lost)

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Comparisons with the baselines, none where nothing was timed."""
        return self.timing.comparisons if self.timing is not None else ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes of the timing."""
        return self.timing.notes if self.timing is not None else ()

    @property
    def eager(self) -> Comparison | None:
        """The comparison with PyTorch eager."""
        return next((item for item in self.comparisons if item.baseline is Baseline.EAGER), None)

    def failed(self, failure: Failure) -> Judged:
        """Return the same result with a failure of the last stage."""
        if self.timing is None:
            return self.model_copy(update={"verification": self.verification.model_copy(update={"failure": failure})})
        return self.model_copy(update={"timing": self.timing.model_copy(update={"failure": failure})})


class Unusable(Message):
    """Nothing could be answered, for the problem's fault or the machine's."""

    kind: Literal["unusable"] = "unusable"
    failure: BoundedFailure
    last: StrictBool = False
    """True if the judge ends after this answer."""


class ReferenceGone(Message):
    """The reference process ended, or sent something that makes no sense; the supervisor knows how it ended."""

    kind: Literal["reference_gone"] = "reference_gone"
    reason: Annotated[str, Field(max_length=REASON_CHARACTERS)]


Answer: TypeAlias = Prepared | Traced | Opened | Judged | Unusable | ReferenceGone


class Done(Message):
    """The answer to a request, after which the judge waits for the next one."""

    event: Literal["done"] = "done"
    answer: Annotated[Answer, Field(discriminator="kind")]
