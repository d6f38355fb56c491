"""Calls every operation of a running service with what its own OpenAPI allows, and with what it forbids (schemathesis).

An answer must never be an error of the service's (5xx), must have a documented status and content type, and must be of
the documented form. Ids of things that exist are put into half of the paths, so that not everything ends with a 404.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
TIMEOUT_SECONDS = 60.0
STREAM_SECONDS = 2.0
"""A stream is read for so long only: that it goes on is its purpose."""


@dataclass
class Outcome:
    """What became of one operation."""

    operation: str
    calls: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


UNREADABLE = frozenset({"GET /v1/events/stream", "GET /v1/jobs/{job}/events/stream", "POST /v1/pool/import"})
"""What schemathesis cannot make or read: bodies of JSON lines, and events whose data is JSON within a string. Tests of
their own hold them to the documentation (``test_streams``, ``test_pool``)."""


def operations(document: Mapping[str, Any]) -> Sequence[Any]:
    """The operations of an OpenAPI document, but for :data:`UNREADABLE` ones."""
    schema = schemathesis.openapi.from_dict(dict(document))
    found = []
    for result in schema.get_all_operations():
        operation = result.ok()
        assert operation is not None, result.err()
        if operation.label not in UNREADABLE:
            found.append(operation)
    return found


def fuzz(
    operation: Any, url: str, key: str, known: Mapping[str, Sequence[str]], *, examples: int, number: int
) -> Outcome:
    """Call one operation ``examples`` times with valid and as often with invalid input; ``number`` seeds it.

    ``known``: by the name of a path parameter, ids that exist.
    """
    outcome = Outcome(operation.label)
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
        if mode is GenerationMode.NEGATIVE and not _takes_input(operation):
            continue
        _run(operation, mode, outcome, url=url, key=key, known=known, examples=examples, number=number)
    return outcome


def _takes_input(operation: Any) -> bool:
    return bool(list(operation.iter_parameters())) or bool(operation.body)


def _run(
    operation: Any,
    mode: GenerationMode,
    outcome: Outcome,
    *,
    url: str,
    key: str,
    known: Mapping[str, Sequence[str]],
    examples: int,
    number: int,
) -> None:
    streams = "text/event-stream" in str(operation.definition.raw.get("responses", {}))

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), real=st.booleans(), choice=st.integers(0, 10**6))
    def call(case: Any, real: bool, choice: int) -> None:
        for name in case.path_parameters or {}:
            if real and known.get(name):
                case.path_parameters[name] = known[name][choice % len(known[name])]
        if case.query and "wait" in case.query and mode is GenerationMode.POSITIVE:
            case.query["wait"] = 0
        headers = {"Authorization": f"Bearer {key}"}
        outcome.calls += 1
        try:
            response = case.call(base_url=url, headers=headers, timeout=STREAM_SECONDS if streams else TIMEOUT_SECONDS)
        except requests.exceptions.InvalidHeader:
            return  # cannot be sent over HTTP at all
        except requests.RequestException as error:
            if not streams:
                outcome.failures.append(f"{type(error).__name__}: {case.as_curl_command()[:500]}")
            return
        outcome.statuses[response.status_code] += 1
        try:
            case.validate_response(response, checks=CHECKS)
        except (FailureGroup, AssertionError) as error:
            inner = error.exceptions if isinstance(error, FailureGroup) else [error]
            outcome.failures += [f"{one}"[:1_500] for one in inner]

    call()


def report(outcomes: Iterator[Outcome] | Sequence[Outcome]) -> str:
    """As a Markdown table."""
    lines = ["| operation | calls | answers by status | failures |", "|---|---|---|---|"]
    for one in outcomes:
        statuses = ", ".join(f"{status}: {count}" for status, count in sorted(one.statuses.items()))
        lines.append(f"| `{one.operation}` | {one.calls} | {statuses} | {len(one.failures) or 'none'} |")
    return "\n".join(lines) + "\n"
