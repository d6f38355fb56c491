"""Stands for a card's process (:func:`gpu_worker.batch.card.serve`): the batch's keys say how each step goes."""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Connection
from pathlib import Path

from cupilot.domain.batches.files import BatchFile
from cupilot.domain.evaluation import Failure, FailureKind
from gpu_worker.batch.card import CardOptions, Done, Order, Probe, Probed, Ready, Stop, Unusable
from tests.unit.cupilot.batches.batch_of import DEVICE, answer


def begun(folder: Path) -> Path:
    """The file that is there once a card has begun a step that waits."""
    return folder / "begun"


def serve(options: CardOptions, connection: Connection, stop: Stop) -> None:
    """``dies``: the process ends; ``fails``: the machine does (``fails on`` a card: only there); ``waits``: until the
    run is stopped; ``hangs``: even then."""
    if options.device == "absent":
        connection.send(Unusable("there is no such card"))
        return
    device = DEVICE.model_copy(update={"uid": options.device or DEVICE.uid})
    connection.send(Ready(device))
    with BatchFile(options.batch) as batch:
        while (order := connection.recv()) is not None:
            if isinstance(order, Probe):
                connection.send(Probed("it is broken" if options.device == "broken" else None))
                continue
            assert isinstance(order, Order)
            entry = batch.manifest.steps[order.step]
            if "dies" in entry.key:
                os._exit(9)
            waits, hangs = "waits" in entry.key, "hangs" in entry.key
            if waits or hangs:
                begun(options.work_dir).touch()
                while hangs or not stop.is_set():
                    time.sleep(0.01)
            if waits and "fails" not in entry.key:
                connection.send(Done(None))
                continue
            failure = Failure(kind=FailureKind.INFRASTRUCTURE, message="lost")
            fails = "fails" in entry.key and ("fails on" not in entry.key or str(options.device) in entry.key)
            changes = {"evaluation": None, "failure": failure} if fails else {}
            connection.send(Done(answer(entry, device=device, **changes)))
