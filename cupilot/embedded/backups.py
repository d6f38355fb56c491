"""Addresses, backup and restore of an embedded stack, for operators' tools.

Postgres is all there is to back up: the broker holds hints only, and the pool's index is made anew from the database.
The dumps are those of ``deploy/backup``: one made there is restored here, and the other way round.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from cupilot.domain.errors import InvalidInput, NotFound, Unavailable
from cupilot.embedded.errors import AlreadyRunning, BackupFailed
from cupilot.embedded.folder import Folder, Identity, open_folder
from cupilot.embedded.lifecycle import lock_folder
from cupilot.embedded.lookup import running
from cupilot.embedded.servers import ROLE, Chroma, Postgres, Valkey, start_postgres


def addresses(data: Path) -> dict[str, str]:
    """Return the variables with which operators' commands, the client and ``curl`` reach a running stack. Holds its
    secrets.

    Raises :class:`Unavailable` where none runs.
    """
    folder = Folder(data.expanduser().resolve())
    endpoint = running(folder.root)
    if endpoint is None:
        raise Unavailable(f"nothing runs in {folder.root}", hint="start it with cupilot up")
    identity = Identity.load(folder, in_use=True)
    postgres, valkey, chroma = Postgres(folder, identity), Valkey(folder, identity), Chroma(folder, identity)
    return {
        "CUPILOT_URL": endpoint.url,
        "CUPILOT_API_KEY": endpoint.api_key,
        "CUPILOT_DATABASE_URL": postgres.url,
        "CUPILOT_REDIS_URL": valkey.url,
        "CUPILOT_CHROMA_URL": chroma.url,
        "PG_BIN": str(postgres.binaries),
    }


def backup(data: Path, dump: Path | None = None) -> Path:
    """Write a consistent dump of a stack's database and its checksum, whether the stack runs or not; the dump's path.

    ``dump`` is a new file, ``./cupilot-<time>.dump`` where none is named. Only its owner may read it: it holds what
    teams submitted. Raises :class:`NotFound`, :class:`InvalidInput`, :class:`BackupFailed`.
    """
    folder = Folder(data.expanduser().resolve())
    if not (folder.root / Postgres.name).exists():
        raise NotFound(f"no stack has ever run in {folder.root}", hint="name its folder with --data", where="--data")
    dump = dump or Path(f"cupilot-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.dump")
    if dump.exists():
        raise InvalidInput(f"{dump} exists", hint="name a new file", where="FILE")
    part = dump.with_name(f"{dump.name}.part")
    dump.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    try:
        with _database(folder, "backup") as (bin_folder, login):
            _run([bin_folder / "pg_dump", "--format=custom", "--no-owner", "--no-privileges", f"--file={part}"], login)
            # A dump that cannot be read is none: decode all of it, not only its table of contents.
            _run([bin_folder / "pg_restore", f"--file={os.devnull}", part], login)
        _checksum(dump).write_text(f"{_digest(part)}  {dump.name}\n")
        part.replace(dump)
    finally:
        part.unlink(missing_ok=True)
    return dump


def restore(data: Path, dump: Path) -> None:
    """Bring a dump into a folder in which no stack has run yet: all of it or nothing.

    The next start migrates it, where it is of an older release. Raises :class:`AlreadyRunning`, :class:`InvalidInput`,
    :class:`BackupFailed`.
    """
    if not dump.is_file():
        raise InvalidInput(f"there is no file {dump}", where="FILE")
    kept = _checksum(dump)
    if kept.exists() and kept.read_text().split()[0] != _digest(dump):
        raise InvalidInput(f"{dump} is damaged: it does not fit its checksum", where="FILE")
    folder = open_folder(data)
    if running(folder.root) is not None:
        raise AlreadyRunning(f"a stack runs in {folder.root}", hint="restore into a new folder", where="--data")
    with _database(folder, "restore") as (bin_folder, login):
        count = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
        if _run([bin_folder / "psql", "-XAtc", count], login).strip() != "0":
            raise InvalidInput(f"{folder.root} holds data already", hint="restore into a new folder", where="--data")
        options = ["--no-owner", "--no-privileges", "--single-transaction", f"--dbname={ROLE}"]
        _run([bin_folder / "pg_restore", *options, dump], login)


@contextmanager
def _database(folder: Folder, purpose: str) -> Iterator[tuple[Path, dict[str, str]]]:
    """Yield the programs of the folder's Postgres and how to log in; start it meanwhile where it does not run."""
    if running(folder.root) is not None:
        postgres = Postgres(folder, Identity.load(folder, in_use=True))
        yield postgres.binaries, _login(postgres)
        return
    with lock_folder(folder, purpose):
        started = start_postgres(folder.root)
        try:
            assert isinstance(started.server, Postgres)
            yield started.server.binaries, _login(started.server)
        finally:
            started.stop()


def _login(postgres: Postgres) -> dict[str, str]:
    """Return the login as environment variables.

    Arguments are visible to every local user, and a password is among them.
    """
    return {
        "PGHOST": "127.0.0.1",
        "PGPORT": str(postgres.port),
        "PGUSER": ROLE,
        "PGPASSWORD": postgres.password,
        "PGDATABASE": ROLE,
    }


def _run(command: list[str | Path], login: Mapping[str, str]) -> str:
    environment = {**os.environ, **login, "LC_ALL": "C.UTF-8"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        name = Path(command[0]).name
        raise BackupFailed(f"{name} failed with code {done.returncode}", hint=done.stderr.strip()[-500:] or None)
    return done.stdout


def _checksum(dump: Path) -> Path:
    return dump.with_name(f"{dump.name}.sha256")


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
