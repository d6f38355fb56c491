"""The span of a request has its route's name: a name with ids in it is an operation of its own for each job."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message

from api.metrics import Metrics
from api.middleware import RequestContext
from cupilot import tracing


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.use_provider(provider)
    yield exporter
    tracing.use_provider(None)
    provider.shutdown()


def test_a_request_is_named_by_its_route(spans: InMemorySpanExporter) -> None:
    async def job(request: Request) -> Response:
        request.scope["route"] = Route("/v1/jobs/{job}", job)  # as FastAPI notes it
        return Response(status_code=404)

    app = RequestContext(Starlette(routes=[Route("/v1/jobs/{job}", job)]), Metrics(None, 5.0))  # type: ignore[arg-type]

    async def nothing() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(_message: Message) -> None:
        pass

    scope = {"type": "http", "method": "GET", "path": "/v1/jobs/1f", "headers": [], "query_string": b""}
    asyncio.run(app(scope, nothing, send))
    [span] = spans.get_finished_spans()
    assert span.name == "GET /v1/jobs/{job}"
    assert {**(span.attributes or {})} | {"request": ""} == {"path": "/v1/jobs/1f", "status": 404, "request": ""}
