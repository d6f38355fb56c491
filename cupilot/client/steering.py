"""Calls of the client that steer jobs, and the team's quota."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from cupilot import schemas
from cupilot.client.definitions import call
from cupilot.client.jobs import JobId
from cupilot.client.protocol import Call, path

if TYPE_CHECKING:
    from cupilot.schemas import JobView
    from cupilot.schemas.steering import (
        DirectiveList,
        DirectiveRequest,
        DirectiveView,
        ForkRequest,
        JobChange,
        QuotaView,
        RetryRequest,
    )


class SteeringCalls:
    """``/v1/jobs/{job}/pause`` and its like, ``/directives``, ``/v1/quota``."""

    @call
    def change(self, job: JobId, change: JobChange) -> Call[JobView]:
        """Change labels, one by one, or the priority of a job that has not ended."""
        return Call(schemas.JobView, "PATCH", path("v1", "jobs", job), body=change, repeatable=True)

    @call
    def pause(self, job: JobId) -> Call[JobView]:
        """Pause a job: nothing of it begins until it is resumed; steps that run are finished."""
        return Call(schemas.JobView, "POST", path("v1", "jobs", job, "pause"), repeatable=True)

    @call
    def resume(self, job: JobId) -> Call[JobView]:
        """Resume a paused job; NotAllowedError with code ``quota_exceeded`` where the team has no room for it."""
        return Call(schemas.JobView, "POST", path("v1", "jobs", job, "resume"), repeatable=True)

    @call
    def retry(
        self, job: JobId, request: RetryRequest | None = None, *, idempotency_key: str | None = None
    ) -> Call[JobView]:
        """Start a job that continues from an ended one's best kernels, with budgets of its own."""
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        body = request or schemas.RetryRequest()
        return Call(schemas.JobView, "POST", path("v1", "jobs", job, "retry"), body=body, headers=headers)

    @call
    def fork(
        self,
        job: JobId,
        candidate: JobId | int,
        request: ForkRequest | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> Call[JobView]:
        """Start a job whose first generation has a candidate's strategy and kernel."""
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        where = path("v1", "jobs", job, "candidates", candidate, "fork")
        return Call(schemas.JobView, "POST", where, body=request or schemas.ForkRequest(), headers=headers)

    @call
    def directives(self, job: JobId) -> Call[DirectiveList]:
        """Return pins, bans and injections of a job, the oldest first."""
        return Call(schemas.DirectiveList, "GET", path("v1", "jobs", job, "directives"))

    @call
    def direct(self, job: JobId, request: DirectiveRequest) -> Call[DirectiveView]:
        """Pin a candidate, ban a technique or strategy, or inject a strategy."""
        return Call(schemas.DirectiveView, "POST", path("v1", "jobs", job, "directives"), body=request)

    @call
    def lift(self, job: JobId, directive: JobId) -> Call[DirectiveView]:
        """Lift a directive."""
        return Call(schemas.DirectiveView, "DELETE", path("v1", "jobs", job, "directives", directive))

    @call
    def quota(self) -> Call[QuotaView]:
        """Return what the team may use, and has used."""
        return Call(schemas.QuotaView, "GET", "/v1/quota")
