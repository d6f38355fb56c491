"""Errors of batches and their files. Each has a stable code."""

from __future__ import annotations

from cupilot.domain.errors import Conflict, InvalidInput, NotFound


class InvalidBatchFile(InvalidInput):
    """A file is no batch, is damaged, or was changed since it was exported."""

    code = "invalid_batch_file"


class InvalidResultFile(InvalidInput):
    """A file holds no results of a batch."""

    code = "invalid_result_file"


class TamperedBatch(InvalidInput):
    """The results are for a batch that was changed after its export: signature or content do not match."""

    code = "tampered_batch"


class ForeignBatch(NotFound):
    """This service has exported no such batch."""

    code = "foreign_batch"


class BatchNotReady(Conflict):
    """The batch is still being exported, or has ended."""

    code = "batch_not_ready"


class NothingToExport(Conflict):
    """No step waits for such a device."""

    code = "nothing_to_export"
