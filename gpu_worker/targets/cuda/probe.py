"""A program that prints what the driver says about one GPU as JSON: the fields of ``cupilot.domain.hardware.Device``.

Runs in a fresh process, to describe the device and to see whether it still works after a fault: it also allocates
memory, fills it and reads it back.
Start: ``python -I probe.py SOURCE_ROOT``; the GPU is the one that ``CUDA_VISIBLE_DEVICES`` names.
"""

from __future__ import annotations

import json
import sys
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, sys.argv.pop(1))

from gpu_worker.targets.cuda import driver


def describe() -> dict[str, Any]:
    """Return the device's facts; raises :class:`gpu_worker.targets.cuda.driver.DriverError` where it does not work."""
    context = driver.Context()
    major, minor = context.compute_capability
    facts = {
        "target": "cuda",
        "uid": driver.device_uuid(context.device),
        "name": driver.device_name(context.device),
        "arch": f"sm_{major}{minor}",
        "units": context.attribute("MULTIPROCESSOR_COUNT"),
        "memory_bytes": driver.memory_bytes(context.device),
        "cache_bytes": context.attribute("L2_CACHE_SIZE"),
        "shared_bytes_per_block": context.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        "registers_per_unit": context.attribute("MAX_REGISTERS_PER_MULTIPROCESSOR"),
        "threads_per_unit": context.attribute("MAX_THREADS_PER_MULTIPROCESSOR"),
    }
    driver.exercise()
    return facts


def main() -> int:
    """Print the facts, or why there are none; exit code 0 where the device works."""
    try:
        facts = describe()
    except (driver.DriverError, RuntimeError, ImportError) as error:  # cuda-bindings raises these without a driver
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps(facts) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
