"""Notices time in which nobody could work, and takes it out of jobs' wall time.

Wall time is reckoned from moments that the database wrote, since it outlives every process. Two things would so end
jobs that nobody worked on. A clock that a time server sets forward by an hour: the scheduler has a clock that nobody
can set; what the database's gains or loses against it at once is no time that passed. And an absence: the service
stopped over night, or restored from a backup. Each look is written down, so that the next one, whoever's it is, sees
how long nobody looked; what workers did without a scheduler stays wall time (:mod:`cupilot.storage.jobs.wall_time`).
Leases and postponed attempts need none of this: :mod:`cupilot.storage.queue.dispatch` bounds them.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable

from cupilot.storage.db.engine import Database
from cupilot.storage.jobs.wall_time import Look, database_seconds, last_look, note_look, shift_wall_time, take_out

logger = logging.getLogger(__name__)

SLACK_SECONDS = 5.0
"""Smaller steps are not told from a database that answers slowly, and end no job that was not about to end."""


def _unset() -> float:
    """Goes on through a suspension of the machine, which is no step of a clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ClockWatch:
    """Compares the database's clock with this machine's and with the last look that anybody wrote down.

    ``silence`` is how long nobody has to have looked for an absence, in seconds: a worker's lease. A shorter one is a
    hand-over between schedulers or a restart, in which workers go on with what they hold, and is wall time as ever.
    """

    def __init__(self, silence: float, clock: Callable[[], float] = _unset) -> None:
        self._silence = silence
        self._clock = clock
        self._id = uuid.uuid4()
        self._ahead: float | None = None

    def look(self, database: Database) -> None:
        """Take out what nobody could use since the last look, and write this one down, in one transaction.

        Only who made the last look itself can tell a step of the database's clock; otherwise another scheduler has
        seen the step, or it lies in the absence and goes with it. A clock that was set back while nobody looked is
        left alone: how long it was is not known, and taking too little is better than ending jobs.
        """
        with database.transaction() as session:
            last = last_look(session)
            asked = self._clock()
            now = database_seconds(session)
            answered = self._clock()
            ahead = now - (asked + answered) / 2
            known = last is not None and last.scheduler == self._id
            step = ahead - self._ahead if known and self._ahead is not None else 0.0
            if abs(step) > SLACK_SECONDS + (answered - asked):
                logger.warning("the database's clock was set by %+.1f s: no wall time of any job", step)
                shift_wall_time(session, step)
            else:
                step = 0.0
            if last is not None and now - step - last.at > self._silence:
                jobs = take_out(session, last.at, now - step)
                logger.warning("nobody looked for %.0f s: that is no wall time of %d jobs", now - step - last.at, jobs)
            note_look(session, Look(self._id, now))
        self._ahead = ahead
