"""Report the crossover study: shares with intervals, as lines and in the shape of cuPilot's Figure 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.crossover_trials import Arm, Outcome, Trial
from cupilot.domain.experiments.statistics import share_interval
from cupilot.reports.canvas import Format, drawn, empty

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHADES = {
    Outcome.SUCCESS: "#009E73",
    Outcome.LOST: "#56B4E9",
    Outcome.FUNCTION: "#E69F00",
    Outcome.SYNTAX: "#D55E00",
    Outcome.REFUSED: "#999999",
}


def head(who: str) -> str:
    """Return what a reader has to know first."""
    if who != "playbook":
        return f"both arms are played by {who}"
    return (
        "no model is used: the playbook plays both arms. Its code arm splices lines without understanding them; set"
        " CUPILOT_LLM_MODEL to have a model cross code."
    )


def summary(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Return one row a size and arm over all problems: counts by outcome, share of successes, its interval."""
    rows = []
    for size in dict.fromkeys(str(trial.size) for trial in trials):
        for arm in Arm:
            cell = [trial for trial in trials if (str(trial.size), trial.arm) == (size, arm)]
            if not cell:
                continue
            counts = {outcome.value: sum(trial.outcome is outcome for trial in cell) for outcome in Outcome}
            interval = share_interval(counts[Outcome.SUCCESS.value], len(cell))
            rows.append(
                {
                    "size": size,
                    "arm": arm.value,
                    "trials": len(cell),
                    "outcomes": counts,
                    "success": interval.median,
                    "ci_low": interval.low,
                    "ci_high": interval.high,
                }
            )
    return rows


def lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the rows as text."""
    return [
        f"{row['size']:<8}{row['arm']:<10}{row['success']:>5.0%} of {row['trials']} succeed"
        f" (95 % interval {row['ci_low']:.0%} to {row['ci_high']:.0%}); "
        + ", ".join(f"{name} {count}" for name, count in row["outcomes"].items() if count)
        for row in rows
    ]


def draw(rows: Sequence[dict[str, Any]], who: str, form: Format) -> bytes:
    """Draw stacked shares by size, one bar an arm, successes with their interval."""
    return drawn(lambda canvas: _paint(rows, who, canvas), (max(6.0, 1.1 * len(rows)), 4.2), form)


def _paint(rows: Sequence[dict[str, Any]], who: str, canvas: Figure) -> None:
    axes = canvas.subplots()
    how = "the playbook, which splices code without understanding it" if who == "playbook" else who
    canvas.suptitle(f"Crossover of parents with ever more techniques,\nby {how}", fontsize=9)
    if not rows:
        empty(axes, "no trial yet")
        return
    bottoms = [0.0] * len(rows)
    for part, (outcome, shade) in enumerate(SHADES.items()):
        shares = [row["outcomes"][outcome.value] / row["trials"] for row in rows]
        bars = axes.bar(range(len(rows)), shares, bottom=bottoms, color=shade, label=outcome.value, width=0.7)
        for place, bar in enumerate(bars):
            bar.set_gid(f"part-{place}-{part}")
        bottoms = [below + share for below, share in zip(bottoms, shares, strict=True)]
    middles = [row["success"] for row in rows]
    below = [row["success"] - row["ci_low"] for row in rows]
    above = [row["ci_high"] - row["success"] for row in rows]
    axes.errorbar(range(len(rows)), middles, yerr=[below, above], color="#000000", capsize=3, linestyle="none")
    axes.set_xticks(range(len(rows)), [f"{row['size']}\n{row['arm']}\nn={row['trials']}" for row in rows])
    axes.set_ylim(0, 1)
    axes.set_ylabel("share of children")
    canvas.legend(loc="outside lower center", ncols=3)
