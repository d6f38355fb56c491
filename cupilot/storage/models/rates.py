"""Rate limits of models, shared by all workers: token buckets in Postgres, which a flushed Redis cannot lose.

A bucket holds a minute's worth and fills at the limit's rate (the token bucket of RFC 2697 section 3, with one rate).
Whoever does not find enough in it takes nothing and learns how long to wait. Sleeps nowhere.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from cupilot.storage.db.tables.models import LlmRate

MINUTE = 60.0
UNLIMITED = 1e12


def take(
    session: Session, model: str, *, requests_per_minute: float | None, tokens_per_minute: float | None, tokens: int
) -> float:
    """Take a request of ``tokens`` from the model's buckets; return 0.0, or the seconds to wait for it.

    A request that is larger than the whole bucket takes a full one.
    """
    requests_cap, tokens_cap = requests_per_minute or UNLIMITED, tokens_per_minute or UNLIMITED
    row, now = _locked(session, model, requests_cap, tokens_cap)
    elapsed = max((now - row.updated_at).total_seconds(), 0.0)
    row.requests = min(row.requests + elapsed * requests_cap / MINUTE, requests_cap)
    row.tokens = min(row.tokens + elapsed * tokens_cap / MINUTE, tokens_cap)
    row.updated_at = now
    wanted = min(float(tokens), tokens_cap)
    wait = max(
        (1.0 - row.requests) * MINUTE / requests_cap,
        (wanted - row.tokens) * MINUTE / tokens_cap,
        (row.blocked_until - now).total_seconds() if row.blocked_until else 0.0,
    )
    if wait > 0:
        return wait
    row.requests -= 1.0
    row.tokens -= wanted
    return 0.0


def settle(session: Session, model: str, *, taken: int, used: int) -> None:
    """Correct the tokens taken by an estimate to those that were used."""
    _change(session, model, lambda row, _: setattr(row, "tokens", row.tokens + taken - used))


def back_off(session: Session, model: str, seconds: float) -> None:
    """Keep all workers from calling the model for so long: the provider told one of them to wait."""

    def hold(row: LlmRate, now: datetime) -> None:
        until = now + timedelta(seconds=seconds)
        row.blocked_until = max(row.blocked_until, until) if row.blocked_until else until

    _change(session, model, hold)


def _change(session: Session, model: str, change: Callable[[LlmRate, datetime], None]) -> None:
    change(*_locked(session, model, UNLIMITED, UNLIMITED))


def _locked(session: Session, model: str, requests: float, tokens: float) -> tuple[LlmRate, datetime]:
    """Return the model's row, new with full buckets, locked until the transaction ends; and the database's time."""
    made = insert(LlmRate).values(model=model, requests=requests, tokens=tokens, updated_at=func.clock_timestamp())
    session.execute(made.on_conflict_do_nothing())
    row = session.get_one(LlmRate, model, with_for_update=True, populate_existing=True)
    now = session.scalars(select(func.clock_timestamp())).one().astimezone(UTC)
    set_back = row.updated_at - now
    if set_back > timedelta(0):  # the database's clock was: what lies ahead by it comes back with it
        row.updated_at = now
        row.blocked_until = row.blocked_until - set_back if row.blocked_until else None
    return row, now
