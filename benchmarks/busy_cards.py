"""Share of time in which cards of a service are busy: ``python -m benchmarks.busy_cards --data FOLDER --out R.json``.

Submits jobs of level 1 to a running service and looks over and over at what each GPU worker holds and what waits.
The share is that of cards which hold a step, over all looks while more jobs than cards are unfinished: before them jobs
are being submitted, after them there is less work than cards. Ends after ``--seconds``, with what the record has then.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import records
from benchmarks.judge_run import say
from cupilot.client import Client
from cupilot.domain import problems
from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.job import Budgets
from cupilot.domain.problem import Target
from cupilot.schemas import JobRequest, ProblemInput

LABEL = {"run": "busy-cards"}
PAUSE_SECONDS = 0.5


def main() -> int:
    """Submit, look, keep; 0 when cards were looked at while all had work."""
    options = _options()
    record: dict[str, Any] = {**records.stamp(), "commit": records.commit()}
    with Client(options.server, data=options.data) as client:
        names = [name for name in problems.names("level1") if name not in options.without][: options.jobs]
        jobs = [client.submit(_request(name, options)).id for name in names]
        began, looks = time.monotonic(), []
        while time.monotonic() - began < options.seconds:
            states = [client.get(job) for job in jobs]
            open_jobs = sum(not state.final for state in states)
            looks.append(_look(client, time.monotonic() - began, open_jobs))
            record.update(devices=looks[-1].pop("devices"), summary=_summary(looks), looks=looks[:: options.keep_each])
            records.write(options.out, record, tables=True)
            if not open_jobs:
                break
            time.sleep(PAUSE_SECONDS)
        record["jobs"] = [
            {"problem": state.problem.name, "state": state.state, "verdicts": state.verdicts} for state in states
        ]
    records.write(options.out, record, tables=True)
    say(str(record["summary"]))
    return 0 if record["summary"]["busy"] is not None else 1


def _request(name: str, options: argparse.Namespace) -> JobRequest:
    return JobRequest(
        problem=ProblemInput(id=name, size=options.size),
        target=Target(options.target),
        method=SceConfig(population=options.population, generations=options.generations),
        budgets=Budgets(candidates=options.candidates),
        labels=LABEL,
    )


def _look(client: Client, seconds: float, open_jobs: int) -> dict[str, Any]:
    cluster = client.cluster()
    cards = [worker for worker in cluster.workers if worker.kind == "gpu" and worker.alive]
    queues = {queue.name: [queue.queued, queue.running] for queue in cluster.queues if queue.queued or queue.running}
    return {
        "seconds": round(seconds, 1),
        "open_jobs": open_jobs,
        "cards": len(cards),
        "devices": sorted({worker.device.name for worker in cards if worker.device}),
        "busy": sum(worker.busy > 0 for worker in cards),
        "queues": queues,
    }


def _summary(looks: list[dict[str, Any]]) -> dict[str, Any]:
    counted = [look for look in looks if look["cards"] and look["open_jobs"] > look["cards"]]
    return {
        "cards": max((look["cards"] for look in looks), default=0),
        "seconds": looks[-1]["seconds"] if looks else 0.0,
        "looks": len(counted),
        "busy": statistics.fmean(look["busy"] / look["cards"] for look in counted) if counted else None,
        "finished": looks[0]["open_jobs"] - looks[-1]["open_jobs"] if looks else 0,
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.busy_cards", description=__doc__)
    parser.add_argument("--server", help="URL of a service; by default the embedded stack of --data")
    parser.add_argument("--data", type=Path, help="data folder of an embedded stack")
    parser.add_argument("--target", choices=[target.value for target in Target], default="cuda")
    parser.add_argument("--size", choices=["small", "full"], default="full", help="of the problems")
    parser.add_argument("--jobs", type=int, default=40, help="the first so many problems")
    parser.add_argument("--without", nargs="*", default=[], metavar="PROBLEM", help="problems to leave out")
    parser.add_argument("--population", type=int, default=4, help="kernels a generation")
    parser.add_argument("--generations", type=int, default=2, help="rounds of selection a job")
    parser.add_argument("--candidates", type=int, default=12, help="kernels a job")
    parser.add_argument("--seconds", type=float, default=1800.0, help="look no longer than this")
    parser.add_argument("--keep-each", type=int, default=10, metavar="N", help="keep each Nth look in the record")
    parser.add_argument("--out", type=Path, required=True, help="the record")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
