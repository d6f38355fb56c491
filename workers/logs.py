"""Log lines of the workers' processes: one line an event, with what it belongs to as ``name=value`` at its end."""

from __future__ import annotations

import logging
import sys

FORMAT = "%(asctime)s %(levelname)-7s %(process)d %(name)s %(message)s"


def set_up_logs(level: int = logging.INFO) -> None:
    """Log to standard error; for every process of a worker, before anything else logs."""
    logging.basicConfig(level=level, format=FORMAT, stream=sys.stderr, force=True)
    # Lines a task or request that say less than ours.
    logging.getLogger("celery.worker.strategy").setLevel(logging.WARNING)
    logging.getLogger("celery.app.trace").setLevel(logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.WARNING)
