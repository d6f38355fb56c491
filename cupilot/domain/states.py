"""The closed vocabularies of the schema. :mod:`cupilot.storage.db.transitions` holds the allowed changes."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """Life of a job."""

    QUEUED = "queued"
    PREPARING = "preparing"
    EVOLVING = "evolving"
    PAUSED = "paused"
    """Nothing of it begins; what runs is finished."""
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    BUDGET_EXHAUSTED = "budget_exhausted"

    @property
    def final(self) -> bool:
        """True if no state follows."""
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.BUDGET_EXHAUSTED)


class ExperimentState(StrEnum):
    """State of an experiment; derived from its jobs and stored nowhere."""

    QUEUED = "queued"
    RUNNING = "running"
    CANCELLING = "cancelling"
    FINISHED = "finished"
    CANCELLED = "cancelled"


class GenerationState(StrEnum):
    """Life of a generation."""

    RUNNING = "running"
    FINISHED = "finished"


class CandidateState(StrEnum):
    """Life of a candidate."""

    ACTIVE = "active"
    """Somewhere in its pipeline."""
    EVALUATED = "evaluated"
    """Final, with an evaluation (whatever the verdict)."""
    DUPLICATE = "duplicate"
    """Dropped before anything was paid: the job already has this strategy or kernel."""
    FAILED = "failed"
    """Final without an evaluation; ``reason`` says why."""
    CANCELLED = "cancelled"


class StepKind(StrEnum):
    """Work of a step: ``prepare``, ``check``, ``evaluate``, ``confirm`` and ``attribute`` on a device."""

    PREPARE = "prepare"
    INITIALISE = "initialise"
    CROSS = "cross"
    TRANSLATE = "translate"
    MERGE = "merge"
    CONVERT = "convert"
    CHECK = "check"
    WRITE = "write"
    ACT = "act"
    EVALUATE = "evaluate"
    REVISE = "revise"
    IMPROVE = "improve"
    """Make a right kernel faster."""
    ALIGN = "align"
    CONFIRM = "confirm"
    ABLATE = "ablate"
    """Write the winner without each of its techniques."""
    ATTRIBUTE = "attribute"
    """Measure one of those."""

    @property
    def on_device(self) -> bool:
        """True if a GPU worker runs it."""
        on_device = (StepKind.PREPARE, StepKind.CHECK, StepKind.EVALUATE, StepKind.CONFIRM, StepKind.ATTRIBUTE)
        return self in on_device


class StepState(StrEnum):
    """Life of a step."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class StrategyOrigin(StrEnum):
    """Origin of a strategy."""

    IDEA = "idea"
    POOL = "pool"
    CROSSOVER = "crossover"
    REVISION = "revision"
    ALIGNMENT = "alignment"
    ABLATION = "ablation"
    """The winner's, without one technique."""
    MERGE = "merge"
    """Claimed for a kernel that was merged from two: what both parents' did."""
    CODE = "code"
    """Read from a kernel that was written freely."""


class EvaluationPurpose(StrEnum):
    """Purpose of a measurement."""

    EVALUATE = "evaluate"
    CONFIRM = "confirm"
    """In fresh processes, against every baseline, for ``reproduced``."""
    ATTRIBUTE = "attribute"
    """Without one technique, to see what that is worth. Not the candidate's own kernel."""


class BatchState(StrEnum):
    """Life of a batch."""

    EXPORTING = "exporting"
    """Steps are being claimed for it."""
    OPEN = "open"
    """Its file can be fetched, and results are taken."""
    EMPTY = "empty"
    """No step waited for such a device."""
    FINISHED = "finished"
    """Every step has an outcome."""
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    """Its lease ended before every step had an outcome."""

    @property
    def final(self) -> bool:
        """True if no state follows."""
        return self not in (BatchState.EXPORTING, BatchState.OPEN)


class BatchOutcome(StrEnum):
    """Outcome of a batch's step."""

    RECEIVED = "received"
    """Its result has come, and is about to be settled."""
    SETTLED = "settled"
    """The result counts."""
    RETRIED = "retried"
    """The machine failed; the step waits for another attempt."""
    FAILED = "failed"
    """The machine failed, and it was the step's last attempt."""
    CANCELLED = "cancelled"
    """Its job was cancelled; the result was dropped."""
    STALE = "stale"
    """The step was no longer the batch's: its lease had ended, or its job had. The result was dropped."""
    RELEASED = "released"
    """No result came while the batch held it: the step waits for a worker again."""


class LlmCallState(StrEnum):
    """Life of a model call."""

    STARTED = "started"
    ANSWERED = "answered"
    FAILED = "failed"
    """No answer came, and nothing was charged."""
    LOST = "lost"
    """No answer came, and nobody knows whether it was charged: the worker died, or the connection broke. Its worst cost
    stays reserved."""


class WorkerKind(StrEnum):
    """Kind of work that a worker can do."""

    AGENT = "agent"
    GPU = "gpu"
