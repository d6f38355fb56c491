"""Judge the champions that ship again, on this machine's GPUs: ``python -m benchmarks.judge_champions --cards 0 1``.

Each is prepared and evaluated once at the size of its champion, largest problems first, a thread of one queue a card.
The record says for each what it came to, beside the speedup that it ships with; begins nothing after ``--seconds``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any

from benchmarks.judge_run import Record, arguments, say
from cupilot.domain.champions import Champion, champions
from cupilot.domain.problem import Target
from gpu_worker.evaluator import Evaluator


def main(argv: list[str] | None = None) -> int:
    """Judge champions; 0 when all that were judged are audited."""
    options = _options(argv)
    if options.one_card:
        return _serve(options)
    record = Record(options, "judge_champions")
    waiting = SimpleQueue[Champion]()
    listed = [found for found in champions() if found.target is Target(options.target)]
    for champion in sorted(listed, key=_size, reverse=True):
        waiting.put(champion)
    rows: list[dict[str, Any]] = []
    lock = Lock()
    end = time.monotonic() + options.seconds

    def add(row: dict[str, Any]) -> None:
        machine = row.pop("machine", None)
        rows.append(row)
        rows.sort(key=lambda row: (row["problem"], row["policy"]))
        record.add(champions=rows, **({"machine": f"{len(options.cards)} x {machine}"} if machine else {}))

    def work(card: str) -> None:
        argv = [sys.executable, "-m", "benchmarks.judge_champions", "--one-card", "--device", card]
        argv += ["--work-dir", str(options.work_dir / f"card{card}"), "--out", str(options.out), "--cards", card]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            while time.monotonic() < end:
                try:
                    champion = waiting.get_nowait()
                except Empty:
                    break
                print(champion.kernel.content_hash(), file=child.stdin, flush=True)
                line = child.stdout.readline()
                if not line:
                    say(f"card {card} ended at {champion.problem}")
                    break
                say(f"card {card} | {line.rstrip()}")
                with lock:
                    add(json.loads(line))
            child.stdin.close()

    threads = [Thread(target=work, args=(card,)) for card in options.cards]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    audited = sum(row["verdict"] == "audited" for row in rows)
    record.add(judged=len(rows), audited=audited, complete=len(rows) == len(listed))
    say(f"{audited} of {len(rows)} judged are audited; {len(listed)} ship")
    return 0 if audited == len(rows) else 1


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
    parser.add_argument("--one-card", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
