"""Postgres' connections by kind of process, and how many workers fit: ``python -m benchmarks.connections``.

Measures nothing: it counts with the constants that the processes open their pools with. A pool may open as many
connections again as it keeps while those are busy, so the worst case is twice what is kept. ``docs/scale.md`` states
what this prints.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from api.app import POOL_SIZE
from api.turns import TURNS
from cupilot.storage.db.engine import CONNECTIONS
from workers.webhooks.deliverer import THREADS
from workers.worker import CHILD_CONNECTIONS, PARENT_CONNECTIONS

COMPOSE = Path(__file__).parent.parent / "docker-compose.yml"
RESERVED = 3
"""Postgres' own default for superusers (``superuser_reserved_connections``)."""
OTHERS = {"API replica": POOL_SIZE, "scheduler": CONNECTIONS, "webhooks": THREADS}
WORKER = PARENT_CONNECTIONS + CHILD_CONNECTIONS
"""Of one slot, as a GPU worker is."""


def workers(limit: int, factor: int) -> int:
    """Return how many workers of one slot fit beside one process of each other kind.

    ``factor`` multiplies what each pool keeps: 1 for kept, 2 at worst.

    ``connections`` is the factor on what each pool keeps: 1 for kept, 2 at worst.
    """
    return (limit - RESERVED - factor * sum(OTHERS.values())) // (factor * WORKER)


def report() -> str:
    """Return the whole report as lines."""
    setting = re.search(r"max_connections=(\d+)", COMPOSE.read_text(encoding="utf-8"))
    assert setting is not None
    limit = int(setting[1])
    lines = ["process                kept  at most"]
    lines += [
        f"{name:<21}  {kept:>4}  {2 * kept:>7}" for name, kept in {**OTHERS, "worker of one slot": WORKER}.items()
    ]
    lines += [
        f"max_connections of docker-compose.yml: {limit}, of which Postgres reserves {RESERVED}",
        f"workers of one slot beside one of each other process: {workers(limit, 1)} by what is kept,"
        f" {workers(limit, 2)} with every pool at its most",
        f"requests with a transaction at once, of an API replica: {TURNS}",
    ]
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    sys.stdout.write(report())
