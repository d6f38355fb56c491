"""Lease cards to workers: one worker a card at a time, on whatever machine or in whatever container it runs.

Processes of one machine also take turns by a file lock, which containers do not share unless they share its folder. A
worker takes the lease of its card when it comes up and renews it with each heartbeat and each claim; a dead worker's
lease runs out. A CPU has no lease: it is shared.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, case, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from cupilot.domain.errors import Unavailable
from cupilot.domain.hardware import Device
from cupilot.domain.problem import Target
from cupilot.storage.db.engine import settings_of
from cupilot.storage.db.tables.queue import CardLease


class CardTaken(Unavailable):
    """Another worker holds the card, and its lease has not run out."""

    code = "card_taken"


def take_card(session: Session, device: Device | None, worker: str) -> None:
    """Take the lease of a worker's card, or renew it; nothing to do without a card. Raises :class:`CardTaken`."""
    if device is None or device.target is not Target.CUDA:
        return
    row = insert(CardLease).values(uid=device.uid, worker=worker, expires_at=_until(session))
    is_own = CardLease.worker == worker
    values = {
        "worker": worker,
        "expires_at": _until(session),
        "since": case((is_own, CardLease.since), else_=func.now()),
    }
    taken = row.on_conflict_do_update(index_elements=["uid"], set_=values, where=is_own | _expired(session))
    if session.execute(taken.returning(CardLease.uid)).one_or_none() is None:
        raise _taken(session, device.uid)


def renew_card(session: Session, worker: str) -> bool:
    """Renew the lease of the card that a worker has; False where it has none, or lost it to another worker."""
    renewed = (
        update(CardLease)
        .where(CardLease.worker == worker)
        .values(expires_at=_until(session))
        .returning(CardLease.uid)
        .execution_options(synchronize_session=False)
    )
    return session.execute(renewed).first() is not None


def release_card(session: Session, worker: str) -> None:
    """End the lease of a worker that stops, so that the next one need not wait for its end."""
    session.execute(delete(CardLease).where(CardLease.worker == worker))


def _until(session: Session) -> ColumnElement[datetime]:
    return func.now() + timedelta(seconds=settings_of(session).lease_seconds)


def _expired(session: Session) -> ColumnElement[bool]:
    """Return whether a lease has expired, or ends later than any given since the database's clock was set back."""
    longest = timedelta(seconds=2 * settings_of(session).lease_seconds)
    return ~CardLease.expires_at.between(func.now(), func.now() + longest)


def _taken(session: Session, uid: str) -> CardTaken:
    lease = session.scalars(select(CardLease).where(CardLease.uid == uid)).one_or_none()
    holder = f" by worker {lease.worker} since {lease.since:%Y-%m-%d %H:%M:%S} UTC" if lease else ""
    return CardTaken(
        f"card {uid} is held{holder}",
        hint="a card has one worker: end that one, or give this one another card with --device; "
        f"the lease of a dead worker expires after {settings_of(session).lease_seconds:g} s (CUPILOT_LEASE_SECONDS)",
    )
