"""The judge's side of the line to a runner: when its clock starts, and what a runner may say of itself."""

from __future__ import annotations

import json
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cupilot.domain.evaluation import FailureKind
from gpu_worker import channel as channels
from gpu_worker.channel import Channel
from gpu_worker.judge import runner_link
from gpu_worker.judge.clocks import refuse_awake
from gpu_worker.judge.runner_link import ANSWER_BYTES, DETAILS_BYTES, LOAD_BYTES, KernelFailed, RunnerLink
from gpu_worker.messages import runner as messages
from gpu_worker.runner import answered


def test_a_held_runner_is_released_to_its_order_and_the_clock_starts_with_that() -> None:
    """Between the two, threads of a kernel could do what is to be timed."""
    ours, theirs = Channel.pair()

    def release() -> float:
        assert theirs.pending(), "the order lies there before anything can run"
        theirs.receive(1.0)
        theirs.send({"ok": True, "seconds": 1.0, "places": []})
        return time.perf_counter() - 5.0

    with ours, theirs:
        ran = RunnerLink(ours).run([0], 1.0, release)
    assert ran.host >= 5.0, "by the moment of the release, not by that of its confirmation"
    assert ran.reported == 1.0


@pytest.mark.parametrize("said", [FailureKind.INFRASTRUCTURE, FailureKind.CLOCK_MISMATCH, FailureKind.BELOW_FLOOR])
@pytest.mark.parametrize("trusted", [True, False])
def test_host_code_of_a_kernel_speaks_of_itself_only(said: FailureKind, trusted: bool) -> None:
    ours, theirs = Channel.pair()
    with ours, theirs:

        def release() -> None:
            theirs.receive(1.0)
            theirs.send({"ok": False, "kind": said.value, "message": "not me"})

        with pytest.raises(KernelFailed, match="not me") as caught:
            RunnerLink(ours, trusted=trusted).run([0], 1.0, release)
    assert caught.value.kind is (said if trusted else FailureKind.CRASH)


def failing(*data: bytes, command: Callable[[RunnerLink], Any] = lambda link: link.run([0], 5.0)) -> KernelFailed:
    """Return how a command ends whose answer is these bytes, written once the command is there."""
    ours, theirs = socket.socketpair()
    with theirs, Channel(ours) as channel:
        link = RunnerLink(channel, trusted=False)
        send = link._send

        def send_and_answer(*args: Any, **options: Any) -> None:
            send(*args, **options)
            for part in data:
                theirs.sendall(part)

        link._send = send_and_answer  # type: ignore[method-assign]
        with pytest.raises(KernelFailed) as caught:
            command(link)
    return caught.value


def framed(answer: Any) -> bytes:
    body = json.dumps(answer).encode()
    return struct.pack("<I", len(body)) + body


@pytest.mark.parametrize(
    ("command", "limit"),
    [
        (lambda link: link.run([0], 5.0), ANSWER_BYTES),
        (lambda link: link.replay(5.0), ANSWER_BYTES),
        (lambda link: link.capture([0]), ANSWER_BYTES),
        (lambda link: link.load("kernel.so", []), LOAD_BYTES),
    ],
    ids=["run", "replay", "capture", "load"],
)
def test_each_command_has_a_largest_answer(command: Callable[[RunnerLink], Any], limit: int) -> None:
    failure = failing(struct.pack("<I", limit + 1), command=command)
    assert failure.kind is FailureKind.POLICY_BREACH


def test_an_answer_that_begins_and_does_not_end_is_a_breach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "MESSAGE_SECONDS", 0.1)
    failure = failing(struct.pack("<I", 20), command=lambda link: link.run([0], 3600.0))
    assert failure.kind is FailureKind.POLICY_BREACH


@pytest.mark.parametrize("seconds", [b"NaN", b"Infinity", b"1e999", b"9" * 400])
def test_a_time_that_is_no_finite_number_is_a_breach(seconds: bytes) -> None:
    body = b'{"ok": true, "seconds": %b}' % seconds
    assert failing(struct.pack("<I", len(body)) + body).kind is FailureKind.POLICY_BREACH


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        {},
        {"ok": 1, "seconds": 1.0},
        {"ok": "true", "seconds": 1.0},
        {"ok": True},
        {"ok": True, "seconds": "1.0"},
        {"ok": True, "seconds": "NaN"},
        {"seconds": 1.0},
        {"ok": True, "seconds": 1.0, "more": 1},
        {"ok": True, "facts": {}},
        {"ok": False},
        {"ok": False, "kind": 1, "message": "m"},
        {"ok": False, "kind": "crash", "message": "m", "details": []},
    ],
    ids=str,
)
def test_what_is_no_answer_to_the_command_is_a_breach(answer: Any) -> None:
    assert failing(framed(answer)).kind is FailureKind.POLICY_BREACH


@pytest.mark.parametrize("command", [messages.Run([1, 0]), messages.Attach({"size": 1}), messages.Replay()])
def test_commands_are_read_as_they_were_sent(command: messages.Command) -> None:
    assert messages.command(json.loads(json.dumps(messages.as_json(command)))) == command


@pytest.mark.parametrize("pending", [False, True])
def test_descriptors_of_a_runner_are_closed(pending: bool) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    ours, theirs = socket.socketpair()
    with theirs, Channel(ours) as channel, Path("/dev/null").open("rb") as file:

        def release() -> None:
            socket.send_fds(theirs, [framed({"ok": True, "seconds": 1.0})], [file.fileno()] * 3)

        if pending:
            release()
        with pytest.raises(KernelFailed) as caught:
            RunnerLink(channel).run([0], 5.0, release)
    assert caught.value.kind is FailureKind.POLICY_BREACH
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_details_of_a_runner_are_bounded_and_name_no_parameter_of_ours() -> None:
    """A detail called ``kind`` or ``message`` would otherwise end the judge, and the machine be blamed for it."""
    failure = failing(framed({"ok": False, "kind": "crash", "message": "m", "details": {"kind": 1, "message": 2}}))
    assert failure.kind is FailureKind.CRASH
    assert failure.details == {"kind": 1, "message": 2}
    large = {"log": "x" * DETAILS_BYTES}
    failure = failing(framed({"ok": False, "kind": "crash", "message": "m", "details": large}))
    assert failure.details == {}


def test_a_runner_that_takes_no_command_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_link, "SEND_SECONDS", 0.1)
    ours, theirs = Channel.pair()
    with ours, theirs, pytest.raises(KernelFailed) as caught:
        RunnerLink(ours).load("kernel.so", [{"kernel": "x" * 2**22}])
    assert caught.value.kind is FailureKind.TIMEOUT


def test_places_of_results_come_from_runners_that_were_lent_memory() -> None:
    class Runner:
        lent: list[Any]

        def attach(self, *_: Any) -> None: ...
        def load(self, *_: Any) -> dict[str, Any]: ...
        def bind(self, *_: Any) -> None: ...
        def reset(self) -> None: ...
        def run(self, order: list[int]) -> float:
            return len(order) / 10

    class Borrower(Runner):
        def run_empty(self) -> float:
            return 0.1

        def lend(self, *given: Any) -> None:
            self.lent = list(given)

        def free(self) -> list[list[int]]:
            return [[0, 512]]

        def places(self) -> list[list[int]]:
            return [[0], [-1]]

    borrower = Borrower()
    assert answered(borrower, messages.Lend({"bytes": 512}), [7]) == messages.Acknowledged()
    assert borrower.lent == [{"bytes": 512}, [7]]
    assert answered(borrower, messages.Free(), []) == messages.Freed([[0, 512]])
    assert answered(borrower, messages.RunEmpty(), []) == messages.Timed(0.1)
    assert answered(borrower, messages.Run([3, 1]), []) == messages.Timed(0.2, [[0], [-1]])
    assert answered(Runner(), messages.Run([3, 1]), []) == messages.Timed(0.2, [])
    refused = answered(Runner(), messages.Free(), [])
    assert isinstance(refused, messages.Failed)
    assert "holds no imported file" in refused.message


def test_the_longest_honest_failure_is_within_the_limit() -> None:
    from gpu_worker.targets.base import RunnerError

    class Device:
        def load(self, _binary: str, _launches: Any) -> dict[str, Any]:
            raise RunnerError("compile_error", "\N{GRINNING FACE}" * 10**6, log="\N{CJK UNIFIED IDEOGRAPH-4E00}" * 4000)

    answer = answered(Device(), messages.Load("", []), [])  # type: ignore[arg-type]
    failure = failing(framed(messages.as_json(answer)), command=lambda link: link.load("kernel.so", []))
    assert failure.kind is FailureKind.COMPILE_ERROR
    assert failure.details["log"]


def test_host_code_learns_an_order_in_parts_each_after_the_last_was_done() -> None:
    """On one clock: what is done between two parts is timed too."""
    order = list(range(100, 150))
    given: list[list[int]] = []
    ours, theirs = Channel.pair()

    def obey() -> None:
        with theirs, suppress(channels.ChannelClosed):
            while True:
                command, _ = theirs.receive()
                assert not theirs.pending()
                given.append(command["order"])
                time.sleep(0.01)
                theirs.send({"ok": True, "seconds": 0.01, "places": []})

    runner = threading.Thread(target=obey)
    runner.start()
    with ours:
        link = RunnerLink(ours, trusted=False)
        for _ in range(20):
            given.clear()
            ran = link.run(order, 5.0)
            assert [slot for part in given for slot in part] == order
            assert ran.reported == pytest.approx(0.01 * len(given))
            assert ran.host >= 0.01 * len(given)
            assert len(given) <= runner_link.MOST_PARTS
    runner.join(5.0)


def test_the_parts_of_an_order_are_drawn_anew_each_time() -> None:
    chance = random.Random(3)
    parts = [tuple(map(len, runner_link.in_parts(range(20), chance))) for _ in range(200)]
    assert {len(lengths) for lengths in parts} == {1, 2, 3}
    assert len(set(parts)) > 50
    assert all(sum(lengths) == 20 and min(lengths) > 0 for lengths in parts)
    assert runner_link.in_parts([7], chance) == [[7]]


def test_a_runner_that_works_while_it_is_stopped_is_quarantined() -> None:
    refuse_awake(0.0)
    refuse_awake(1e-5)
    with pytest.raises(KernelFailed, match="while it was stopped") as caught:
        refuse_awake(1e-3)
    assert caught.value.kind is FailureKind.CLOCK_MISMATCH
