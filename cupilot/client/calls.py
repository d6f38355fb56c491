"""Calls of the client about model calls: the prompts of agents and the answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cupilot import schemas
from cupilot.client.definitions import call, stream
from cupilot.client.jobs import LONGEST_PAGE, JobId
from cupilot.client.protocol import Call, Stream, all_items, path

if TYPE_CHECKING:
    from cupilot.schemas import CallPage, CallSummary, CallView


class ModelCalls:
    """``/v1/jobs/{job}/calls``."""

    @call
    def model_calls(
        self,
        job: JobId,
        *,
        candidate: JobId | int | None = None,
        role: str | None = None,
        state: str | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Call[CallPage]:
        """Return a page of a job's model calls, oldest first.

        Those of one candidate where its id or ordinal is given.
        """
        where = path("v1", "jobs", job, "calls")
        if candidate is not None:
            where = path("v1", "jobs", job, "candidates", candidate, "calls")
        parameters = {"role": role, "state": state, "cursor": cursor, "limit": limit}
        return Call(schemas.CallPage, "GET", where, params=parameters)

    @stream
    def all_model_calls(
        self, job: JobId, *, candidate: JobId | int | None = None, role: str | None = None, state: str | None = None
    ) -> Stream[CallSummary]:
        """Return all of them, fetched a page at a time."""
        return all_items(
            lambda cursor: ModelCalls.model_calls.ask(
                self, job, candidate=candidate, role=role, state=state, cursor=cursor, limit=LONGEST_PAGE
            ),
            lambda page: page.next_cursor,
        )

    @call
    def model_call(self, job: JobId, model_call: JobId) -> Call[CallView]:
        """Return a model call with every message and the answer; secrets are removed."""
        return Call(schemas.CallView, "GET", path("v1", "jobs", job, "calls", model_call))
