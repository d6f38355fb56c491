"""Speculative builds: while a step is on a device, builds kernels of the next steps on idle cores.

Reads the queue and claims nothing: any worker may take the steps, and a build made in vain costs seconds of a core.
Errors are logged only; the steps themselves meet them again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType

from sqlalchemy import select
from sqlalchemy.orm import Session

from cupilot.domain.errors import CupilotError
from cupilot.domain.evaluation import Preparation
from cupilot.domain.kernel import Kernel
from cupilot.domain.states import StepKind
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.jobs.progress import file_of, preparation_of
from cupilot.storage.queue.dispatch import next_steps
from cupilot.storage.queue.drains import is_drained
from cupilot.storage.queue.steps import Claim
from workers.judge import Judge
from workers.tools import Tools

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Interval between looks at the queue: about one measurement on a GPU."""

WITH_KERNEL = (StepKind.EVALUATE, StepKind.ATTRIBUTE)
"""Steps that name the kernel to build. One that is to be confirmed has been built."""


class BuildAheadThread:
    """Context manager around the work on a claimed step; runs no thread where nothing may be built ahead."""

    def __init__(self, tools: Tools, judge: Judge, claim: Claim, draining: Callable[[], bool]) -> None:
        self._database = tools.database
        self._judge = judge
        self._claim = claim
        self._draining = draining
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> BuildAheadThread:
        if self._judge.builds_ahead > 0:
            self._thread = threading.Thread(target=self._run, name=f"ahead-{self._claim.key}", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()
            if self._draining():
                self._judge.end_builds()

    def _run(self) -> None:
        while not self._done.is_set() and not self._draining():
            try:
                self._build_next()
            except CupilotError as error:
                logger.info("speculative build skipped: %s", error)
            except Exception:
                logger.exception("speculative builds ended for this step")
                return
            self._done.wait(LOOK_SECONDS)

    def _build_next(self) -> None:
        with self._database.transaction() as session:
            waiting = self._waiting(session)
        for preparation, kernel in waiting:
            if self._done.is_set():
                return
            if self._judge.build_ahead(preparation, [kernel]):
                logger.debug("speculative build kernel=%s", kernel.content_hash())

    def _waiting(self, session: Session) -> list[tuple[Preparation, Kernel]]:
        """Return what the next steps of this queue will have built; nothing where the worker is drained."""
        if is_drained(session, self._claim.owner):
            return []
        queue = session.get_one(Step, self._claim.step_id).queue
        waiting = []
        for step_id in next_steps(session, queue, WITH_KERNEL, self._judge.builds_ahead):
            job, payload = session.execute(
                select(Job, Step.payload).join(Step, Step.job_id == Job.id).where(Step.id == step_id)
            ).one()
            kernel = file_of(session, payload["kernel"])
            if isinstance(kernel, Kernel):  # an imported file is compiled by its runner
                waiting.append((preparation_of(job), kernel))
        return waiting
