"""Messages and descriptors cross a socket whole; a broken peer is an error, not a hang."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

import pytest

from gpu_worker.channel import MAX_MESSAGE_BYTES, Channel, ChannelClosed, ChannelError, ChannelTimeout


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    left, right = Channel.pair()
    with left, right:
        yield left, right


def test_messages_keep_their_order_and_content(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    left.send({"op": "run", "order": list(range(3000))})
    left.send(None)
    assert right.receive(1.0) == ({"op": "run", "order": list(range(3000))}, [])
    assert right.receive(1.0) == (None, [])


def test_descriptors_travel_with_their_message(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    read, write = os.pipe()
    left.send({"file": 1}, [write])
    message, descriptors = right.receive(1.0)
    os.write(descriptors[0], b"through")
    assert message == {"file": 1}
    assert os.read(read, 16) == b"through"
    for descriptor in (read, write, *descriptors):
        os.close(descriptor)


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


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<I", 4) + b"{{{{",
        struct.pack("<I", MAX_MESSAGE_BYTES + 1),
        struct.pack("<I", 2) + b"\xff\xfe",
    ],
    ids=["no json", "too long", "no text"],
)
def test_garbage_is_refused(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(data)
    with pytest.raises(ChannelError), theirs, Channel(ours) as channel:
        channel.receive(1.0)


def test_half_a_message_does_not_hang() -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(struct.pack("<I", 100) + b"{")
    with pytest.raises(ChannelTimeout), theirs, Channel(ours) as channel:
        channel.receive(0.05)
