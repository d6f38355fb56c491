"""The result file of a batch: lines of a checksum and JSON; the first names the batch, each further one is a record.

It grows by whole lines, so that a run that is killed loses only what it was doing. Checksums cover the batch's
signature too: a line counts for no other batch. They show damage and mix-ups; they prove nothing about who wrote them.
Whether a record fits its step is for the service to check (:func:`check_record`).
"""

from __future__ import annotations

import hashlib
from math import isfinite
from typing import Annotated, Literal
from uuid import UUID

import pydantic_core
from pydantic import Field, ValidationError, model_validator

from cupilot.domain.batches.errors import InvalidResultFile
from cupilot.domain.batches.manifest import BatchEntry, Hash, Operation, Question
from cupilot.domain.evaluation import Evaluation, Failure, PreparationResult, Tracing
from cupilot.domain.hardware import Device
from cupilot.domain.value import Value

MAX_LINE_BYTES = 900_000
"""Bytes of a line at most: a few records, or a large one, fit into one request."""
SECONDS_SLACK = 60.0
"""Seconds beyond its timeout that a step may be charged for: waiting for the device, ending processes."""

_DIGITS = 64


class Damaged(ValueError):
    """A line is not what was written: its checksum does not match, or it is not a record."""


class ResultHeader(Value):
    """First line of a result file: which batch the records belong to."""

    format: Literal["cupilot-batch-result"] = "cupilot-batch-result"
    version: Literal[1] = 1
    batch: UUID
    manifest: Hash
    """Hash of the manifest that was judged."""
    signature: Annotated[str, Field(max_length=200)]
    """Its signature, as exported."""


class BatchRecord(Value):
    """Answer of the judge to one step's question."""

    step: UUID
    attempt: int
    entry: Hash
    """Content hash of the step's entry in the manifest."""
    preparation: PreparationResult | None = None
    tracing: Tracing | None = None
    evaluation: Evaluation | None = None
    failure: Failure | None = None
    """The machine's, where it gave no answer: the step is tried again elsewhere."""
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """For which the step had its device."""
    device: Device

    @model_validator(mode="after")
    def _one_answer(self) -> BatchRecord:
        answers = (self.preparation, self.tracing, self.evaluation, self.failure)
        if sum(answer is not None for answer in answers) != 1:
            raise ValueError("exactly one of preparation, tracing, evaluation and failure")
        return self


def write_header(header: ResultHeader) -> str:
    """Return the first line of a result file, without its end."""
    return _line("", header)


def write_record(header: ResultHeader, record: BatchRecord) -> str:
    """Return the line of a record, without its end; raises :class:`Damaged` where it would be too long."""
    line = _line(header.signature, record)
    if len(line.encode()) > MAX_LINE_BYTES:
        raise Damaged(f"its result takes more than {MAX_LINE_BYTES} bytes")
    return line


def read_header(line: str) -> ResultHeader:
    """Return the header that a line holds; raises :class:`InvalidResultFile`."""
    try:
        return ResultHeader.model_validate_json(_checked("", line))
    except (Damaged, ValidationError) as error:
        raise InvalidResultFile(
            "this is no result of a batch: its first line is not whole",
            hint="give the file that `python -m gpu_worker batch run` wrote",
        ) from error


def read_record(header: ResultHeader, line: str) -> BatchRecord:
    """Return the record that a line holds; raises :class:`Damaged`."""
    text = _checked(header.signature, line)
    try:
        pydantic_core.from_json(text, allow_inf_nan=False)
        return BatchRecord.model_validate_json(text)
    except ValidationError as error:
        mistake = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in mistake["loc"])
        raise Damaged(f"not valid: {where}: {mistake['msg']}"[:300]) from error
    except ValueError as error:
        raise Damaged("not JSON") from error


def check_record(entry: BatchEntry, record: BatchRecord, device_class: str) -> str | None:
    """Return what is wrong with a record as the answer to a step's question, or None."""
    if record.entry != entry.content_hash() or record.attempt != entry.attempt:
        return "it answers another question than the one that was exported"
    if record.device.device_class != device_class:
        return f"it was judged on {record.device.device_class}, not on {device_class}"
    if record.failure is not None:
        return None
    answers = {
        Operation.PREPARE: record.preparation,
        Operation.TRACE: record.tracing,
        Operation.EVALUATE: record.evaluation,
        Operation.CONFIRM: record.evaluation,
    }
    if answers[entry.question.operation] is None:
        return f"it holds no answer to {entry.question.operation.value}"
    return _mismatch(entry.question, record)


def charged_seconds(entry: BatchEntry, record: BatchRecord) -> float:
    """Return the seconds that a step is charged for: those of the record, within what its timeout allows."""
    return min(record.seconds, entry.question.timeout + SECONDS_SLACK)


def _mismatch(question: Question, record: BatchRecord) -> str | None:
    evaluation = record.evaluation
    preparation = record.preparation.preparation if record.preparation is not None else None
    if evaluation is not None:
        if evaluation.kernel_hash != question.kernel_hash:
            return "its evaluation is of another kernel"
        if evaluation.problem_hash != question.problem_hash:
            return "its evaluation is for another problem"
        environment = evaluation.environment
        if evaluation.verdict.counts and environment is None:
            return "its evaluation does not say where it was made"
        if environment is not None and not _same_device(environment.device, record.device):
            return "its evaluation was made on another device"
        if not all(isfinite(item.speedup.median) and item.speedup.median > 0 for item in evaluation.comparisons):
            return "its speedup is no positive number"
    if preparation is not None:
        if preparation.facts.problem_hash != question.problem_hash:
            return "its preparation is of another problem"
        if not _same_device(preparation.environment.device, record.device):
            return "its preparation was made on another device"
    return None


def _same_device(first: Device, second: Device) -> bool:
    return (first.target, first.uid, first.arch) == (second.target, second.uid, second.arch)


def _line(salt: str, value: Value) -> str:
    text = value.model_dump_json()
    return f"{_checksum(salt, text)} {text}"


def _checked(salt: str, line: str) -> str:
    if len(line.encode("utf-8", "surrogatepass")) > MAX_LINE_BYTES:
        raise Damaged("too long")
    checksum, _, text = line.partition(" ")
    if len(checksum) != _DIGITS or _checksum(salt, text) != checksum:
        raise Damaged("its checksum does not match")
    return text


def _checksum(salt: str, text: str) -> str:
    return hashlib.sha256(f"{salt}\n{text}".encode("utf-8", "surrogatepass")).hexdigest()
