"""The ``cupilot`` command line. Commands are thin: the work is done by :mod:`cupilot.client` and the service.

Whatever a command does not need stays unimported, so that ``cupilot --help`` is quick.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and end the process with its exit code (:mod:`cupilot.cli.outcome`)."""
    try:
        from cupilot.cli.app import app

        app()
    except KeyboardInterrupt:
        sys.exit(130)
