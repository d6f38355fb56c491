"""Commands of the runbooks for an emergency: they run, in the images, on this schema."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import redis
from sqlalchemy import text

from cupilot.embedded.servers import Running
from cupilot.storage.db.engine import Database

pytestmark = pytest.mark.service

ROOT = Path(__file__).parents[2]
SNIPPETS = [" ".join(one.split()) for one in re.findall(r"`([^`]+)`", (ROOT / "docs/runbooks.md").read_text())]
QUERIES = [one for one in SNIPPETS if one.startswith("SELECT") and "pg_stat_statements" not in one]
"""But for those of an extension that the tests' Postgres has not loaded."""
PROGRAMS = [one for one in SNIPPETS if one.startswith("python -c")]
MODULES = {one.split()[2] for one in SNIPPETS if one.startswith("python -m")}


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **changes}


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query[:60])
def test_queries_fit_the_schema(database: Database, query: str) -> None:
    with database.transaction() as session:
        session.execute(text("EXPLAIN " + query.replace("'N days'", "'7 days'").replace("(PID)", "(0)")))


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_run_where_the_servers_are_there_and_fail_where_not(
    database_url: str, valkey: Running, program: str
) -> None:
    command = [sys.executable, *shlex.split(program)[1:]]
    there = environment(CUPILOT_DATABASE_URL=database_url, CUPILOT_REDIS_URL=valkey.url)
    subprocess.run(command, env=there, check=True, capture_output=True, timeout=60)
    nowhere = environment(
        CUPILOT_DATABASE_URL="postgresql+psycopg2://nobody@127.0.0.1:1/nothing",
        CUPILOT_REDIS_URL="redis://127.0.0.1:1/0",
    )
    failed = subprocess.run(command, env=nowhere, check=False, capture_output=True, timeout=60, text=True)
    assert failed.returncode == 1
    assert "refused" in "".join(failed.stderr.splitlines()[-5:]), "the reason is what one sees first"


def test_what_is_read_of_redis_is_what_it_says(valkey: Running) -> None:
    with redis.Redis.from_url(valkey.url) as broker:
        said = broker.info("memory")
    assert {"maxmemory_policy", "used_memory", "maxmemory"} <= said.keys()


def test_commands_are_of_modules_that_the_images_hold() -> None:
    stages = dict(re.findall(r"^FROM \w+ AS (\S+)\n(.*?)(?=^FROM |\Z)", _dockerfile(), re.MULTILINE | re.DOTALL))
    assert {"workers"} <= MODULES <= {"workers", "gpu_worker"}
    assert "COPY workers workers" in stages["build-scheduler"]
    assert all("COPY gpu_worker gpu_worker" in stages[stage] for stage in ("build-cpu", "build-gpu"))


def test_no_program_is_named_that_no_image_holds() -> None:
    named = {one.split()[0] for one in SNIPPETS}
    assert not named & {"pg_isready", "redis-cli", "valkey-cli", "cupilot", "curl"}


def _dockerfile() -> str:
    return (ROOT / "deploy/Dockerfile").read_text()
