"""Kill a running service at every step boundary, and report what was lost: ``python -m benchmarks.faults``.

Real Postgres, Valkey, scheduler, API and Celery workers; the judge and the model are doubles, so that only the
machinery is under test. The matrix itself is ``tests/service/faults/matrix``, whose short form runs with the tests.
Writes ``benchmarks/results/service/faults.json``; exits 1 where a job was lost, a rule was broken, a
process was left over, or a call was paid without a record.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import count, zip_longest
from pathlib import Path
from typing import Any
from uuid import UUID

from benchmarks import records
from benchmarks.ending import end_well
from tests.service.faults.matrix.audit import breaches, model_calls
from tests.service.faults.matrix.cases import CASES, Case, run
from tests.service.faults.matrix.service import Service
from tests.service.faults.stack import adopt_orphans

RESULTS = Path(__file__).parent / "results" / "service"


@dataclass(frozen=True)
class Outcome:
    """The outcome of one fault."""

    fault: str
    state: str
    """The job's end; ``lost`` where it did not come to one."""
    breaches: list[str]
    """Rules that its rows break; empty is what is wanted."""
    seconds: float
    why: str | None = None
    """Reason and message of a job that did not succeed."""

    @property
    def bad(self) -> bool:
        """Every job of the matrix succeeds where nothing is lost: its judge and its model never fail."""
        return self.state != "succeeded" or bool(self.breaches)


def main() -> int:
    """Run the matrix, write the report; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="faults whose name contains this")
    parser.add_argument("--rounds", type=int, default=1, help="how often the whole matrix is gone through")
    parser.add_argument("--minutes", type=float, default=2.0, help="no fault is begun after that; 0: no end")
    arguments = parser.parse_args()
    end_well()
    adopt_orphans()
    head = records.stamp()
    chosen = [case for case in CASES if arguments.only in case.name] * arguments.rounds
    groups = _groups(chosen)
    with (
        tempfile.TemporaryDirectory(prefix="cupilot-faults-") as folder,
        # Around everything: servers die with the thread that started them.
        ThreadPoolExecutor(max(map(len, groups), default=1)) as threads,
    ):
        service = Service(Path(folder))
        jobs: list[UUID] = []
        try:
            outcomes, left = _run_all(service, groups, threads, arguments.minutes * 60 or math.inf, jobs)
            whole = breaches(service, jobs)
            calls = model_calls(service)
            messages = service.inbox.account()
            reaped = int(service.rows("SELECT count(*) FROM events WHERE kind = 'step.reaped'")[0][0])
            orphans = service.orphans()
        finally:
            orphans_after = service.stop()
    lost = [outcome for outcome in outcomes if outcome.bad]
    report = {
        **head,
        "faults": len(outcomes),
        "not_begun_in_time": [case.name for case in left],
        "jobs": len(jobs),
        "steps_reaped": reaped,
        "lost": [asdict(outcome) for outcome in lost],
        "breaches_over_all_jobs": whole,
        "orphans": orphans + orphans_after,
        "model_calls": asdict(calls) | {"unrecorded": calls.unrecorded},
        "messages": asdict(messages) | {"repeated": messages.repeated},
        "outcomes": [asdict(outcome) for outcome in outcomes],
    }
    text = markdown(report)
    print(text)
    if not arguments.only:
        records.write(RESULTS / "faults.json", report, tables=True)
    return 1 if lost or whole or orphans or orphans_after or calls.unrecorded else 0


def _run_all(
    service: Service, groups: list[list[Case]], threads: ThreadPoolExecutor, seconds: float, jobs: list[UUID]
) -> tuple[list[Outcome], list[Case]]:
    """Go through the groups until the time is up; what they did, and the cases that were not begun."""
    end = time.monotonic() + seconds
    outcomes: list[Outcome] = []
    numbers = count()
    while groups and time.monotonic() < end:
        outcomes += threads.map(lambda case, number: _run_case(service, case, number, jobs), groups.pop(0), numbers)
    return outcomes, [case for group in groups for case in group]


def _groups(cases: list[Case]) -> list[list[Case]]:
    """Return cases that are struck at once: one a role, each with its own job.

    A fault that hurts every process comes alone, after each group of the others, so that a short run sees some of all
    kinds.
    """
    roles = {role: [case for case in cases if case.role == role] for role in ("agent", "gpu")}
    roles["one of a kind"] = [case for case in cases if case.role in ("scheduler", "api", "webhooks")]
    together = [[case for case in group if case] for group in zip_longest(*roles.values())]
    alone = [[case] for case in cases if case.role is None]
    return [group for pair in zip_longest(alone, together) for group in pair if group]


def _run_case(service: Service, case: Case, number: int, jobs: list[UUID]) -> Outcome:
    started = time.monotonic()
    try:
        job = run(service, case, number)
    except AssertionError as error:
        outcome = Outcome(case.name, "lost", [str(error)[:2_000]], time.monotonic() - started)
        _print_outcome(outcome)
        return outcome
    jobs.append(job)
    view = service.wait_final(job)
    why = None if view.state == "succeeded" else f"{view.reason}: {view.message}"
    outcome = Outcome(case.name, view.state, breaches(service, [job]), time.monotonic() - started, why)
    _print_outcome(outcome)
    return outcome


def _print_outcome(outcome: Outcome) -> None:
    text = f"{outcome.state}: {outcome.fault} ({outcome.seconds:.1f} s) {outcome.why or ''} {outcome.breaches or ''}"
    print(text.rstrip(), file=sys.stderr, flush=True)


def _kind(fault: str) -> str:
    """Return what a fault hurts: the part of its name before the step boundary."""
    return fault.split(":", maxsplit=1)[0]


def markdown(report: Mapping[str, Any]) -> str:
    """Return the page of a report."""
    outcomes, calls, messages = report["outcomes"], report["model_calls"], report["messages"]
    bad = len(report["lost"])
    lines = [
        "# Fault report",
        "",
        f"Machine: {report['machine']}. Made by `python -m benchmarks.faults`; other load on the machine only stretches"
        " it.",
        "",
        f"- faults injected: {len(outcomes)}, each into a job under way",
        f"- faults of the matrix that were not injected, for time: {', '.join(report['not_begun_in_time']) or 'none'}",
        f"- jobs that did not end, did not succeed, or broke a rule: {bad or 'none'}",
        f"- lost of what was paid: {_unstored(calls)}",
        f"- rules broken over all jobs together: {len(report['breaches_over_all_jobs'])}",
        f"- processes left without an owner: {len(report['orphans'])}",
        f"- steps whose lease expired, and that were done again: {report['steps_reaped']}",
        f"- model calls that the provider answered: {calls['paid']}; stored: {calls['answered']}; cut off between"
        f" asking and storing, so recorded and reserved, and asked again: {calls['in_flight']}; paid without a record:"
        f" {calls['unrecorded']}",
        f"- events that a webhook told of: {messages['events']}; messages that came again, under their id:"
        f" {messages['repeated']}",
        "",
        "A call that is cut off between the provider's answer and its storage has been paid, and its answer is lost:",
        "no client can close that window. It was recorded before it was made, and its cost stays reserved in the",
        "budget. A stored answer was never paid for again.",
        "",
        "An event that never came, or came under two ids, is a broken rule. One that was sent when its process died",
        "before that was recorded comes again: no sender can close that window either.",
        "",
        "| what is hurt | faults |",
        "|---|---|",
        *(f"| {kind} | {count} |" for kind, count in Counter(_kind(outcome["fault"]) for outcome in outcomes).items()),
        "",
        "| fault | job's end | rules broken |",
        "|---|---|---|",
    ]
    lines += [
        f"| {outcome['fault']} | {outcome['state']} | {len(outcome['breaches']) or 'none'} |" for outcome in outcomes
    ]
    return "\n".join(lines) + "\n"


def _unstored(calls: Mapping[str, int]) -> str:
    count = max(calls["paid"] - calls["answered"], 0)
    if not count:
        return "nothing"
    return (
        f"{count} model answers, whose workers were killed before they could store them; recorded as lost, asked again"
    )


if __name__ == "__main__":
    sys.exit(main())
