"""Run a role's module once its gate opens; until then import what the role will need.

The imports of five Python processes are most of a stack's start. They need no server, so they run while Postgres makes
its files. The gate is the standard input, whose end opens it. Run as a file: ``launch.py MODULE PRELOADS ARGUMENTS``.
"""

from __future__ import annotations

import gc
import os
import runpy
import sys
from importlib import import_module


def wait_for_gate() -> None:
    """Return when the supervisor lets this process go on; afterwards the standard input is empty."""
    while os.read(0, 1):
        pass
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def main() -> None:
    """Import, wait, become the module."""
    module, preload, *arguments = sys.argv[1:]
    gc.disable()  # looking for garbage among what imports leave takes an eighth of their time
    for name in preload.split(","):
        import_module(name)
    gc.freeze()
    gc.enable()
    wait_for_gate()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
