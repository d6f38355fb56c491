"""Proven kernels against each other: leaderboards, and two candidates side by side."""

from __future__ import annotations

import uuid

from cupilot.client.definitions import call, stream
from cupilot.client.jobs import LONGEST_PAGE, JobId
from cupilot.client.protocol import Call, Stream, every, path
from cupilot.schemas import (
    CandidateComparison,
    JobView,
    Leaderboard,
    LeaderboardEntry,
    LeaderboardList,
    MeasurementList,
)


class RankingCalls:
    """``/v1/leaderboards`` and ``/v1/compare``."""

    @call
    def leaderboards(self, *, all_teams: bool = False, after: int = 0, limit: int = 50) -> Call[LeaderboardList]:
        """A page of what leaderboards there are: one a problem and model of device.

        With kernels of your team, and those that others have opened; ``all_teams`` is for cluster admins.
        """
        parameters = {"all_teams": all_teams or None, "after": after, "limit": limit}
        return Call(LeaderboardList, "GET", "/v1/leaderboards", params=parameters)

    @call
    def leaderboard(
        self, problem: str, *, device: str | None = None, all_teams: bool = False, after: int = 0, limit: int = 50
    ) -> Call[Leaderboard]:
        """Proven kernels for a problem (by hash), the fastest first; ``device`` where there are several."""
        parameters = {"device": device, "all_teams": all_teams or None, "after": after, "limit": limit}
        return Call(Leaderboard, "GET", path("v1", "leaderboards", problem), params=parameters)

    @stream
    def ranked(self, problem: str, *, device: str | None = None, all_teams: bool = False) -> Stream[LeaderboardEntry]:
        """All of a leaderboard, fetched a page at a time."""
        return every(
            lambda after: RankingCalls.leaderboard.ask(
                self, problem, device=device, all_teams=all_teams, after=after or 0, limit=LONGEST_PAGE
            ),
            lambda page: page.next_after,
        )

    @call
    def compare(self, first: JobId, second: JobId) -> Call[CandidateComparison]:
        """Two candidates for one problem: each a candidate's id, ``job:ordinal``, or a job's id for its best."""
        return Call(CandidateComparison, "GET", "/v1/compare", params={"first": str(first), "second": str(second)})

    @call
    def measurements(self, job: JobId, candidate: JobId | int) -> Call[MeasurementList]:
        """Every measurement of a candidate's kernel in the team's jobs on its problem, the newest first."""
        return Call(MeasurementList, "GET", path("v1", "jobs", job, "candidates", candidate, "measurements"))

    @call
    def remeasure(self, job: JobId, candidate: JobId | int, *, idempotency_key: str | None = None) -> Call[JobView]:
        """A job that measures a candidate that counts again, on today's device. A key is made where none is given."""
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        where = path("v1", "jobs", job, "candidates", candidate, "remeasure")
        return Call(JobView, "POST", where, headers=headers)
