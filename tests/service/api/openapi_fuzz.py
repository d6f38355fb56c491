"""Calls every operation of a running service with what its own OpenAPI allows, and with what it forbids (schemathesis).

An answer must never be an error of the service's (5xx), must have a documented status and content type, and must be of
the documented form; and every operation must have succeeded at least once. So the first call is one that does
(:class:`tests.service.api.things.Asked`), and parts of it stand in for parts of what is generated: paths in half of the
cases, fields of queries and bodies in half of the valid ones.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core import NOT_SET
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from api.routes.jobs import MAX_WAIT_SECONDS
from tests.service.api.things import Asked, Asker

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
TIMEOUT_SECONDS = 60.0
STREAM_SECONDS = (0.25, 4.0)
"""A stream is read for so long only: that it goes on is its purpose. Where the machine is too busy to answer in the
first time, the second is tried, and then :data:`TIMEOUT_SECONDS`."""

NOT_CHECKED = dict.fromkeys(
    ("GET /v1/events/stream", "GET /v1/jobs/{job}/events/stream"),
    "events whose data is JSON within a string, without an end. `tests/service/api/test_streams.py` does",
)
"""Operations whose answers' form is not checked, and why; their status and content type are."""

_lines = st.lists(st.dictionaries(st.text(), st.text() | st.integers() | st.none(), max_size=3).map(json.dumps))
schemathesis.openapi.media_type(
    "application/x-ndjson", st.binary() | _lines.map(lambda lines: "\n".join(lines).encode())
)


@dataclass
class Outcome:
    """Result of one operation."""

    operation: str
    calls: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @property
    def succeeded(self) -> bool:
        """True if an answer was 2xx."""
        return any(200 <= status < 300 for status in self.statuses)


def operations(document: Mapping[str, Any]) -> Sequence[Any]:
    """The operations of an OpenAPI document."""
    schema = schemathesis.openapi.from_dict(dict(document))
    found = []
    for result in schema.get_all_operations():
        operation = result.ok()
        assert operation is not None, result.err()
        found.append(operation)
    return found


def fuzz(operation: Any, url: str, key: str, ask: Asker, *, examples: int, number: int) -> Outcome:
    """Call one operation once as ``ask`` tells for its label, and ``examples`` times with valid and with invalid input.

    ``number`` seeds it. What ``ask`` tells has to exist anew each time: a call may use it up.
    """
    run = _Run(operation, url, key, ask)
    run.known()
    run.generated(GenerationMode.POSITIVE, examples, number)
    if list(operation.iter_parameters()) or operation.body:
        run.generated(GenerationMode.NEGATIVE, examples, number)
    return run.outcome


class _Run:
    """The calls of one operation."""

    def __init__(self, operation: Any, url: str, key: str, ask: Asker) -> None:
        self.outcome = Outcome(operation.label)
        self._operation = operation
        self._url = url
        self._headers = {"Authorization": f"Bearer {key}"}
        make = functools.partial(ask, operation.label)
        self._asked = functools.cache(make) if operation.method.upper() == "GET" else make  # nothing is used up by GET
        unchecked = operation.label in NOT_CHECKED
        self._checks = [check for check in CHECKS if not (unchecked and check is response_schema_conformance)]
        self._short_timeouts = STREAM_SECONDS if unchecked else ()

    def known(self) -> None:
        """Send what is known to succeed."""
        asked = self._asked()
        body = NOT_SET if asked.body is None else asked.body
        media_type = None if asked.body is None else "application/json"
        self._call(
            self._operation.Case(
                path_parameters=dict(asked.path), query=dict(asked.query), body=body, media_type=media_type
            )
        )

    def generated(self, mode: GenerationMode, examples: int, number: int) -> None:
        """Send what schemathesis makes."""
        valid = mode is GenerationMode.POSITIVE

        @seed(number)
        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=self._operation.as_strategy(generation_mode=mode), place=st.booleans(), fields=st.booleans())
        def call(case: Any, place: bool, fields: bool) -> None:
            fields = fields and valid
            if place or fields:
                _stand_in(case, self._asked(), place=place, fields=fields)
            if case.query and _waits(case.query.get("wait")):
                case.query["wait"] = 0
            self._call(case)

        call()

    def _call(self, case: Any) -> None:
        self.outcome.calls += 1
        try:
            response = self._answer(case)
        except requests.exceptions.InvalidHeader:
            return  # cannot be sent over HTTP at all
        except requests.RequestException as error:
            self.outcome.failures.append(f"{type(error).__name__}: {case.as_curl_command()[:500]}")
            return
        self.outcome.statuses[response.status_code] += 1
        try:
            case.validate_response(response, checks=self._checks)
        except (FailureGroup, AssertionError) as error:
            inner = error.exceptions if isinstance(error, FailureGroup) else [error]
            self.outcome.failures += [f"{item}"[:1_500] for item in inner]

    def _answer(self, case: Any) -> Any:
        call = functools.partial(case.call, base_url=self._url, headers=self._headers)
        for timeout in self._short_timeouts:
            with suppress(requests.Timeout):
                return call(timeout=timeout)
        return call(timeout=TIMEOUT_SECONDS)


def _waits(value: object) -> bool:
    """Return whether this is a number of seconds that a request may wait; it says nothing that 0 does not."""
    with suppress(TypeError, ValueError):
        return 0 < float(value) <= MAX_WAIT_SECONDS  # type: ignore[arg-type]
    return False


def _stand_in(case: Any, asked: Asked, *, place: bool, fields: bool) -> None:
    """Put what is known to succeed in the place of what was generated; fields that it does not name stay."""
    if place and asked.path:
        case.path_parameters.update(asked.path)
    if fields and asked.query:
        case.query.update(asked.query)
    if fields and asked.body and isinstance(case.body, dict):
        case.body.update(asked.body)
