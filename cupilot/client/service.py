"""Calls of the client about the service itself and its problems."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from cupilot import schemas
from cupilot.client.definitions import call, stream
from cupilot.client.jobs import LONGEST_PAGE
from cupilot.client.protocol import Call, Stream, all_items, path

if TYPE_CHECKING:
    from cupilot.schemas import (
        AuditEntryView,
        AuditPage,
        ClusterView,
        ProblemPage,
        ProblemSummary,
        ProblemView,
        VersionView,
    )


class ServiceCalls:
    """``/v1/problems``, ``/v1/cluster``, ``/v1/version``."""

    @call
    def problems(self, *, cursor: str | None = None, limit: int = 50) -> Call[ProblemPage]:
        """Return a page of problems; all built-in ones are on the first."""
        return Call(schemas.ProblemPage, "GET", "/v1/problems", params={"cursor": cursor, "limit": limit})

    @stream
    def all_problems(self) -> Stream[ProblemSummary]:
        """Return the built-in problems, then all of the team's, fetched a page at a time."""
        return all_items(
            lambda cursor: ServiceCalls.problems.ask(self, cursor=cursor, limit=LONGEST_PAGE),
            lambda page: page.next_cursor,
        )

    @call
    def problem(self, problem: str) -> Call[ProblemView]:
        """Return a problem with its source."""
        return Call(schemas.ProblemView, "GET", path("v1", "problems", problem))

    @call
    def audit(
        self,
        *,
        principal: str | None = None,
        key_prefix: str | None = None,
        route: str | None = None,
        resource: str | None = None,
        outcome: str | None = None,
        request_id: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        all_teams: bool = False,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Call[AuditPage]:
        """Return a page of the audit log, newest first; ``resource`` is the beginning of a path.

        ``all_teams``, and what nobody's key asked for: for cluster admins.
        """
        parameters = {
            "principal": principal,
            "key_prefix": key_prefix,
            "route": route,
            "resource": resource,
            "outcome": outcome,
            "request_id": request_id,
            "since": since.isoformat() if since else None,
            "until": until.isoformat() if until else None,
            "all_teams": all_teams or None,
            "cursor": cursor,
            "limit": limit,
        }
        return Call(schemas.AuditPage, "GET", "/v1/audit", params=parameters)

    @stream
    def all_audit(
        self,
        *,
        principal: str | None = None,
        key_prefix: str | None = None,
        route: str | None = None,
        resource: str | None = None,
        outcome: str | None = None,
        request_id: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        all_teams: bool = False,
    ) -> Stream[AuditEntryView]:
        """Return all of it, newest first, fetched a page at a time."""
        return all_items(
            lambda cursor: ServiceCalls.audit.ask(
                self,
                principal=principal,
                key_prefix=key_prefix,
                route=route,
                resource=resource,
                outcome=outcome,
                request_id=request_id,
                since=since,
                until=until,
                all_teams=all_teams,
                cursor=cursor,
                limit=LONGEST_PAGE,
            ),
            lambda page: page.next_cursor,
        )

    @call
    def cluster(self) -> Call[ClusterView]:
        """Return workers, devices, queues."""
        return Call(schemas.ClusterView, "GET", "/v1/cluster")

    @call
    def version(self) -> Call[VersionView]:
        """Return the version of the service; needs no key."""
        return Call(schemas.VersionView, "GET", "/v1/version")
