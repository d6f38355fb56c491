"""The judge's line to a runner: commands with deadlines, and the judge's own clock around them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cupilot.domain.evaluation import FailureKind
from gpu_worker.channel import SEND_SECONDS, Channel, ChannelClosed, ChannelError, ChannelTimeout
from gpu_worker.judge.slots import Slots
from gpu_worker.judge_answers import modest
from gpu_worker.targets.base import GraphUnavailable

LOAD_SECONDS = 60.0
ATTACH_SECONDS = 60.0
"""Populating the pages of a large arena takes about 0.3 s a gigabyte."""

ANSWER_BYTES = 2**17
"""Largest answer to a command. A time has 50 bytes; a failure with a message and a build log of 4000 characters each,
all of them escaped, has 96 KB."""

LOAD_BYTES = 2**18
"""Largest answer to ``load``, whose facts have 250 bytes for each of at most 32 launches, and names."""

DETAILS_BYTES = 2**16
"""Largest size of the details of a failure, as JSON; others are left out. A build log of 4000 characters, all of them
escaped, has 48 KB. They become part of the evaluation's record."""


Release = Callable[[], float | None]
"""Lets a runner that was held go on, and gives the moment; None where none was held."""


class KernelFailed(Exception):
    """The kernel did something that ends its evaluation."""

    def __init__(self, kind: FailureKind, message: str, /, **details: Any) -> None:
        super().__init__(message)
        self.kind = kind
        self.details = details


class RunnerLost(Exception):
    """The runner is gone; the supervisor knows how it ended."""


_NOT_TO_SAY = frozenset(
    {
        FailureKind.INFRASTRUCTURE, FailureKind.INVALID_PROBLEM, FailureKind.CLOCK_MISMATCH, FailureKind.BELOW_FLOOR,
    }
)  # fmt: skip
"""What a process with host code of the kernel's may not say of itself: it would count against no kernel, or wait for a
person."""


class RunnerLink:
    """One runner, as the judge drives it."""

    def __init__(self, channel: Channel, *, trusted: bool = True) -> None:
        """``trusted``: no host code of the kernel's runs in the runner."""
        self._channel = channel
        self._trusted = trusted

    def load(self, binary: str, launches: Sequence[Mapping[str, Any]], timeout: float = LOAD_SECONDS) -> dict[str, Any]:
        """Load the kernel; returns the facts that the runner found."""
        answer = self._ask({"op": "load", "binary": binary, "launches": list(launches)}, timeout, limit=LOAD_BYTES)
        facts = answer.get("facts")
        if not isinstance(facts, dict):
            return {}
        if not modest(facts):
            raise KernelFailed(FailureKind.POLICY_BREACH, "the kernel wrote to the runner's own channel")
        return facts

    def use(self, slots: Slots) -> None:
        """Give the runner an arena and tell it where the slots' tensors lie."""
        self._ask({"op": "attach", "handle": slots.handle}, ATTACH_SECONDS, slots.descriptors)
        self._ask({"op": "bind", "slots": slots.offsets()}, ATTACH_SECONDS)

    def capture(self, order: Sequence[int]) -> None:
        """Have the plan, once for each slot, made one graph. Raises GraphUnavailable where that cannot be."""
        reason = self._ask({"op": "capture", "order": list(order)}, LOAD_SECONDS).get("reason")
        if reason is not None:
            raise GraphUnavailable(f"the kernel's launches cannot be captured: {str(reason)[:200]}")

    def run(self, order: Sequence[int], timeout: float, release: Release | None = None) -> tuple[float, float]:
        """Run the plan once for each slot; seconds on the judge's clock and as the runner reports them.

        A runner that is held is released when the order lies before it, and the clock starts then: there is no time
        between the two in which threads of the kernel's could work.
        """
        return self._timed({"op": "run", "order": list(order)}, timeout, release)

    def replay(self, timeout: float, release: Release | None = None) -> tuple[float, float]:
        """As :meth:`run`, through the graph that was captured last."""
        return self._timed({"op": "replay"}, timeout, release)

    def _timed(self, message: dict[str, Any], timeout: float, release: Release | None) -> tuple[float, float]:
        started = time.perf_counter()
        self._say(message)
        released = release() if release is not None else None
        answer = self._hear(message, timeout)
        host = time.perf_counter() - (started if released is None else released)
        reported = answer.get("seconds")
        if not isinstance(reported, int | float):
            raise KernelFailed(FailureKind.POLICY_BREACH, "the runner reported no time: the kernel tampered with it")
        if not 0 <= reported < 1e6:
            text = f"the runner's clock says that {reported:.3g} s passed where the judge's says {host:.3g} s"
            raise KernelFailed(FailureKind.CLOCK_MISMATCH, text)
        return host, float(reported)

    def _ask(
        self,
        message: dict[str, Any],
        timeout: float,
        descriptors: Sequence[int] = (),
        *,
        limit: int = ANSWER_BYTES,
    ) -> dict[str, Any]:
        self._say(message, descriptors)
        return self._hear(message, timeout, limit)

    def _say(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        if self._channel.pending():
            self._lost_or_breach()
        try:
            self._channel.send(message, descriptors, timeout=SEND_SECONDS)
        except ChannelClosed as error:
            raise RunnerLost(str(error)) from error
        except ChannelTimeout as error:
            text = f"the kernel kept the runner from reading a command for {SEND_SECONDS:.0f} s ({message['op']})"
            raise KernelFailed(FailureKind.TIMEOUT, text, seconds=SEND_SECONDS) from error

    def _hear(self, message: dict[str, Any], timeout: float, limit: int = ANSWER_BYTES) -> dict[str, Any]:
        """The answer to what was said last."""
        try:
            answer, _ = self._channel.receive(timeout, limit=limit)
        except ChannelTimeout as error:
            text = f"the kernel did not finish within {timeout:.1f} s ({message['op']})"
            raise KernelFailed(FailureKind.TIMEOUT, text, seconds=timeout) from error
        except ChannelClosed as error:
            raise RunnerLost(str(error)) from error
        except ChannelError as error:
            raise KernelFailed(FailureKind.POLICY_BREACH, "the kernel wrote to the runner's own channel") from error
        if not isinstance(answer, dict) or not isinstance(answer.get("ok"), bool):
            raise KernelFailed(FailureKind.POLICY_BREACH, "the kernel wrote to the runner's own channel")
        if not answer["ok"]:
            raise self._reported(answer)
        return answer

    def _lost_or_breach(self) -> None:
        """Something lies in the channel that nobody asked for: the end of the runner, or a forged answer."""
        try:
            self._channel.receive(1.0, limit=ANSWER_BYTES)
        except ChannelClosed as error:
            raise RunnerLost(str(error)) from error
        except (ChannelTimeout, ChannelError):
            pass
        raise KernelFailed(FailureKind.POLICY_BREACH, "the kernel sent an answer that nobody had asked for")

    def _reported(self, answer: dict[str, Any]) -> KernelFailed:
        details = answer.get("details")
        try:
            kind = FailureKind(str(answer.get("kind")))
        except ValueError:
            kind = FailureKind.CRASH
        if kind in _NOT_TO_SAY and not self._trusted:
            kind = FailureKind.CRASH  # after which a GPU is looked at
        if not isinstance(details, dict) or len(json.dumps(details)) > DETAILS_BYTES or not modest(details):
            details = {}
        return KernelFailed(kind, str(answer.get("message", ""))[:4000], **details)
