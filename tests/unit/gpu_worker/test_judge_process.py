"""The supervisor beside a judge that was taken over: whatever it says costs a bounded amount of memory and time."""

from __future__ import annotations

import json
import math
import socket
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from cupilot.domain.evaluation import Failure, FailureKind
from gpu_worker import channel as channels
from gpu_worker import judge_process
from gpu_worker.channel import Channel
from gpu_worker.judge_process import (
    EVENT_BYTES,
    FINDINGS_BYTES,
    MAX_HOLDS,
    MAX_STAGES,
    Interrupted,
    JudgeLost,
    JudgeProcess,
    JudgeTimeout,
    UnusableJudge,
)
from gpu_worker.messages.judge import Done, Held, JudgeRequest, OpenRequest, Prepared, PrepareRequest, Traced, Unusable
from gpu_worker.sandbox import child
from gpu_worker.sandbox.child import Finished
from tests.unit.gpu_worker.records import PROBLEM, facts, interval, order

PATIENCE = 30.0
JUDGE = JudgeRequest(order=order(), hold=True)


class DeadChild:
    """The process behind the socket; how it ends is not at issue here."""

    def wait(self, _timeout: float | None) -> Finished:
        return Finished(1, "", "")

    def kill(self) -> None:
        pass

    def running(self) -> bool:
        return True

    def processes(self) -> int:
        return 1


def framed(message: Any) -> bytes:
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    return struct.pack("<I", len(body)) + body


@contextmanager
def judge(peer: Callable[[socket.socket], None]) -> Iterator[JudgeProcess]:
    """A judge process whose other end is ``peer``, which runs in a thread."""
    theirs, ours = socket.socketpair()

    def run() -> None:
        with suppress(OSError):
            peer(theirs)

    process = JudgeProcess.__new__(JudgeProcess)
    process._channel = Channel(ours)
    process._child = DeadChild()  # type: ignore[assignment]
    process._may_start_processes = False
    process._hold = None
    process._next_look = 0.0
    process._on_stage = None
    process.torch = ""
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield process
    finally:
        process.close()
        theirs.close()
        thread.join(PATIENCE)


def never_cancelled() -> bool:
    return False


def open_request(**changes: Any) -> OpenRequest:
    return OpenRequest(problem=PROBLEM, facts=facts().model_copy(update=changes))


def sends(*messages: Any) -> Callable[[socket.socket], None]:
    def peer(theirs: socket.socket) -> None:
        for message in messages:
            theirs.sendall(framed(message))
        theirs.recv(1)

    return peer


def test_an_honest_conversation() -> None:
    stages: list[str] = []
    done = Done(answer=Unusable(failure=Failure(kind=FailureKind.TIMEOUT, message="m")))
    stage = {"event": "stage", "name": "timing", "limit": 5.0}
    with judge(sends(stage, {"event": "hold", "on": True}, stage, done.as_json())) as process:
        answer = process.ask(JUDGE, PATIENCE, never_cancelled, hold=lambda _: Held(at=1.0), on_stage=stages.append)
    assert answer == done.answer
    assert stages == ["timing", "timing"]


@pytest.mark.parametrize(
    "messages",
    [
        [[]],
        [{"event": "stage"}],
        [{"event": "stage", "name": "x", "limit": "NaN"}],
        [{"event": "stage", "name": ["x"] * 100, "limit": 1.0}],
        [{"event": "stage", "name": "x", "limit": "1.0"}],
        [{"event": "other", "name": "x", "limit": 1.0}],
        [{"name": "x"}],
        [{"event": "hold"}],
        [{"event": "done", "findings": "x" * FINDINGS_BYTES}],
        [{"event": "stage", "name": "x" * EVENT_BYTES, "limit": 1.0}],
        [b'{"event": "done", "handover_us": NaN}'],
        [b'{"event": "stage", "name": "x", "limit": %b}' % (b"9" * 400)],
        [{"event": "stage", "name": str(number), "limit": 60.0} for number in range(MAX_STAGES + 1)],
    ],
    ids=lambda messages: str(messages[0])[:40],
)
def test_what_makes_no_sense_ends_the_judge(messages: Sequence[Any]) -> None:
    with judge(sends(*messages)) as process, pytest.raises(JudgeLost):
        process.ask(JUDGE, PATIENCE, never_cancelled, hold=lambda _: Held(at=1.0))


@pytest.mark.parametrize("answer", [None, {}, {"kind": "judged"}, {"kind": "other"}, {"kind": "opened", "more": 1}])
def test_an_answer_of_no_known_form_is_refused(answer: Any) -> None:
    with judge(sends({"event": "done", "answer": answer})) as process, pytest.raises(UnusableJudge):
        process.ask(JUDGE, PATIENCE, never_cancelled)


@pytest.mark.parametrize("ready", [[], 1, {"event": "ready", "torch": "x" * EVENT_BYTES}])
def test_a_judge_has_to_say_properly_that_it_is_ready(ready: Any) -> None:
    with judge(sends(ready)) as process, pytest.raises(JudgeLost):
        process.wait_ready()


def test_a_prepared_problem_may_be_larger_than_findings() -> None:
    large = facts().model_copy(update={"op_class": "x" * (2 * FINDINGS_BYTES)})
    prepared = Prepared(facts=large, laws=("own",), tolerances={}, admission={}, notes=(), baseline_us=interval(1.0))
    with judge(sends(Done(answer=prepared).as_json())) as process:
        assert process.ask(PrepareRequest(problem=PROBLEM), PATIENCE, never_cancelled) == prepared
    with judge(sends(Done(answer=Traced(facts=large)).as_json())) as process, pytest.raises(JudgeLost):
        process.ask(JUDGE, PATIENCE, never_cancelled)


def flood(theirs: socket.socket) -> None:
    """Events without end, and no look at the answers."""
    data = framed({"event": "hold", "on": True}) * 100
    while True:
        theirs.sendall(data)


def test_a_flood_of_events_ends_within_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_process, "MAX_HOLDS", 2000)
    holds = 0

    def hold(_on: bool) -> Held:
        nonlocal holds
        holds += 1
        return Held(at=0.0)

    def reading(theirs: socket.socket) -> None:
        sink = threading.Thread(target=drain, args=(theirs,), daemon=True)
        sink.start()
        flood(theirs)

    def drain(theirs: socket.socket) -> None:
        with suppress(OSError):
            while theirs.recv(65536):
                pass

    with judge(reading) as process:
        tracemalloc.start()
        try:
            with pytest.raises(JudgeLost):
                process.ask(JUDGE, PATIENCE, never_cancelled, hold=hold)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert holds <= 2000 < MAX_HOLDS
    assert peak < 2**21


def test_a_judge_that_does_not_read_its_answers_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_process, "MESSAGE_SECONDS", 0.2)
    with judge(flood) as process, pytest.raises(JudgeLost):
        process.ask(JUDGE, PATIENCE, never_cancelled, hold=lambda _: Held(at=0.0))


def test_a_judge_that_takes_no_request_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_process, "MESSAGE_SECONDS", 0.2)
    with judge(lambda _: time.sleep(0.01)) as process, pytest.raises(JudgeLost):
        process.ask(open_request(op_class="x" * 2**22), PATIENCE, never_cancelled)


def begins(theirs: socket.socket) -> None:
    """Four bytes, and silence until the supervisor hangs up."""
    theirs.sendall(struct.pack("<I", 100))
    while theirs.recv(4096):
        pass


def test_a_cancellation_is_seen_while_a_message_is_under_way() -> None:
    asked = time.monotonic()
    with judge(begins) as process, pytest.raises(Interrupted):
        process.ask(JUDGE, 3600.0, lambda: time.monotonic() > asked + 0.2)
    assert time.monotonic() - asked < channels.MESSAGE_SECONDS


def test_a_deadline_is_seen_while_a_message_is_under_way() -> None:
    with judge(begins) as process, pytest.raises(JudgeTimeout):
        process.ask(JUDGE, 0.2, never_cancelled)


def test_a_message_that_never_ends_ends_the_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "MESSAGE_SECONDS", 0.2)
    with judge(begins) as process, pytest.raises(JudgeLost):
        process.ask(JUDGE, 3600.0, never_cancelled)


def test_numbers_that_json_lacks_reach_the_judge_as_text() -> None:
    heard: list[bytes] = []

    def peer(theirs: socket.socket) -> None:
        heard.append(theirs.recv(4096))
        theirs.sendall(framed({"event": "done", "answer": {"kind": "opened"}}))
        theirs.recv(1)

    with judge(peer) as process:
        process.ask(open_request(scalars={"LIMIT": math.inf}), PATIENCE, never_cancelled)
    assert json.loads(heard[0][4:])["facts"]["scalars"] == {"LIMIT": "Infinity"}


def test_output_beyond_the_limit_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small writes too: a program under test may print byte by byte, for hours."""
    monkeypatch.setattr(child, "MAX_CAPTURE_BYTES", 1000)
    script = "import os\nfor _ in range(20000): os.write(1, b'x')\nos.write(1, b'y' * 2**22)"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process.stdout is not None
    capture = child._Capture(process.stdout)
    process.wait(PATIENCE)
    capture.join(PATIENCE)
    assert capture.text() == "x" * 1000
    assert len(capture._kept) == 1000
