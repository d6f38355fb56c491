"""Quotas of teams: jobs at a time, device seconds and model money per calendar period. Pure values.

What a *job* may use is its budgets (:class:`cupilot.domain.job.Budgets`).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cupilot.domain.errors import CupilotError
from cupilot.domain.value import Value, Vocabulary


class QuotaPeriod(Vocabulary):
    """Calendar period (UTC) after which use is counted from 0 again; weeks begin on Monday."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"


class Quota(Value):
    """A team's limits; None is no limit."""

    max_running_jobs: Annotated[int, Field(ge=0, le=100_000)] | None = None
    """Jobs that have begun and are not paused; others wait in the queue."""
    max_queued_jobs: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """Jobs that wait to begin; a submission beyond it is refused."""
    gpu_seconds: Annotated[float, Field(ge=0)] | None = None
    """Seconds of GPU workers per period. When they are used up, jobs that have begun end as ``budget_exhausted``, and
    others wait for the next period."""
    model_usd: Annotated[float, Field(ge=0)] | None = None
    """Money for model calls per period."""
    period: QuotaPeriod = QuotaPeriod.MONTH


class QuotaExceeded(CupilotError):
    """The team has used what it may; the same request may work later, or after the quota was raised."""

    code = "quota_exceeded"
    status = 403
