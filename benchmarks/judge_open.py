"""Profile the opening of a card, alone and beside others: ``python -m benchmarks.judge_open --cards 0 1 2 3``.

Each kernel is judged in a fresh process, so this is paid once a kernel. A process a card is started, opens the card as
a runner does, and is killed, again and again: first on the first card alone, then on all at once. ``--variants``
repeats that with one thing changed. Prints the median of each part, in milliseconds; judges nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from benchmarks.judge_run import Record, arguments, say
from benchmarks.opening import PARTS
from gpu_worker.sandbox.files import SOURCE_ROOT
from gpu_worker.sandbox.limits import Limits
from gpu_worker.sandbox.sandbox import Sandbox
from gpu_worker.targets.base import Access, Program
from gpu_worker.targets.cuda import installation
from gpu_worker.targets.cuda.host import CudaHost

PROGRAM = Path(__file__).with_name("opening.py")
OPENING_SECONDS = 60.0

Change = Callable[[Access], Access]

VARIANTS: dict[str, Change] = {
    "as runners are": lambda access: access,
    "sees all cards' nodes": lambda access: replace(access, devices=installation.device_nodes(None)),
    "eight hardware queues, as without being told": lambda access: replace(
        access, environment={**access.environment, "CUDA_DEVICE_MAX_CONNECTIONS": "8"}
    ),
}


def main(argv: list[str] | None = None) -> int:
    """Run the measurement; 0 when every card was opened."""
    options = _options(argv)
    record = Record(options, "judge_open")
    hosts = {card: CudaHost(card) for card in options.cards}
    record.add(machine=f"{len(hosts)} x {next(iter(hosts.values())).device.name}, {os.cpu_count()} processors")
    milliseconds: dict[str, dict[str, dict[str, float]]] = {}
    for name in options.variants:
        for many, cards in (("alone", options.cards[:1]), ("together", options.cards)):
            rows = _at_once([hosts[card] for card in cards], VARIANTS[name], options)
            milliseconds.setdefault(name, {})[many] = {
                "openings": float(len(rows)),
                **{part: statistics.median(row[part] for row in rows) for part in rows[0]},
            }
        record.add(milliseconds=milliseconds)
        say("\n".join(_table(name, milliseconds[name])))
    record.add(complete=True)
    return 0


def _at_once(hosts: Sequence[CudaHost], change: Change, options: argparse.Namespace) -> list[dict[str, float]]:
    rows: list[dict[str, float]] = []
    until = time.monotonic() + options.seconds

    def work(host: CudaHost) -> None:
        while time.monotonic() < until:
            time.sleep(random.uniform(0, 2 * options.pause))
            rows.append(_open_once(host, change, options.gigabytes))

    threads = [threading.Thread(target=work, args=(host,)) for host in hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not rows:
        raise RuntimeError("no card was opened")
    return rows


def _open_once(host: CudaHost, change: Change, gigabytes: float) -> dict[str, float]:
    """Return milliseconds of each part of one opening, of all of them, and of the process's end."""
    access = change(host.runner_access())
    access = replace(access, read_only=(*access.read_only, PROGRAM))
    begun = time.monotonic()
    reading, writing = os.pipe()
    argv = (sys.executable, *host.runner_python_flags(), str(PROGRAM), str(SOURCE_ROOT), str(writing), str(gigabytes))
    child = Sandbox().start(Program(argv, access), Limits(open_files=4096), [writing])
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        line = pipe.readline()
    if not line:
        raise RuntimeError(f"the card was not opened: {child.wait(OPENING_SECONDS).stderr[-2000:]}")
    marks = [begun, *json.loads(line)]
    program = Path("/proc", str(child.program_pid()))
    ending = time.monotonic()
    child.kill()
    while program.exists():
        time.sleep(0.001)
    ended = time.monotonic()
    parts = {part: 1e3 * (later - earlier) for part, (earlier, later) in zip(PARTS, pairwise(marks), strict=True)}
    return {**parts, "all": 1e3 * (marks[-1] - begun), "killed": 1e3 * (ended - ending)}


def _table(name: str, milliseconds: dict[str, dict[str, float]]) -> list[str]:
    alone, together = milliseconds["alone"], milliseconds["together"]
    lines = [f"\n{name}", f"{'part':<20}{'alone':>10}{'together':>10}"]
    return [*lines, *(f"{part:<20}{alone[part]:>10.1f}{together[part]:>10.1f}" for part in alone)]


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = arguments("judge_open", __doc__)
    parser.set_defaults(seconds=6.0)
    parser.add_argument("--cards", nargs="+", required=True, help="GPU indexes or UUIDs; the first one runs alone too")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS), help="what to change")
    parser.add_argument("--pause", type=float, default=0.0, help="mean seconds between two openings of a card")
    parser.add_argument("--gigabytes", type=float, default=4.0, help="of the shared memory that is mapped")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
