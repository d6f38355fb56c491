"""Notices that the database's clock was set, and takes the step out of jobs' wall time.

Wall time is reckoned from moments that the database wrote, since it outlives every process. A clock that a time server
sets forward by an hour would so end every job whose budget is an hour. The scheduler has a clock that nobody can set;
what the database's gains or loses against it at once is no time that passed. Leases and postponed attempts need none
of this: :mod:`cupilot.storage.dispatch` bounds them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from cupilot.storage.database import Database
from cupilot.storage.dispatch import database_seconds, shift_wall_time

logger = logging.getLogger(__name__)

SLACK_SECONDS = 5.0
"""Smaller steps are not told from a database that answers slowly, and end no job that was not about to end."""


def _unset() -> float:
    """Goes on through a suspension of the machine, which is time that passed."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ClockWatch:
    """Compares the database's clock with this machine's, from look to look."""

    def __init__(self, clock: Callable[[], float] = _unset) -> None:
        self._clock = clock
        self._ahead: float | None = None

    def forget(self) -> None:
        """Another scheduler is in charge, and looks for itself."""
        self._ahead = None

    def look(self, database: Database) -> None:
        """Take a step of the database's clock since the last look out of the wall time of the jobs that were open."""
        with database.transaction() as session:
            asked = self._clock()
            now = database_seconds(session)
            answered = self._clock()
            ahead = now - (asked + answered) / 2
            step = 0.0 if self._ahead is None else ahead - self._ahead
            if abs(step) > SLACK_SECONDS + (answered - asked):
                logger.warning("the database's clock was set by %+.1f s: no wall time of any job", step)
                shift_wall_time(session, step)
        self._ahead = ahead
