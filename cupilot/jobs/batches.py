"""Batches as people ask for them: export, fetch the file, hand in results, cancel. All for cluster admins only.

A request only writes down what is wanted; the scheduler claims the steps and settles the results
(:mod:`workers.batches`), with the code that workers use.
"""

from __future__ import annotations

import hmac
import uuid
from collections.abc import Mapping, Sequence

from sqlalchemy.orm import Session

from cupilot.domain.batches.errors import BatchNotReady, InvalidResultFile, TamperedBatch
from cupilot.domain.batches.files import pack, sha256, sign
from cupilot.domain.batches.results import (
    BatchRecord,
    Damaged,
    ResultHeader,
    charged_seconds,
    check_record,
    read_header,
    read_record,
)
from cupilot.domain.errors import InvalidInput
from cupilot.domain.people import Caller
from cupilot.domain.problem import Target
from cupilot.domain.states import BatchOutcome, BatchState
from cupilot.schemas import BatchReceipts, BatchRequest, Receipt, ReceiptOutcome
from cupilot.storage.db.engine import notify
from cupilot.storage.db.tables.batches import Batch, BatchStep
from cupilot.storage.db.transitions import move_batch
from cupilot.storage.queue.batches import add_batch, get_batch, lock_batch, lock_steps, objects
from cupilot.storage.queue.drains import SERVICE, drained_scopes


def request_batch(session: Session, caller: Caller, request: BatchRequest) -> uuid.UUID:
    """Ask for an export; return the batch's id."""
    if SERVICE in drained_scopes(session):
        raise BatchNotReady("the service is being drained: nothing new begins", hint="resume it first")
    if request.target is Target.CUDA and request.arch is None:
        raise InvalidInput(
            "a batch for cuda is for cards of one architecture", hint="name it, e.g. sm_90", where="body.arch"
        )
    if request.target is Target.CPU and request.arch is not None:
        raise InvalidInput("the cpu target has no architecture", hint="leave it out", where="body.arch")
    batch = add_batch(
        session,
        target=request.target,
        device_class=request.arch or Target.CPU.value,
        limit=request.limit,
        lease_seconds=request.lease_hours * 3_600,
        job_id=request.job,
        author=caller.user,
    )
    return batch.id


def batch_file(session: Session, batch_id: uuid.UUID) -> bytes:
    """Return the file of an open batch; raises :class:`BatchNotReady`."""
    batch = get_batch(session, batch_id)
    if batch.state is not BatchState.OPEN or batch.manifest is None:
        hint = "wait until it is open" if batch.state is BatchState.EXPORTING else "export another one"
        raise BatchNotReady(f"batch {batch.id} is {batch.state.value} and has no file", hint=hint)
    manifest = batch.manifest.encode()
    return pack(manifest, sign(batch.key, manifest), objects(session, batch))


def cancel_batch(session: Session, batch_id: uuid.UUID) -> None:
    """Cancel a batch: what it still holds goes back to the queue. Again does nothing."""
    batch = lock_batch(session, get_batch(session, batch_id).id)
    if batch.state is BatchState.CANCELLED:
        return
    if batch.state.final:
        raise BatchNotReady(f"batch {batch.id} is {batch.state.value} already")
    move_batch(session, batch, BatchState.CANCELLED)
    notify(session)


def receive_results(session: Session, batch_id: uuid.UUID, lines: Sequence[str]) -> BatchReceipts:
    """Take in lines of a result file, of which the first is its header; again adds nothing.

    Raises :class:`cupilot.domain.batches.errors.ForeignBatch`, :class:`TamperedBatch` where the results are not for
    what was exported, and :class:`InvalidResultFile`. A line that cannot be used says why in its receipt.
    """
    batch = get_batch(session, batch_id)
    if not any(lines):
        return BatchReceipts(items=[])
    header = _verified(batch, read_header(lines[0]))
    records = [(number, line, _parsed(header, line)) for number, line in enumerate(lines[1:], start=2) if line]
    steps = {record.step for _, _, record in records if isinstance(record, BatchRecord)}
    rows = lock_steps(session, batch, steps)
    receipts = [_receive(batch, rows, number, line, record) for number, line, record in records]
    notify(session)
    return BatchReceipts(items=receipts)


def _verified(batch: Batch, header: ResultHeader) -> ResultHeader:
    if header.batch != batch.id:
        raise InvalidResultFile(f"these are results of batch {header.batch}, not of {batch.id}")
    if batch.manifest is None:
        raise BatchNotReady(f"batch {batch.id} is {batch.state.value}: it can have no results")
    manifest = batch.manifest.encode()
    signed = hmac.compare_digest(header.signature.encode(), sign(batch.key, manifest).encode())
    if not signed or header.manifest != sha256(manifest):
        raise TamperedBatch(
            "what was judged is not what was exported: the batch was changed on its way",
            hint="fetch the file again (cupilot batch fetch), and judge that one",
        )
    return header


def _parsed(header: ResultHeader, line: str) -> BatchRecord | str:
    try:
        return read_record(header, line)
    except Damaged as error:
        return str(error)


def _receive(
    batch: Batch, rows: Mapping[uuid.UUID, BatchStep], number: int, line: str, record: BatchRecord | str
) -> Receipt:
    if isinstance(record, str):
        return _receipt(number, ReceiptOutcome.DAMAGED, None, record)
    row = rows.get(record.step)
    if row is None:
        return _receipt(number, ReceiptOutcome.UNKNOWN, record, "the batch holds no such step")
    mismatch = check_record(row.entry, record, batch.device_class)
    if mismatch is not None:
        return _receipt(number, ReceiptOutcome.MISMATCHED, record, mismatch)
    if row.device is not None:
        return _receipt(number, ReceiptOutcome.DUPLICATE, record, "the step has a result already")
    if row.outcome is not None:
        return _receipt(number, ReceiptOutcome.LATE, record, row.detail)
    row.outcome, row.record = BatchOutcome.RECEIVED, line.partition(" ")[2]
    row.seconds, row.device = charged_seconds(row.entry, record), record.device
    return _receipt(number, ReceiptOutcome.RECEIVED, record)


def _receipt(number: int, outcome: ReceiptOutcome, record: BatchRecord | None, detail: str | None = None) -> Receipt:
    return Receipt(line=number, outcome=outcome.value, step=record.step if record else None, detail=detail)
