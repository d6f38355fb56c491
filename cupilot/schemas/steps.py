"""Steps: the units of work of a job, as they stand."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import JsonValue

from cupilot.domain.states import StepKind, StepState
from cupilot.schemas.base import Response, open_enum

StepStateText = Annotated[str, open_enum(StepState)]
StepKindText = Annotated[str, open_enum(StepKind)]


class StepView(Response):
    """One model call or one piece of work on a device."""

    id: UUID
    key: str
    """Its name within its job, e.g. ``c12/revise/1``."""
    kind: StepKindText
    candidate: int | None = None
    """Ordinal of the candidate that it is done for."""
    queue: str
    state: StepStateText
    attempt: int
    """Times that a worker has claimed it."""
    max_attempts: int
    worker: str | None = None
    """Worker that holds it; only while it runs."""
    error: dict[str, JsonValue] | None = None
    """Why its last attempt came to nothing, where one did."""
    busy_seconds: float
    """For which workers held it, over all attempts that have ended."""
    held_seconds: float
    """For how long its worker or batch has held it now; 0 while it does not run."""
    created_at: datetime
    started_at: datetime | None = None
    """Of the last attempt."""
    finished_at: datetime | None = None


class StepPage(Response):
    """Steps in the order in which they were made."""

    items: list[StepView]
    next_cursor: str | None = None
    """Give it as ``cursor`` to get the next page; null on the last."""
