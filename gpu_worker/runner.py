"""The runner process: holds one kernel's code and obeys the judge. No torch, no third-party module, no verdicts.

On ``cpu`` the kernel's host code runs in here, so nothing that this process says is believed without a check.
Start: ``python -I -S runner.py SOURCE_ROOT MODULE:DEVICE CHANNEL_FD``.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])

from gpu_worker.channel import Channel, ChannelClosed
from gpu_worker.messages import runner as messages
from gpu_worker.targets.base import GraphRunnerDevice, RunnerDevice, RunnerError, load_factory
from gpu_worker.targets.borrowing import BorrowingRunnerDevice

if TYPE_CHECKING:
    from collections.abc import Sequence


MESSAGE_CHARACTERS = 4000
"""Of a failure's message: compilers write more, and the judge bounds the length of an answer."""


def serve(channel: Channel, device: RunnerDevice) -> None:
    """Answer the judge's commands until it hangs up."""
    while True:
        try:
            data, descriptors = channel.receive(descriptors=1)
        except ChannelClosed:
            return
        channel.send(messages.as_json(answered(device, messages.command(data), descriptors)))


def answered(device: RunnerDevice, command: messages.Command, descriptors: Sequence[int]) -> messages.Answer:
    """Carry a command out, and return its answer."""
    try:
        return _execute(device, command, descriptors)
    except RunnerError as error:
        return messages.Failed(error.kind, str(error)[:MESSAGE_CHARACTERS], error.details)
    except MemoryError:
        return messages.Failed("out_of_memory", "the runner ran out of memory")


def _execute(device: RunnerDevice, command: messages.Command, descriptors: Sequence[int]) -> messages.Answer:
    match command:
        case messages.Run():
            return _timed(device, command.order)
        case messages.Capture() | messages.Replay():
            return _through_graph(device, command)
        case messages.Lend() | messages.Free() | messages.RunEmpty():
            return _borrowing(device, command, descriptors)
        case messages.Attach():
            device.attach(command.handle, descriptors)
        case messages.Bind():
            device.bind(command.slots)
        case messages.Reset():
            device.reset()
        case messages.Load():
            return messages.Loaded(device.load(command.binary, command.launches))
    return messages.Acknowledged()


def _timed(device: RunnerDevice, order: Sequence[int]) -> messages.Timed:
    seconds = device.run(order)
    return messages.Timed(seconds, device.places() if isinstance(device, BorrowingRunnerDevice) else [])


def _borrowing(
    device: RunnerDevice, command: messages.Lend | messages.Free | messages.RunEmpty, descriptors: Sequence[int]
) -> messages.Answer:
    if not isinstance(device, BorrowingRunnerDevice):
        raise RunnerError("infrastructure", "this runner holds no imported file")
    match command:
        case messages.Free():
            return messages.Freed(device.free())
        case messages.RunEmpty():
            return messages.Timed(device.run_empty())
        case messages.Lend():
            device.lend(command.handle, descriptors)
    return messages.Acknowledged()


def _through_graph(device: RunnerDevice, command: messages.Capture | messages.Replay) -> messages.Answer:
    if not isinstance(device, GraphRunnerDevice):
        return messages.Captured("this runner has no graphs")
    if isinstance(command, messages.Capture):
        return messages.Captured(device.capture(command.order))
    return messages.Timed(device.replay())


def command_line(python: str, flags: Sequence[str], device: str, descriptor: int) -> tuple[str, ...]:
    """Return the command line of a runner for the device factory ``module:name``."""
    here = Path(__file__).resolve()
    return (python, *flags, str(here), str(here.parent.parent), device, str(descriptor))


def main() -> None:
    """Run the runner process."""
    _, _, factory, descriptor = sys.argv
    gc.disable()  # for an imported file, it imports torch: see the judge's start
    device = load_factory(factory)()
    gc.enable()
    serve(Channel.from_descriptor(int(descriptor)), device)


if __name__ == "__main__":
    main()
