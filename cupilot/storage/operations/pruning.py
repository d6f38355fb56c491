"""Hold pruning back after the database's clock was set far ahead: what seems old then may not be, and would be gone."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from cupilot.storage.db.tables.queue import SchedulerTick

FAR_SECONDS = 3_600.0
"""A shorter step makes little look older than it is."""
HELD = timedelta(hours=6)
"""Time in which somebody may notice the clock and set it back."""


def hold_pruning(session: Session) -> None:
    """Let nothing be pruned for :data:`HELD`; the scheduler has looked before."""
    session.execute(update(SchedulerTick).values(prune_after=func.clock_timestamp() + HELD))


def may_prune(session: Session) -> bool:
    """Return whether what is old by the clock may be removed; also once the clock was set back again."""
    ahead = SchedulerTick.prune_after - func.clock_timestamp()
    held = select(SchedulerTick.single).where(ahead.between(timedelta(), HELD)).exists()
    return not session.execute(select(held)).scalar_one()
