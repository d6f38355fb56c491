"""Print jobs, a candidate and the final report for people. Says no more than was measured."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cupilot.cli.text import clean, clean_lines, counts, interval, queue_words, seconds
from cupilot.domain.counted import counted
from cupilot.domain.evaluation import Baseline, BuildReport, Evaluation, WorkloadResult
from cupilot.reports.job import (
    AFTER_QUARANTINE,
    BASELINE_NAMES,
    bound_words,
    credit_words,
    difference_words,
    factor,
    generation_line,
    measured_on,
    spending_lines,
    steps_after_failure,
    technique_lines,
)
from cupilot.reports.problem import preparation_notes

if TYPE_CHECKING:
    from cupilot.client import Client
    from cupilot.schemas import CandidateView, JobPlan, JobView, Report

REASONS_SHOWN = 5
BAR_CHARACTERS = 40


def show_job(job: JobView, waits_for: Sequence[str] = (), tried_again: Sequence[str] = ()) -> None:
    """Print a job in some lines, with what it waits for beside its place in the queue, and the steps tried again."""
    lines = [
        ("job", str(job.id)),
        ("problem", f"{job.problem.name} on {job.target.value}, policy {job.problem.policy.value}"),
        ("state", f"{job.state}{f' ({job.reason})' if job.reason else ''}"),
    ]
    if job.author:
        lines.append(("asked for by", job.author))
    if job.message:
        lines.append(("message", job.message))
    if job.queue_position is not None:
        lines += [("queue", queue_words(job.queue_position)), *_numbered("waits", waits_for)]
    lines += _numbered("tried again", tried_again)
    if job.preparation:
        preparation = job.preparation
        lines.append(
            (
                "zone",
                f"{preparation.zone.value} ({preparation.op_class}, {preparation.intensity:.2g} operations a byte)",
            )
        )
        eager = f"PyTorch eager {preparation.baseline_us.median:.1f} us on {preparation.device}, at preparation"
        lines.append(("baseline", eager))
        lines.append(("bound", f"{preparation.floor_us:.1f} us: no correct kernel is faster at the measured peaks"))
        if preparation.direct_us is not None and preparation.direct_us > preparation.floor_us:
            lines.append(("direct", f"{preparation.direct_us:.1f} us: operations as they are written, no bound"))
        lines += _numbered("warning", preparation.warnings)
        lines += _numbered("note", preparation_notes(preparation))
    if job.candidates:
        lines.append(("generation", f"{min(job.generation + 1, job.generations)} of {job.generations}"))
        lines.append(("candidates", f"{job.candidates} ({counts(job.verdicts)})"))
    if job.best:
        times = f"medians {job.best.kernel_us.median:.1f} us against {job.best.baseline_us.median:.1f} us"
        lines.append(("best", f"{interval(job.best.speedup)} over PyTorch eager, {job.best.verdict.value}; {times}"))
        lines.append(("strategy", ", ".join(technique_lines(job.best.strategy))))
    spent = f"{seconds(job.wall_seconds)}, {seconds(job.gpu_seconds)} on the device, {job.cost_usd:.2f} USD"
    lines.append(("spent", spent))
    lines += _numbered("models", spending_lines(job))
    if job.pruned_at:
        lines.append(("pruned", f"{job.pruned_at.astimezone():%Y-%m-%d %H:%M}: logs, prompts, unproven sources"))
    if job.final and not job.best:
        lines += _numbered("next", steps_after_failure(job))
    _print_pairs(lines)


def show_plan(plan: JobPlan) -> None:
    """Print what a job would be; nothing was started."""
    bound, guess = plan.at_most, plan.guess
    device = "" if bound.gpu_seconds is None else f", {seconds(bound.gpu_seconds)} on the device"
    kernels = f"{counted(bound.kernels, 'kernel')} of {counted(bound.candidates, 'candidate')}"
    most = f"{kernels}, {seconds(bound.wall_seconds)}{device}"
    lines = [
        ("problem", f"{plan.problem} on {plan.target.value}, policy {plan.policy.value}"),
        ("method", f"{plan.method.name}, {counted(plan.method.rounds, 'generation')}; agents {plan.agents.value}"),
        ("at most", f"{most}, {bound.cost_usd:.2f} USD"),
    ]
    if guess is not None:
        before = f"{counted(guess.jobs, 'job')} on {'it' if guess.same_problem else 'other problems'}"
        spent = (
            f"{seconds(guess.gpu_seconds)} on the device, {guess.cost_usd:.2f} USD, {counted(guess.tokens, 'token')}"
        )
        lines.append(("likely", f"{seconds(guess.wall_seconds)}, {spent}, by your team's {before}"))
    lines.append(("queue", queue_words(plan.queue_position)))
    lines += _numbered("note", plan.notes)
    _print_pairs(lines)
    typer.echo("nothing was started")


def show_report(report: Report, folder: Path) -> None:
    """Print the final report: how fast, how well proven, by what means, from whom, and where the source lies."""
    job, candidate = report.job, report.candidate
    typer.echo(f"\n{clean(report.headline)}\n")
    lines = [("job", f"{job.id} ({job.state})"), ("problem", f"{job.problem.name} on {job.target.value}")]
    if candidate.evaluation:
        lines += _bars(candidate.evaluation)
        lines += _speedups(candidate.evaluation) + _tunables(candidate.evaluation)
    if candidate.evaluation and candidate.evaluation.environment:
        lines.append(("measured on", measured_on(candidate.evaluation.environment)))
    lines += _numbered("warning", list(report.preparation.warnings))
    lines += _numbered("note", preparation_notes(report.preparation))
    lines.append(("verdict", job.best.verdict.value if job.best else "-"))
    lines += _origins(candidate)
    lines.append(("source", str(folder)))
    spent = f"{counted(job.candidates, 'candidate')}, {seconds(job.wall_seconds)}, {job.cost_usd:.2f} USD"
    lines.append(("spent", spent))
    lines += _numbered("models", spending_lines(job))
    lines += _numbered("generations", [f"{point.generation}: {generation_line(point)}" for point in report.trajectory])
    lines += _numbered("next", report.next_steps)
    _print_pairs(lines)


def _bars(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Return the times of the kernel and of each baseline as bars, in units of the kernel's: the shorter, the faster.

    Baselines are measured one after the other, each in turns with the kernel: under another load, times of two of them
    do not compare, their ratios to the kernel's do.
    """
    eager = evaluation.comparison(Baseline.EAGER)
    if eager is None:
        return []
    times = {"this kernel": 1.0}
    for baseline, name in BASELINE_NAMES.items():
        if (comparison := evaluation.comparison(baseline)) is not None:
            times[name] = comparison.speedup.median
    longest, width = max(times.values()), max(map(len, times))
    return [
        ("time" if place == 0 else "", f"{name:<{width}}  {_bar(value / longest)} {value:.2f}")
        for place, (name, value) in enumerate(times.items())
    ]


def _bar(share: float) -> str:
    return "#" * max(round(share * BAR_CHARACTERS), 1)


def show_candidate(candidate: CandidateView) -> None:
    """Print a candidate: its verdict and failure, its speed and what limits it, and its parents."""
    lines = [
        ("candidate", f"{candidate.ordinal} of job {candidate.job}, {candidate.id}"),
        ("made by", _maker(candidate)),
        ("came to", _standing(candidate)),
        *_numbered("warning", candidate.warnings),
    ]
    if candidate.evaluation:
        lines += _judged(candidate.evaluation)
    lines += _origins(candidate)
    lines += _requested(candidate)
    lines += _numbered("revised", candidate.repairs)
    if candidate.kernel:
        pruned = candidate.kernel.pruned_at
        how = f"cupilot candidate {candidate.job} {candidate.ordinal} --source"
        lines.append(("source", f"pruned {pruned.astimezone():%Y-%m-%d %H:%M}" if pruned else how))
    _print_pairs(lines)


def show_source(source: str) -> None:
    """Print a source unchanged into a pipe or a file; on a terminal without control characters."""
    typer.echo(clean_lines(source) if sys.stdout.isatty() else source.encode(), nl=False)


def show_no_result(client: Client, job: JobView) -> None:
    """Print why a job has no proven kernel, as far as it is known."""
    show_job(job)
    failures = Counter(
        candidate.failure or candidate.reason or "not measured"
        for candidate in client.candidates(job.id, limit=200).items
    )
    if failures:
        common = ", ".join(f"{clean(kind)} {count}" for kind, count in failures.most_common(REASONS_SHOWN))
        _print_pairs([("failures", common)])
    typer.echo("\nno kernel of this job is proven" + ("" if job.final else " yet"))


def _maker(candidate: CandidateView) -> str:
    rounds = candidate.repair_rounds
    repairs = f", repaired {counted(rounds, 'time')}" if rounds else ""
    kept = ", kept by selection" if candidate.survives else ""
    called = f", called {candidate.name}" if candidate.name else ""
    return f"{candidate.operator}, generation {candidate.generation + 1}{called}{repairs}{kept}"


def _standing(candidate: CandidateView) -> str:
    end = candidate.verdict.value if candidate.verdict else candidate.state
    why = candidate.failure or candidate.reason
    text = f"{end}: {why}" if why else end
    return f"{text}. {AFTER_QUARANTINE}" if candidate.after_quarantine else text


def _stopped_by(evaluation: Evaluation, listed: Sequence[str]) -> str:
    """Return which law ended the evaluation, where it is not among those that are ``listed`` as failed."""
    details = evaluation.failure.details if evaluation.failure else {}
    law = details.get("drawn", details.get("law"))
    return "" if law is None or law in listed else f", then {law} failed"


def _judged(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Return what the judge found: what stopped the kernel, its speed, and where its time goes."""
    lines = _numbered("failure", evaluation.failure.message.splitlines() if evaluation.failure else [])
    failed = [law for law in evaluation.laws if not law.passed]
    if evaluation.laws:
        passed = f"{len(evaluation.laws) - len(failed)} of {len(evaluation.laws)} passed"
        lines.append(("input laws", passed + _stopped_by(evaluation, [law.law for law in failed])))
    lines += _numbered("failed", [f"{law.law}: error {law.error:.3g}, accepted {law.tolerance:.3g}" for law in failed])
    if evaluation.comparisons:
        lines += _speedups(evaluation) + _tunables(evaluation)
        if not evaluation.verdict.counts:
            lines.append(("note", "these times do not count: the kernel is not proven"))
    if evaluation.placement:
        lines.append(
            ("zone", f"{evaluation.placement.zone.value}, roofline bound {evaluation.placement.floor_us:.1f} us")
        )
    if evaluation.profile:
        metrics = [f"{name} {value:.4g}" for name, value in sorted(evaluation.profile.metrics.items())]
        promoted = "" if evaluation.profile.promoted else " (no counters: not among the fastest)"
        lines += _numbered(f"{evaluation.profile.source.value} metrics{promoted}", metrics)
    if evaluation.build:
        lines += _numbered("build", _build_facts(evaluation.build))
    if evaluation.environment:
        lines.append(("device", measured_on(evaluation.environment)))
    lines += _numbered("unchecked", list(evaluation.unchecked))
    return lines


def _build_facts(build: BuildReport) -> list[str]:
    facts = {"registers": build.registers, "spill bytes": build.spill_bytes, "shared bytes": build.shared_bytes}
    facts_text = [f"{name} {value}" for name, value in (facts | build.instructions).items() if value is not None]
    return [", ".join(facts_text)] if facts_text else []


def _origins(candidate: CandidateView) -> list[tuple[str, str]]:
    """Return the strategy that the code follows, what its parts are worth, and its ancestors."""
    lines: list[tuple[str, str]] = []
    strategy = candidate.aligned_strategy or candidate.strategy
    if strategy:
        lines += _numbered("strategy", technique_lines(strategy))
        if strategy.rationale:
            lines.append(("rationale", strategy.rationale))
    lines += _numbered("worth", [credit_words(credit) for credit in candidate.credits])
    return lines + _numbered("lineage", _ancestry(candidate))


def _requested(candidate: CandidateView) -> list[tuple[str, str]]:
    """Return the requested strategy, where the code follows another one, and why its writer expected it to be fast."""
    requested, followed = candidate.strategy, candidate.aligned_strategy
    lines: list[tuple[str, str]] = []
    if requested and followed and requested.signature() != followed.signature():
        lines += _numbered("asked for", technique_lines(requested))
    if candidate.fidelity is not None:
        lines.append(("fidelity", f"{candidate.fidelity:.0%} of the claimed techniques are in the code"))
    if candidate.insight:
        lines.append(("insight", candidate.insight))
    return lines


def _speedups(evaluation: Evaluation) -> list[tuple[str, str]]:
    lines = []
    for baseline, name in BASELINE_NAMES.items():
        item = evaluation.comparison(baseline)
        if item is None:
            if baseline is not Baseline.MAX_AUTOTUNE:  # not asked for everywhere
                lines.append((f"over {name}", "not measured"))
            continue
        times = f"medians {item.kernel_us.median:.1f} us against {item.baseline_us.median:.1f} us"
        claim = f", {difference_words(item.speedup)}" if item.decided else ""
        lines.append((f"over {name}", f"{factor(item.speedup, decided=item.decided)}{claim}; {times}"))
    lines += zip(("of the bound", "of direct"), bound_words(evaluation), strict=False)
    return lines + _numbered("workloads", [_workload(part) for part in evaluation.workloads])


def _workload(part: WorkloadResult) -> str:
    """Return one workload's result in a line."""
    shown = f"{part.workload.name} ({part.workload.text}, weight {part.workload.weight:g})"
    if part.verdict is None:
        return f"{shown}: not judged"
    if not part.comparisons or part.failure is not None:
        return f"{shown}: {part.verdict.value}{f', {part.failure.kind.value}' if part.failure else ''}"
    eager = part.comparisons[0]
    times = f"medians {eager.kernel_us.median:.1f} us against {eager.baseline_us.median:.1f} us"
    return f"{shown}: {part.verdict.value}, {factor(eager.speedup, decided=eager.decided)}; {times}"


def _tunables(evaluation: Evaluation) -> list[tuple[str, str]]:
    if not evaluation.tunables:
        return []
    chosen = ", ".join(f"{name}={value}" for name, value in sorted(evaluation.tunables.items()))
    points = len(evaluation.sweep)
    if points:
        unchanged = evaluation.sweep[0].tunables == evaluation.tunables
        chosen += f" ({'as written, ' if unchanged else ''}the best of {points} points that were tried)"
    return [("tunables", chosen)]


def _ancestry(candidate: CandidateView) -> list[str]:
    ordinals = {entry.candidate: entry.ordinal for entry in candidate.lineage}
    lines = []
    for entry in candidate.lineage:
        speed = f"{entry.speedup:.2f}x" if entry.speedup is not None else (entry.verdict or "unmeasured")
        parents = " and ".join(str(ordinals.get(parent, "?")) for parent in entry.parents)
        origin = f"{entry.operator} of {parents}" if parents else entry.operator
        techniques = ", ".join(entry.techniques) or "plain"
        lines.append(f"candidate {entry.ordinal} (generation {entry.generation + 1}, {origin}) {speed}: {techniques}")
    return lines


def _numbered(heading: str, items: Sequence[str]) -> list[tuple[str, str]]:
    return [(heading if number == 0 else "", item) for number, item in enumerate(items)]


def _print_pairs(lines: list[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        typer.echo(f"{name:<{width}}  {clean(value)}")
