"""Writes ``docs/cost-model.md`` from the record of predictions: ``python -m benchmarks.cost_model_page --write``.

Reads ``benchmarks/results/cost_model.json``, which ``benchmarks.cost_model`` wrote. Without ``--write`` it prints the
page, and ends with status 1 where the file differs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import pages, records

PAGE = Path(__file__).parents[1] / "docs/cost-model.md"

_HEAD = """# The cost model

With this page you can see how well the playbook predicts which strategy is fast before it measures any.

For each strategy that can be rendered, the model (`agents/playbook/cost`) predicts the time of a kernel from its launch
geometry and occupancy, the bytes that move in each pass, the rate of the scalar or matrix units, the launches, and the
device's peaks: those that were measured on it, else those that its maker states. The SCE Manager tries the ladder's
strategies in classes of predicted time; within a class, where predictions do not tell strategies apart, the ladder's
order stands. A strategy that is predicted ten times slower than the best comes after everything else, whether it was
drawn, crossed, or won on another problem; what won on the same work was measured, and comes first all the same. With
`roofline_guidance` off nothing is predicted.

The figures compare predictions with {points} measurements of strategies that [records](../benchmarks/results) and
[champions](pool.md) hold ([record](../benchmarks/results/cost_model.json), `python -m benchmarks.cost_model`). *Off* is
the median factor between prediction and measurement. The others are means over the problems with three or more measured
strategies: Spearman's rank correlation within a problem, and the time of the strategy that is tried first, by predicted
class and by the ladder alone, over that of the fastest one measured. The model's constants were fitted to these points,
so the figures say how well it describes them, not how well it does on others; families that a few percent separate have
no order that could be predicted.

"""

_FAMILIES = """| target | family | strategies | off | problems | rank correlation | predicted first | ladder's first |
|---|---|---|---|---|---|---|---|
"""
_PROBLEMS = """
## By problem

| target | family | problem | strategies | rank correlation | predicted first | ladder's first |
|---|---|---|---|---|---|---|
"""
_MISSES = """
## Worst misses

| target | problem | strategy | measured (us) | predicted (us) | off |
|---|---|---|---|---|---|
"""


def page() -> str:
    """Return the text of the page."""
    record = records.read("cost_model")
    *earlier, now = record["versions"]
    text = _HEAD.format(points=now["points"]) + _table(now["families"])
    for version in earlier[-1:]:
        text += f"\nThe version before (`{version['model']}`), from whose misses this one was made:\n\n"
        text += _table(version["families"])
    text += _PROBLEMS + "".join(
        f"| {row['target']} | {row['family']} | {row['problem']} | {row['strategies']} | {_figure(row['rank'])} |"
        f" {_figure(row['first'])} | {_figure(row['ladder_first'])} |\n"
        for row in record["problems"]
    )
    return (
        text
        + _MISSES
        + "".join(
            f"| {row['target']} | {row['problem']} | {row['strategy'] or 'plain'} | {row['measured_us']:.0f} |"
            f" {row['predicted_us']:.0f} | {row['off']:.2f} |\n"
            for row in record["misses"]
        )
    )


def _table(families: Sequence[dict[str, Any]]) -> str:
    return _FAMILIES + "".join(
        f"| {row['target']} | {row['family']} | {row['points']} | {_figure(row['off'])} | {row['problems']} |"
        f" {_figure(row['rank'])} | {_figure(row['first'])} | {_figure(row['ladder_first'])} |\n"
        for row in families
    )


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def main(arguments: list[str] | None = None) -> int:
    """Exit status 1 when the page is not what the record holds."""
    return pages.main("cost_model_page", __doc__, PAGE, page, arguments)


if __name__ == "__main__":
    sys.exit(main())
