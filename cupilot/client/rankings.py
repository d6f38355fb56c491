"""Calls of the client that compare proven kernels: leaderboards, and two candidates side by side."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from cupilot import schemas
from cupilot.client.definitions import call, stream
from cupilot.client.jobs import LONGEST_PAGE, JobId
from cupilot.client.protocol import Call, Stream, all_items, path

if TYPE_CHECKING:
    from cupilot.schemas import (
        CandidateComparison,
        JobView,
        Leaderboard,
        LeaderboardEntry,
        LeaderboardList,
        LeaderboardSummary,
        Measurement,
        MeasurementList,
    )


class RankingCalls:
    """``/v1/leaderboards`` and ``/v1/compare``."""

    @call
    def leaderboards(
        self, *, all_teams: bool = False, cursor: str | None = None, limit: int = 50
    ) -> Call[LeaderboardList]:
        """Return a page of the leaderboards: one for each problem and model of device.

        With kernels of your team, and those that others have opened; ``all_teams`` is for cluster admins.
        """
        parameters = {"all_teams": all_teams or None, "cursor": cursor, "limit": limit}
        return Call(schemas.LeaderboardList, "GET", "/v1/leaderboards", params=parameters)

    @stream
    def all_leaderboards(self, *, all_teams: bool = False) -> Stream[LeaderboardSummary]:
        """Return all of them, fetched a page at a time."""
        return all_items(
            lambda cursor: RankingCalls.leaderboards.ask(self, all_teams=all_teams, cursor=cursor, limit=LONGEST_PAGE),
            lambda page: page.next_cursor,
        )

    @call
    def leaderboard(
        self,
        problem: str,
        *,
        device: str | None = None,
        all_teams: bool = False,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Call[Leaderboard]:
        """Return proven kernels for a problem (by hash), the fastest first; ``device`` where there are several."""
        parameters = {"device": device, "all_teams": all_teams or None, "cursor": cursor, "limit": limit}
        return Call(schemas.Leaderboard, "GET", path("v1", "leaderboards", problem), params=parameters)

    @stream
    def ranked(self, problem: str, *, device: str | None = None, all_teams: bool = False) -> Stream[LeaderboardEntry]:
        """Return all of a leaderboard, fetched a page at a time."""
        return all_items(
            lambda cursor: RankingCalls.leaderboard.ask(
                self, problem, device=device, all_teams=all_teams, cursor=cursor, limit=LONGEST_PAGE
            ),
            lambda page: page.next_cursor,
        )

    @call
    def compare(self, first: JobId, second: JobId) -> Call[CandidateComparison]:
        """Return two candidates for one problem: each a candidate's id, ``job:ordinal``, or a job's id for its best."""
        return Call(
            schemas.CandidateComparison, "GET", "/v1/compare", params={"first": str(first), "second": str(second)}
        )

    @call
    def measurements(
        self, job: JobId, candidate: JobId | int, *, cursor: str | None = None, limit: int = LONGEST_PAGE
    ) -> Call[MeasurementList]:
        """Return a page of the measurements of a candidate's kernel in the team's jobs on its problem, the newest
        first.
        """
        where = path("v1", "jobs", job, "candidates", candidate, "measurements")
        return Call(schemas.MeasurementList, "GET", where, params={"cursor": cursor, "limit": limit})

    @stream
    def all_measurements(self, job: JobId, candidate: JobId | int) -> Stream[Measurement]:
        """Return every one of them, fetched a page at a time."""
        return all_items(
            lambda cursor: RankingCalls.measurements.ask(self, job, candidate, cursor=cursor),
            lambda page: page.next_cursor,
        )

    @call
    def remeasure(self, job: JobId, candidate: JobId | int, *, idempotency_key: str | None = None) -> Call[JobView]:
        """Start a job that measures a candidate again, on today's device.

        An idempotency key is made where none is given.
        """
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        where = path("v1", "jobs", job, "candidates", candidate, "remeasure")
        return Call(schemas.JobView, "POST", where, headers=headers)
