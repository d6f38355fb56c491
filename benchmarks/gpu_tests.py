"""Run the tests that need a GPU as one run and record it: ``python -m benchmarks.gpu_tests --out RECORD.json``.

What ``make test-gpu`` runs, spread over ``--cards`` of one machine, a pytest process a card; what needs two cards for
itself follows alone. Outcomes are added to ``--log`` one by one, so that nothing of a run is lost that is
ended: the same command goes on with the tests that have not passed, and ``--machine NAME`` writes the record of what
there is. The record holds what each file came to, every failure, also of tests that passed later, and what tests
print; ``--printed FILE`` holds the same lines for :mod:`benchmarks.exploit_results` ``--from-pytest``. Ends with status
1 where a test failed. Needs pytest, pytest-timeout and pytest-xdist beside what the GPU worker needs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import records

NEEDS_TWO_CARDS = "tests/gpu/test_champions.py::test_a_kernel_is_reproduced_on_another_card"
LOG_VARIABLE = "CUPILOT_TEST_LOG"
"""The tests' conftest adds the outcomes to the file that it names."""
_LONGEST_PRINT = 120


def main(argv: list[str] | None = None) -> int:
    """Run the tests that have not passed and write the record; 0 when all passed or were skipped."""
    options = _options(argv)
    record: dict[str, Any] = {**records.stamp(), "machine": options.machine or _machine()}
    passed = [test for test, row in _outcomes(options.log).items() if row["outcome"] == "passed"]
    tests = [f"--deselect={test}" for test in passed] + options.tests
    if options.machine:
        record["note"] = "Written from the log of a run that was ended before its last test."
    elif options.cards > 1:
        spread = ["-n", str(options.cards), "--dist", "worksteal", f"--deselect={NEEDS_TWO_CARDS}"]
        _run(options.log, record["commit"], [*spread, *tests])
        _run(options.log, record["commit"], [NEEDS_TWO_CARDS])
    else:
        _run(options.log, record["commit"], tests)
    outcomes = _outcomes(options.log)
    records.write(options.out, record | _summary(outcomes))
    if options.printed:
        options.printed.write_text("\n".join(row["printed"] for row in outcomes.values()), encoding="utf-8")
    return 0 if outcomes and all(row["outcome"] != "failed" for row in outcomes.values()) else 1


def _run(log: Path, commit: str, arguments: Sequence[str]) -> None:
    """Run pytest, whose output goes through and whose outcomes are added to the log."""
    plugins = ["-p", "no:benchmark", "-p", "no:randomly"]
    command = [sys.executable, "-m", "pytest", "-v", *plugins, "-m", "gpu", "--tb=short", *arguments]
    environment = {**os.environ, LOG_VARIABLE: str(log.resolve()), "CUPILOT_TEST_COMMIT": commit}
    subprocess.run(command, cwd=records.ROOT, env=environment, check=False)


def _outcomes(log: Path) -> dict[str, dict[str, Any]]:
    """Return the last outcome of each test in a log, and whether it ``failed_before``; none where there is no log."""
    outcomes: dict[str, dict[str, Any]] = {}
    for row in map(json.loads, log.read_text(encoding="utf-8").splitlines() if log.exists() else ()):
        earlier = outcomes.get(row["test"], {"outcome": None, "failed_before": False})
        outcomes[row["test"]] = row | {"failed_before": earlier["failed_before"] or earlier["outcome"] == "failed"}
    return outcomes


def _summary(outcomes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    counts = Counter(row["outcome"] for row in outcomes.values())
    files = sorted({test.partition("::")[0] for test in outcomes})
    return {
        **{outcome: counts[outcome] for outcome in ("passed", "skipped")},
        "failed": {test: row["why"] for test, row in outcomes.items() if row["outcome"] == "failed"},
        "failed_before_they_passed": [
            test for test, row in outcomes.items() if row["failed_before"] and row["outcome"] == "passed"
        ],
        "skipped_for": sorted({row["why"] for row in outcomes.values() if row["outcome"] == "skipped"}),
        "tests_of_commit": Counter(row["commit"] for row in outcomes.values()),
        "files": [_file(name, outcomes) for name in files],
        "printed": {
            test.partition("::")[2]: row["printed"][:_LONGEST_PRINT] for test, row in outcomes.items() if row["printed"]
        },
    }


def _file(name: str, outcomes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return what the tests of one file came to."""
    own = [row for test, row in outcomes.items() if test.startswith(f"{name}::")]
    counts = Counter(row["outcome"] for row in own)
    return {"file": name, **counts, "seconds": round(sum(row["seconds"] or 0.0 for row in own), 1)}


def _machine() -> str:
    """Return the cards and their driver, one line."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    cards = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")
    names = [line for line in cards if line]
    return f"{len(names)} x {names[0]}"


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_tests", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the record, as JSON")
    parser.add_argument("--log", type=Path, required=True, help="outcomes, one a line; added to")
    parser.add_argument("--printed", type=Path, help="what the tests print goes here too")
    parser.add_argument("--machine", help="run nothing: write the record of the log of a run that was ended there")
    parser.add_argument("--cards", type=int, default=1, help="cards to spread the tests over, from the first on")
    parser.add_argument("tests", nargs="*", default=["tests/gpu"], help="files, or tests")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
