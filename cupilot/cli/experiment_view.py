"""Print experiments for people. Claims no more than the report does."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import typer

from cupilot.cli.text import clean, seconds
from cupilot.domain.counted import counted, size_words
from cupilot.reports.speeds import fast_words
from cupilot.schemas import ExperimentPage, ExperimentPlan, ExperimentReport, ExperimentView


def show_plan(plan: ExperimentPlan) -> None:
    """Print what an experiment would be."""
    bound = plan.at_most
    typer.echo(f"{counted(plan.jobs, 'job')}: {size_words(len(plan.arms), len(plan.problems), len(plan.seeds))}")
    for arm in plan.arms:
        mark = ", the reference" if arm.name == plan.reference else ""
        typer.echo(f"  {clean(arm.name)} ({arm.agents.value}{mark})")
    typer.echo(f"problems    {clean(', '.join(plan.problems))}")
    typer.echo(
        f"each job    {counted(plan.budgets.candidates, 'kernel')}, {seconds(plan.budgets.wall_seconds)},"
        f" {plan.budgets.cost_usd:.2f} USD"
    )
    typer.echo(
        f"at most     {counted(bound.candidates or 0, 'kernel')}, {seconds(bound.wall_seconds or 0)} of job time,"
        f" {bound.cost_usd:.2f} USD"
    )
    for note in plan.notes:
        typer.echo(f"note        {clean(note)}")


def progress_line(view: ExperimentView) -> str:
    """Return where an experiment stands, in one line."""
    states: Counter[str] = Counter()
    for arm in view.progress:
        states.update(arm.states)
    words = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    return clean(f"{view.state}: {view.finished} of {counted(view.jobs, 'job')} final ({words})")


def show_experiment(view: ExperimentView) -> None:
    """Print an experiment, one line an arm."""
    typer.echo(f"experiment  {view.id} ({clean(view.name)})")
    typer.echo(f"state       {progress_line(view)}")
    typer.echo(f"problems    {clean(', '.join(view.problems))} on {view.target.value}; seeds {view.seeds}")
    for arm in view.progress:
        states = ", ".join(f"{state} {count}" for state, count in sorted(arm.states.items()))
        mark = " (reference)" if arm.name == view.reference else ""
        typer.echo(f"arm         {clean(arm.name)}{mark}: {clean(states)}")
    typer.echo(f"spent       {seconds(view.gpu_seconds)} on the device, {view.cost_usd:.2f} USD")


def show_experiments(page: ExperimentPage) -> None:
    """Print a page of experiments, one line each."""
    if not page.items:
        typer.echo("no experiments")
        return
    for item in page.items:
        jobs = f"{item.finished}/{counted(item.jobs, 'job')}"
        typer.echo(f"{item.id}  {item.state:<10}  {jobs}  {item.cost_usd:.2f} USD  {clean(item.name)}")
    if page.next_cursor:
        typer.echo(f"more with --cursor {page.next_cursor}")


def show_report(report: ExperimentReport, folder: Path) -> None:
    """Print a report: its claims, their numbers, their limits, and where the rest lies."""
    for comparison in report.comparisons:
        interval = (
            f" [{comparison.interval.low:.3f}, {comparison.interval.high:.3f}]"
            if comparison.interval
            else " (no interval)"
        )
        ratio = f", {comparison.ratio:.3f}x its speed{interval}" if comparison.ratio is not None else ""
        typer.echo(
            f"{clean(comparison.subject)} against {clean(comparison.reference)}: {comparison.claim}{ratio};"
            f" {comparison.wins} won, {comparison.losses} lost of {comparison.blocks}"
        )
    for arm in report.arms:
        share = (
            "none judged" if arm.validity is None else f"{arm.validity:.0%} of {counted(arm.judged, 'candidate')} count"
        )
        few = " (too few)" if arm.too_few else ""
        jobs = f"{arm.finished} of {counted(arm.jobs, 'job')} final{few}, {arm.solved} with a kernel"
        typer.echo(f"arm {clean(arm.arm)}: {jobs}, {share}")
        if arm.speeds is not None:
            typer.echo(f"  {fast_words(arm.speeds)}; {arm.speeds.over_2x} over 2x")
    for note in report.notes:
        typer.echo(f"note: {clean(note)}")
    typer.echo(f"report: {folder}")
