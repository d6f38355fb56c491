"""Judge the champions that ship again, on this machine's GPUs: ``python -m benchmarks.judge_champions --cards 0 1``.

Each is prepared and evaluated once at the size of its champion, largest problems first, a thread of one queue a card.
The record says for each what it came to, beside the speedup that it ships with; begins nothing after ``--seconds``.
``--count`` draws so many of them by ``--seed``.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any

from benchmarks.judge_run import Record, arguments, say
from cupilot.domain.champions import Champion, champions
from cupilot.domain.problem import Target
from gpu_worker.evaluator import Evaluator


def main(argv: list[str] | None = None) -> int:
    """Judge champions; 0 when all that were begun are audited, and there are some."""
    options = _options(argv)
    if options.one_card:
        return _serve(options)
    listed = [found for found in champions() if found.target is Target(options.target)]
    if options.count is not None:
        listed = random.Random(options.seed).sample(listed, min(options.count, len(listed)))
    run = _Run(options, sorted(listed, key=_size, reverse=True))
    threads = [Thread(target=run.work, args=(card,)) for card in options.cards]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    say(f"{run.audited} of {run.begun} that were begun are audited; {len(listed)} were to be judged")
    return 0 if 0 < run.begun == run.audited else 1


class _Run:
    """Champions that wait, and what came of the others."""

    def __init__(self, options: argparse.Namespace, waiting: Sequence[Champion]) -> None:
        self._options = options
        self._record = Record(options, "judge_champions")
        self._waiting = SimpleQueue[Champion]()
        for champion in waiting:
            self._waiting.put(champion)
        self._lock = Lock()
        self._rows: list[dict[str, Any]] = []
        self._end = time.monotonic() + options.seconds
        self.begun = 0

    @property
    def audited(self) -> int:
        """Number of champions that were audited again."""
        return sum(row["verdict"] == "audited" for row in self._rows)

    def work(self, card: str) -> None:
        """Have a process judge champions on one card, one after the other, until its time is over."""
        argv = [sys.executable, "-m", "benchmarks.judge_champions", "--one-card", "--device", card, "--cards", card]
        argv += ["--target", self._options.target, "--out", str(self._options.out)]
        argv += ["--work-dir", str(self._options.work_dir / f"card{card}")]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            for champion in self._next():
                print(champion.kernel.content_hash(), file=child.stdin, flush=True)
                line = child.stdout.readline()
                if not line:
                    say(f"card {card} ended at {champion.problem}")
                    break
                say(f"card {card} | {line.rstrip()}")
                self._add(json.loads(line))
            child.stdin.close()

    def _next(self) -> Iterator[Champion]:
        while time.monotonic() < self._end:
            try:
                champion = self._waiting.get_nowait()
            except Empty:
                return
            with self._lock:
                self.begun += 1
            yield champion

    def _add(self, row: dict[str, Any]) -> None:
        machine = row.pop("machine", None)
        with self._lock:
            self._rows.append(row)
            self._rows.sort(key=lambda row: (row["problem"], row["policy"]))
            known = {"machine": f"{len(self._options.cards)} x {machine}"} if machine else {}
            complete = self.begun == len(self._rows) and self._waiting.empty()
            counts = {"judged": len(self._rows), "audited": self.audited, "complete": complete}
            self._record.add(champions=self._rows, **known, **counts)


def _serve(options: argparse.Namespace) -> int:
    """Judge the champions whose hashes come by standard input; a line of JSON each."""
    known = {champion.kernel.content_hash(): champion for champion in champions()}
    with Evaluator(Target(options.target), options.work_dir, device=options.device) as evaluator:
        for line in sys.stdin:
            print(json.dumps(_judged(evaluator, known[line.strip()])), flush=True)
    return 0


def _judged(evaluator: Evaluator, champion: Champion) -> dict[str, Any]:
    problem, shipped = champion.load_problem(), champion.evaluation.comparison()
    assert shipped is not None
    row: dict[str, Any] = {"problem": champion.problem, "policy": champion.policy.value}
    result = evaluator.prepare(problem)
    if result.preparation is None:
        message = result.failure.message if result.failure else ""
        return row | {"verdict": "not prepared", "why": message[:300]}
    evaluation = evaluator.evaluate(problem, result.preparation, champion.kernel)
    comparison, failure = evaluation.comparison(), evaluation.failure
    return row | {
        "machine": result.preparation.environment.device.name,
        "verdict": evaluation.verdict.value,
        "why": f"{failure.kind.value}: {failure.message[:400]}" if failure else None,
        "speedup": comparison.speedup.median if comparison else None,
        "shipped": shipped.speedup.median,
        "seconds": evaluation.seconds,
    }


def _size(champion: Champion) -> int:
    return sum(tensor.nbytes for tensor in champion.preparation.facts.tensors)


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = arguments("judge_champions", __doc__)
    parser.add_argument("--cards", nargs="+", required=True, help="GPU indexes or UUIDs")
    parser.add_argument("--count", type=int, help="judge so many, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of that draw")
    parser.add_argument("--one-card", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
