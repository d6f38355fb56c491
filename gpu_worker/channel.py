"""Messages between supervisor, judge and runner: length-prefixed JSON over a Unix socket, with file descriptors.

Standard library only, because the runner has nothing else. JSON rather than pickle: a peer may be hostile. So a
receiver bounds what a message may cost it: bytes, descriptors, time from its first byte on, and the size of the objects
that its JSON becomes.
"""

from __future__ import annotations

import array
import itertools
import json
import math
import os
import select
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

MAX_MESSAGE_BYTES = 16 * 2**20
"""Largest message of any kind. The facts of a problem with 20 000 ATen calls, the most that are traced, take about
8 MB."""

MAX_OBJECT_BYTES = 128 * 2**20
"""Largest size of the objects of a message, as :func:`_object_bytes` estimates it from the text. JSON grows up to
30-fold; the facts above are estimated at 65 MB."""

MAX_DEPTH = 64
"""Of lists and objects in each other. Honest messages have ten; pydantic and ``json`` fail at a few hundred."""

MAX_NUMBER_CHARACTERS = 40
"""Of a number's literal. A float's shortest form has at most 24, a 64-bit integer 20. A longer integer might exceed
every float, and arithmetic with it would raise OverflowError in whoever received it."""

MAX_DESCRIPTORS = 8

MESSAGE_SECONDS = 10.0
"""From a message's first byte to its last. A peer writes each message at once, and the largest takes 0.1 s."""

SEND_SECONDS = 30.0
"""For a peer to take a message. One that reads takes 0.1 s; one that is starting, or is short of CPU, some seconds."""

_CHUNK_BYTES = 2**16
_LENGTH = struct.Struct("<I")
_CONTROL_BYTES = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)


class ChannelClosed(Exception):
    """The peer has gone."""


class ChannelTimeout(Exception):
    """The peer did not answer, or take a message, in time."""


class ChannelError(Exception):
    """The peer sent something that is no message, or more than the receiver accepts."""


class Channel:
    """One end of a conversation. Not thread safe."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._data = bytearray()
        """Of the message under way, its length included."""
        self._descriptors: list[int] = []
        """That came with the message under way."""
        self._complete_by: float | None = None
        """Deadline of the message under way; None before its first byte."""
        self.received_bytes = 0
        """Size of all messages received so far."""

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Return two connected ends."""
        left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(left), cls(right)

    @classmethod
    def from_descriptor(cls, descriptor: int) -> Channel:
        """Return the end that was inherited, or received, as a file descriptor; takes ownership of it."""
        return cls(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=descriptor))

    def fileno(self) -> int:
        """Return the socket's descriptor, for select and for inheritance."""
        return self._socket.fileno()

    def close(self) -> None:
        """Hang up; the peer sees :class:`ChannelClosed`."""
        self._forget()
        self._socket.close()

    def wait(self, timeout: float | None) -> bool:
        """Return whether something arrives (or the peer hangs up) within ``timeout`` seconds."""
        return self._poll(select.POLLIN, timeout)

    def pending(self) -> bool:
        """Return whether the peer has sent something (or hung up) that was not received yet."""
        return bool(self._data) or self.wait(0.0)

    def send(self, message: Any, descriptors: Sequence[int] = (), *, timeout: float = SEND_SECONDS) -> None:
        """Send one message, with descriptors.

        Raises :class:`ChannelClosed`, :class:`ChannelTimeout` where the peer has not taken the whole message within
        ``timeout`` seconds (the channel is of no use then), and ValueError for numbers that JSON lacks (see
        :func:`finite`). Lone surrogates, which a receiver refuses, are replaced.
        """
        body = _encoded(message)
        if len(body) > MAX_MESSAGE_BYTES:
            raise ChannelError(f"message of {len(body)} bytes")
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        data = memoryview(_LENGTH.pack(len(body)) + body)
        deadline = time.monotonic() + timeout
        while data:
            sent = self._offer(data, rights)
            if sent:
                rights = []
                data = data[sent:]
            elif time.monotonic() >= deadline:
                raise ChannelTimeout(f"the peer did not take a message within {timeout:.0f} s")
            else:
                self._poll(select.POLLOUT, deadline - time.monotonic())

    def receive(
        self, timeout: float | None = None, *, limit: int = MAX_MESSAGE_BYTES, descriptors: int = 0
    ) -> tuple[Any, list[int]]:
        """Return the next message and the descriptors that came with it, which then are the caller's to close.

        Accepts a message of at most ``limit`` bytes with at most ``descriptors`` descriptors; closes those of any
        other. Raises :class:`ChannelTimeout` when the message is not there whole within ``timeout`` seconds: the next
        call goes on with it. Raises :class:`ChannelError` for what is no message, is too large, or takes longer than
        :data:`MESSAGE_SECONDS` from its first byte on; the channel is of no use then.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            self._read(_LENGTH.size, deadline, descriptors)
            (length,) = _LENGTH.unpack_from(self._data)
            if length > limit:
                raise ChannelError(f"message of {length} bytes; at most {limit} are accepted")
            self._read(_LENGTH.size + length, deadline, descriptors)
            self.received_bytes += len(self._data)
            message = _decoded(self._data)
            received, self._descriptors = self._descriptors, []
        except ChannelTimeout:
            raise
        except BaseException:
            self._forget()
            raise
        self._forget()
        return message, received

    def _read(self, size: int, deadline: float | None, allowed: int) -> None:
        """Read until the message under way has ``size`` bytes."""
        while (missing := size - len(self._data)) > 0:
            forever = deadline is None and self._complete_by is None
            data = self._take(min(missing, _CHUNK_BYTES), allowed, 0 if forever else socket.MSG_DONTWAIT)
            self._data += data
            if len(data) < missing:
                self._await(deadline, ready=bool(data))

    def _take(self, count: int, allowed: int, wait: int) -> bytes:
        """Return what is there, at most ``count`` bytes; ``wait`` is MSG_DONTWAIT or 0."""
        try:
            how = socket.MSG_CMSG_CLOEXEC | wait
            data, ancillary, flags, _ = self._socket.recvmsg(count, _CONTROL_BYTES, how)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received = array.array("i")
                received.frombytes(content[: len(content) - len(content) % received.itemsize])
                self._descriptors.extend(received)
        if flags & socket.MSG_CTRUNC or len(self._descriptors) > allowed:
            raise ChannelError(f"more descriptors than the {allowed} that are accepted")
        if not data:
            raise ChannelClosed("the peer hung up")
        if self._complete_by is None:
            self._complete_by = time.monotonic() + MESSAGE_SECONDS
        return data

    def _await(self, deadline: float | None, *, ready: bool) -> None:
        """Wait for more of a message; not where ``ready``, which only looks at the deadlines."""
        now = time.monotonic()
        if self._complete_by is not None and now >= self._complete_by:
            raise ChannelError(f"a message did not come whole within {MESSAGE_SECONDS:.0f} s")
        if deadline is not None and now >= deadline:
            raise ChannelTimeout
        if not ready:
            ends = [end for end in (deadline, self._complete_by) if end is not None]
            self.wait(min(ends) - now if ends else None)

    def _offer(self, data: memoryview, rights: Sequence[tuple[int, int, array.array[int]]]) -> int:
        """Send what the socket has room for; the number of bytes."""
        try:
            return self._socket.sendmsg([data], rights, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def _poll(self, event: int, timeout: float | None) -> bool:
        poller = select.poll()
        poller.register(self._socket, event)
        return bool(poller.poll(None if timeout is None else timeout * 1000))

    def _forget(self) -> None:
        """Drop the message under way."""
        descriptors, self._descriptors = self._descriptors, []
        for descriptor in descriptors:
            os.close(descriptor)
        self._data = bytearray()
        self._complete_by = None


def finite(message: Any) -> Any:
    """Return a copy in which numbers that JSON lacks are the strings that pydantic writes for them, and reads back."""
    if isinstance(message, float) and not math.isfinite(message):
        return "NaN" if math.isnan(message) else "Infinity" if message > 0 else "-Infinity"
    if isinstance(message, dict):
        return {key: finite(value) for key, value in message.items()}
    if isinstance(message, list | tuple):
        return [finite(value) for value in message]
    return message


def _encoded(message: Any) -> bytes:
    text = json.dumps(message, allow_nan=False)
    if "\\ud" in text:  # half of a character beyond 16 bits, or of none
        text = json.dumps(message, allow_nan=False, ensure_ascii=False)
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        text = json.dumps(json.loads(text))
    return text.encode()


def _decoded(data: bytearray) -> Any:
    """Parse a message with its length in front; raises :class:`ChannelError`."""
    try:
        text = data[_LENGTH.size :].decode("ascii")  # as json.dumps writes it: one byte a character in memory too
        if _object_bytes(text) > MAX_OBJECT_BYTES:
            raise ValueError("too many values")
        message = _DECODER.decode(text)
        _check(message)
        return message
    except (ValueError, RecursionError) as error:
        reason = f"{type(error).__name__}: {str(error)[:200]}"
    raise ChannelError(f"not a message: {reason}")  # outside of the handler: the error above holds the whole text


def _object_bytes(text: str) -> int:
    """Estimate the bytes that the values of JSON ``text`` take in memory at most, without its strings' characters.

    By CPython 3.11: an object of one key takes 184 bytes, a list of one item 88, a float or string beside its
    characters 24 to 56, a place in a list 8, a place in an object and its key 100.
    """
    return 200 * text.count("{") + 100 * text.count("[") + 64 * text.count(",") + 100 * text.count(":")


def levels(message: Any) -> Iterator[list[Any]]:
    """Yield the values of a message level by level: itself, the keys and items in it, those in them, and so on."""
    level = [message]
    while level:
        yield level
        containers = [value for value in level if type(value) in (dict, list)]
        level = [item for container in containers for item in _items(container)]


def _items(container: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return itertools.chain(container, container.values()) if isinstance(container, dict) else container


def _check(message: Any) -> None:
    """Refuse what is nested too deeply, and text that no encoder takes; raises ValueError."""
    for depth, values in enumerate(levels(message)):
        if depth > MAX_DEPTH:
            raise ValueError("nested too deeply")
        for value in values:
            if type(value) is str and not value.isascii():
                value.encode()


def _integer(literal: str) -> int:
    if len(literal) > MAX_NUMBER_CHARACTERS:
        raise ValueError("a number is too long")
    return int(literal)


def _float(literal: str) -> float:
    number = float(literal) if len(literal) <= MAX_NUMBER_CHARACTERS else math.inf
    if math.isinf(number):
        raise ValueError("a number is beyond all floats, or too long")
    return number


def _no_constant(literal: str) -> float:
    raise ValueError(f"{literal} is not JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("an object has two values for one key")
    return fields


_DECODER = json.JSONDecoder(
    parse_int=_integer, parse_float=_float, parse_constant=_no_constant, object_pairs_hook=_object
)
