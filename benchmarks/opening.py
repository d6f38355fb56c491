"""The program that :mod:`benchmarks.judge_open` starts: opens the card as a runner does, and tells when each part was
done.

Start: ``python -I opening.py SOURCE_ROOT DESCRIPTOR GIGABYTES``; it writes one line of JSON to the descriptor.
"""

from __future__ import annotations

import json
import os
import sys
import time

PARTS = ("interpreter", "imports", "driver", "context", "objects", "first work", "shared memory")
"""Timed steps, in order: the start until the first line of this program, then each of its steps."""


def main() -> None:
    """Open, tell, wait to be killed."""
    marks = [time.monotonic()]
    sys.path.insert(0, sys.argv[1])
    from cuda.bindings import driver as cu

    from gpu_worker.targets.cuda import driver

    marks.append(time.monotonic())
    driver.check(cu.cuInit(0), "starting the driver")
    marks.append(time.monotonic())
    context = driver.Context()
    marks.append(time.monotonic())
    stream, size = driver.Stream(), 2 * context.attribute("L2_CACHE_SIZE")
    flush = driver.allocate(size)
    event = driver.Event()
    marks.append(time.monotonic())
    stream.fill(flush, size)
    event.record(stream)
    stream.synchronize()
    marks.append(time.monotonic())
    driver.SharedMemory.create(int(float(sys.argv[3]) * 2**30))
    marks.append(time.monotonic())
    os.write(int(sys.argv[2]), json.dumps(marks).encode() + b"\n")
    time.sleep(600)


if __name__ == "__main__":
    main()
