"""Stands for a card's process (:func:`gpu_worker.batch.card.serve`): the batch's keys say how each step goes."""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Connection

from cupilot.domain.batches.files import BatchFile
from cupilot.domain.evaluation import Failure, FailureKind
from gpu_worker.batch.card import CardOptions, Done, Order, Ready, Stop, Unusable
from tests.unit.cupilot.batches.batch_of import DEVICE, answer


def serve(options: CardOptions, connection: Connection, stop: Stop) -> None:
    """``dies``: the process ends; ``fails``: the machine does; ``waits``: until the run is stopped."""
    if options.device == "absent":
        connection.send(Unusable("there is no such card"))
        return
    device = DEVICE.model_copy(update={"uid": options.device or DEVICE.uid})
    connection.send(Ready(device))
    with BatchFile(options.batch) as batch:
        while (order := connection.recv()) is not None:
            assert isinstance(order, Order)
            entry = batch.manifest.steps[order.step]
            if "dies" in entry.key:
                os._exit(9)
            if "waits" in entry.key:
                while not stop.is_set():
                    time.sleep(0.01)
                connection.send(Done(None))
                continue
            failure = Failure(kind=FailureKind.INFRASTRUCTURE, message="lost")
            changes = {"evaluation": None, "failure": failure} if "fails" in entry.key else {}
            connection.send(Done(answer(entry, device=device, **changes)))
