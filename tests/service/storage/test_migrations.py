"""The schema's history, run on a real Postgres."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, text

import migrations
from cupilot.domain.errors import Busy
from cupilot.storage.db import tables
from cupilot.storage.db.engine import make_engine
from migrations import downgrade, upgrade
from tests.service.processes import wait_until

pytestmark = pytest.mark.service

ROOT = Path(__file__).parents[3]
HEAD = ScriptDirectory(str(ROOT / "migrations")).as_revision_number("head")


def differences(url: str) -> list[object]:
    """Return the differences between the models and the database."""
    engine = create_engine(url)
    with engine.connect() as connection:
        options = {"compare_type": True, "compare_server_default": True}
        found = compare_metadata(MigrationContext.configure(connection, opts=options), tables.people.Team.metadata)
    engine.dispose()
    return found


def objects(url: str) -> set[str]:
    """Tables, sequences and types of the schema."""
    engine = create_engine(url)
    with engine.connect() as connection:
        space = "(SELECT oid FROM pg_namespace WHERE nspname = 'public')"
        relations = connection.scalars(text(f"SELECT relname FROM pg_class WHERE relnamespace = {space}"))
        types = connection.scalars(text(f"SELECT typname FROM pg_type WHERE typnamespace = {space}"))
        found = {*relations, *types}
    engine.dispose()
    return {name for name in found if "alembic" not in name}


def test_models_and_schema_agree_after_upgrade_downgrade_and_upgrade(empty_database_url: str) -> None:
    upgrade(empty_database_url)
    assert differences(empty_database_url) == []
    downgrade(empty_database_url, "base")
    assert objects(empty_database_url) == set()
    upgrade(empty_database_url)
    assert differences(empty_database_url) == []


def test_two_migrations_at_once_do_not_disturb_each_other(empty_database_url: str) -> None:
    downgrade(empty_database_url, "base")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(upgrade, [empty_database_url] * 2))
    assert differences(empty_database_url) == []


def test_a_migration_that_waits_for_a_table_keeps_nobody_from_it(empty_database_url: str) -> None:
    """A dump holds every table for as long as it takes; whoever reads meanwhile must not wait behind the migration."""
    downgrade(empty_database_url, "base")
    upgrade(empty_database_url, "0029")
    engine = make_engine(empty_database_url)
    with ThreadPoolExecutor(1) as pool:
        with engine.begin() as dump:
            dump.execute(text("SELECT count(*) FROM scheduler_look"))
            migration = pool.submit(upgrade, empty_database_url)
            with engine.connect() as other:
                wait_until(lambda: _waits_for_a_lock(other), "the migration wants the table")
                other.rollback()
                for _ in range(3):
                    other.execute(text("SELECT count(*) FROM scheduler_look"))
                    other.rollback()
            assert not migration.done()
        migration.result()
    engine.dispose()
    assert differences(empty_database_url) == []


def _waits_for_a_lock(connection: Connection) -> bool:
    waits = (
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')"
    )
    found = bool(connection.scalar(text(waits)))
    connection.rollback()
    return found


def test_a_table_that_stays_in_use_is_told_and_nothing_is_changed(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "WAIT_SECONDS", 0.1)
    downgrade(empty_database_url, "base")
    upgrade(empty_database_url, "0029")
    engine = make_engine(empty_database_url)
    with engine.begin() as dump:
        dump.execute(text("SELECT count(*) FROM scheduler_look"))
        with pytest.raises(Busy, match="nothing was changed"):
            upgrade(empty_database_url)
        assert dump.scalar(text("SELECT version_num FROM alembic_version")) == "0029"
    engine.dispose()


def test_the_command_line_upgrades_and_may_be_repeated(empty_database_url: str, tmp_path: Path) -> None:
    downgrade(empty_database_url, "base")
    environment = os.environ | {"CUPILOT_DATABASE_URL": empty_database_url, "PYTHONPATH": str(ROOT)}
    environment["CUPILOT_LOG_FORMAT"] = "json"
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", "migrations"],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert [json.loads(line)["level"] for line in done.stderr.splitlines()]
    assert differences(empty_database_url) == []


def test_the_former_release_starts_on_a_newer_schema_and_leaves_its_undoing_to_the_newer_one(
    empty_database_url: str,
) -> None:
    upgrade(empty_database_url)
    before = objects(empty_database_url)
    set_revision(empty_database_url, "9999")
    assert "the schema is newer than this release, at revision 9999: nothing to do" in migrate(empty_database_url, 0)
    said = migrate(empty_database_url, 1, "downgrade", "0020")
    assert "this release does not know" in said
    assert "Traceback" not in said
    assert objects(empty_database_url) == before
    set_revision(empty_database_url, HEAD)


def set_revision(url: str, revision: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})
    engine.dispose()


def migrate(url: str, status: int, *arguments: str) -> str:
    """Run the command, which must end with this status; return what it says."""
    command = [sys.executable, "-m", "migrations", *arguments]
    environment = os.environ | {"CUPILOT_DATABASE_URL": url}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == status, ended.stderr
    return ended.stderr
