"""A program for a profiler to watch: launches a built kernel over rotating slots, as the judge's timer does.

One block: a flush of the cache, then each slot once, back to back. Its slots together exceed the cache, so that a
launch finds the cache as launches before it left it. Prints the device's own seconds a launch, by events around the
block. Start: ``python -I rotating_replay.py SOURCE_ROOT SPECIFICATION``, a JSON file with the fields of :class:`Block`.
"""

from __future__ import annotations

import json
import random
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, sys.argv.pop(1))

from gpu_worker.targets.cuda import driver
from gpu_worker.targets.cuda.replay import PATTERN_FLOATS
from gpu_worker.targets.cuda.runner import CudaRunner


@dataclass(frozen=True)
class Block:
    """A block of launches."""

    binary: str
    launches: Sequence[Mapping[str, Any]]
    """``ResolvedLaunch`` as JSON."""
    buffers: Mapping[str, int]
    """Bytes of each tensor and workspace of a slot."""
    floats: Sequence[str]
    """Given tensors, all of float32: they get normally distributed values."""
    slots: int
    blocks: int


def run(block: Block) -> list[float]:
    """Allocate, fill, launch; device seconds a launch of each block."""
    context = driver.Context()
    generator = random.Random(0)
    pattern = array("f", (generator.gauss(0.0, 1.0) for _ in range(PATTERN_FLOATS))).tobytes()
    slots = [{name: driver.allocate(max(size, 1)) for name, size in block.buffers.items()} for _ in range(block.slots)]
    for slot in slots:
        for name in block.floats:
            driver.write(slot[name], pattern, block.buffers[name])
    runner = CudaRunner()
    runner.load(block.binary, block.launches)
    runner.adopt(0)  # what is bound are addresses, not offsets
    runner.bind(slots)
    times = [runner.run(range(block.slots)) / block.slots for _ in range(block.blocks)]
    context.synchronize()
    return times


if __name__ == "__main__":
    print(json.dumps(run(Block(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))))
