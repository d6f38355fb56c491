"""The runner process: holds one kernel's code and obeys the judge. No torch, no third-party module, no verdicts.

On ``cpu`` the kernel's host code runs in here, so nothing that this process says is believed without a check.
Start: ``python -I -S runner.py SOURCE_ROOT MODULE:DEVICE CHANNEL_FD``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])

from gpu_worker.channel import Channel, ChannelClosed
from gpu_worker.targets.base import GraphRunnerDevice, RunnerDevice, RunnerError, load_factory

if TYPE_CHECKING:
    from collections.abc import Sequence


MESSAGE_CHARACTERS = 4000
"""Of a failure's message: compilers write more, and the judge accepts no answer of any length."""


def serve(channel: Channel, device: RunnerDevice) -> None:
    """Answer the judge's commands until it hangs up."""
    while True:
        try:
            message, descriptors = channel.receive(descriptors=1)
        except ChannelClosed:
            return
        channel.send(answered(device, message, descriptors))


def answered(device: RunnerDevice, message: dict[str, Any], descriptors: Sequence[int]) -> dict[str, Any]:
    """Carry a command out; return its answer."""
    try:
        return {"ok": True, **_execute(device, message, descriptors)}
    except RunnerError as error:
        return {"ok": False, "kind": error.kind, "message": str(error)[:MESSAGE_CHARACTERS], "details": error.details}
    except MemoryError:
        return {"ok": False, "kind": "out_of_memory", "message": "the runner ran out of memory", "details": {}}


def _execute(device: RunnerDevice, message: dict[str, Any], descriptors: Sequence[int]) -> dict[str, Any]:
    operation = message["op"]
    if operation == "run":
        return {"seconds": device.run(message["order"])}
    if operation in ("capture", "replay"):
        return _through_graph(device, message)
    if operation == "attach":
        device.attach(message["handle"], descriptors)
        return {}
    if operation == "bind":
        device.bind(message["slots"])
        return {}
    if operation == "load":
        return {"facts": device.load(message["binary"], message["launches"])}
    raise ValueError(f"unknown command {operation!r}")


def _through_graph(device: RunnerDevice, message: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(device, GraphRunnerDevice):
        return {"reason": "this runner has no graphs"}
    if message["op"] == "capture":
        return {"reason": device.capture(message["order"])}
    return {"seconds": device.replay()}


def command(python: str, flags: Sequence[str], device: str, descriptor: int) -> tuple[str, ...]:
    """The command line of a runner for the device factory ``module:name``."""
    here = Path(__file__).resolve()
    return (python, *flags, str(here), str(here.parent.parent), device, str(descriptor))


def main() -> None:
    """Entry point of the runner process."""
    _, _, factory, descriptor = sys.argv
    serve(Channel.from_descriptor(int(descriptor)), load_factory(factory)())


if __name__ == "__main__":
    main()
