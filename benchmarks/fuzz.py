"""Fuzzes every endpoint of a whole embedded stack from its own OpenAPI: ``python -m benchmarks.fuzz [--examples N]``.

Valid and invalid input in equal parts, by schemathesis, seeded. Writes ``benchmarks/results/service/fuzz.md``; exits 1
on any 5xx, any undocumented status or content type, any answer that is not of the documented form.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import httpx

from benchmarks.ending import end_well
from benchmarks.machine import machine
from cupilot import embedded
from cupilot.client import Client
from cupilot.problem import Target
from cupilot.schemas import JobRequest
from tests.service.api.openapi_fuzz import Outcome, fuzz, operations, report

RESULTS = Path(__file__).parent / "results" / "service"


def main() -> int:
    """Run, print, write; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=25, help="calls an operation, of each of valid and invalid")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="operations whose name contains this")
    arguments = parser.parse_args()
    where = machine()
    end_well()
    with tempfile.TemporaryDirectory(prefix="cupilot-fuzz-") as folder:
        data = Path(folder)
        endpoint = embedded.up(data, foreground=False, target=Target.CPU, on_progress=lambda _: None)
        try:
            known = _known(endpoint.url, endpoint.api_key or "")
            document = httpx.get(f"{endpoint.url}/openapi.json", trust_env=False, timeout=120).json()
            outcomes: list[Outcome] = []
            for operation in operations(document):
                if arguments.only in operation.label:
                    outcome = fuzz(
                        operation,
                        endpoint.url,
                        endpoint.api_key or "",
                        known,
                        examples=arguments.examples,
                        number=arguments.seed,
                    )
                    outcomes.append(outcome)
                    print(f"{outcome.operation}: {outcome.calls} calls, {len(outcome.failures)} failures", flush=True)
        finally:
            embedded.down(data)
    failures = [(one.operation, failure) for one in outcomes for failure in one.failures]
    for operation, failure in failures:
        print(f"\n{operation}: {failure}", file=sys.stderr)
    if not arguments.only:
        (RESULTS / "fuzz.md").write_text(_markdown(where, outcomes, arguments.examples, arguments.seed))
    return 1 if failures else 0


def _known(url: str, key: str) -> dict[str, list[str]]:
    """Ids that exist: a finished job with candidates, and one that was cancelled."""
    small = {"population": 2, "generations": 1, "elites": 1}
    request = JobRequest.model_validate({"problem": {"id": "softmax"}, "target": "cpu", "method": small})
    with Client(url, key) as client:
        first = client.submit(request)
        client.wait(first.id)
        second = client.submit(request)
        client.cancel(second.id)
        candidates = [str(one.id) for one in client.candidates(first.id).items]
    return {"job": [str(first.id), str(second.id)], "candidate": candidates, "problem": ["softmax"]}


def _markdown(where: str, outcomes: list[Outcome], examples: int, seed: int) -> str:
    calls = sum(one.calls for one in outcomes)
    errors = sum(count for one in outcomes for status, count in one.statuses.items() if status >= 500)
    failures = sum(len(one.failures) for one in outcomes)
    return (
        f"# Fuzz report\n\nMachine: {where}.\n"
        f"Made by `python -m benchmarks.fuzz --examples {examples} --seed {seed}`.\n\n"
        f"- operations: {len(outcomes)}\n- calls: {calls}\n- answers with a status of 500 or above: {errors}\n"
        f"- answers that the documentation does not promise: {failures}\n\n{report(outcomes)}"
    )


if __name__ == "__main__":
    sys.exit(main())
