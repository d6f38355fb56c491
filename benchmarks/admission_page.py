"""Writes ``docs/admission.md`` from what an admission run printed: ``python -m benchmarks.admission_page --write``.

Reads ``benchmarks/results/judge/h200_admission.json``, which ``benchmarks.admission --target cuda --size full``
wrote, and judges nothing itself. Without ``--write`` it prints the page, and ends with status 1 where the file differs.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks import pages, records

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "benchmarks/results/judge/h200_admission.json"
PAGE = ROOT / "docs/admission.md"

_HEAD = """# Admission of level 1

With this page you can look up what a built-in problem holds a kernel to: the input laws that are meaningful for it with
their tolerances (largest error in units of the output's spread; under `integers` in its own units), and the null
kernels that were rejected. How tolerances come about: [the judge](judge.md). Sizes: {size}; policy: `{policy}`;
machine: {machine} ([record](../benchmarks/results/judge/h200_admission.json), `python -m benchmarks.admission_page`).
The laws are those of the record's commit; the judge's page lists later ones.

{admitted} of {total} problems are admitted. {laws}

Where `lower precision` is not among the null kernels, outputs are integers, or its error is no larger than the policy's
own.

| problem | family | laws and tolerances | null kernels rejected | why a law is left out |
|---|---|---|---|---|
"""


def page() -> str:
    """Return the text of ``docs/admission.md``."""
    run = records.load(RECORDS)
    problems = run["problems"]
    counted = Counter(law for record in problems for law in record["tolerances"])
    head = _HEAD.format(
        machine=_without_load(run["machine"]),
        size=run["size"],
        policy=run["policy"],
        admitted=sum(record["failure"] is None for record in problems),
        total=len(problems),
        laws="Laws in force: " + ", ".join(f"`{law}` on {count}" for law, count in counted.most_common()) + ".",
    )
    return head + "".join(_row(record) for record in problems)


def _row(record: dict[str, Any]) -> str:
    if record["failure"]:
        return f"| {record['problem']} | | refused: {record['failure']['message']} | | |\n"
    tolerances = ", ".join(f"{law} {tolerance:.1e}" for law, tolerance in record["tolerances"].items())
    admission = record["admission"]
    nulls = f"{sum(admission.values())}/{len(admission)}: {', '.join(name.replace('_', ' ') for name in admission)}"
    notes = "; ".join(note.removeprefix("law ").replace(" left out", "") for note in record["notes"])
    return f"| {record['problem']} | {record['op_class']} | {tolerances} | {nulls} | {notes} |\n"


def _without_load(machine: str) -> str:
    return machine.split(", load ", maxsplit=1)[0]


def main(arguments: list[str] | None = None) -> int:
    """Exit status 1 when the page is not what the run printed."""
    return pages.main("admission_page", __doc__, PAGE, page, arguments)


if __name__ == "__main__":
    sys.exit(main())
