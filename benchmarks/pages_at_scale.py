"""Measure every page of a job of 2,000 candidates and of a team of 5,000 jobs, on a real Postgres.

For each page: wall time of a request, processor time of the API and of Postgres, queries and bytes. Wall time is that
of the machine as it was; the processor time and the counts hold on a busy one too. Writes ``service/pages.json``.

    python -m benchmarks.pages_at_scale [--out FILE]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from pydantic import SecretStr
from sqlalchemy import event, text

from api.app import create_app
from api.pages.visits import COOKIE
from benchmarks import records
from cupilot.domain.people import Role
from cupilot.embedded.servers import start_postgres
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.people import Team
from cupilot.storage.people.teams import create_api_key, ensure_team, ensure_user, set_role
from migrations import upgrade
from tests.service.api.crowd import many_jobs, with_many_candidates
from tests.service.api.world import live

JOBS, GENERATIONS, EACH = 5_000, 100, 20
TIMES = 5
_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Fill a database, fetch each page several times and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=records.RESULTS / "service/pages.json")
    arguments = parser.parse_args()
    stamp = records.stamp()
    with tempfile.TemporaryDirectory() as folder, _service(Path(folder)) as (database, url, server):
        key, job = _fill(database)
        with httpx.Client(base_url=url, headers={"Cookie": f"{COOKIE}={key}"}, timeout=60) as client:
            pages = {path: _measure(database, client, path.format(job=job), server) for path in _PATHS}
    size = {"jobs": JOBS + 2, "candidates": GENERATIONS * EACH + 1, "requests": TIMES}
    records.write(arguments.out, {**stamp, "size": size, "pages": pages})
    for path, found in pages.items():
        print(f"{path:55} {found}")


_PATHS = (
    "/ui",
    "/ui?text=double&state=succeeded&label=sweep%3D3",
    "/ui/jobs/{job}",
    "/ui/jobs/{job}/candidates",
    "/ui/jobs/{job}/candidates?order=ordinal&verdict=audited",
    "/ui/jobs/{job}/lineage",
    "/ui/jobs/{job}/candidates/1990",
    "/ui/compare?of={job}:1990&of={job}:10&of={job}:1",
    "/ui/submit",
    "/ui/leaderboards",
    "/ui/pool",
    "/ui/experiments",
    "/ui/cluster",
    "/ui/team",
    "/ui/audit",
    "/ui/operations",
)


@contextmanager
def _service(folder: Path) -> Iterator[tuple[Database, str, int]]:
    """Run Postgres and the API in this process; the API's database, its address and the server's process."""
    server = start_postgres(folder / "postgres")
    try:
        upgrade(server.url)
        app = create_app(Settings(database_url=SecretStr(server.url)))
        with live(app) as url:
            yield app.state.database, url, server.process.pid
        app.state.database.close()
    finally:
        server.stop()


def _fill(database: Database) -> tuple[str, Any]:
    with database.transaction() as session:
        team = ensure_team(session, "large")
        user = ensure_user(session, "ada")
        user.cluster_admin = True
        set_role(session, session.get_one(Team, team.id), user, Role.ADMIN)
        key = create_api_key(session, team, "pages", user=user)[1]
        many_jobs(session, team.id, JOBS)
        job = with_many_candidates(session, team.id, GENERATIONS, EACH)
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE"))
    return key, job


def _measure(database: Database, client: httpx.Client, path: str, server: int) -> dict[str, Any]:
    asked: list[str] = []

    def note(_: object, __: object, statement: str, *___: object) -> None:
        asked.append(statement)

    client.get(path).raise_for_status()  # what is made once is made
    event.listen(database.engine, "before_cursor_execute", note)
    walls, processors, size = [], [], 0
    before = _seconds_of(server)
    for _ in range(TIMES):
        began, busy = time.monotonic(), time.process_time()
        answer = client.get(path).raise_for_status()
        walls.append(time.monotonic() - began)
        processors.append(time.process_time() - busy)
        size = len(answer.content)
    event.remove(database.engine, "before_cursor_execute", note)
    return {
        "wall_ms": round(1e3 * median(walls)),
        "worst_wall_ms": round(1e3 * max(walls)),
        "api_cpu_ms": round(1e3 * median(processors)),
        "postgres_cpu_ms": round(1e3 * (_seconds_of(server) - before) / TIMES),
        "queries": len(asked) // TIMES,
        "kilobytes": round(size / 1e3),
    }


def _seconds_of(process: int) -> float:
    """Return the processor time of a process and of its children, live ones and ended ones."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(stat.parent.name) == process:
            ticks += sum(map(int, fields[11:15]))
        elif int(fields[1]) == process:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS


if __name__ == "__main__":
    main()
