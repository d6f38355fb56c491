"""Writes ``docs/judged-coverage.md`` from what a run found: ``python -m benchmarks.judged_coverage_page --write``.

Reads ``benchmarks/results/judged_coverage.json``, which ``benchmarks.judged_coverage`` wrote. Without ``--write`` it
prints the page, and ends with status 1 where the file differs.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

from benchmarks import pages, records
from cupilot.domain import problems
from cupilot.domain.evaluation import Verdict

PAGE = Path(__file__).parents[1] / "docs/judged-coverage.md"

_HEAD = """# What the playbook's kernels are worth on a CPU

With this page you can look up the verdict on the playbook's kernel of each built-in problem, judged on `cpu` at the
problem's small size. It shows that kernels are right; small sizes on a shared machine say little about speed
([record](../benchmarks/results/judged_coverage.json), `python -m benchmarks.judged_coverage`, which goes on where it
stopped). Which problems have kernels at all, on `cuda` too, is on [another page](coverage.md).

{judged} of {total} problems were judged, and the kernels of {held} were audited or better{mean}.

| suite | problem | techniques | verdict | speedup over eager (interval) |
|---|---|---|---|---|
"""


def page() -> str:
    """Return the text of the page."""
    rows = records.read("judged_coverage")["problems"]
    held = [row for row in rows if row["verdict"] in {verdict.value for verdict in Verdict if verdict.counts}]
    medians = [row["speedup"][1] for row in held]
    mean = math.exp(sum(map(math.log, medians)) / len(medians)) if medians else None
    head = _HEAD.format(
        judged=len(rows),
        total=len(problems.names()),
        held=len(held),
        mean="" if mean is None else f"; geometric mean of their speedups {mean:.2f}",
    )
    return head + "".join(_row(row) for row in rows)


def _row(row: dict[str, Any]) -> str:
    low, median, high = row.get("speedup", (None, None, None))
    speed = "" if median is None else f"{median:.2f} ({low:.2f} to {high:.2f})"
    verdict = row["verdict"] + (f": {row['failure']}" if row.get("failure") else "")
    return f"| {row['suite']} | {row['problem']} | {row['kernel']} | {_plain(verdict)} | {speed} |\n"


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main(arguments: list[str] | None = None) -> int:
    """Exit status 1 when the page is not what the run found."""
    return pages.main("judged_coverage_page", __doc__, PAGE, page, arguments)


if __name__ == "__main__":
    sys.exit(main())
