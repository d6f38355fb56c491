"""Kills model steps at every point, with models that misbehave, and compares the books.

``python -m benchmarks.model_faults``: real Postgres, real processes that are ended by SIGKILL, the production model
stack over HTTP; the judge and the model are doubles. Each method's job is done once undisturbed, once for each point
with every call dying there, once with all points in turn while the model misbehaves, and once for each fault with a
model that does nothing else. ``--quick`` leaves it at the undisturbed job and the one with all points in turn. The
machinery is ``tests/service/model_faults``, a short form of which runs with the tests. Writes
``benchmarks/results/service/model_faults.json`` (``model_faults_quick``), anew after each method; exits 1
where the books do not agree or a job does not end as it should. Most of a method's time is waiting, so ``--at-once``
lets several run side by side, each with servers of its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from benchmarks import records
from benchmarks.ending import end_well
from cupilot.domain.states import JobState
from cupilot.embedded.servers import start_postgres
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from migrations import upgrade
from tests.service.method_models import competent
from tests.service.model_faults.moods import FAULTS, SLOW, UNANSWERED, USABLE, Script, always, at_first
from tests.service.model_faults.sweep import METHODS, Outcome, Worker, run
from tests.service.model_faults.worker import Point

RESULTS = Path(__file__).parent / "results" / "service"


@dataclass(frozen=True)
class Bench:
    """The servers and the worker that jobs run on."""

    database: Database
    settings: Settings
    worker: Worker

    def run(self, method: str, script: Script, points: Sequence[Point] = (), *, slow: bool = False) -> Outcome:
        """Run one job."""
        return run(self.database, self.settings, self.worker, method, script, points=points, slow=slow)


@dataclass(frozen=True)
class Line:
    """One job of the report."""

    method: str
    disturbance: str
    end: str
    kills: dict[str, int]
    requests: int
    """Requests that the server received."""
    server_usd: float
    """Sum of the server's charges."""
    charged_usd: float
    reserved_usd: float
    """Worst cost of calls of which nobody knows whether they were paid."""
    unknown_calls: int
    wrong: list[str]
    """Books that do not agree, or an end that is not the undisturbed job's."""


def main() -> int:
    """Run the sweep, write the report; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="methods whose name contains this; writes no file")
    parser.add_argument(
        "--quick", action="store_true", help="only the undisturbed job and that with all points in turn"
    )
    parser.add_argument("--at-once", type=int, default=1, help="methods that run side by side")
    arguments = parser.parse_args()
    only, quick = arguments.only, arguments.quick
    head, started = records.stamp(), time.monotonic()
    lines: list[Line] = []
    # Started anew: a copy of this process would share its connections and its model's event loop.
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.at_once, mp_context=fresh, initializer=end_well) as several:
        for made in several.map(partial(_method, quick=quick), [name for name in METHODS if only in name]):
            lines += made
            if not only:
                _write("model_faults_quick" if quick else "model_faults", head, lines, time.monotonic() - started)
    print(_markdown(head["machine"], lines, time.monotonic() - started))
    return 1 if any(line.wrong for line in lines) else 0


def _method(method: str, *, quick: bool) -> list[Line]:
    """Run all jobs of a method, on their own servers."""
    lines = []
    with _bench() as bench:
        for line in _lines(bench, method, quick=quick):
            lines.append(line)
            print(f"{line.method}; {line.disturbance}: {line.end} {line.wrong or ''}", file=sys.stderr, flush=True)
    return lines


def _write(name: str, head: dict[str, Any], lines: list[Line], seconds: float) -> None:
    kept = [asdict(line) | {"kills": sum(line.kills.values())} for line in lines]
    jobs = [{key: value for key, value in row.items() if value} for row in kept]
    records.write(RESULTS / f"{name}.json", {**head, "seconds": round(seconds), "jobs": jobs}, tables=True)


@contextmanager
def _bench() -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="cupilot-model-faults-") as folder:
        postgres = start_postgres(Path(folder) / "postgres")
        try:
            upgrade(postgres.url)
            settings = Settings(database_url=SecretStr(postgres.url), lease_seconds=600.0)
            database = Database(postgres.url)
            worker = Worker(settings, Path(folder) / "worker.log")
            yield Bench(database, settings, worker)
            worker.close()
            database.close()
        finally:
            postgres.stop()


def _lines(bench: Bench, method: str, *, quick: bool) -> Iterator[Line]:
    usual = bench.run(method, competent)
    yield _line(method, "none", usual)
    passing = [name for name in FAULTS if name not in SLOW]
    hurt = bench.run(method, at_first(passing), tuple(Point))
    # Templates leave the model so little that is new that an undisturbed job needs its repair turns too.
    others = hurt.departures(usual, bad_answers="hybrid" in method)
    yield _line(method, "every first answer bad, killed at each call at all points in turn", hurt, others)
    for point in () if quick else tuple(Point):
        killed = bench.run(method, competent, [point])
        yield _line(method, f"killed at each call: {point}", killed, killed.departures(usual))
    for fault in () if quick else FAULTS:
        outcome = bench.run(method, always(fault), slow=fault in SLOW)
        others = outcome.departures(usual) if fault in USABLE else _without_answers(method, outcome)
        yield _line(method, f"always: {fault}", outcome, others)


def _without_answers(method: str, outcome: Outcome) -> list[str]:
    """Return what is wrong with the end of a job whose model gave no usable answer.

    Only templates made kernels for it.
    """
    due = JobState.SUCCEEDED if "hybrid" in method else JobState.FAILED
    return [] if outcome.state is due else [f"without one usable answer it ended as {outcome.state}, not as {due}"]


def _line(method: str, disturbance: str, outcome: Outcome, departures: Sequence[str] = ()) -> Line:
    """Return a job's line; ``departures`` are its differences from the expected result."""
    return Line(
        method=method,
        disturbance=disturbance,
        end=outcome.state.value + (f" ({outcome.reason})" if outcome.reason else ""),
        kills=dict(outcome.kills),
        requests=len(outcome.asked),
        server_usd=sum(request.usd for request in outcome.asked),
        charged_usd=outcome.charged_usd,
        reserved_usd=outcome.reserved_usd,
        unknown_calls=outcome.lost,
        wrong=[*outcome.breaches, *departures],
    )


def _markdown(where: str, lines: list[Line], seconds: float) -> str:
    kills: Counter[str] = Counter()
    for line in lines:
        kills.update(line.kills)
    return "\n".join(
        [
            "# Model faults",
            "",
            f"Machine: {where}; {seconds:.0f} s. Made by `python -m benchmarks.model_faults`; load only stretches it.",
            "",
            f"- jobs: {len(lines)}; of {len({line.method for line in lines})} methods and kinds of agents",
            f"- processes killed in the middle of a model step: {sum(kills.values())}",
            f"- requests that the model's server got: {sum(line.requests for line in lines)}",
            f"- jobs that came to a wrong end, or whose books do not agree: {sum(bool(line.wrong) for line in lines)}",
            f"- the server charges {sum(line.server_usd for line in lines):.6f} USD; on record are"
            f" {sum(line.charged_usd for line in lines):.6f} USD as charged, and"
            f" {sum(line.unknown_calls for line in lines)} calls of unknown cost, for which"
            f" {sum(line.reserved_usd for line in lines):.6f} USD stay reserved",
            "",
            "What is promised: an answer that is stored is never asked for again, whatever dies afterwards. A process",
            "that dies between the request and the storing may have been charged for an answer that nobody has. No",
            "client can know; so that call stands in the ledger as `lost`, with its worst cost reserved in the",
            "budgets, and is made again.",
            "",
            f"Bad answers: {', '.join(name for name in FAULTS if name not in UNANSWERED)}."
            f" No answers: {', '.join(sorted(UNANSWERED))}.",
            "",
            "## Kills by kind of step and point",
            "",
            "| step: point | kills |",
            "|---|---|",
            *(f"| {name} | {count} |" for name, count in sorted(kills.items())),
            "",
            "## Jobs",
            "",
            "| method | disturbance | end | kills | requests | server USD | charged | reserved | unknown | wrong |",
            "|---|---|---|---|---|---|---|---|---|---|",
            *(_row(line) for line in lines),
            "",
        ]
    )


def _row(line: Line) -> str:
    cells = [line.method, line.disturbance, line.end, sum(line.kills.values()), line.requests]
    money = [f"{usd:.6f}" for usd in (line.server_usd, line.charged_usd, line.reserved_usd)]
    return f"| {' | '.join(map(str, [*cells, *money, line.unknown_calls, len(line.wrong) or 'none']))} |"


if __name__ == "__main__":
    sys.exit(main())
