"""A program for tools to watch: runs a built kernel's plan a few times on random data, with no judge around it.

Prints nothing and proves nothing; a profiler counts and a checker looks. Each tensor is an allocation of its own, so
that a checker sees accesses beyond its end; the host never writes outputs and workspace, so that it sees reads of them.
Start: ``python -I replay.py SOURCE_ROOT SPECIFICATION``, a JSON file with the fields of :class:`Replay`.
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
from gpu_worker.targets.cuda.runner import CudaRunner

PATTERN_FLOATS = 1 << 18
"""Random values that are repeated through a buffer; drawing all of them in Python would take minutes."""


@dataclass(frozen=True)
class Replay:
    """A kernel to run, on random data."""

    binary: str
    launches: Sequence[Mapping[str, Any]]
    """``ResolvedLaunch`` as JSON."""
    buffers: Mapping[str, int]
    """Bytes of each tensor and workspace."""
    floats: Sequence[str]
    """Given float32 tensors: they get normally distributed values."""
    zeros: Sequence[str]
    """Given tensors of other types: they get zeros, which are valid indices too."""
    times: int


def run(replay: Replay) -> None:
    """Allocate, fill and launch."""
    context = driver.Context()
    pointers = {name: driver.allocate(max(nbytes, 1)) for name, nbytes in replay.buffers.items()}
    generator = random.Random(0)
    pattern = array("f", (generator.gauss(0.0, 1.0) for _ in range(PATTERN_FLOATS))).tobytes()
    for name in replay.floats:
        driver.write(pointers[name], pattern, replay.buffers[name])
    for name in replay.zeros:
        driver.write(pointers[name], bytes(len(pattern)), replay.buffers[name])
    runner = CudaRunner()
    runner.load(replay.binary, replay.launches)
    runner.adopt(0)  # what is bound are addresses, not offsets
    runner.bind([pointers])
    for _ in range(replay.times):
        runner.run([0])
    context.synchronize()


def main() -> None:
    """Replay the kernel of a specification file."""
    run(Replay(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
