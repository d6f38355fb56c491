"""Writes the section "Numbers" of ``docs/judge.md`` from raw results: ``python -m benchmarks.judge_report --write``.

Reads what the other scripts left under ``benchmarks/results/judge``; a number that was not taken is said to be missing.
Without ``--write`` it prints the section, and ends with status 1 where the page differs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.judge_run import phase_shares, quantile
from benchmarks.records import load

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/judge.md"
RESULTS = ROOT / "benchmarks/results/judge"
NAMES = {
    "throughput": "judge_throughput", "builds": "judge_throughput", "self": "judge_self", "ncu": "judge_against_ncu",
    "cards": "judge_cards", "cards_four": "judge_cards", "sweep": "judge_throughput", "open": "judge_open",
}  # fmt: skip
"""Reports, with the script that takes each; the record is ``h200_<what>.json``; that of builds is taken with
``--no-ahead``, that of the sweep with ``--sweep 12``."""

HEAD = "## Numbers\n"
_LEAST_US = 50.0
_LEAST_SHARE = 0.005


def section(results: Path = RESULTS) -> str:
    """Return the text of the section, heading included, with one blank line at its end."""
    records = {what: _read(results / f"h200_{what}.json") for what in NAMES}
    lines = [HEAD.rstrip(), "",
             "What the judge costs and how far its numbers can be trusted, on H200s. Made by",
             "`python -m benchmarks.judge_report` from [records](../benchmarks/results/judge).", "",
             "| what | aim | measured | script |", "|---|---|---|---|"]  # fmt: skip
    lines += list(_rows(records))
    machines = sorted(
        {record["machine"].partition(", load")[0] for record in records.values() if record and "machine" in record}
    )
    if machines:
        lines += ["", f"Machine: {'; '.join(machines)}."]
    if records["throughput"]:
        lines += ["", "Where the time of an evaluation goes, hardware counters left out:", ""]
        lines += list(_phases(records["throughput"]))
    if records["cards_four"]:
        lines += ["", *_four_cards(records["cards_four"])]
    if records["open"]:
        lines += ["", *_opening(records["open"])]
    if records["ncu"]:
        lines += ["", *_against_ncu(records["ncu"])]
    return "\n".join([*lines, "", ""])


def page(text: str, results: Path = RESULTS) -> str:
    """Return the page with its section as the records say, appended if it had none."""
    before, _, rest = text.partition(HEAD)
    _, heading, after = rest.partition("\n## ")
    return (before.rstrip() + "\n\n" + section(results) + heading.lstrip("\n") + after).rstrip() + "\n"


def _rows(records: dict[str, dict[str, Any] | None]) -> Iterator[str]:
    throughput, builds, itself, ncu, cards, four, sweep, _ = (records[what] for what in NAMES)
    rate = build = again = added = point = None
    if throughput and throughput.get("summary", {}).get("evaluations"):
        summary = throughput["summary"]
        rate = (f"**{summary['per_hour']:,.0f}** ({summary['evaluations']} kernels, {summary['problems']} problems; "
                f"{summary['per_hour_with_preparation']:,.0f} with their preparations)")  # fmt: skip
    if builds and builds.get("summary", {}).get("builds"):
        summary = builds["summary"]
        build = (f"**{summary['build_seconds_median']:.2f} s** median of {summary['builds']}, "
                 f"{summary['build_phase_median']:.2f} s with reading the machine code")  # fmt: skip
    if itself and itself.get("kernels"):
        again = "; ".join(f"{kernel['problem']}: **{quantile(_distances(kernel), 0.95):.2%}** ({len(kernel['ratios'])})"
                          for kernel in itself["kernels"])  # fmt: skip
    compared = [row for row in _long_kernels(ncu) if row["added_over_rotating"] is not None]
    if compared:
        worst = max((row["added_over_rotating"] for row in compared), key=abs)
        middle = statistics.median(row["added_over_rotating"] for row in compared)
        kernels = f"{len(compared)} kernels, caches as launches leave them"
        added = f"**{worst:+.1%}** at worst, {middle:+.1%} in the middle of {kernels}"
    if sweep and sweep.get("summary", {}).get("sweep_points"):
        summary = sweep["summary"]
        point = (f"**{summary['sweep_ms_a_point']:.0f} ms**, the whole judgement of the fastest included; "
                 f"{summary['sweep_ms_screened']:.0f} ms to screen one "
                 f"({summary['sweep_points']} points of {summary['swept_kernels']} kernels at full size)")  # fmt: skip
    yield _row("full evaluations of distinct level-1 kernels at full size, an hour", "2,500", rate, "throughput")
    yield _row("build of a typical kernel, cold cache", "under 0.15 s", build, "builds")
    yield _row("a kernel against itself: 95 % of the ratios within", "0.5 % of 1", again, "self")
    yield _row("kernel time against Nsight Compute's duration, over 50 us", "under 2 %", added, "ncu")
    yield _row("a point of a sweep over tunables", "milliseconds", point, "sweep")
    yield _row("throughput of two cards against one", "95 % of linear", _side_by_side(cards), "cards")
    yield _row("throughput of four cards against one", "3.8 times", _side_by_side(four), "cards_four")


def _side_by_side(record: dict[str, Any] | None) -> str | None:
    if not record or not record.get("summary"):
        return None
    summary = record["summary"]
    return (f"**{summary['ratio']:.2f} times** ({summary['of_linear']:.0%} of linear), "
            f"{summary['together_per_hour']:,.0f} an hour together")  # fmt: skip


def _row(what: str, aim: str, measured: str | None, name: str) -> str:
    return f"| {what} | {aim} | {measured or 'not measured yet'} | `{NAMES[name]}` |"


def _phases(record: dict[str, Any]) -> Iterator[str]:
    rows = record.get("kernels", [])
    yield "| phase | mean s | median s | share |"
    yield "|---|---|---|---|"
    for name, mean, median, share in phase_shares([row["phases"] for row in rows], [row["seconds"] for row in rows]):
        if share >= _LEAST_SHARE:
            yield f"| `{name}` | {mean:.2f} | {median:.2f} | {share:.0%} |"


def _four_cards(record: dict[str, Any]) -> Iterator[str]:
    yield "Of four cards, one alone and then all side by side; seconds of an evaluation by phase, in the mean:"
    yield ""
    alone, *together = [_means(card) for card in (*record["alone"]["cards"], *record["together"]["cards"])]
    yield "| phase | alone | side by side |"
    yield "|---|---|---|"
    for name, seconds in alone.items():
        if seconds >= _LEAST_SHARE:
            yield f"| `{name}` | {seconds:.2f} | {statistics.fmean(card[name] for card in together):.2f} |"


def _opening(record: dict[str, Any]) -> Iterator[str]:
    """Say what opening a card takes, with and without what runners do about it."""
    together = f"{len(record['options']['cards'].split(','))} at the same time"
    yield f"Opening a card for a fresh process takes, in milliseconds, alone and {together}:"
    yield ""
    yield "| | alone | together |"
    yield "|---|---|---|"
    for name, times in record["milliseconds"].items():
        yield f"| {name} | {times['alone']['all']:.0f} | {times['together']['all']:.0f} |"


def _means(card: dict[str, Any]) -> dict[str, float]:
    """Return seconds by phase, from the table that the card's process printed."""
    return {name: float(mean) for name, mean, *_ in (line.split() for line in card["profile"][1:])}


def _against_ncu(record: dict[str, Any]) -> Iterator[str]:
    yield "Against Nsight Compute, with caches as launches leave them; the last columns are the same launches between"
    yield "two events, without the profiler:"
    yield ""
    yield "| kernel | judge us | ncu us | added | events us | added |"
    yield "|---|---|---|---|---|---|"
    for row in record.get("kernels", []):
        cells = [
            f"{row[f'{source}_us']:.1f} | {row[f'added_over_{how}']:+.1%}" if row.get(f"{source}_us") else "- | -"
            for source, how in (("ncu_rotating", "rotating"), ("events", "events"))
        ]
        yield f"| {row['problem']} | {row['judge_us']:.1f} | {' | '.join(cells)} |"


def _long_kernels(record: dict[str, Any] | None) -> list[dict[str, Any]]:
    return [row for row in (record or {}).get("kernels", []) if row["judge_us"] > _LEAST_US]


def _distances(kernel: dict[str, Any]) -> list[float]:
    return [abs(ratio - 1) for ratio in kernel["ratios"]]


def _read(path: Path) -> dict[str, Any] | None:
    return load(path) if path.exists() else None


def main(arguments: list[str] | None = None) -> int:
    """Exit status 1 when the page is not what the records say."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judge_report", description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the section into docs/judge.md")
    text = PAGE.read_text(encoding="utf-8")
    if parser.parse_args(arguments).write:
        PAGE.write_text(page(text), encoding="utf-8")
        return 0
    print(section(), end="")
    return 0 if page(text) == text else 1


if __name__ == "__main__":
    sys.exit(main())
