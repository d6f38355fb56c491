"""Events are read in order without losing any: writers say where they began, readers stop before the first of them.

Ids come from a sequence, so a transaction may commit a lower id after a reader has seen a higher one. Before its first
event a transaction takes a shared advisory lock whose key holds the sequence's value at that moment; it goes with the
transaction. ``events_settled`` is an id up to which no open transaction can have one (docs/decisions/0007). It must be
called in a statement before the one that reads the events.
"""

from __future__ import annotations

from collections.abc import Sequence

from alembic import op

revision: str = "0005"
down_revision: str | Sequence[str] | None = "0004"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

LAST = "CASE WHEN is_called THEN last_value ELSE last_value - 1 END"
"""Of a sequence: the last number that it gave away."""

ANNOUNCE = f"""
CREATE FUNCTION events_announce() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- Once a transaction: the setting is local to it, and is rolled back together with the lock by a savepoint.
    IF coalesce(current_setting('cupilot.events_announced', true), '') = '' THEN
        PERFORM pg_advisory_xact_lock_shared(
            (x'6376'::bigint << 48) | (SELECT {LAST} FROM events_id_seq));
        PERFORM set_config('cupilot.events_announced', '1', true);
        PERFORM pg_notify('cupilot_events', '');
    END IF;
    RETURN NULL;
END $$
"""

SETTLED = f"""
CREATE FUNCTION events_settled() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    highest bigint;
    lowest bigint;
BEGIN
    -- In this order: who has no lock by the second look takes its numbers after the first one.
    SELECT {LAST} INTO highest FROM events_id_seq;
    SELECT min(((classid::bigint & 65535) << 32) | objid::bigint) INTO lowest
        FROM pg_locks
        WHERE locktype = 'advisory' AND objsubid = 1 AND classid::bigint >> 16 = x'6376'::bigint
          AND database = (SELECT oid FROM pg_database WHERE datname = current_database());
    RETURN least(highest, lowest);
END $$
"""


def upgrade() -> None:
    op.execute(ANNOUNCE)
    op.execute(SETTLED)
    # For each statement: it runs before any row of it has taken its number.
    op.execute(
        "CREATE TRIGGER events_announce BEFORE INSERT ON events FOR EACH STATEMENT EXECUTE FUNCTION events_announce()"
    )


def downgrade() -> None:
    op.execute("DROP TRIGGER events_announce ON events")
    op.execute("DROP FUNCTION events_settled()")
    op.execute("DROP FUNCTION events_announce()")
