"""Calls of the client about the strategy pool: entries, search, sharing, transfer, statistics."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import httpx

from cupilot import schemas
from cupilot.client.definitions import call, script, stream
from cupilot.client.errors import refusal, unreachable
from cupilot.client.jobs import LONGEST_PAGE, JobId
from cupilot.client.protocol import Call, Emit, NextLine, Open, Script, Stream, all_items, path, perform

if TYPE_CHECKING:
    from cupilot.domain.pool import PoolQuestion, Sharing
    from cupilot.domain.problem import Target
    from cupilot.schemas import (
        BadLine,
        PoolEntryView,
        PoolImportResult,
        PoolPage,
        PoolSearchResult,
        PoolShareResult,
        PoolStatistics,
    )

IMPORT_BYTES = 262_144
"""Of one request of an import: well below the service's limit for bodies."""


class PoolCalls:
    """``/v1/pool``."""

    service: Any

    @call
    def pool_entries(
        self,
        *,
        shared: bool = False,
        target: Target | str | None = None,
        op_class: str | None = None,
        technique: str | None = None,
        job: JobId | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Call[PoolPage]:
        """Return a page of the team's pool entries, newest first; with ``shared`` also those that other teams share."""
        parameters = {
            "shared": shared,
            "target": target,
            "op_class": op_class,
            "technique": technique,
            "job": job,
            "cursor": cursor,
            "limit": limit,
        }
        return Call(schemas.PoolPage, "GET", "/v1/pool/entries", params=parameters)

    @stream
    def all_pool_entries(self, *, shared: bool = False, job: JobId | None = None) -> Stream[PoolEntryView]:
        """Return all of the team's pool entries, fetched a page at a time."""
        return all_items(
            lambda cursor: PoolCalls.pool_entries.ask(self, shared=shared, job=job, cursor=cursor, limit=LONGEST_PAGE),
            lambda page: page.next_cursor,
        )

    @call
    def pool_entry(self, entry: uuid.UUID | str) -> Call[PoolEntryView]:
        """Return one pool entry."""
        return Call(schemas.PoolEntryView, "GET", path("v1", "pool", "entries", entry))

    @call
    def pool_search(
        self, question: PoolQuestion | None = None, *, job: uuid.UUID | None = None, limit: int = 8
    ) -> Call[PoolSearchResult]:
        """Return what the pool knows about a question, or about what a prepared job works on."""
        body = schemas.PoolSearchRequest(**({"job": job} if job else {"question": question}), limit=limit)
        return Call(schemas.PoolSearchResult, "POST", "/v1/pool/search", body=body, repeatable=True)

    @call
    def pool_share(
        self, sharing: Sharing, *, entries: Sequence[uuid.UUID] = (), job: uuid.UUID | None = None
    ) -> Call[PoolShareResult]:
        """Share entries, or all of a job, with the cluster's other teams; ``private`` withdraws them."""
        what: dict[str, Any] = {"job": job} if job else {"entries": list(entries)}
        return Call(
            schemas.PoolShareResult, "PUT", "/v1/pool/sharing", body=schemas.PoolShareRequest(sharing=sharing, **what)
        )

    @stream
    def pool_export(self, *, kernels: bool = True) -> Stream[str]:
        """Return the team's entries, a line of JSON each, oldest first.

        With the kernels, each in the first line naming it.
        """
        outcome = yield Open(Call(bytes, "GET", "/v1/pool/export", params={"kernels": str(kernels).lower()}))
        if isinstance(outcome, httpx.RequestError):
            raise unreachable(self.service.url, outcome) from outcome
        if not outcome.is_success:
            raise refusal(outcome)
        while True:
            line = yield NextLine()
            if isinstance(line, httpx.RequestError):
                raise unreachable(self.service.url, line) from line
            if line is None:
                return
            if line:
                yield Emit(line)

    @script
    def pool_import(self, lines: Iterable[str], *, source: str = "import") -> Script[PoolImportResult]:
        """Take in lines of an export, in several requests where there are many; repeating it adds nothing."""
        total = schemas.PoolImportResult(lines=0, added=0, known=0, bad=[])
        for first, body in _parts(lines):
            parameters = {"source": source, "first_line": first}
            headers = {"Content-Type": "application/x-ndjson"}
            sent = Call(
                schemas.PoolImportResult,
                "POST",
                "/v1/pool/import",
                params=parameters,
                headers=headers,
                content=body,
                repeatable=True,
            )
            part = yield from perform(self.service, sent)
            total = _added(total, part)
        return total

    @call
    def pool_stats(self) -> Call[PoolStatistics]:
        """Return what the pool holds, as far as the team may see."""
        return Call(schemas.PoolStatistics, "GET", "/v1/pool/stats")


def _parts(lines: Iterable[str]) -> Iterable[tuple[int, bytes]]:
    """Return the lines in bodies that the service takes, each with the number of its first line."""
    first, size = 1, 0
    part: list[bytes] = []
    for number, line in enumerate(lines, 1):
        data = line.rstrip("\r\n").encode()
        if part and size + len(data) > IMPORT_BYTES:
            yield first, b"\n".join(part)
            first, size, part = number, 0, []
        part.append(data)
        size += len(data) + 1
    if part:
        yield first, b"\n".join(part)


def _added(total: PoolImportResult, other: PoolImportResult) -> PoolImportResult:
    bad: list[BadLine] = [*total.bad, *other.bad]
    return schemas.PoolImportResult(
        lines=total.lines + other.lines, added=total.added + other.added, known=total.known + other.known, bad=bad
    )
