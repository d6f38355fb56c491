"""Calls of the client about batches: steps for machines without a network, and their results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from cupilot import schemas
from cupilot.client.definitions import call, script, stream
from cupilot.client.jobs import LONGEST_PAGE
from cupilot.client.protocol import Call, Pause, Script, Stream, all_items, path, perform

if TYPE_CHECKING:
    from cupilot.schemas import BatchPage, BatchRequest, BatchStepPage, BatchStepView, BatchView, Receipt

PART_BYTES = 900_000
"""Bytes of results that are sent at a time: below the smallest limit on a request's body."""
POLL_SECONDS = 0.5


class BatchCalls:
    """``/v1/batches``; for cluster admins."""

    @call
    def export_batch(self, request: BatchRequest) -> Call[BatchView]:
        """Ask for an export; the batch is ``open`` when its file can be fetched (:meth:`wait_for_batch`)."""
        return Call(schemas.BatchView, "POST", "/v1/batches", body=request)

    @call
    def batches(self, *, cursor: str | None = None, limit: int = 50) -> Call[BatchPage]:
        """Return a page of batches, newest first."""
        return Call(schemas.BatchPage, "GET", "/v1/batches", params={"cursor": cursor, "limit": limit})

    @stream
    def all_batches(self) -> Stream[BatchView]:
        """Return all batches, newest first, fetched a page at a time."""
        return all_items(
            lambda cursor: BatchCalls.batches.ask(self, cursor=cursor, limit=LONGEST_PAGE),
            lambda page: page.next_cursor,
        )

    @call
    def batch(self, batch: UUID | str) -> Call[BatchView]:
        """Return a batch with the number of steps of each outcome."""
        return Call(schemas.BatchView, "GET", path("v1", "batches", batch))

    @call
    def batch_steps(
        self, batch: UUID | str, *, outcome: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> Call[BatchStepPage]:
        """Return a page of a batch's steps, in its order."""
        parameters = {"outcome": outcome, "cursor": cursor, "limit": limit}
        return Call(schemas.BatchStepPage, "GET", path("v1", "batches", batch, "steps"), params=parameters)

    @stream
    def all_batch_steps(self, batch: UUID | str, *, outcome: str | None = None) -> Stream[BatchStepView]:
        """Return all of a batch's steps, fetched a page at a time."""
        return all_items(
            lambda cursor: BatchCalls.batch_steps.ask(self, batch, outcome=outcome, cursor=cursor, limit=LONGEST_PAGE),
            lambda page: page.next_cursor,
        )

    @call
    def batch_file(self, batch: UUID | str) -> Call[bytes]:
        """Return the file of an open batch; ApiError with code ``batch_not_ready`` for others."""
        return Call(bytes, "GET", path("v1", "batches", batch, "file"))

    @call
    def cancel_batch(self, batch: UUID | str) -> Call[BatchView]:
        """Put back into the queue what the batch still holds."""
        return Call(schemas.BatchView, "POST", path("v1", "batches", batch, "cancel"), repeatable=True)

    @script
    def import_results(self, batch: UUID | str, lines: Sequence[str]) -> Script[list[Receipt]]:
        """Send the lines of a result file, of which the first names the batch, in parts; return their receipts."""
        receipts: list[Receipt] = []
        for first, part in _parts(lines):
            body = "\n".join([lines[0], *part]).encode()
            headers = {"Content-Type": "application/x-ndjson"}
            sent = Call(
                schemas.BatchReceipts,
                "POST",
                path("v1", "batches", batch, "results"),
                headers=headers,
                content=body,
                repeatable=True,
            )
            answer = yield from perform(self.service, sent)  # type: ignore[attr-defined]
            receipts += [item.model_copy(update={"line": item.line + first - 1}) for item in answer.items]
        return receipts

    @script
    def wait_for_batch(self, batch: UUID | str) -> Script[BatchView]:
        """Return a batch once it has ended, or is open with all results settled that came so far.

        One that was cancelled has ended when its steps are back in the queue.
        """
        while True:
            view = yield from BatchCalls.batch.ask(self, batch)
            settled = view.state == "open" and view.counts.received == 0 and view.counts.waiting > 0
            if settled or view.ended_at is not None:
                return view
            yield Pause(POLL_SECONDS)


def _parts(lines: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield parts of the lines after the first, each with the number of lines before it; one at least."""
    part: list[str] = []
    size, first = len(lines[0].encode()), 1
    for number, line in enumerate(lines[1:], start=1):
        length = len(line.encode()) + 1
        if part and size + length > PART_BYTES:
            yield first, part
            part, size, first = [], len(lines[0].encode()), number
        part.append(line)
        size += length
    yield first, part
