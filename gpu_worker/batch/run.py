"""Run a batch: hands its steps to the cards' processes, and writes each record as soon as it is there."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from cupilot.domain.batches.files import BatchFile
from cupilot.domain.batches.manifest import BatchEntry
from cupilot.domain.batches.results import BatchRecord
from cupilot.domain.errors import InvalidInput, Unavailable
from cupilot.domain.evaluation import Failure, FailureKind
from cupilot.domain.hardware import Device
from cupilot.domain.problem import Target
from gpu_worker.batch.card import CardOptions, Done, Order, Probe, Probed, Ready, Unusable, serve
from gpu_worker.batch.queue import StepQueue
from gpu_worker.batch.result_file import ResultFile

AHEAD = 8
"""Steps that a card is told to come next: enough that builds are never waited for."""
MAX_FAILURES = 3
"""Steps in a row that a card failed at, after which it is tried on a problem that is known to work. Steps may be to
blame: their references and imported files are other people's code."""
LEAST_CORES = 4
"""Cores below which cards share all of them: a judge, a runner, a reference, and one for builds."""
WAIT_SECONDS = 0.2
GRACE_SECONDS = 60.0
"""Time after the deadline for steps that run; most evaluations end within it. What takes longer is stopped."""
STOP_SECONDS = 30.0
"""Time for a step that was stopped, after which its card's process is killed."""
END_SECONDS = 10.0
"""Time in which a card's process may end its children."""

_PROCESSES = multiprocessing.get_context("spawn")


@dataclass
class _Card:
    """A card's process, and what it is at."""

    options: CardOptions
    process: BaseProcess
    connection: Connection
    device: Device | None = None
    """None until it is ready."""
    entry: BatchEntry | None = None
    failures: int = 0
    """Steps that it failed at since it last judged one, or was tried itself."""
    patience: int = MAX_FAILURES
    """Failures after which it is tried; doubled each time that it works."""
    probing: bool = False
    started: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> str:
        return self.device.uid if self.device else self.options.device or "this machine's CPU"


class BatchRun:
    """One run over a batch. ``tell`` is given lines about its progress."""

    def __init__(
        self,
        batch: BatchFile,
        result: ResultFile,
        cards: Sequence[CardOptions],
        *,
        deadline: float | None = None,
        tell: Callable[[str], None],
    ) -> None:
        """Prepare a run.

        Nothing begins after ``deadline``, by :func:`time.monotonic`, or after the lease's end; what runs at the
        deadline has :data:`GRACE_SECONDS` to finish.
        """
        self._batch = batch
        self._result = result
        self._deadline = deadline
        self._tell = tell
        self._total = len(batch.manifest.steps)
        self._positions = {entry.step: position for position, entry in enumerate(batch.manifest.steps)}
        self._queue = StepQueue([entry for entry in batch.manifest.steps if entry.step not in result.done])
        self._spare = self._by_usefulness(cards)
        """Cards that are not started, the next one first."""
        self._shares = _shares_of_cores(min(len(cards), len(self._queue)), tell)
        self._stop = _PROCESSES.Event()
        self._stop_asked: float | None = None
        """Time of the request to stop, by :func:`time.monotonic`. A flag of its own, because a signal handler may
        interrupt whoever holds the event's lock."""
        self._cards: list[_Card] = []
        self._reasons: list[str] = []

    @property
    def left(self) -> int:
        """Steps without a record."""
        return self._total - len(self._result.done)

    def stop(self) -> None:
        """Cancel what runs, and begin nothing any more; for signal handlers."""
        self._stop_asked = self._stop_asked or time.monotonic()

    def run(self) -> None:
        """Judge until nothing is left that may begin; raises Unavailable where no card can be used."""
        if len(self._queue) == 0:
            return
        try:
            while self._occupied() and self._may_wait():
                self._wait()
            if not self._cards and self.left and not self._over():
                raise Unavailable(f"no card can be used: {'; '.join(self._reasons)}")
        finally:
            self._end()

    def _by_usefulness(self, cards: Sequence[CardOptions]) -> list[CardOptions]:
        """Return the cards; those that most steps avoid come last."""
        avoided = Counter(entry.avoids for entry in self._batch.manifest.steps if entry.step not in self._result.done)
        return sorted(cards, key=lambda options: avoided[options.device])

    def _occupied(self) -> bool:
        """Give idle cards a step, and start further cards for what they leave; return whether any is occupied."""
        self._order()
        while self._spare and not self._over() and self._starting() < len(self._queue):
            in_use = [card.options.cores for card in self._cards]
            cores = min(self._shares, key=in_use.count)
            self._cards.append(self._start(replace(self._spare.pop(0), cores=cores)))
        return self._busy()

    def _starting(self) -> int:
        return sum(card.device is None for card in self._cards)

    def _start(self, options: CardOptions) -> _Card:
        ours, theirs = _PROCESSES.Pipe()
        process = _PROCESSES.Process(target=serve, args=(options, theirs, self._stop))
        process.start()
        theirs.close()
        return _Card(options, process, ours)

    def _over(self) -> bool:
        return self._late(0.0) or self._stop_asked is not None or datetime.now(UTC) >= self._batch.manifest.expires_at

    def _late(self, grace: float) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline + grace

    def _may_wait(self) -> bool:
        """Pass a stop on to the cards; return False once they have had the time to follow it."""
        if self._late(GRACE_SECONDS):
            self.stop()
        if self._stop_asked is None:
            return True
        self._stop.set()
        return time.monotonic() < self._stop_asked + STOP_SECONDS

    def _busy(self) -> bool:
        """Return whether a card is at a step, or still starting for one."""
        starting = len(self._queue) > 0 and not self._over()
        return any(card.entry is not None or card.probing or (card.device is None and starting) for card in self._cards)

    def _order(self) -> None:
        """Give each idle card a step that it may have; one that is not started may have it too."""
        if self._over():
            return
        names = [card.name for card in self._cards] + [str(options.device) for options in self._spare]
        for card in self._cards:
            if card.device is None or card.entry is not None or card.probing:
                continue
            entry = self._queue.take(card.name, names)
            if entry is not None:
                following = tuple(self._position(step) for step in self._queue.following(card.name, AHEAD))
                card.entry, card.started = entry, time.monotonic()
                with suppress(OSError):  # one that has just died; reading from it tells
                    card.connection.send(Order(self._position(entry), following))

    def _position(self, entry: BatchEntry) -> int:
        return self._positions[entry.step]

    def _wait(self) -> None:
        by_connection = {card.connection: card for card in self._cards}
        for ready in wait(list(by_connection), WAIT_SECONDS):
            assert isinstance(ready, Connection)
            card = by_connection[ready]
            try:
                message = ready.recv()
            except (EOFError, OSError):
                self._died(card)
                continue
            if isinstance(message, Ready):
                card.device = message.device
            elif isinstance(message, Unusable):
                self._retire(card, message.reason)
            elif isinstance(message, Probed):
                self._probed(card, message.fault)
            else:
                self._done(card, message)

    def _done(self, card: _Card, message: Done) -> None:
        entry, card.entry = card.entry, None
        assert entry is not None
        if message.record is None:
            return
        if message.record.failure is not None and self._stop_asked is not None:
            return  # the signal that stops this run may have ended the step's processes
        if message.record.failure is not None:
            self._failed(card, entry, message.record)
            return
        card.failures = 0
        self._keep(entry, message.record, time.monotonic() - card.started)

    def _failed(self, card: _Card, entry: BatchEntry, record: BatchRecord) -> None:
        """Try a step again that the machine failed at; write the failure down where that was done before."""
        assert record.failure is not None
        card.failures += 1
        self._tell(f"{self._name(entry)}: the machine failed: {record.failure.message[:300]}")
        if not self._queue.put_back(entry, card.name):
            self._keep(entry, record, time.monotonic() - card.started)
        if card.failures >= card.patience and not self._over():
            card.probing = True
            with suppress(OSError):  # one that has just died; reading from it tells
                card.connection.send(Probe())

    def _probed(self, card: _Card, fault: str | None) -> None:
        """Retire a card that fails at what is known to work; where it does not, the steps may be to blame."""
        card.probing = False
        if fault is not None:
            self._retire(card, f"it failed at {card.failures} steps in a row, and at a kernel known to work: {fault}")
            return
        card.failures, card.patience = 0, 2 * card.patience

    def _died(self, card: _Card) -> None:
        """Replace a process that ended by itself, and blame the machine for its step."""
        card.process.join()
        self._cards.remove(card)
        card.connection.close()
        reason = f"its process ended with exit code {card.process.exitcode}"
        if card.device is None or card.probing or self._stop_asked is not None:
            self._reasons.append(f"{card.name}: {reason}")
            return
        fresh = self._start(card.options)
        fresh.failures, fresh.patience = card.failures, card.patience
        self._cards.append(fresh)
        if card.entry is not None:
            failure = Failure(kind=FailureKind.INFRASTRUCTURE, message=f"the supervisor: {reason}")
            self._failed(fresh, card.entry, _machine_failure(card, card.entry, failure))

    def _retire(self, card: _Card, reason: str) -> None:
        self._tell(f"{card.name} gets no more steps: {reason}")
        self._reasons.append(f"{card.name}: {reason}")
        self._cards.remove(card)
        _end_card(card)

    def _keep(self, entry: BatchEntry, record: BatchRecord, seconds: float) -> None:
        record = self._result.add(record)
        number = f"{len(self._result.done):{len(str(self._total))}}/{self._total}"
        self._tell(f"[{number}] {self._name(entry)}: {_outcome(record)} in {seconds:.1f} s on {record.device.uid}")

    def _name(self, entry: BatchEntry) -> str:
        problem = self._batch.subject(entry.question).problem
        return f"{problem.name} {entry.key} (job {str(entry.job)[:8]})"

    def _end(self) -> None:
        for card in self._cards:
            _end_card(card)


def card_options(batch: BatchFile, template: CardOptions, devices: str) -> list[CardOptions]:
    """Return the options of each card that ``devices`` names: ``all``, or UUIDs or indices separated by commas."""
    if batch.manifest.target is Target.CPU:
        return [replace(template, device=None if devices == "all" else devices)]
    from gpu_worker.targets.cuda.nvml import visible_uuids

    uuids = visible_uuids()
    if not uuids:
        raise Unavailable("this machine shows no card", hint="see CUDA_VISIBLE_DEVICES, and what the scheduler lends")
    chosen = uuids if devices == "all" else _named(devices, uuids)
    return [replace(template, device=uuid) for uuid in chosen]


def _named(devices: str, uuids: Sequence[str]) -> list[str]:
    """Return the cards that indices or UUIDs name among those that this process may use."""
    from gpu_worker.targets.cuda.nvml import chosen_uuids

    named = {name.strip(): chosen_uuids(uuids, name) for name in devices.split(",")}
    unknown = [name for name, matches in named.items() if not matches]
    if unknown:
        hint = f"indices count the cards that CUDA_VISIBLE_DEVICES shows: {', '.join(uuids)}"
        raise InvalidInput(f"--devices: {unknown[0]!r} is no card that this process may use", hint=hint)
    chosen = [uuid for matches in named.values() for uuid in matches]
    if len(set(chosen)) < len(devices.split(",")):
        raise InvalidInput("--devices names a card twice")
    return chosen


def to_stderr(line: str) -> None:
    """Write a line of progress; names and messages in it may hold anything."""
    printable = "".join(character if character.isprintable() else " " for character in line)
    sys.stderr.write(f"{printable}\n")
    sys.stderr.flush()


def _shares_of_cores(cards: int, tell: Callable[[str], None]) -> list[tuple[int, ...]]:
    """Divide this machine's cores among so many cards; where there are too few, each may use all of them."""
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // max(cards, 1)
    if cards and share < LEAST_CORES:
        lent = f"{cards} cards have {len(cores)} cores of this machine"
        tell(f"warning: {lent}, and should have {LEAST_CORES} each: times may be too uneven to be used")
    if cards == 1 or share < LEAST_CORES:
        return [()]
    return [tuple(cores[number * share : (number + 1) * share]) for number in range(cards)]


def _end_card(card: _Card) -> None:
    """Ask a card's process to end; kill it where it does not."""
    with suppress(OSError):
        card.connection.send(None)
    card.connection.close()
    card.process.join(END_SECONDS)
    if card.process.is_alive():
        card.process.kill()
        card.process.join()


def _machine_failure(card: _Card, entry: BatchEntry, failure: Failure) -> BatchRecord:
    assert card.device is not None
    return BatchRecord(
        step=entry.step,
        attempt=entry.attempt,
        entry=entry.content_hash(),
        failure=failure,
        seconds=time.monotonic() - card.started,
        device=card.device,
    )


def _outcome(record: BatchRecord) -> str:
    if record.evaluation is not None:
        speedup = record.evaluation.speedup
        return record.evaluation.verdict.value + (f" {speedup:.2f}x" if speedup is not None else "")
    if record.failure is not None:
        return f"the machine failed: {record.failure.message[:300]};"
    answer = record.preparation or record.tracing
    assert answer is not None
    return "not usable" if answer.failure is not None else "ok"
