"""Dumps that `backup.sh` keeps, with programs in the place of Postgres' own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "deploy/backup/backup.sh"
DUMPS = """#!/bin/sh
for argument; do case $argument in --file=/dev/null) ;; --file=*) echo rows > "${argument#--file=}";; esac; done
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("pg_dump", "pg_restore"):
        (folder / name).write_text(DUMPS)
        (folder / name).chmod(0o755)
    return folder


def backup(programs: Path, folder: Path, *keep: str) -> subprocess.CompletedProcess[str]:
    url = (
        "postgresql+psycopg2://cupilot:secret@127.0.0.1:1/cupilot?sslmode=verify-full&sslcert=/etc/c.pem&sslkey=/etc/k"
    )
    given = {**os.environ, "CUPILOT_DATABASE_URL": url, "PYTHON": sys.executable, "PG_BIN": str(programs)}
    return subprocess.run([str(SCRIPT), str(folder), *keep], env=given, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("keep", ["0", "-1", "all", "2 days"])
def test_a_number_of_dumps_that_is_none_removes_none(programs: Path, tmp_path: Path, keep: str) -> None:
    folder = tmp_path / "backups"
    assert backup(programs, folder).returncode == 0
    refused = backup(programs, folder, keep)
    assert refused.returncode == 1
    assert "KEEP is a number" in refused.stderr
    assert len([*folder.glob("*.dump")]) == 1


def test_the_newest_are_kept(programs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    old = Path(backup(programs, folder, "2").stdout.strip())
    os.utime(old, (1, 1))
    for _ in range(2):
        assert backup(programs, folder, "2").returncode == 0
    assert len([*folder.glob("*.dump")]) == len([*folder.glob("*.sha256")]) == 2
    assert not old.exists()


def test_a_client_certificate_is_used(programs: Path, tmp_path: Path) -> None:
    (programs / "pg_dump").write_text(f"{DUMPS}env > {tmp_path}/seen\n")
    assert backup(programs, tmp_path / "backups").returncode == 0
    seen = (tmp_path / "seen").read_text().splitlines()
    assert {"PGSSLMODE=verify-full", "PGSSLCERT=/etc/c.pem", "PGSSLKEY=/etc/k"} <= {*seen}
