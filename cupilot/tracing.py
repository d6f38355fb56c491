"""Trace by OpenTelemetry, off by default: from the request to the kernel's launches, over Postgres and retries.

Works without the library: then, and while tracing is off, every function here does nothing. Where a trace goes on is
stored with the job and its steps as a W3C ``traceparent`` (https://www.w3.org/TR/trace-context/), so that it survives
whatever the rows survive. A step's span belongs to its job's request and is linked with the step that made it: jobs
take hours, and one nested in the other would be a tower.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cupilot.domain.errors import Unavailable
from cupilot.logs import log_context

if TYPE_CHECKING:
    from cupilot.domain.evaluation import Phase

_tracer: Any = None


def set_up_tracing(mode: str, service: str) -> None:
    """Send this process's spans to the collector that ``OTEL_EXPORTER_OTLP_ENDPOINT`` names, if ``mode`` is ``otlp``.

    Call it after a fork: exporters have threads. Raises :class:`Unavailable` where the library is not installed.
    """
    if mode == "off":
        return
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise Unavailable(
            f"CUPILOT_TRACES is {mode}, but OpenTelemetry is not installed", hint="pip install 'cupilot[telemetry]'"
        ) from error
    provider = TracerProvider(resource=Resource.create({"service.name": f"cupilot-{service}"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    use_provider(provider)


def use_provider(provider: Any) -> None:
    """Trace by this provider of OpenTelemetry's from now on; None for not at all."""
    global _tracer  # noqa: PLW0603 - one a process, as logging has it
    _tracer = provider.get_tracer("cupilot") if provider is not None else None


@contextmanager
def span(name: str, *, parent: str | None = None, cause: str | None = None, **attributes: Any) -> Iterator[None]:
    """Open a span around what is done meanwhile; log lines of that time carry its trace's id.

    ``parent`` is the ``traceparent`` of another process's span (the present span of this one by default), ``cause``
    that of a span to be linked.
    """
    if _tracer is None:
        yield
        return
    from opentelemetry import trace

    links = [trace.Link(linked)] if (linked := _span_context(cause)) else []
    kept = {key: value for key, value in attributes.items() if value is not None}
    with (
        _tracer.start_as_current_span(name, context=_context(parent), links=links, attributes=kept) as opened,
        log_context(trace=f"{opened.get_span_context().trace_id:032x}"),
    ):
        yield


def current() -> str | None:
    """Return the current span as a ``traceparent``, to be stored; None without one."""
    if _tracer is None:
        return None
    from opentelemetry import trace

    here = trace.get_current_span().get_span_context()
    if not here.is_valid:
        return None
    return f"00-{here.trace_id:032x}-{here.span_id:016x}-{int(here.trace_flags):02x}"


def rename(name: str, **attributes: Any) -> None:
    """Give the present span a name that was not known when it began, and attributes."""
    if _tracer is not None:
        from opentelemetry import trace

        trace.get_current_span().update_name(name)
        note(**attributes)


def note(**attributes: Any) -> None:
    """Add to the present span."""
    if _tracer is not None:
        from opentelemetry import trace

        trace.get_current_span().set_attributes({key: value for key, value in attributes.items() if value is not None})


def record_phases(phases: Sequence[Phase], seconds: float) -> None:
    """Record spans of what another process did, which has just ended and took so many seconds."""
    if _tracer is None:
        return
    began = time.time_ns() - round(seconds * 1e9)
    for phase in phases:
        start = began + round(phase.start * 1e9)
        _tracer.start_span(phase.name, start_time=start).end(end_time=start + round(phase.seconds * 1e9))


def _context(traceparent: str | None) -> Any:
    """Return the context of a ``traceparent``; None, which means the current one, where it is not valid."""
    from opentelemetry import trace

    remote = _span_context(traceparent)
    return trace.set_span_in_context(trace.NonRecordingSpan(remote)) if remote else None


def _span_context(traceparent: str | None) -> Any:
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if not traceparent:
        return None
    carried = TraceContextTextMapPropagator().extract({"traceparent": traceparent})
    remote = trace.get_current_span(carried).get_span_context()
    return remote if remote.is_valid else None
