"""Run the tests that need a GPU as one run and record it: ``python -m benchmarks.gpu_tests --out RECORD.json``.

What ``make test-gpu`` runs, spread over ``--cards`` of one machine, a pytest process a card; the tests that need two
cards for themselves follow alone. The record holds what each file came to, every failure and skip, and what tests
print; ``--printed FILE`` holds the same lines for :mod:`benchmarks.exploit_results` ``--from-pytest``. Ends with status
1 where a test failed. Needs pytest, pytest-timeout and pytest-xdist beside what the GPU worker needs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks import records

NEEDS_TWO_CARDS = "tests/gpu/test_champions.py::test_a_kernel_is_reproduced_on_another_card"
_LONGEST_MESSAGE = 300
_LONGEST_PRINT = 120


@dataclass(frozen=True)
class _Test:
    """One test's outcome: ``passed``, ``failed`` or ``skipped``, with the reason of the last two."""

    file: str
    name: str
    outcome: str
    reason: str
    seconds: float
    printed: str


def main(argv: list[str] | None = None) -> int:
    """Run the tests and write the record; 0 when none failed and all were run."""
    options = _options(argv)
    began = time.monotonic()
    record: dict[str, Any] = {**records.stamp(), "machine": _machine()}
    spread = ["-n", str(options.cards), "--dist", "worksteal", "--deselect", NEEDS_TWO_CARDS, *options.tests]
    tests = list(_run(spread if options.cards > 1 else options.tests))
    if options.cards > 1:
        tests += _run([NEEDS_TWO_CARDS])
    failed = [test for test in tests if test.outcome == "failed"]
    record["seconds"] = round(time.monotonic() - began)
    record["passed"] = sum(test.outcome == "passed" for test in tests)
    record["failed"] = [{"test": f"{test.file}::{test.name}", "why": test.reason} for test in failed]
    record["files"] = [_row(file, tests) for file in sorted({test.file for test in tests})]
    record["printed"] = {test.name: test.printed[:_LONGEST_PRINT] for test in tests if test.printed}
    records.write(options.out, record)
    if options.printed:
        options.printed.write_text("\n".join(test.printed for test in tests), encoding="utf-8")
    return 0 if tests and not failed else 1


def _run(arguments: Sequence[str]) -> Iterator[_Test]:
    """Run pytest, whose output goes through, and yield the outcomes of its tests."""
    with tempfile.TemporaryDirectory() as folder:
        outcomes = Path(folder) / "outcomes.xml"
        written = ["--junitxml", str(outcomes), "-o", "junit_logging=system-out", "-o", "junit_family=xunit1"]
        plugins = ["-p", "no:benchmark"]
        command = [sys.executable, "-m", "pytest", "-v", *plugins, "-m", "gpu", "--tb=short", *written, *arguments]
        subprocess.run(command, cwd=records.ROOT, check=False)
        if outcomes.exists():
            yield from map(_outcome, ElementTree.parse(outcomes).iter("testcase"))


def _outcome(case: ElementTree.Element) -> _Test:
    failure = next((case.find(tag) for tag in ("failure", "error") if case.find(tag) is not None), None)
    skipped = case.find("skipped")
    told = failure if failure is not None else skipped
    captured = case.find("system-out")
    lines = (captured.text or "").splitlines() if captured is not None else []
    return _Test(
        file=case.get("file", ""),
        name=case.get("name", ""),
        outcome="failed" if failure is not None else "skipped" if skipped is not None else "passed",
        reason=(told.get("message") or "")[:_LONGEST_MESSAGE] if told is not None else "",
        seconds=float(case.get("time", 0)),
        printed="\n".join(line for line in lines if line.strip() and not line.startswith("---")),
    )


def _row(file: str, tests: Sequence[_Test]) -> dict[str, Any]:
    """Return what the tests of one file came to."""
    own = [test for test in tests if test.file == file]
    row: dict[str, Any] = {"file": file, "seconds": round(sum(test.seconds for test in own), 1)}
    for outcome in ("passed", "failed", "skipped"):
        row[outcome] = sum(test.outcome == outcome for test in own)
    reasons = sorted({test.reason for test in own if test.outcome == "skipped"})
    return row | ({"skipped_for": reasons} if reasons else {})


def _machine() -> str:
    """Return the cards and their driver, one line."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    cards = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")
    names = [line for line in cards if line]
    return f"{len(names)} x {names[0]}"


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_tests", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the record, as JSON")
    parser.add_argument("--printed", type=Path, help="what the tests print goes here too")
    parser.add_argument("--cards", type=int, default=1, help="cards to spread the tests over, from the first on")
    parser.add_argument("tests", nargs="*", default=["tests/gpu"], help="files, or tests")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
