"""A GPU box without a network, in this process or in one of its own, and the service that it works for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cupilot.domain.batches.files import BatchFile
from cupilot.domain.batches.results import BatchRecord, ResultHeader, write_header, write_record
from cupilot.domain.evaluation import Evaluation, FailureKind, PreparationResult
from cupilot.domain.hardware import Device
from cupilot.domain.people import Caller, Role, Scope
from cupilot.domain.problem import Target
from cupilot.jobs.batches import batch_file, cancel_batch, receive_results, request_batch
from cupilot.schemas import BatchRequest, BatchView, Receipt
from cupilot.storage.queue.batch_views import batch_view
from gpu_worker.batch.card import judge
from tests.patience.judges import QUICK_STACK
from tests.service.doubles import PlacedJudge, ScriptedJudge, device
from tests.service.rig import Rig
from workers.batches.keeper import BatchKeeper

ROOT = Path(__file__).parents[2]

CALLER = Caller(
    key_id=uuid.uuid4(),
    key_prefix="cpk_00000000",
    team_id=uuid.uuid4(),
    user_id=uuid.uuid4(),
    user="operator",
    team="operators",
    role=Role.ADMIN,
    scope=Scope.ADMIN,
    cluster_admin=True,
)

LONG = 600.0
"""Seconds: everything in one round, however slow the machine."""

NO_NETWORK = """
import socket, sys
def refuse(*_, **__):
    raise OSError("there is no network here")
socket.socket.connect = refuse
socket.create_connection = socket.getaddrinfo = refuse
for name in ("celery", "sqlalchemy", "redis", "fastapi", "httpx", "workers", "api", "agents"):
    sys.modules[name] = None
from gpu_worker.__main__ import main
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""
"""``python -m gpu_worker`` where nothing can be connected to, and the service's packages are not installed."""


@dataclass
class Batches:
    """Exports, imports and cancels as the REST boundary does, and the scheduler's part in it."""

    rig: Rig
    keeper: BatchKeeper

    @classmethod
    def of(cls, rig: Rig) -> Batches:
        return cls(rig, BatchKeeper(rig.settings, rig.database))

    def export(self, folder: Path, **terms: Any) -> Path:
        """Export what waits; the file."""
        request = BatchRequest.model_validate({"target": Target.CPU, **terms})
        with self.rig.database.transaction() as session:
            batch = request_batch(session, CALLER, request)
        self.keeper.work(LONG)
        return self.fetch(batch, folder)

    def fetch(self, batch: uuid.UUID, folder: Path) -> Path:
        path = folder / f"{batch}.batch"
        with self.rig.database.transaction() as session:
            path.write_bytes(batch_file(session, batch))
        return path

    def hand_in(self, batch: uuid.UUID, lines: Sequence[str]) -> list[Receipt]:
        """Import lines, and settle what was received."""
        with self.rig.database.transaction() as session:
            receipts = receive_results(session, batch, lines).items
        self.keeper.work(LONG)
        return receipts

    def cancel(self, batch: uuid.UUID) -> None:
        with self.rig.database.transaction() as session:
            cancel_batch(session, batch)
        self.keeper.work(LONG)

    def view(self, batch: uuid.UUID) -> BatchView:
        with self.rig.database.transaction() as session:
            return batch_view(session, batch)

    def run_agents(self) -> None:
        """Do all that agents can do now; devices' steps stay where they are."""
        for _ in range(1_000):
            messages = [message for message in self.rig.publish() if message[2].startswith("agents")]
            if not messages:
                return
            for message in messages:
                self.rig.do(message)


def id_of(path: Path) -> uuid.UUID:
    """The batch that a file holds."""
    with BatchFile(path) as batch:
        return batch.manifest.batch


def judged(
    path: Path, scripted: ScriptedJudge | None = None, *, where: Device | None = None, seconds: float = 0.25
) -> list[str]:
    """The lines that a box would write for a batch; without a compiler."""
    scripted, where = scripted or PlacedJudge(), where or device()
    with BatchFile(path) as batch:
        header = ResultHeader(batch=batch.manifest.batch, manifest=batch.digest, signature=batch.signature)
        lines = [write_header(header)]
        for entry in batch.manifest.steps:
            answer = judge(scripted, batch.subject(entry.question), entry.question, threading.Event())  # type: ignore[arg-type]
            name = {PreparationResult: "preparation", Evaluation: "evaluation"}.get(type(answer), "tracing")
            lost = answer.failure is not None and answer.failure.kind is FailureKind.INFRASTRUCTURE
            fields: dict[str, Any] = {"failure": answer.failure} if lost else {name: answer}
            record = BatchRecord(
                step=entry.step,
                attempt=entry.attempt,
                entry=entry.content_hash(),
                seconds=seconds,
                device=where,
                **fields,
            )
            lines.append(write_record(header, record))
    return lines


def box(folder: Path) -> Path:
    """A program that is ``python -m gpu_worker`` on a machine without a network, made in ``folder``."""
    program = folder / "gpu_box.py"
    program.write_text(NO_NETWORK)
    return program


def start_box(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start ``python -m gpu_worker`` there: in a network namespace of its own where the system lets us make one."""
    command = [sys.executable, str(box(folder)), *arguments]
    if can_unshare():
        command = ["unshare", "--net", *command]
    kept = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH")
    environment = {name: os.environ[name] for name in kept if name in os.environ} | QUICK_STACK
    output = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output, text=True)


def can_unshare() -> bool:
    """Return whether this user may make a network namespace, in which the judge's sandboxes can be made too."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True).returncode == 0
