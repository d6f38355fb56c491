"""The data folder: its paths, and the ports and passwords that survive restarts.

Does not start anything. Every file with a secret is readable by its owner only.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

PORTS = range(20_000, 32_000)
"""Below Linux's default range for outgoing connections (32768 up), so that no client socket can sit on a kept port."""


@dataclass(frozen=True)
class Folder:
    """Paths of one embedded stack."""

    root: Path

    @property
    def lock(self) -> Path:
        """Held by the supervisor for as long as it lives."""
        return self.root / "lock"

    @property
    def url(self) -> Path:
        """URL of the API."""
        return self.root / "url"

    @property
    def api_key(self) -> Path:
        """The key that the CLI uses."""
        return self.root / "api_key"

    @property
    def state(self) -> Path:
        """File of the supervisor's last report on its parts."""
        return self.root / "state.json"

    @property
    def identity(self) -> Path:
        """Ports and passwords."""
        return self.root / "identity.json"

    @property
    def work(self) -> Path:
        """Scratch and caches of the GPU workers."""
        return self.root / "work"

    def pulse(self, part: str) -> Path:
        """Return the file in which a part records its progress (:mod:`cupilot.health`)."""
        return self.root / f"{part}.pulse"

    def log(self, part: str) -> Path:
        """Return the log file of a part."""
        return self.root / "logs" / f"{part}.log"

    def create(self) -> None:
        """Make the folder, private to its owner where it is new."""
        if not self.root.exists():
            self.root.mkdir(parents=True)
            self.root.chmod(0o700)
        (self.root / "logs").mkdir(exist_ok=True)


def open_folder(data: Path) -> Folder:
    """Return the folder at ``data``, made where missing.

    Its path is absolute, since children have other working directories.
    """
    folder = Folder(data.expanduser().resolve())
    folder.create()
    return folder


@dataclass
class Identity:
    """Ports and passwords of one stack, kept over restarts so that URLs stay valid."""

    path: Path
    ports: dict[str, int] = field(default_factory=dict)
    passwords: dict[str, str] = field(default_factory=dict)
    in_use: bool = False
    """True if the stack runs: a port in use is then its own."""

    @classmethod
    def load(cls, folder: Folder, *, in_use: bool = False) -> Identity:
        """Return what the folder's file says; empty where there is none, or it was cut off by a full disk."""
        identity = cls(folder.identity, in_use=in_use)
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            kept = json.loads(folder.identity.read_text())
            identity.ports, identity.passwords = dict(kept["ports"]), dict(kept["passwords"])
        return identity

    def keep(self) -> None:
        """Write the file again where it was lost."""
        if not self.path.exists():
            self._save()

    def port(self, part: str) -> int:
        """Return the part's port: the kept one where it is free, else a new one."""
        kept = self.ports.get(part)
        if kept is None or not (self.in_use or is_free(kept)):
            self.ports[part] = _free_port(taken=set(self.ports.values()))
            self._save()
        return self.ports[part]

    def password(self, part: str) -> str:
        """Return the part's password, made at first use; letters, digits, ``-`` and ``_`` only."""
        if part not in self.passwords:
            self.passwords[part] = secrets.token_urlsafe(24)
            self._save()
        return self.passwords[part]

    def _save(self) -> None:
        write_private(self.path, json.dumps({"ports": self.ports, "passwords": self.passwords}, indent=1))


def write_private(path: Path, text: str) -> None:
    """Replace a file at once, readable by its owner only."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    temporary.replace(path)


def is_free(port: int) -> bool:
    """Return whether a server could listen on the loopback port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _free_port(taken: set[int]) -> int:
    for port in random.SystemRandom().sample(PORTS, k=200):
        if port not in taken and is_free(port):
            return port
    raise OSError(f"no free port among 200 tried between {PORTS.start} and {PORTS.stop}")
