"""The form of a step's handler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from sqlalchemy.orm import Session

from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.queue.steps import Claim
from workers.tools import Tools

Input = TypeVar("Input")
Result = TypeVar("Result")

Cancelled = Callable[[], bool]
"""Returns whether to stop: the claim is lost, the job is being cancelled, or the process has to end."""


@dataclass(frozen=True)
class Handler(Generic[Input, Result]):
    """Three functions, of which each takes what the one before it returns."""

    load: Callable[[Session, Claim], Input]
    """Read what the work needs, in one short transaction."""
    work: Callable[[Input, Tools, Cancelled], Result]
    """Do the work, outside any transaction."""
    store: Callable[[Session, Job, Step, Result], None]
    """Write the result and what follows from it, in the transaction that finishes the step; the job is locked."""
