"""Calls of the client about results: candidates and the winner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cupilot import schemas
from cupilot.client.definitions import call, stream
from cupilot.client.jobs import LONGEST_PAGE, JobId
from cupilot.client.protocol import Call, Stream, all_items, path
from cupilot.domain.evaluation import Verdict

if TYPE_CHECKING:
    from cupilot.schemas import CandidatePage, CandidateSummary, CandidateView, ExportList, Report


class ResultCalls:
    """``/v1/jobs/{job}/candidates`` and ``/best``."""

    @call
    def candidates(
        self,
        job: JobId,
        *,
        verdict: Verdict | str | None = None,
        generation: int | None = None,
        order: str = "ordinal",
        cursor: str | None = None,
        limit: int = 50,
    ) -> Call[CandidatePage]:
        """Return a page of a job's candidates by ``ordinal``, or by ``speedup``, the fastest first."""
        parameters = {
            "verdict": verdict,
            "generation": generation,
            "order": None if order == "ordinal" else order,
            "cursor": cursor,
            "limit": limit,
        }
        return Call(schemas.CandidatePage, "GET", path("v1", "jobs", job, "candidates"), params=parameters)

    @stream
    def all_candidates(
        self,
        job: JobId,
        *,
        verdict: Verdict | str | None = None,
        generation: int | None = None,
        order: str = "ordinal",
    ) -> Stream[CandidateSummary]:
        """Return all of a job's candidates by ``ordinal``, or the fastest first by ``speedup``, fetched a page at a
        time.
        """
        return all_items(
            lambda cursor: ResultCalls.candidates.ask(
                self, job, verdict=verdict, generation=generation, order=order, cursor=cursor, limit=LONGEST_PAGE
            ),
            lambda page: page.next_cursor,
        )

    @call
    def candidate(self, job: JobId, candidate: JobId | int) -> Call[CandidateView]:
        """Return everything about a candidate, by id or ordinal."""
        return Call(schemas.CandidateView, "GET", path("v1", "jobs", job, "candidates", candidate))

    @call
    def best(self, job: JobId) -> Call[Report]:
        """Return the winner with its evidence; ApiError with code ``no_result`` while there is none."""
        return Call(schemas.Report, "GET", path("v1", "jobs", job, "best"))

    @call
    def download(self, job: JobId) -> Call[bytes]:
        """Return the winner as a zip: kernel, plan, header, problem, report."""
        return Call(bytes, "GET", path("v1", "jobs", job, "best", "download"))

    @call
    def exports(self, job: JobId, candidate: JobId | int | None = None) -> Call[ExportList]:
        """Return the formats in which the winner, or another candidate that counts, can be taken along."""
        return Call(schemas.ExportList, "GET", _exports(job, candidate))

    @call
    def export(
        self, job: JobId, format: str, candidate: JobId | int | None = None, name: str | None = None
    ) -> Call[bytes]:
        """Return the winner, or another candidate that counts, as a zip: ``torch``, ``kernelbench``, ``cupy``,
        ``bundle``. ``name`` takes the place of the problem's in package, operator and files.

        ApiError with code ``export_refused`` where the format cannot carry what the kernel needs.
        """
        return Call(bytes, "GET", _exports(job, candidate) + path(format), params={"name": name})


def _exports(job: JobId, candidate: JobId | int | None) -> str:
    middle = () if candidate is None else ("candidates", candidate)
    return path("v1", "jobs", job, *middle, "exports")
