"""Metrics of this process and of the database, in Prometheus' text format under ``/metrics``.

The first kind is counted here and summed over replicas by Prometheus; the second is the same from every replica, so it
is to be read with ``max without (instance)`` (docs/metrics.md has every name). The database is asked at most once in a
few seconds, whoever asks how often; while it is away or slow the last snapshot is shown with its age.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from sqlalchemy.orm import Session
from starlette.types import Scope

from cupilot import __version__
from cupilot.domain.errors import CupilotError
from cupilot.storage.db.engine import Database
from cupilot.storage.operations.metrics import OpenWork, Totals, open_work, totals

logger = logging.getLogger(__name__)

TOTALS_EVERY = 6
"""Sums over whole tables are made once for so many readings of the open work: half a minute by default."""
PATIENCE_SECONDS = 2.0
"""Wait for each of the two snapshots: together well below Prometheus' limit of 10 s for a whole answer."""
TOTALS_SHARE = 10
"""Totals are read for one part in so many of the time at most: they must not be what keeps Postgres busy."""
LONGEST_PAUSE_SECONDS = 600.0
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Up to the longest statement of the database."""

WAITED = "waited_seconds"
"""Key of the seconds for which a request waited for events, in its scope's ``state``."""

Found = TypeVar("Found")


class CachedSnapshot(Generic[Found]):
    """A snapshot of the database, read again only once it is old enough; by a thread, so that nobody waits for long."""

    def __init__(
        self,
        database: Database,
        read: Callable[[Session], Found],
        seconds: float,
        *,
        share: int = 1,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        """``share`` times as long as a reading took passes at least from its beginning to the next one's."""
        self._database = database
        self._read = read
        self._seconds = seconds
        self._share = share
        self._patience = patience
        self._lock = threading.Lock()
        self._found: Found | None = None
        self._reading: threading.Thread | None = None
        self._next = float("-inf")
        self.read_at = time.monotonic()
        """Time of the last answer; of the beginning before there is one, so that an alert can tell that none comes."""
        self.failures = 0

    @property
    def age(self) -> float:
        """Age in seconds of the newest answer."""
        return time.monotonic() - self.read_at

    def get(self) -> Found | None:
        """Return the newest answer that there is, after a short wait where one is due; None where there never was one.

        Prometheus takes an answer that is late for none at all, and then has no numbers of this process either.
        """
        with self._lock:
            if self._reading is None and time.monotonic() >= self._next:
                self._reading = threading.Thread(target=self._look, name="metrics", daemon=True)
                self._reading.start()
            reading = self._reading
        if reading is not None:
            reading.join(self._patience)
        return self._found

    def _look(self) -> None:
        began = time.monotonic()
        try:
            with self._database.transaction() as session:
                self._found = self._read(session)
            self.read_at = time.monotonic()
        except CupilotError as error:
            self.failures += 1
            logger.warning("no snapshot for /metrics: %s", error)
        except Exception:  # nobody waits for this thread to say it
            self.failures += 1
            logger.exception("no snapshot for /metrics")
        pause = min(self._share * (time.monotonic() - began), LONGEST_PAUSE_SECONDS)
        with self._lock:
            self._next = began + max(self._seconds, pause)
            self._reading = None


class DatabaseCollector:
    """A collector of the database's metrics."""

    def __init__(self, database: Database, seconds: float) -> None:
        self._open_work = CachedSnapshot(database, open_work, seconds)
        self._totals = CachedSnapshot(database, totals, seconds * TOTALS_EVERY, share=TOTALS_SHARE)
        self._highest: dict[tuple[str, ...], float] = {}
        """Values of counters that were shown."""

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family; those of the database only once it has answered."""
        now = self._open_work.get()
        if now is not None:
            yield from _open_work_families(now)
        sums = self._totals.get()
        yield _jobs(now, sums)
        if sums is not None:
            yield from map(self._never_falling, _totals_families(sums))
        yield _gauge("cupilot_snapshot_age_seconds", "Age of the open work last read", self._open_work.age)
        yield _gauge("cupilot_totals_age_seconds", "Age of the totals last read", self._totals.age)
        failures = self._open_work.failures + self._totals.failures
        yield CounterMetricFamily("cupilot_snapshot_failures", "Reads of the database that failed", failures)

    def _never_falling(self, family: Metric) -> Metric:
        """Return a counter with what was shown of it before, where it has fallen: as when a lost call is answered late.

        Prometheus takes a counter that fell for one that began anew, and all of it for an increase.
        """
        if family.type == "counter":
            for position, sample in enumerate(family.samples):
                key = (sample.name, *sample.labels.values())
                value = self._highest[key] = max(sample.value, self._highest.get(key, 0.0))
                family.samples[position] = sample._replace(value=value)
        return family


class Metrics:
    """The counters of one API process, and the registry that shows them."""

    def __init__(self, database: Database, snapshot_seconds: float) -> None:
        self.registry = CollectorRegistry()
        self.requests = Histogram(
            "cupilot_http_request_duration_seconds",
            "Time to answer a request, without its wait for events; open event streams are not requests",
            ("method", "route", "status"),
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.in_flight = Gauge("cupilot_http_requests_in_flight", "Requests being answered", registry=self.registry)
        self.limited = Counter(
            "cupilot_http_rate_limited", "Requests refused by a rate limit", ("scope",), registry=self.registry
        )
        self.streams = Gauge("cupilot_event_streams", "Open event streams", registry=self.registry)
        self.dropped = Counter(
            "cupilot_event_streams_dropped", "Event streams ended by the server", ("reason",), registry=self.registry
        )
        info = Gauge("cupilot_build_info", "Always 1", ("version",), registry=self.registry)
        info.labels(__version__).set(1)
        self.registry.register(DatabaseCollector(database, snapshot_seconds))

    @contextmanager
    def waiting(self, scope: Scope) -> Iterator[None]:
        """Leave a request out of the numbers while it waits for events: nothing is done for it."""
        began = time.monotonic()
        self.in_flight.dec()
        try:
            yield
        finally:
            self.in_flight.inc()
            scope["state"][WAITED] = time.monotonic() - began

    def render(self) -> bytes:
        """Return everything, in Prometheus' text format 0.0.4."""
        return generate_latest(self.registry)


def _jobs(now: OpenWork | None, sums: Totals | None) -> Metric:
    """Return jobs by state; those that have ended are counted with the totals."""
    jobs = GaugeMetricFamily("cupilot_jobs", "Jobs by state", labels=["state"])
    for found in (now, sums):
        for state, count in found.jobs.items() if found is not None else ():
            jobs.add_metric([state], count)
    return jobs


def _open_work_families(now: OpenWork) -> Iterator[Metric]:
    running = GaugeMetricFamily("cupilot_steps_running", "Steps that a worker runs", labels=["queue"])
    published = GaugeMetricFamily("cupilot_steps_published", "Steps on their way to a worker", labels=["queue"])
    waiting = GaugeMetricFamily("cupilot_steps_waiting", "Steps in the backlog", labels=["queue"])
    oldest = GaugeMetricFamily(
        "cupilot_oldest_waiting_step_seconds", "Age of the oldest step that waits for a worker", labels=["queue"]
    )
    for queue, load in now.queues.items():
        running.add_metric([queue], load.running)
        published.add_metric([queue], load.published)
        waiting.add_metric([queue], load.waiting)
        oldest.add_metric([queue], load.oldest_seconds)
    workers = GaugeMetricFamily("cupilot_workers", "Workers by kind and health", labels=["kind", "health"])
    for (kind, health), count in now.workers.items():
        workers.add_metric([kind, health], count)
    slots = GaugeMetricFamily("cupilot_worker_slots", "Steps that live workers can hold at once", labels=["kind"])
    for kind, count in now.slots.items():
        slots.add_metric([kind], count)
    yield from (running, published, waiting, oldest, workers, slots)
    yield _gauge("cupilot_scheduler_up", "1 if a scheduler is in charge, else 0", now.scheduler_up)
    yield _gauge("cupilot_outbox_unsent", "Messages that the broker has not received yet", now.outbox_unsent)
    yield _gauge("cupilot_outbox_lag_seconds", "Age of the oldest of those messages", now.outbox_lag_seconds)
    endpoints = GaugeMetricFamily("cupilot_webhook_endpoints", "Webhooks by state", labels=["state"])
    for state, count in now.webhooks.items():
        endpoints.add_metric([state], count)
    yield endpoints
    yield _gauge("cupilot_webhook_deliveries_pending", "Messages that are not delivered yet", now.webhook_pending)
    yield _gauge("cupilot_webhook_lag_seconds", "How long the oldest due message is due", now.webhook_lag_seconds)


def _totals_families(sums: Totals) -> Iterator[Metric]:
    yield CounterMetricFamily("cupilot_lease_expirations", "Steps whose lease expired", sums.lease_expirations)
    evaluations = CounterMetricFamily(
        "cupilot_evaluations", "Finished evaluations by verdict", labels=["purpose", "verdict"]
    )
    for names, count in sums.evaluations.items():
        evaluations.add_metric(list(names), count)
    # Not one more state of the counter: an open call ends, and a counter that falls reads as one that was reset.
    open_calls = GaugeMetricFamily("cupilot_llm_calls_open", "Calls of language models under way", labels=["model"])
    calls = CounterMetricFamily("cupilot_llm_calls", "Ended calls of language models", labels=["model", "state"])
    cost = CounterMetricFamily("cupilot_llm_cost_usd", "Money for answered calls", labels=["model"])
    tokens = CounterMetricFamily("cupilot_llm_tokens", "Tokens of answered calls", labels=["model", "direction"])
    for model, used in sums.models.items():
        open_calls.add_metric([model], used.open)
        for state, count in used.ended.items():
            calls.add_metric([model, state], count)
        cost.add_metric([model], used.cost_usd)
        tokens.add_metric([model, "prompt"], used.prompt_tokens)
        tokens.add_metric([model, "completion"], used.completion_tokens)
    gpu = CounterMetricFamily("cupilot_gpu_seconds", "Seconds on a device by team", labels=["team"])
    for team, seconds in sums.gpu_seconds.items():
        gpu.add_metric([team], seconds)
    money = CounterMetricFamily("cupilot_team_cost_usd", "Money for models by team", labels=["team"])
    for team, spent in sums.cost_usd.items():
        money.add_metric([team], spent)
    builds = GaugeMetricFamily(
        "cupilot_builds_lately", "Kernels measured in 15 minutes by how their build came", labels=["queue", "how"]
    )
    for names, count in sums.builds.items():
        builds.add_metric(list(names), count)
    yield CounterMetricFamily("cupilot_jobs_pruned", "Jobs whose details were pruned", sums.jobs_pruned)
    yield from (evaluations, open_calls, calls, cost, tokens, gpu, money, builds)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value)
