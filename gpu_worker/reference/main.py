"""Start of the reference process: ``python -I main.py SOURCE_ROOT MODULE:DEVICE OPTIONS_JSON CHANNEL_FD``.

Runs in a sandbox of its own: the reference is user code.
"""

from __future__ import annotations

import gc
import json
import sys

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    gc.disable()  # until all is imported: looking for garbage in 400,000 new objects takes 0.3 of 1.7 s

from gpu_worker.channel import Channel
from gpu_worker.reference.server import ReferenceServer
from gpu_worker.targets.base import JudgeDevice, load_factory


def main() -> None:
    """Run the reference process."""
    gc.enable()
    _, _, factory, options, descriptor = sys.argv
    channel = Channel.from_descriptor(int(descriptor))
    channel.wait(None)  # for a problem: until then the process takes nothing of the device
    device: JudgeDevice = load_factory(factory)(**json.loads(options))
    ReferenceServer(channel, device).serve()


if __name__ == "__main__":
    main()
