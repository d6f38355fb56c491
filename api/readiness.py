"""Report whether requests can be served: the database and its schema decide; the rest is only reported."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from http.client import HTTPException
from importlib.util import find_spec
from urllib.request import urlopen

import redis

from cupilot.domain.errors import CupilotError
from cupilot.domain.states import WorkerKind
from cupilot.schemas import Readiness
from cupilot.settings import settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.revision import schema_revision
from cupilot.storage.queue.cluster import live_workers, scheduler_alive
from cupilot.storage.webhooks.deliveries import waiting_seconds

PROBE_SECONDS = 2.0
WEBHOOK_SECONDS = 60.0
"""A message that is due is taken within a second where there is a process that delivers, unless all of it is busy."""
OK = "ok"


def check(database: Database) -> Readiness:
    """Ask every dependency, each for at most a few seconds."""
    migrations = _outcome(lambda: _migrated(database))
    checks = {
        "database": _outcome(database.ready),
        "migrations": migrations,
        # An older schema may not have the tables.
        "scheduler": _outcome(lambda: _scheduled(database)) if migrations == OK else migrations,
        "webhooks": _outcome(lambda: _delivered(database)) if migrations == OK else migrations,
        "agent": _outcome(lambda: _working(database, WorkerKind.AGENT)) if migrations == OK else migrations,
        "gpu": _outcome(lambda: _working(database, WorkerKind.GPU)) if migrations == OK else migrations,
        "redis": _outcome(_redis),
        "chroma": _outcome(_chroma),
    }
    return Readiness(ready=checks["database"] == checks["migrations"] == OK, checks=checks)


def _outcome(probe: Callable[[], None]) -> str:
    """Return ``ok`` or a word on what is wrong, without addresses or passwords: anybody may ask."""
    try:
        probe()
    except CupilotError as error:
        return error.message
    except (redis.RedisError, OSError, HTTPException, ValueError) as error:  # also an address that is none
        return f"does not answer ({type(error).__name__})"
    return OK


class _OldSchema(CupilotError):
    """The database's schema is not the one that this code knows."""

    code = "old_schema"
    status = 503


def _migrated(database: Database) -> None:
    with database.transaction() as session:
        revision = schema_revision(session)
    # A revision that this code does not know is newer: during a rolling upgrade the old replicas still serve.
    if revision is None or revision in _older_revisions():
        raise _OldSchema("not at head; run python -m migrations")


class _NoScheduler(CupilotError):
    """Requests are accepted, but no step is dispatched."""

    code = "no_scheduler"
    status = 503


def _scheduled(database: Database) -> None:
    with database.transaction() as session:
        if not scheduler_alive(session):
            raise _NoScheduler("no scheduler is in charge: jobs are accepted and wait")


class _NoWorker(CupilotError):
    """Requests are accepted, but steps of a kind wait."""

    code = "no_worker"
    status = 503


def _working(database: Database, kind: WorkerKind) -> None:
    with database.transaction() as session:
        live = [worker for worker in live_workers(session) if worker.kind is kind]
    if not live:
        raise _NoWorker(f"no live {kind.value} worker: its steps wait")


class _WebhooksBehind(CupilotError):
    """Webhook deliveries are late."""

    code = "webhooks_behind"
    status = 503


def _delivered(database: Database) -> None:
    with database.transaction() as session:
        seconds = waiting_seconds(session)
    if seconds > WEBHOOK_SECONDS:
        raise _WebhooksBehind(f"messages wait for {seconds:.0f} s; is python -m workers webhooks running?")


@cache
def _older_revisions() -> frozenset[str]:
    from alembic.script import ScriptDirectory

    spec = find_spec("migrations")
    assert spec is not None
    assert spec.submodule_search_locations
    scripts = ScriptDirectory(spec.submodule_search_locations[0])
    heads = set(scripts.get_heads())
    return frozenset(script.revision for script in scripts.walk_revisions() if script.revision not in heads)


def _redis() -> None:
    url = settings().redis_url.get_secret_value()
    with redis.Redis.from_url(url, socket_timeout=PROBE_SECONDS, socket_connect_timeout=PROBE_SECONDS) as client:
        client.ping()


def _chroma() -> None:
    with urlopen(f"{settings().chroma_url}/api/v2/heartbeat", timeout=PROBE_SECONDS):
        pass
