"""Code of the release before on today's schema, as it is during an upgrade: migrations only add.

"Expand and contract": what is to go, goes one release after the last code that used it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, MetaData, NullPool, create_engine, select, text

from cupilot.embedded.servers import Running
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.webhooks import WebhookEndpoint
from cupilot.storage.people.audit import add_own_entry
from cupilot.storage.people.teams import create_api_key, ensure_team
from migrations import downgrade, upgrade
from tests.service.databases import new_database
from tests.service.rig import Rig
from tests.service.storage.schema_changes import Schema, breaking, schema_of

pytestmark = pytest.mark.service

REVISIONS = sorted(path.name[:4] for path in (Path(__file__).parents[3] / "migrations/versions").glob("[0-9]*.py"))
RELEASED = "0019"
"""The newest revision of the release before; whoever makes a release moves it on (docs/operations.md)."""
HELD = [number for number in REVISIONS if number > RELEASED]
DRAINED = "rows with it come from steps of jobs that the new release took, and none runs until the drain ends"


def _values(name: str, *values: str) -> dict[str, str]:
    """Values of an enumeration that rows have only once every process is new."""
    return {f"value {name} {value} is read by code that does not know it": DRAINED for value in values}


MEANT: dict[str, dict[str, str]] = {
    "0023": {"rows must satisfy steps fk_steps_batch_id_batches": "it writes no batch_id, and NULL satisfies the key"},
    "0025": _values("operator", "explore", "recombine", "retune", "next_version") | _values("step_kind", "improve"),
    "0026": _values("operator", "agentic") | _values("step_kind", "act"),
}
"""By revision: a breaking change that the release before lives with nevertheless, and why it does."""

Rows = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def changes(postgres: Running) -> dict[str, list[str]]:
    """By revision: what breaks the code of before."""
    found: dict[str, list[str]] = {}
    with new_database(postgres.url) as url:
        before: Schema | None = None
        for number in REVISIONS:
            upgrade(url, number)
            with _connected(url) as connection:
                after = schema_of(connection)
            found[number] = list(breaking(before, after)) if before else []
            before = after
    return found


@pytest.fixture
def copies(postgres: Running, migrated: str) -> Iterator[tuple[str, str]]:
    """Two databases at the newest revision."""
    with new_database(postgres.url, migrated) as one, new_database(postgres.url, migrated) as other:
        yield one, other


@pytest.mark.parametrize("number", HELD)
def test_a_migration_breaks_nothing_that_the_release_before_does(changes: dict[str, list[str]], number: str) -> None:
    assert set(changes[number]) == set(MEANT.get(number, {})), "see expand and contract in docs/operations.md"


def test_no_exception_outlives_its_migration() -> None:
    assert set(MEANT) <= set(HELD)


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        ("0008", r"column api_keys\.user_id has to be given"),
        ("0008", r"rows must satisfy api_keys fk_api_keys_user_id_users"),
        ("0009", r"value job_state paused is read by code that does not know it"),
        ("0013", r"column llm_calls\.request_hash has to be given"),
        ("0019", r"rows must satisfy audit_log audit_never_emptied"),
    ],
)
def test_what_earlier_migrations_broke_is_seen(changes: dict[str, list[str]], number: str, sentence: str) -> None:
    assert any(re.fullmatch(sentence, found) for found in changes[number]), changes[number]


@pytest.mark.parametrize(
    ("change", "sentences"),
    [
        ("DROP TABLE drains", {"table drains is gone"}),
        ("ALTER TABLE drains RENAME reason TO why",
         {"column drains.reason is gone", "column drains.why has to be given"}),
        ("ALTER TABLE drains ALTER reason TYPE varchar(9)",
         {"column drains.reason was text and is character varying(9)"}),
        ("ALTER TABLE drains ALTER since DROP DEFAULT", {"column drains.since has to be given"}),
        ("ALTER TABLE drains ADD by text NOT NULL", {"column drains.by has to be given"}),
        ("ALTER TABLE drains ADD by text NOT NULL DEFAULT ''", set()),
        ("ALTER TABLE drains ADD CONSTRAINT why CHECK (reason <> '')", {"rows must satisfy drains why"}),
        ("CREATE UNIQUE INDEX one ON drains (reason)", {"rows must satisfy drains one"}),
        ("CREATE INDEX more ON drains (reason)", set()),
        ("CREATE TABLE more (id int PRIMARY KEY, what text NOT NULL UNIQUE)", set()),
        ("CREATE TYPE mood AS ENUM ('good')", set()),
        ("ALTER TYPE priority RENAME VALUE 'low' TO 'lowest'",
         {"value priority low is gone", "value priority lowest is read by code that does not know it"}),
        ("DROP FUNCTION events_settled()", {"function events_settled() is gone or another"}),
    ],
)  # fmt: skip
def test_each_kind_of_change_is_told(database_url: str, change: str, sentences: set[str]) -> None:
    with _connected(database_url) as connection:
        before = schema_of(connection)
        connection.execute(text(change))
        assert set(breaking(before, schema_of(connection))) == sentences
        connection.rollback()


def test_rows_of_the_release_before_survive_the_upgrade_and_may_still_be_written(
    copies: tuple[str, str], settings: Settings
) -> None:
    upgraded, fresh = copies
    _fill(upgraded, settings)
    downgrade(upgraded, RELEASED)
    known = _tables(upgraded)
    before = _rows(upgraded, known)
    assert {"jobs", "steps", "candidates", "events", "api_keys", "webhook_endpoints", "audit_log"} <= _filled(before)
    upgrade(upgraded)
    assert _rows(upgraded, known) == before, "the upgrade keeps what was there"
    _write(fresh, known, before)
    assert _rows(fresh, known) == before, "the new schema takes what the old code writes"


def _fill(url: str, settings: Settings) -> None:
    """A job that ended and one in the middle of its work, and what else a team has."""
    database = Database(url)
    try:
        rig = Rig(database, settings)
        rig.submit()
        rig.run()
        rig.run_until(rig.submit(request_hash="1" * 64), "c0/evaluate/0")
        with database.transaction() as session:
            team = ensure_team(session, "blue")
            create_api_key(session, team, "laptop")
            session.add(WebhookEndpoint(team_id=team.id, url="https://example.com", events=["*"], secret="whsec_x"))
            add_own_entry(session, "operator", "COMMAND", "drain", "*", changes={"drain.reason": [None, "upgrade"]})
    finally:
        database.close()


def _tables(url: str) -> MetaData:
    """The tables as they are in the database, which is all that code of that time knows."""
    known = MetaData()
    with _connected(url) as connection:
        known.reflect(connection)
    known.remove(known.tables["alembic_version"])
    return known


def _rows(url: str, known: MetaData) -> Rows:
    """Every row, in the columns that are known."""
    with _connected(url) as connection:
        return {name: _ordered(connection, known, name) for name in known.tables}


def _ordered(connection: Connection, known: MetaData, name: str) -> list[dict[str, Any]]:
    found = connection.execute(select(known.tables[name])).mappings()
    return sorted((dict(row) for row in found), key=repr)


def _filled(rows: Rows) -> set[str]:
    return {name for name, found in rows.items() if found}


def _write(url: str, known: MetaData, rows: Rows) -> None:
    """As old code does: no column is named that it does not know. Foreign keys and triggers are compared elsewhere."""
    with _connected(url) as connection:
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        for name in _filled(rows):
            connection.execute(known.tables[name].insert(), rows[name])


@contextmanager
def _connected(url: str) -> Iterator[Connection]:
    """A connection in a transaction, which is committed at the end."""
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        yield connection
    engine.dispose()
