"""Measure what ``make demo`` shows a new user: from no data at all to a proven kernel, on this machine.

Each problem gets a stack of its own in an empty folder, after the packages are installed. Writes ``cpu_demo.json``, the
first problem's run as ``best``, ``job_seconds`` and so on, and a row of each run.

    python -m benchmarks.demo [PROBLEM ...]
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import records
from benchmarks.embedded import cupilot, environment

DEFAULT = re.search(r"^DEMO := (.+)$", (records.ROOT / "Makefile").read_text(), re.MULTILINE)
OPTIONS = re.search(r"^DEMO_OPTIONS := (.+)$", (records.ROOT / "Makefile").read_text(), re.MULTILINE)


def main() -> None:
    """Run the demo of each problem and write the record."""
    assert DEFAULT is not None
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problems", nargs="*", default=[DEFAULT[1]])
    parser.add_argument("--out", type=Path, default=records.RESULTS / "cpu_demo.json")
    arguments = parser.parse_args()
    stamp = records.stamp()
    runs = [_run(problem) for problem in arguments.problems]
    records.write(arguments.out, {**stamp, **runs[0], "runs": runs[1:]})


def _run(problem: str) -> dict[str, Any]:
    assert OPTIONS is not None
    words = ["evolve", problem, *OPTIONS[1].split()]
    with tempfile.TemporaryDirectory() as folder:
        within = environment(Path(folder), {"model": "none"})
        del within["CUPILOT_LLM_MODELS_FILE"]
        began = time.monotonic()
        try:
            cupilot(within, "up", "--detach", check=True)
            ready = time.monotonic()
            cupilot(within, *words, "--out", str(Path(folder) / "result"), shown=True)
            ended = time.monotonic()
            report = json.loads(
                cupilot(within, "result", "last", "--json", "--out", str(Path(folder) / "again"), check=True)
            )
        finally:
            cupilot(within, "down")
    return {
        "problem": problem,
        "what": f"cupilot {' '.join(words)}, from an empty folder",
        "stack_ready_seconds": round(ready - began, 1),
        "job_seconds": round(ended - ready, 1),
        "seconds": round(ended - began, 1),
        "candidates": report["job"]["candidates"],
        "verdict": report["candidate"]["verdict"],
        "best": _best(report),
    }


def _best(report: dict[str, Any]) -> dict[str, Any]:
    candidate = report["candidate"]
    found = {comparison["baseline"]: comparison for comparison in candidate["evaluation"]["comparisons"]}
    eager, compiled = found["eager"], found.get("torch.compile")

    def bounds(comparison: dict[str, Any]) -> list[float]:
        return [round(comparison["speedup"][name], 2) for name in ("low", "median", "high")]

    return {
        "candidate": candidate["ordinal"],
        "generation": candidate["generation"] + 1,
        "over_eager": bounds(eager),
        "kernel_us": round(eager["kernel_us"]["median"], 1),
        "eager_us": round(eager["baseline_us"]["median"], 1),
        "over_torch_compile": bounds(compiled) if compiled else None,
        "techniques": candidate["techniques"],
    }


if __name__ == "__main__":
    main()
