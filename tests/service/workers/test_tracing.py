"""One trace from the request to the phases of the judge, over Postgres, retries and a lost broker; nothing when off."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sqlalchemy import select

from cupilot import tracing
from cupilot.domain.evaluation import Phase
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.db.tables.queue import Step
from tests.service.rig import Rig

pytestmark = pytest.mark.service


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.use_provider(provider)
    yield exporter
    tracing.use_provider(None)
    provider.shutdown()


def _id(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def test_a_job_is_one_trace_from_the_request_to_the_last_step(
    database: Database, settings: Settings, spans: InMemorySpanExporter
) -> None:
    rig = Rig(database, settings)
    theirs = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    with tracing.span("POST /v1/jobs", parent=theirs):
        job = rig.submit()
    rig.run()
    finished = spans.get_finished_spans()
    assert {f"{_id(span)[0]:032x}" for span in finished} == {"4bf92f3577b34da6a3ce929d0e0e4736"}
    [request] = [span for span in finished if span.name == "POST /v1/jobs"]
    steps = {str((span.attributes or {})["key"]): span for span in finished if span.name.startswith("step ")}
    assert set(steps) == {step.key for step in rig.steps(job) if step.attempt}
    for span in steps.values():
        assert span.parent is not None
        assert span.parent.span_id == _id(request)[1], "beside each other, not one in the other"
        assert (span.attributes or {})["outcome"] == "succeeded"
    prepare, initialise = steps["prepare"], steps["initialise/0"]
    assert [link.context.span_id for link in initialise.links] == [_id(prepare)[1]]
    published = [span for span in finished if span.name == "publish"]
    assert len(published) == len(steps)
    with database.transaction() as session:
        assert session.get_one(Job, job).traceparent == f"00-{_id(request)[0]:032x}-{_id(request)[1]:016x}-01"


def test_phases_of_an_evaluation_are_spans_below_its_step(spans: InMemorySpanExporter) -> None:
    phases = [Phase(name="build", start=0.0, seconds=0.5), Phase(name="time", start=0.5, seconds=1.5)]
    with tracing.span("step evaluate"):
        tracing.record_phases(phases, seconds=2.0)
    build, time, step = spans.get_finished_spans()
    assert [build.name, time.name, step.name] == ["build", "time", "step evaluate"]
    for span in (build, time):
        assert span.parent is not None
        assert span.parent.span_id == _id(step)[1]
    assert build.end_time == time.start_time
    assert time.end_time is not None
    assert time.start_time is not None
    assert time.end_time - time.start_time == 1_500_000_000


def test_while_tracing_is_off_nothing_is_stored(database: Database, settings: Settings) -> None:
    rig = Rig(database, settings)
    with tracing.span("POST /v1/jobs", parent="nonsense"):
        job = rig.submit()
        assert tracing.current() is None
    rig.run()
    with database.transaction() as session:
        assert session.get_one(Job, job).traceparent is None
        assert set(session.scalars(select(Step.traceparent))) == {None}


def test_a_traceparent_that_is_nonsense_begins_a_new_trace(spans: InMemorySpanExporter) -> None:
    for given in ("nonsense", "", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"):
        with tracing.span("a", parent=given, cause=given):
            assert tracing.current() is not None
    assert all(span.parent is None and not span.links for span in spans.get_finished_spans())


def test_the_service_runs_without_the_library() -> None:
    script = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter")):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocker())
import api.app, workers.steps, workers.scheduler  # FastAPI brings the interface, never the library
from cupilot import tracing
with tracing.span("x"):
    assert tracing.current() is None
try:
    tracing.set_up_tracing("otlp", "api")
except Exception as error:
    assert "telemetry" in error.hint, error
else:
    raise AssertionError
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
