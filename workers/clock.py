"""Take time in which nobody could work out of jobs' wall time: steps of the database's clock, and outages.

Wall time is computed from timestamps of the database, which outlives every process. A clock that a time server sets
forward by an hour would so end jobs: a step is told by comparison with this machine's boot clock, which nobody can
set. So would an outage, such as a night or the time since a backup: each look is recorded, so that the next one, by
whichever scheduler, sees how long nobody looked. What workers did without a scheduler stays wall time
(:mod:`cupilot.storage.jobs.wall_time`). Leases and backoffs need none of this: :mod:`cupilot.storage.queue.dispatch`
bounds them. What is pruned is gone for good: after a step far ahead nothing is for some hours.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable

from cupilot.storage.db.engine import Database
from cupilot.storage.jobs.wall_time import Tick, database_seconds, last_tick, record_tick, shift_wall_time, take_out
from cupilot.storage.operations.pruning import FAR_SECONDS, HELD, hold_pruning

logger = logging.getLogger(__name__)

SLACK_SECONDS = 5.0
"""Smaller steps cannot be told from a slow database, and end no job that was not about to end."""


def _boot_clock() -> float:
    """Return seconds of a clock that nobody can set, and that goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ClockWatch:
    """Compares the database's clock with this machine's and with the last recorded look.

    ``silence`` is the shortest gap between looks that is an outage, in seconds: a worker's lease. A shorter one is a
    restart or a change of schedulers, during which workers keep their leases, and is wall time as ever.
    """

    def __init__(self, silence: float, clock: Callable[[], float] = _boot_clock) -> None:
        self._silence = silence
        self._clock = clock
        self._id = uuid.uuid4()
        self._ahead: float | None = None

    def look(self, database: Database) -> None:
        """Take out what nobody could use since the last look, and record this one, in one transaction.

        Only the scheduler that made the last look can tell a step of the database's clock; otherwise another one has
        seen the step, or it lies in the outage and is taken out with it. A clock that was set back during an outage
        is left alone: its length is unknown, and taking out too little is better than ending jobs.
        """
        with database.transaction() as session:
            last = last_tick(session)
            before = self._clock()
            now = database_seconds(session)
            after = self._clock()
            ahead = now - (before + after) / 2
            known = last is not None and last.scheduler == self._id
            step = ahead - self._ahead if known and self._ahead is not None else 0.0
            if abs(step) > SLACK_SECONDS + (after - before):
                logger.warning("database clock stepped by %+.1f s: not counted as wall time", step)
                shift_wall_time(session, step)
            else:
                step = 0.0
            if last is not None and now - step - last.at > self._silence:
                jobs = take_out(session, last.at, now - step)
                logger.warning(
                    "no scheduler for %.0f s: not counted as wall time of %d jobs", now - step - last.at, jobs
                )
            record_tick(session, Tick(self._id, now))
            if step > FAR_SECONDS:
                logger.warning("nothing is pruned for %s: check the clock of the database's machine", HELD)
                hold_pruning(session)
        self._ahead = ahead
