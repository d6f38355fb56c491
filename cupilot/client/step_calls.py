"""Calls of the client about a job's steps and their logs."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from cupilot import schemas
from cupilot.client.definitions import call, stream
from cupilot.client.jobs import LONGEST_PAGE, JobId
from cupilot.client.protocol import Call, Stream, all_items, path

if TYPE_CHECKING:
    from cupilot.schemas.steps import StepPage, StepView


class StepCalls:
    """``/v1/jobs/{job}/steps`` and logs."""

    @call
    def steps(
        self,
        job: JobId,
        *,
        state: str | None = None,
        key: str | None = None,
        candidate: JobId | int | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Call[StepPage]:
        """Return a page of what was done for a job, oldest first; ``key`` names one step, e.g. ``c3/evaluate/0``."""
        parameters = {"state": state, "key": key, "candidate": candidate, "cursor": cursor, "limit": limit}
        return Call(schemas.StepPage, "GET", path("v1", "jobs", job, "steps"), params=parameters)

    @stream
    def all_steps(
        self, job: JobId, *, state: str | None = None, candidate: JobId | int | None = None
    ) -> Stream[StepView]:
        """Return all of it, fetched a page at a time."""
        return all_items(
            lambda cursor: StepCalls.steps.ask(
                self, job, state=state, candidate=candidate, cursor=cursor, limit=LONGEST_PAGE
            ),
            lambda page: page.next_cursor,
        )

    @call
    def job_log(self, job: JobId, *, lines: int = 1_000) -> Call[bytes]:
        """Return a job's newest events as UTF-8 text, a line each, oldest first."""
        return Call(bytes, "GET", path("v1", "jobs", job, "log"), params={"lines": lines})

    @call
    def step_log(self, job: JobId, step: uuid.UUID | str) -> Call[bytes]:
        """Return a step's attempts, errors, model calls, build and judge's findings as UTF-8 text."""
        return Call(bytes, "GET", path("v1", "jobs", job, "steps", step, "log"))
