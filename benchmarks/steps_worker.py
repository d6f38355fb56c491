"""The agent worker of :mod:`benchmarks.steps`, real but for its steps' work: ``steps_worker SLOTS``."""

from __future__ import annotations

import sys
from typing import cast

from cupilot.domain.states import StepKind
from cupilot.settings import settings
from tests.service.worker_process import scripted
from workers.handlers.handler import Handler
from workers.handlers.registry import HANDLERS
from workers.logs import set_up_logs
from workers.worker import run_worker

NOTHING: Handler[None, None] = Handler(
    load=lambda _session, _claim: None,
    work=lambda _input, _tools, _cancelled: None,
    store=lambda _session, _job, _step, _result: None,
)


def main() -> None:
    """Serve until SIGTERM."""
    set_up_logs()
    handlers = cast(dict[StepKind, Handler[None, None]], HANDLERS)
    handlers[StepKind.TRANSLATE] = handlers[StepKind.PREPARE] = NOTHING
    run_worker(settings(), None, concurrency=int(sys.argv[1]), tools=scripted)


if __name__ == "__main__":
    main()
