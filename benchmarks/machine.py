"""The machine that a number was taken on, in one line. Needs the standard library only."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def machine() -> str:
    """Return cores and their model, memory, Python, user, and the machine's other load."""
    models = {
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    }
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    user = "root" if os.geteuid() == 0 else "a normal user"
    load = os.getloadavg()[0]
    python = platform.python_version()
    return f"{cores} cores ({', '.join(sorted(models))}), {memory:.0f} GiB, Python {python}, {user}, load {load:.1f}"
