"""The judge's line to a runner: commands with deadlines, bounded answers, and the judge's own clock around them."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from cupilot.domain.evaluation import Failure, FailureKind
from gpu_worker.channel import SEND_SECONDS, Channel, ChannelClosed, ChannelError, ChannelTimeout
from gpu_worker.judge.slots import Slots
from gpu_worker.messages import runner as messages
from gpu_worker.messages.bounds import is_bounded
from gpu_worker.targets.base import GraphUnavailable

LOAD_SECONDS = 60.0
ATTACH_SECONDS = 60.0
"""Populating the pages of a large arena takes about 0.3 s a gigabyte."""

ANSWER_BYTES = 2**17
"""Largest answer to a command. A time has 50 bytes; a failure with a message and a build log of 4000 characters each,
all of them escaped, has 96 KB."""

MOST_PARTS = 3
"""A message and its answer take 0.04 ms, of blocks of 8 ms (20 ms on a GPU)."""

LEAST_SECONDS = 0.1
"""For a part of a block whose time is nearly up."""

LOAD_BYTES = 2**18
"""Largest answer to ``load``, whose facts have 250 bytes for each of at most 32 launches, and names."""

DETAILS_BYTES = 2**16
"""Largest size of the details of a failure, as JSON; others are left out. A build log of 4000 characters, all of them
escaped, has 48 KB. They become part of the evaluation's record."""


OWN_THREADS = (
    ". If it keeps threads of its own: its variables become what they were after loading before each block of launches,"
    " and what waits for them waits for ever; use OpenMP, or start and end threads within a launch"
)

Release = Callable[[], float | None]
"""Continues a runner that was stopped, and returns the moment; None where none was stopped."""

_T = TypeVar("_T", messages.Acknowledged, messages.Loaded, messages.Captured, messages.Timed, messages.Freed)
_FAILED = TypeAdapter(messages.Failed)
_ACKNOWLEDGED = TypeAdapter(messages.Acknowledged)
_LOADED = TypeAdapter(messages.Loaded)
_CAPTURED = TypeAdapter(messages.Captured)
_TIMED = TypeAdapter(messages.Timed)
_FREED = TypeAdapter(messages.Freed)


@dataclass(frozen=True)
class Ran:
    """Seconds of a block on the judge's clock and on the runner's, and where its results lie in lent memory."""

    host: float
    reported: float
    places: Sequence[Sequence[int]]
    parts: int = 1
    """Commands that it took."""


class KernelFailed(Exception):
    """The kernel did something that ends its evaluation."""

    def __init__(self, kind: FailureKind, message: str, /, **details: Any) -> None:
        super().__init__(message)
        self.kind = kind
        self.details = details


class RunnerLost(Exception):
    """The runner is gone; the supervisor knows how it ended."""


def ending(error: KernelFailed | RunnerLost) -> dict[str, Any]:
    """Return the fields of a result that tell how its stage ended."""
    if isinstance(error, RunnerLost):
        return {"lost": True}
    return {"failure": Failure(kind=error.kind, message=str(error), details=error.details)}


_NOT_FROM_HOST_CODE = frozenset(
    {
        FailureKind.INFRASTRUCTURE, FailureKind.INVALID_PROBLEM, FailureKind.CLOCK_MISMATCH, FailureKind.BELOW_FLOOR,
    }
)  # fmt: skip
"""Failures that a process with host code of the kernel's may not report: they would count against no kernel, or wait
for a person."""


class RunnerLink:
    """One runner, as the judge drives it."""

    def __init__(self, channel: Channel, *, trusted: bool = True) -> None:
        """Make a link; ``trusted`` means that no host code of the kernel's runs in the runner."""
        self._channel = channel
        self._trusted = trusted
        self._random = random.Random()

    def load(self, binary: str, launches: Sequence[Mapping[str, Any]], timeout: float = LOAD_SECONDS) -> dict[str, Any]:
        """Load the kernel, and return the facts that the runner reports."""
        facts = self._ask(messages.Load(binary, list(launches)), _LOADED, timeout, limit=LOAD_BYTES).facts
        if not is_bounded(facts):
            raise _breach()
        return facts

    def use(self, slots: Slots) -> None:
        """Give the runner an arena and the places of the slots' tensors in it."""
        self._ask(messages.Attach(slots.handle), _ACKNOWLEDGED, ATTACH_SECONDS, slots.descriptors)
        self._ask(messages.Bind(slots.offsets()), _ACKNOWLEDGED, ATTACH_SECONDS)

    def lend(self, handle: dict[str, Any], descriptors: Sequence[int]) -> None:
        """Give the runner of an imported file memory for results."""
        self._ask(messages.Lend(handle), _ACKNOWLEDGED, ATTACH_SECONDS, descriptors)

    def free(self) -> list[list[int]]:
        """Let the runner let go of results in lent memory; return the ranges that it calls free."""
        return self._ask(messages.Free(), _FREED, LOAD_SECONDS).ranges

    def reset(self) -> None:
        """Make the kernel's static memory what it was after loading."""
        self._ask(messages.Reset(), _ACKNOWLEDGED, LOAD_SECONDS)

    def capture(self, order: Sequence[int]) -> None:
        """Capture the plan, once for each slot, as one graph. Raises GraphUnavailable if that cannot be done."""
        reason = self._ask(messages.Capture(list(order)), _CAPTURED, LOAD_SECONDS).reason
        if reason is not None:
            raise GraphUnavailable(f"the kernel's launches cannot be captured: {reason[:200]}")

    def run(self, order: Sequence[int], timeout: float, release: Release | None = None) -> Ran:
        """Run the plan once for each slot.

        A runner that is stopped is continued once the command lies in its channel, and the clock starts then: there is
        no time between the two in which threads of the kernel's could work. Where host code of the kernel's runs, the
        order is given in random parts, of which each has to be done before the next is told: what takes the runner's
        loop over learns neither how long the block is nor what comes next. Telling is timed, at the kernel's cost.
        """
        parts = [order] if self._trusted else in_parts(order, self._random)
        return self._timed([messages.Run(list(part)) for part in parts], timeout, release)

    def run_empty(self, parts: int, timeout: float, release: Release | None = None) -> Ran:
        """Run so many empty parts of a block, as :meth:`run` does; a runner of imported files can, before it loads."""
        return self._timed([messages.RunEmpty()] * parts, timeout, release)

    def replay(self, timeout: float, release: Release | None = None) -> Ran:
        """Run the plan as :meth:`run` does, through the graph that was captured last."""
        return self._timed([messages.Replay()], timeout, release)

    def _timed(
        self,
        commands: Sequence[messages.Run | messages.RunEmpty | messages.Replay],
        timeout: float,
        release: Release | None,
    ) -> Ran:
        """Carry out one command after the other on one clock, which starts once the first lies in the channel."""
        started = time.perf_counter()
        deadline = started + timeout
        first, *others = commands
        self._send(first)
        released = release() if release is not None else None
        answers = [self._receive(first, timeout)]
        for command in others:
            self._accepted(answers[-1], _TIMED)
            self._send(command)
            answers.append(self._receive(command, max(deadline - time.perf_counter(), LEAST_SECONDS)))
        host = time.perf_counter() - (started if released is None else released)
        timed = [self._accepted(data, _TIMED) for data in answers]
        reported = sum(answer.seconds for answer in timed)
        if not 0 <= reported < 1e6:
            text = f"the runner's clock says that {reported:.3g} s passed where the judge's says {host:.3g} s"
            raise KernelFailed(FailureKind.CLOCK_MISMATCH, text)
        return Ran(host, reported, [launch for answer in timed for launch in answer.places], len(timed))

    def _ask(
        self,
        command: messages.Command,
        answer: TypeAdapter[_T],
        timeout: float,
        descriptors: Sequence[int] = (),
        *,
        limit: int = ANSWER_BYTES,
    ) -> _T:
        self._send(command, descriptors)
        return self._accepted(self._receive(command, timeout, limit), answer)

    def _send(self, command: messages.Command, descriptors: Sequence[int] = ()) -> None:
        if self._channel.pending():
            self._refuse_pending()
        try:
            self._channel.send(messages.as_json(command), descriptors, timeout=SEND_SECONDS)
        except ChannelClosed as error:
            raise RunnerLost(str(error)) from error
        except ChannelTimeout as error:
            text = f"the kernel kept the runner from reading a command for {SEND_SECONDS:.0f} s ({command.op})"
            raise KernelFailed(FailureKind.TIMEOUT, text, seconds=SEND_SECONDS) from error

    def _receive(self, command: messages.Command, timeout: float, limit: int = ANSWER_BYTES) -> Any:
        """Return the next message, which is the answer to the command if its form is right."""
        try:
            data, _ = self._channel.receive(timeout, limit=limit)
        except ChannelTimeout as error:
            text = f"the kernel did not finish within {timeout:.1f} s ({command.op})"
            if command.op == "run" and not self._trusted:
                text += OWN_THREADS
            raise KernelFailed(FailureKind.TIMEOUT, text, seconds=timeout) from error
        except ChannelClosed as error:
            raise RunnerLost(str(error)) from error
        except ChannelError as error:
            raise _breach() from error
        return data

    def _accepted(self, data: Any, answer: TypeAdapter[_T]) -> _T:
        """Return a valid answer; raises :class:`KernelFailed` for a failure that is reported, and for anything else."""
        if not isinstance(data, dict) or not isinstance(data.get("ok"), bool):
            raise _breach()
        try:
            if not data["ok"]:
                raise self._reported(_FAILED.validate_python(data))
            accepted = answer.validate_python(data)
        except ValidationError as error:
            raise _breach() from error
        if messages.as_json(accepted) != data:  # a runner sends no value that has to be converted
            raise _breach()
        return accepted

    def _refuse_pending(self) -> None:
        """Raise for a message that nobody asked for: the end of the runner, or a forged answer."""
        try:
            self._channel.receive(1.0, limit=ANSWER_BYTES)
        except ChannelClosed as error:
            raise RunnerLost(str(error)) from error
        except (ChannelTimeout, ChannelError):
            pass
        raise KernelFailed(FailureKind.POLICY_BREACH, "the kernel sent an answer that nobody had asked for")

    def _reported(self, failed: messages.Failed) -> KernelFailed:
        """Return the failure that a runner reports, with details of bounded size."""
        try:
            kind = FailureKind(failed.kind)
        except ValueError:
            kind = FailureKind.CRASH
        if kind in _NOT_FROM_HOST_CODE and not self._trusted:
            kind = FailureKind.CRASH  # after which a GPU is looked at
        details = failed.details
        if len(json.dumps(details)) > DETAILS_BYTES or not is_bounded(details):
            details = {}
        return KernelFailed(kind, failed.message[:4000], **details)


def in_parts(order: Sequence[int], chance: random.Random) -> list[Sequence[int]]:
    """Cut an order at random places into one to :data:`MOST_PARTS` parts, none of them empty."""
    count = chance.randint(1, max(1, min(MOST_PARTS, len(order))))
    cuts = sorted(chance.sample(range(1, len(order)), count - 1)) if count > 1 else []
    return [order[start:end] for start, end in zip([0, *cuts], [*cuts, len(order)], strict=True)]


def _breach() -> KernelFailed:
    return KernelFailed(FailureKind.POLICY_BREACH, "the kernel wrote to the runner's own channel")
