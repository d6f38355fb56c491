"""Evaluations an hour on several cards of one host against one: ``python -m benchmarks.judge_cards --cards 0 1``.

A judge process a card, as workers run, each with the same problems and kernels as :mod:`benchmarks.judge_throughput`:
first the first card alone, then all side by side. What they share is the host: its cores, its memory and its disk.
Prints the rates, their ratio, and each card's time by phase.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.judge_run import Record, arguments, phase_table, say

PROBLEMS = ("layer_norm_rows", "matmul", "mse_loss", "sum_reduction")


def main(argv: list[str] | None = None) -> int:
    """Run the comparison; 0 when every card judged kernels."""
    options = _options(argv)
    record = Record(options, "judge_cards")
    runs: dict[str, Any] = {}
    alone = None
    for name, cards in (("alone", options.cards[:1]), ("together", options.cards)):
        started = time.monotonic()
        results = _run(name, cards, options)
        runs[name] = {"wall_seconds": time.monotonic() - started, "cards": results}
        record.add(machine=results[0].get("machine"), **runs)
        if not all(result.get("evaluations") for result in results):
            say(f"{name}: a card judged nothing")
            return 1
        rate = sum(result["per_hour"] for result in results)
        say(f"\n{name}: {rate:.0f} evaluations an hour on {len(cards)} card(s)")
        for result in results:
            say(f"\ncard {result['card']}: {result['per_hour']:.0f} an hour, {result['evaluations']} evaluations")
            say("\n".join(result["profile"]))
        if alone is None:
            alone = rate
            continue
        ratio = rate / alone
        wall = statistics.fmean(result["seconds_median"] for result in results)
        say(f"\n{len(cards)} cards against one: {ratio:.2f} times ({ratio / len(cards):.1%} of linear), "
            f"median evaluation {wall:.2f} s")  # fmt: skip
        record.add(complete=True, summary={"cards": len(cards), "ratio": ratio, "of_linear": ratio / len(cards),
                                           "alone_per_hour": alone, "together_per_hour": rate})  # fmt: skip
    return 0


def _run(name: str, cards: Sequence[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run one process a card, all at once, and return the result of each."""
    say(f"\n{name}: cards {' '.join(cards)}")
    outs = [options.out.with_name(f"{options.out.stem}.{name}.{card}.json") for card in cards]
    children = [_start(card, out, options) for card, out in zip(cards, outs, strict=True)]
    readers = [threading.Thread(target=_relay, args=(card, child)) for card, child in zip(cards, children, strict=True)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    for child in children:
        child.wait()
    return [_card_result(card, out) for card, out in zip(cards, outs, strict=True)]


def _start(card: str, out: Path, options: argparse.Namespace) -> subprocess.Popen[str]:
    argv = [
        *(sys.executable, "-m", "benchmarks.judge_throughput", "--target", options.target),
        *(() if options.target == "cpu" else ("--device", card)),
        *("--policy", options.policy, "--size", options.size, "--kernels", str(options.kernels)),
        *("--seconds", str(options.seconds), "--work-dir", str(options.work_dir / f"card{card}"), "--out", str(out)),
        *("--problems", *options.problems),
        *(("--counters",) if options.counters else ()),
    ]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _relay(card: str, child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    with child.stdout:
        for line in child.stdout:
            say(f"card {card} | {line.rstrip()}")


def _card_result(card: str, out: Path) -> dict[str, Any]:
    try:
        data = json.loads(out.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {"card": card, "evaluations": 0}
    rows = data.get("kernels", [])
    profile = phase_table([row["phases"] for row in rows], [row["seconds"] for row in rows]) if rows else []
    return {
        "card": card,
        "machine": data.get("machine"),
        "profile": profile,
        "evaluations": 0,
        **data.get("summary", {}),
    }


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = arguments("judge_cards", __doc__, PROBLEMS)
    parser.add_argument("--cards", nargs="+", required=True, help="GPU indexes or UUIDs; the first one runs alone too")
    parser.add_argument("--kernels", type=int, default=6, help="distinct kernels a problem")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
