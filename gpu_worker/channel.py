"""Messages between supervisor, judge and runner: length-prefixed JSON over a Unix socket, with file descriptors.

Standard library only, because the runner has nothing else. JSON rather than pickle: a peer may be hostile.
"""

from __future__ import annotations

import array
import json
import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

MAX_MESSAGE_BYTES = 64 * 2**20
"""A traced graph of a large model has a few megabytes."""

MAX_DESCRIPTORS = 8

_LENGTH = struct.Struct("<I")


class ChannelClosed(Exception):
    """The peer has gone."""


class ChannelTimeout(Exception):
    """The peer did not answer in time."""


class ChannelError(Exception):
    """The peer sent something that is no message."""


class Channel:
    """One end of a conversation. Not thread safe."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Two connected ends."""
        left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(left), cls(right)

    @classmethod
    def from_descriptor(cls, descriptor: int) -> Channel:
        """The end that was inherited, or received, as a file descriptor; takes ownership of it."""
        return cls(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=descriptor))

    def fileno(self) -> int:
        """The socket's descriptor, for select and for inheritance."""
        return self._socket.fileno()

    def close(self) -> None:
        """Hang up; the peer sees :class:`ChannelClosed`."""
        self._socket.close()

    def wait(self, timeout: float) -> bool:
        """Whether something arrives (or the peer hangs up) within ``timeout`` seconds."""
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        return bool(poller.poll(timeout * 1000))

    def pending(self) -> bool:
        """Whether the peer has sent something (or hung up) that was not received yet."""
        return self.wait(0.0)

    def send(self, message: Any, descriptors: Sequence[int] = ()) -> None:
        """Send one message, with descriptors; raises :class:`ChannelClosed`."""
        body = json.dumps(message).encode()
        if len(body) > MAX_MESSAGE_BYTES:
            raise ChannelError(f"message of {len(body)} bytes")
        data = _LENGTH.pack(len(body)) + body
        self._socket.settimeout(None)
        try:
            if descriptors:
                sent = socket.send_fds(self._socket, [data], list(descriptors))
                data = data[sent:]
            if data:
                self._socket.sendall(data)
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def receive(self, timeout: float | None = None) -> tuple[Any, list[int]]:
        """The next message and the descriptors that came with it. ``timeout`` is for the whole message, in seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        descriptors: list[int] = []
        try:
            header = self._exactly(_LENGTH.size, deadline, descriptors)
            (length,) = _LENGTH.unpack(header)
            if length > MAX_MESSAGE_BYTES:
                raise ChannelError(f"message of {length} bytes")
            body = self._exactly(length, deadline, descriptors)
            return json.loads(body), descriptors
        except (ValueError, RecursionError) as error:
            _close_all(descriptors)
            raise ChannelError("not a message") from error
        except (ChannelClosed, ChannelTimeout, ChannelError):
            _close_all(descriptors)
            raise

    def _exactly(self, count: int, deadline: float | None, descriptors: list[int]) -> bytes:
        parts: list[bytes] = []
        while count:
            self._socket.settimeout(None if deadline is None else max(deadline - time.monotonic(), 1e-6))
            try:
                data = self._some(min(count, 2**20), descriptors)
            except TimeoutError as error:
                raise ChannelTimeout from error
            except OSError as error:
                raise ChannelClosed(str(error)) from error
            if not data:
                raise ChannelClosed("the peer hung up")
            parts.append(data)
            count -= len(data)
        return b"".join(parts)

    def _some(self, count: int, descriptors: list[int]) -> bytes:
        space = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)
        data, ancillary, _, _ = self._socket.recvmsg(count, space, socket.MSG_CMSG_CLOEXEC)
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received = array.array("i")
                received.frombytes(content[: len(content) - len(content) % received.itemsize])
                descriptors.extend(received)
        return data


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
