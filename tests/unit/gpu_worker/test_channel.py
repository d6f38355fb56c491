"""Messages and descriptors cross a socket whole; a hostile peer costs neither descriptors, memory nor time."""

from __future__ import annotations

import array
import contextlib
import json
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_worker import channel as channels
from gpu_worker.channel import (
    MAX_DEPTH,
    MAX_DESCRIPTORS,
    MAX_MESSAGE_BYTES,
    Channel,
    ChannelClosed,
    ChannelError,
    ChannelTimeout,
    finite,
)
from gpu_worker.sandbox.files import SOURCE_ROOT

PATIENCE = 30.0
"""Far above what any call here may take, in seconds."""


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    left, right = Channel.pair()
    with left, right:
        yield left, right


@pytest.fixture
def raw() -> Iterator[tuple[socket.socket, Channel]]:
    """A peer that writes whatever it likes, and the channel that it writes to."""
    theirs, ours = socket.socketpair()
    with theirs, Channel(ours) as channel:
        yield theirs, channel


@pytest.fixture
def files() -> Iterator[list[int]]:
    """Descriptors for a peer to send."""
    descriptors = [os.open("/dev/null", os.O_RDONLY) for _ in range(MAX_DESCRIPTORS + 12)]
    yield descriptors
    for descriptor in descriptors:
        os.close(descriptor)


def framed(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def sent_aside(theirs: socket.socket, data: bytes) -> threading.Thread:
    """Send more than a socket holds."""

    def send() -> None:
        with contextlib.suppress(OSError):
            theirs.sendall(data)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def test_messages_keep_their_order_and_content(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    left.send({"op": "run", "order": list(range(3000))})
    left.send(None)
    assert right.receive(1.0) == ({"op": "run", "order": list(range(3000))}, [])
    assert right.receive(1.0) == (None, [])


def test_a_message_larger_than_the_socket_arrives_whole(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    message = {"source": "\N{GRINNING FACE} \\ud800 " * 100_000}
    sender = threading.Thread(target=left.send, args=(message,))
    sender.start()
    assert right.receive(PATIENCE) == (message, [])
    sender.join()


def test_descriptors_travel_with_their_message(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    read, write = os.pipe()
    left.send({"file": 1}, [write])
    message, descriptors = right.receive(1.0, descriptors=1)
    os.write(descriptors[0], b"through")
    assert message == {"file": 1}
    assert os.read(read, 16) == b"through"
    for descriptor in (read, write, *descriptors):
        os.close(descriptor)


@pytest.mark.parametrize(("sent", "accepted"), [(1, 0), (2, 1), (MAX_DESCRIPTORS, 1), (MAX_DESCRIPTORS + 12, 8)])
@pytest.mark.parametrize("place", ["header", "body"])
def test_descriptors_that_nobody_asked_for_are_closed(
    raw: tuple[socket.socket, Channel], files: list[int], sent: int, accepted: int, place: str
) -> None:
    theirs, ours = raw
    data = framed(b'{"ok": true}')
    before = open_files()
    if place == "body":
        theirs.sendall(data[:9])
        data = data[9:]
    theirs.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files[:sent]))])
    with pytest.raises(ChannelError):
        ours.receive(1.0, descriptors=accepted)
    assert open_files() == before


def test_descriptors_are_counted_over_the_whole_message(raw: tuple[socket.socket, Channel], files: list[int]) -> None:
    theirs, ours = raw
    before = open_files()
    for part in (struct.pack("<I", 2), b"{", b"}"):
        theirs.sendmsg([part], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files[:1]))])
    with pytest.raises(ChannelError):
        ours.receive(1.0, descriptors=2)
    assert open_files() == before


def test_descriptors_of_a_message_that_never_ends_are_closed_with_the_channel(files: list[int]) -> None:
    before = open_files()
    theirs, ours = socket.socketpair()
    with theirs, Channel(ours) as channel:
        socket.send_fds(theirs, [struct.pack("<I", 100) + b"{"], files[:1])
        with pytest.raises(ChannelTimeout):
            channel.receive(0.05, descriptors=1)
    assert open_files() == before


def test_silence_is_a_timeout_and_a_hang_up_is_the_end(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    with pytest.raises(ChannelTimeout):
        right.receive(0.01)
    assert not right.pending()
    left.close()
    assert right.pending()
    with pytest.raises(ChannelClosed):
        right.receive(1.0)
    with pytest.raises(ChannelClosed):
        right.send({"op": "anything"})


HOSTILE_NUMBERS = (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"1" * 41, b"9" * 5000, b"9" * 10**6)


@pytest.mark.parametrize(
    "body",
    [
        b"{{{{",
        b"\xff\xfe",
        "\N{GRINNING FACE}".join('""').encode(),
        b"[" * 900 + b"]" * 900,
        b"[" * 100_000,
        b'{"a":' * 200 + b"1" + b"}" * 200,
        b'{"ok": true, "ok": false}',
        rb'{"message": "\ud800"}',
        rb'{"\udfff": 1}',
        *(b'{"seconds": %b}' % number for number in HOSTILE_NUMBERS),
    ],
    ids=lambda body: body[:24].decode("ascii", "replace"),
)
def test_garbage_is_refused(raw: tuple[socket.socket, Channel], body: bytes) -> None:
    theirs, ours = raw
    sent_aside(theirs, framed(body))
    with pytest.raises(ChannelError):
        ours.receive(PATIENCE)


def test_nesting_within_the_bound_is_accepted(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    message: object = 1
    for _ in range(MAX_DEPTH - 1):
        message = [message]
    left.send(message)
    assert right.receive(1.0) == (message, [])


@pytest.mark.parametrize("limit", [100, MAX_MESSAGE_BYTES])
def test_a_length_above_the_limit_is_refused_before_anything_is_read(
    raw: tuple[socket.socket, Channel], limit: int
) -> None:
    theirs, ours = raw
    theirs.sendall(struct.pack("<I", limit + 1))
    with pytest.raises(ChannelError, match=str(limit + 1)):
        ours.receive(PATIENCE, limit=limit)


@pytest.mark.parametrize("unit", [b"[],", b"{},", b"[0],", b'{"":0},', b'["a"],', b"1.5,", b"257,", b'"ab",'])
def test_what_a_small_message_becomes_in_memory_is_bounded(raw: tuple[socket.socket, Channel], unit: bytes) -> None:
    theirs, ours = raw
    size = 2**18
    body = b"[" + unit * ((size - 4) // len(unit)) + b"0]"
    sent_aside(theirs, framed(body))
    tracemalloc.start()
    try:
        ours.receive(PATIENCE, limit=size)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 48 * size


def keys(count: int) -> bytes:
    return b"{" + b",".join(b'"%x":0' % key for key in range(count)) + b"}"


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"[]," * (MAX_MESSAGE_BYTES // 3 - 4) + b"0]",
        b"[" + b'{"":0},' * (MAX_MESSAGE_BYTES // 7 - 4) + b"0]",
        b"[" + b"0," * (MAX_MESSAGE_BYTES // 2 - 4) + b"0]",
        b"[" * (MAX_MESSAGE_BYTES - 8),
        keys(10**6),
        b'"' + rb"\u00e9" * (MAX_MESSAGE_BYTES // 6 - 4) + b'"',
        b'"' + b"\\\\" * (MAX_MESSAGE_BYTES // 2 - 4) + b'"',
        b"9" * (MAX_MESSAGE_BYTES - 8),
        b"0." + b"9" * (MAX_MESSAGE_BYTES - 8),
    ],
    ids=["lists", "objects", "numbers", "depth", "keys", "escapes", "backslashes", "an integer", "a float"],
)
def test_what_the_largest_message_becomes_in_memory_is_bounded(raw: tuple[socket.socket, Channel], body: bytes) -> None:
    theirs, ours = raw
    sent_aside(theirs, framed(body))
    tracemalloc.start()
    try:
        with contextlib.suppress(ChannelError):
            ours.receive(PATIENCE)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < channels.MAX_OBJECT_BYTES + 8 * MAX_MESSAGE_BYTES


def test_the_facts_of_the_largest_graph_are_accepted(ends: tuple[Channel, Channel]) -> None:
    """As many ATen calls as the judge traces, of the shape of a convolution's."""
    left, right = ends
    node = {
        "op": "aten.convolution.default",
        "args": [{"ref": "v18999"}, {"ref": "layers_17_weight"}, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1],
        "kwargs": {},
        "results": ["v19000"],
        "shapes": [[64, 256, 112, 112]],
        "dtypes": ["float32"],
    }
    sender = threading.Thread(target=left.send, args=({"graph": {"nodes": [node] * 20_000}},))
    sender.start()
    message, _ = right.receive(PATIENCE)
    sender.join()
    assert len(message["graph"]["nodes"]) == 20_000


def test_half_a_message_does_not_hang(raw: tuple[socket.socket, Channel]) -> None:
    theirs, ours = raw
    theirs.sendall(struct.pack("<I", 100) + b"{")
    with pytest.raises(ChannelTimeout):
        ours.receive(0.05)


def test_a_message_that_was_waited_for_in_vain_can_be_received_later(raw: tuple[socket.socket, Channel]) -> None:
    """So that a caller can look at something else while a message comes slowly."""
    theirs, ours = raw
    data = framed(b'{"ok": true}')
    for part in (data[:2], data[2:7], data[7:9]):
        theirs.sendall(part)
        with pytest.raises(ChannelTimeout):
            ours.receive(0.01)
        assert ours.pending()
    theirs.sendall(data[9:] + framed(b"2"))
    assert ours.receive(1.0) == ({"ok": True}, [])
    assert ours.receive(1.0) == (2, [])
    assert not ours.pending()


@pytest.mark.parametrize("timeout", [None, 3600.0])
@pytest.mark.parametrize("pause", [math.inf, 0.02, 0.0])
def test_a_message_has_a_deadline_from_its_first_byte_on(
    raw: tuple[socket.socket, Channel], monkeypatch: pytest.MonkeyPatch, timeout: float | None, pause: float
) -> None:
    monkeypatch.setattr(channels, "MESSAGE_SECONDS", 0.2)
    theirs, ours = raw
    done = threading.Event()

    def drip() -> None:
        theirs.sendall(struct.pack("<I", MAX_MESSAGE_BYTES))
        while not done.wait(None if math.isinf(pause) else pause):
            try:
                theirs.sendall(b" ")
            except OSError:
                return

    peer = threading.Thread(target=drip, daemon=True)
    started = time.monotonic()
    peer.start()
    with pytest.raises(ChannelError, match="whole"):
        ours.receive(timeout)
    assert time.monotonic() - started < PATIENCE
    done.set()
    ours.close()
    peer.join(PATIENCE)


def test_single_bytes_take_no_more_memory_than_a_whole_message(raw: tuple[socket.socket, Channel]) -> None:
    theirs, ours = raw
    size = 50_000

    def drip() -> None:
        theirs.sendall(struct.pack("<I", size))
        for _ in range(size):
            theirs.send(b" ")

    peer = threading.Thread(target=drip, daemon=True)
    tracemalloc.start()
    try:
        peer.start()
        with pytest.raises(ChannelError):
            ours.receive(PATIENCE)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    peer.join(PATIENCE)
    assert peak < 2**20


def test_a_peer_that_does_not_read_does_not_block_the_sender(ends: tuple[Channel, Channel]) -> None:
    left, _ = ends
    with pytest.raises(ChannelTimeout):
        left.send("x" * (MAX_MESSAGE_BYTES // 2), timeout=0.1)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_lacks_are_not_sent(ends: tuple[Channel, Channel], number: float) -> None:
    left, right = ends
    with pytest.raises(ValueError, match="JSON"):
        left.send({"error": [number]})
    assert not right.pending()
    left.send(finite({"error": [number], "fine": (1.5, 2, "x", None, True)}))
    message, _ = right.receive(1.0)
    assert message["fine"] == [1.5, 2, "x", None, True]
    assert repr(float(message["error"][0])) == repr(number)


def test_text_that_no_encoder_takes_is_replaced_by_the_sender(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    left.send({"message": "a\ud800b \N{GRINNING FACE} \\ud800"})
    assert right.receive(1.0) == ({"message": "a\ufffdb \N{GRINNING FACE} \\ud800"}, [])


def test_the_size_of_what_was_received_is_known(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    body = {"event": "stage"}
    left.send(body)
    right.receive(1.0)
    assert right.received_bytes == 4 + len(json.dumps(body))


STOPPED = """
import os, sys
sys.path.insert(0, sys.argv[1])
from gpu_worker.sandbox import seccomp
from gpu_worker.channel import Channel
channel = Channel.from_descriptor(int(sys.argv[2]))
timeout = float(sys.argv[3]) or None
seccomp.install(seccomp.kernel_filter())
channel.send("waiting")
channel.send(channel.receive(timeout)[0])
os._exit(0)
"""


@pytest.mark.parametrize("timeout", [0.0, 60.0])
@pytest.mark.parametrize("begun", [0, 6])
def test_a_runner_is_stopped_and_continued_while_it_waits(timeout: float, begun: int) -> None:
    """The filter around a kernel kills a process for any call that it does not know, those of a restart too."""
    theirs, ours = socket.socketpair()
    data = framed(b'"go on"')
    with theirs, Channel(ours) as channel:
        argv = [sys.executable, "-I", "-S", "-c", STOPPED, str(SOURCE_ROOT), str(theirs.fileno()), str(timeout)]
        with subprocess.Popen(argv, pass_fds=[theirs.fileno()]) as process:
            assert channel.receive(PATIENCE)[0] == "waiting"
            ours.sendall(data[:begun])
            time.sleep(0.2)
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
            process.send_signal(signal.SIGCONT)
            time.sleep(0.2)
            ours.sendall(data[begun:])
            assert channel.receive(PATIENCE)[0] == "go on"
            assert process.wait(PATIENCE) == 0
