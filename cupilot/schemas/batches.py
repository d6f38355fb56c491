"""Batches: steps exported to machines without a network, and what came of them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import Field

from cupilot.domain.batches.manifest import MAX_STEPS
from cupilot.domain.hardware import Device
from cupilot.domain.problem import Target
from cupilot.domain.states import BatchOutcome, BatchState, StepKind
from cupilot.domain.value import Vocabulary
from cupilot.schemas.base import Request, Response, open_enum

MAX_LEASE_HOURS = 24.0 * 30


class BatchRequest(Request):
    """Which steps to export, and for how long."""

    target: Target
    arch: Annotated[str | None, Field(pattern=r"^sm_[0-9]{2,3}[a-z]?$")] = None
    """Architecture of the cards, e.g. `sm_90`; for `cuda` only, and needed there."""
    limit: Annotated[int, Field(ge=1, le=MAX_STEPS)] = 500
    """Steps at most."""
    lease_hours: Annotated[float, Field(gt=0, le=MAX_LEASE_HOURS, allow_inf_nan=False)] = 24.0
    """For how long no worker gets the steps."""
    job: UUID | None = None
    """Take this job's steps only."""


class BatchCounts(Response):
    """Steps of a batch, by what came of them."""

    waiting: int = 0
    """Held by the batch, without a result."""
    received: int = 0
    """With a result that is about to be settled."""
    settled: int = 0
    retried: int = 0
    failed: int = 0
    cancelled: int = 0
    stale: int = 0
    released: int = 0


class BatchView(Response):
    """A batch."""

    id: UUID
    state: Annotated[str, open_enum(BatchState)]
    target: Target
    device_class: str
    """Class of devices that may judge it, e.g. `sm_90`."""
    job: UUID | None = None
    """The only job whose steps were taken; null for all."""
    author: str
    """The user who exported it."""
    steps: int
    counts: BatchCounts
    created_at: datetime
    expires_at: datetime | None = None
    """End of the lease; null until it is exported."""
    ended_at: datetime | None = None


class BatchPage(Response):
    """Batches, newest first."""

    items: list[BatchView]
    next_cursor: str | None = None


class BatchStepView(Response):
    """One step of a batch."""

    step: UUID
    job: UUID
    key: str
    """Its name within its job, e.g. `c12/evaluate/1`."""
    kind: Annotated[str, open_enum(StepKind)]
    attempt: int
    outcome: Annotated[str | None, open_enum(BatchOutcome)] = None
    """Null while the batch holds it and no result has come."""
    detail: str | None = None
    seconds: float | None = None
    """Device seconds that it was charged for."""
    device: Device | None = None
    """Device that judged it."""
    settled_at: datetime | None = None


class BatchStepPage(Response):
    """Steps of a batch, in its order."""

    items: list[BatchStepView]
    next_cursor: str | None = None


class ReceiptOutcome(Vocabulary):
    """Outcome of a line of results on arrival."""

    RECEIVED = "received"
    """It is about to be settled."""
    DUPLICATE = "duplicate"
    """The step has a result already; this one is ignored."""
    LATE = "late"
    """The batch does not hold the step any more."""
    DAMAGED = "damaged"
    """The line was changed, or is no result."""
    MISMATCHED = "mismatched"
    """It answers another question than the one that was exported."""
    UNKNOWN = "unknown"
    """The batch holds no such step."""


class Receipt(Response):
    """A line of results, and what became of it."""

    line: int
    """Number of the line; the first one names the batch."""
    outcome: Annotated[str, open_enum(ReceiptOutcome)]
    step: UUID | None = None
    detail: str | None = None


class BatchReceipts(Response):
    """Outcome of each line; those received are settled in the background."""

    items: list[Receipt]
