"""Fuzzes every endpoint of a whole embedded stack from its own OpenAPI: ``python -m benchmarks.fuzz [--examples N]``.

A request of each that succeeds, then valid and invalid input in equal parts, by schemathesis, seeded. Writes
``benchmarks/results/service/fuzz.json``; exits 1 on any 5xx, any undocumented status or content type, any answer that
is not of the documented form, any operation that never answered 2xx.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx

from benchmarks import records
from benchmarks.ending import end_well
from cupilot.client import Client
from cupilot.domain.problem import Target
from cupilot.embedded import stack as embedded
from cupilot.schemas import JobRequest
from cupilot.storage.db.engine import Database
from tests.service.api.openapi_fuzz import Outcome, fuzz, operations
from tests.service.api.things import asker
from tests.service.api.world import World

RESULTS = Path(__file__).parent / "results" / "service"


def main() -> int:
    """Run, print, write; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=25, help="calls an operation, of each of valid and invalid")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="operations whose name contains this")
    arguments = parser.parse_args()
    head = records.stamp()
    end_well()
    with tempfile.TemporaryDirectory(prefix="cupilot-fuzz-") as folder, _stack(Path(folder)) as world:
        document = httpx.get(f"{world.url}/openapi.json", trust_env=False, timeout=120).json()
        team = world.cluster_admin()
        ask = asker(world, team, _finished(world.url, team.key))
        outcomes: list[Outcome] = []
        for operation in operations(document):
            if arguments.only in operation.label:
                outcome = fuzz(operation, world.url, team.key, ask, examples=arguments.examples, number=arguments.seed)
                outcomes.append(outcome)
                print(f"{outcome.operation}: {outcome.calls} calls, {len(outcome.failures)} failures", flush=True)
    wrong = [f"{outcome.operation}: {failure}" for outcome in outcomes for failure in outcome.failures]
    wrong += [
        f"{outcome.operation}: never answered 2xx, {dict(outcome.statuses)}"
        for outcome in outcomes
        if not outcome.succeeded
    ]
    for line in wrong:
        print(f"\n{line}", file=sys.stderr)
    if not arguments.only:
        records.write(
            RESULTS / "fuzz.json", {**head, "operations": [_row(outcome) for outcome in outcomes]}, tables=True
        )
    return 1 if wrong else 0


@contextmanager
def _stack(data: Path) -> Iterator[World]:
    """Start a whole embedded stack without rate limits, with the rows in its database that operations need.

    With limits, a quick machine would have the later operations answer 429 and nothing else.
    """
    os.environ.update(CUPILOT_RATE_LIMIT_KEY="0", CUPILOT_RATE_LIMIT_ADDRESS="0")
    endpoint = embedded.up(data, foreground=False, target=Target.CPU, on_progress=lambda _: None)
    try:
        with closing(Database(embedded.addresses(data)["CUPILOT_DATABASE_URL"])) as database:
            world = World(database, endpoint.url)
            yield world
            world.close()
    finally:
        embedded.down(data)


def _finished(url: str, key: str) -> UUID:
    """Run a job to its end with workers, and return its id."""
    small = {"population": 2, "generations": 1, "elites": 1}
    request = JobRequest.model_validate({"problem": {"id": "softmax"}, "target": "cpu", "method": small})
    with Client(url, key) as client:
        return client.wait(client.submit(request).id).id


def _row(outcome: Outcome) -> dict[str, Any]:
    statuses = {str(status): count for status, count in sorted(outcome.statuses.items())}
    return {
        "operation": outcome.operation,
        "calls": outcome.calls,
        "statuses": statuses,
        "failures": outcome.failures,
    }


if __name__ == "__main__":
    sys.exit(main())
