"""The ``cupilot`` command line. Commands are thin: the work is done by :mod:`cupilot.client` and the service.

Whatever a command does not need stays unimported, so that ``cupilot --help`` is quick.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

UNUSED_BY_HTTPX = ("httpx._main", "h2", "trio")
"""Modules that httpx and httpcore import where they are installed, and no command uses: httpx's own command line,
HTTP/2, and another event loop. Together they take longer to import than all else of both."""


def main() -> None:
    """Run the command line and end the process with its exit code (:mod:`cupilot.cli.outcome`)."""
    try:
        app = _load()
        app()
    except KeyboardInterrupt:
        sys.exit(130)


def _load() -> Callable[[], object]:
    """Import the commands; end the process with a plain message where the extra ``client`` is not installed."""
    for name in UNUSED_BY_HTTPX:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    try:
        from cupilot.cli.app import app
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "cupilot":
            raise
        sys.exit(
            f"error: the command line needs {package}, which is not installed\n  next: pip install 'cupilot[client]'"
        )
    return app
