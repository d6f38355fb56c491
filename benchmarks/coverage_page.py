"""Writes ``docs/coverage.md`` from what a coverage run found: ``python -m benchmarks.coverage_page --write``.

Reads ``benchmarks/results/coverage.json``, which ``benchmarks.coverage`` wrote. Without ``--write`` it prints the page,
and ends with status 1 where the file differs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks import pages, records

PAGE = Path(__file__).parents[1] / "docs/coverage.md"

_HEAD = """# What the playbook covers

With this page you can look up which built-in problems get a kernel without a language model, and how. `pointwise`,
`rows` and `matmul` are families of templates with many techniques; `compiler` cuts any graph of supported calls into
launches over index maps, plain but right. Each kernel was rendered for both targets under `fp32`, `tf32` and `half`, at
the problem's small size, and compiled for sm_90a; running and judging it is another matter
([record](../benchmarks/results/coverage.json), `python -m benchmarks.coverage`).

{covered} of {total} problems have kernels for both targets under every policy.

A reference of your own is covered where each of its calls is. Where one is not, the job ends with `no_template`, quotes
the line of your file and names the calls near it that are supported; `--agents hybrid` lets a model go on.

| suite | problem | family | launches on `cuda` | not covered |
|---|---|---|---|---|
"""


def page() -> str:
    """Return the text of ``docs/coverage.md``."""
    rows = records.read("coverage")["problems"]
    head = _HEAD.format(covered=sum(not row["refused"] for row in rows), total=len(rows))
    return head + "".join(_row(row) for row in rows)


def _row(row: dict[str, Any]) -> str:
    refused = "; ".join(f"`{where}`: {why}" for where, why in row["refused"].items())
    return f"| {row['suite']} | {row['problem']} | {row['family']} | {row['launches']} | {refused} |\n"


def main(arguments: list[str] | None = None) -> int:
    """Exit status 1 when the page is not what the run found."""
    return pages.main("coverage_page", __doc__, PAGE, page, arguments)


if __name__ == "__main__":
    sys.exit(main())
