"""One card's process: a supervisor that is asked one question after the other, and keeps its judge warm between them.

A process of its own, as each worker is one: cards do not wait for each other, and what takes a supervisor down takes
only its step down.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from cupilot.domain.batches.files import BatchFile, Subject
from cupilot.domain.batches.manifest import BatchEntry, Operation, Question
from cupilot.domain.batches.results import BatchRecord
from cupilot.domain.errors import CupilotError, InvalidInput
from cupilot.domain.evaluation import Evaluation, Failure, FailureKind, PreparationResult, Tracing
from cupilot.domain.hardware import Device
from cupilot.domain.kernel import Kernel
from gpu_worker.batch.probe import Stop, fault
from gpu_worker.build_ahead import BUILDS_AHEAD
from gpu_worker.evaluator import Evaluator
from gpu_worker.sandbox.confine import die_with_parent
from gpu_worker.turns import Cancelled

Answer = PreparationResult | Tracing | Evaluation


@dataclass(frozen=True)
class CardOptions:
    """Settings of a card's supervisor."""

    batch: Path
    work_dir: Path
    device: str | None = None
    threads: int | None = None
    builder: str | None = None
    cores: tuple[int, ...] = ()
    """Cores that its processes may use; all that this machine lends where there are none."""


@dataclass(frozen=True)
class Order:
    """A step to judge, and those that are likely to come next."""

    step: int
    """Position in the manifest."""
    following: tuple[int, ...] = ()


@dataclass(frozen=True)
class Probe:
    """Request to judge a small kernel that is known to work."""


@dataclass(frozen=True)
class Ready:
    """The supervisor is there."""

    device: Device


@dataclass(frozen=True)
class Unusable:
    """There is no supervisor for this card."""

    reason: str


@dataclass(frozen=True)
class Done:
    """A step's record; None where it was cancelled."""

    record: BatchRecord | None


@dataclass(frozen=True)
class Probed:
    """Answer to a :class:`Probe`."""

    fault: str | None
    """Failure of the card, or None."""


def serve(options: CardOptions, connection: Connection, stop: Stop) -> None:
    """Judge what is ordered over the connection, until it is closed or None is ordered; the body of the process."""
    die_with_parent()
    for name in (signal.SIGINT, signal.SIGTERM):  # terminals and Slurm send them to all; the parent says when to stop
        signal.signal(name, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    if options.cores:
        os.sched_setaffinity(0, options.cores)
    with BatchFile(options.batch) as batch:
        try:
            evaluator = _evaluator(options, batch)
        except (CupilotError, OSError) as error:
            connection.send(Unusable(str(error)))
            return
        with evaluator:
            connection.send(Ready(evaluator.device))
            _serve(evaluator, batch, connection, stop)


def _evaluator(options: CardOptions, batch: BatchFile) -> Evaluator:
    manifest = batch.manifest
    evaluator = Evaluator(
        manifest.target,
        options.work_dir,
        device=options.device,
        threads=options.threads,
        reuse=True,
        sweep=manifest.sweep,
        builder=options.builder,
        compile_baseline=manifest.compile_baseline,
        autotune=manifest.autotune,
    )
    if evaluator.device.device_class != manifest.device_class:
        evaluator.close()
        raise InvalidInput(f"it is {evaluator.device.device_class}, and the batch is for {manifest.device_class}")
    return evaluator


def _serve(evaluator: Evaluator, batch: BatchFile, connection: Connection, stop: Stop) -> None:
    steps = batch.manifest.steps
    while True:
        try:
            order = connection.recv()
        except EOFError:
            return
        if order is None:
            return
        if isinstance(order, Probe):
            connection.send(Probed(fault(evaluator, stop)))
            continue
        _build_ahead(evaluator, batch, [steps[position] for position in order.following])
        connection.send(Done(_record(evaluator, batch, steps[order.step], stop)))


def _record(evaluator: Evaluator, batch: BatchFile, entry: BatchEntry, stop: Stop) -> BatchRecord | None:
    started = time.monotonic()
    fields: dict[str, object]
    try:
        answer = judge(evaluator, batch.subject(entry.question), entry.question, stop)
        machine = answer.failure is not None and answer.failure.kind is FailureKind.INFRASTRUCTURE
        fields = {"failure": answer.failure} if machine else {_FIELDS[type(answer)]: answer}
    except Cancelled:
        return None
    except Exception as error:  # whatever it is, it says nothing about the kernel
        logging.getLogger(__name__).exception("step failed step=%s", entry.step)
        message = f"{type(error).__name__}: {error}"[:1_000]
        fields = {"failure": Failure(kind=FailureKind.INFRASTRUCTURE, message=message)}
    return BatchRecord.model_validate(
        {
            "step": entry.step,
            "attempt": entry.attempt,
            "entry": entry.content_hash(),
            "seconds": time.monotonic() - started,
            "device": evaluator.device,
            **fields,
        }
    )


_FIELDS: dict[type, str] = {PreparationResult: "preparation", Tracing: "tracing", Evaluation: "evaluation"}


def judge(evaluator: Evaluator, subject: Subject, question: Question, stop: Stop) -> Answer:
    """Ask the evaluator a question of a batch; raises :class:`Cancelled`."""
    problem, timeout = subject.problem, question.timeout
    if question.operation is Operation.PREPARE:
        return evaluator.prepare(problem, timeout=timeout, cancelled=stop.is_set)
    if question.operation is Operation.TRACE:
        return evaluator.trace(problem, timeout=timeout, cancelled=stop.is_set)
    assert subject.preparation is not None
    assert subject.kernel is not None
    if question.operation is Operation.CONFIRM:
        return evaluator.confirm(
            problem,
            subject.preparation,
            subject.kernel,
            tunables=question.tunables,
            timeout=timeout,
            cancelled=stop.is_set,
        )
    return evaluator.evaluate(
        problem,
        subject.preparation,
        subject.kernel,
        incumbent=question.incumbent,
        candidate=question.candidate,
        fresh=question.fresh,
        timeout=timeout,
        cancelled=stop.is_set,
    )


def _build_ahead(evaluator: Evaluator, batch: BatchFile, entries: list[BatchEntry]) -> None:
    """Begin to build kernels whose turn comes soon, on cores that no measurement needs."""
    if BUILDS_AHEAD[batch.manifest.target] == 0:
        return
    for entry in entries:
        if entry.question.operation is Operation.EVALUATE and not entry.question.imported:
            subject = batch.subject(entry.question)
            assert subject.preparation is not None
            assert isinstance(subject.kernel, Kernel)
            evaluator.build_ahead(subject.preparation, [subject.kernel])
