"""Explain a job's result in words: the headline, what to try next, and the report as Markdown.

Words only what was measured; a kernel that is slower than PyTorch is called slower. Decides nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cupilot.domain.attribution import Credit, CreditOutcome
from cupilot.domain.counted import counted
from cupilot.domain.evaluation import Baseline, Comparison, Evaluation, FailureKind, Interval, Verdict
from cupilot.domain.hardware import Environment
from cupilot.domain.imported import KernelKind, file_name
from cupilot.domain.job import AgentKind
from cupilot.domain.problem import NumericsPolicy, Target
from cupilot.domain.roofline import NEAR_FLOOR, Placement
from cupilot.domain.states import JobState
from cupilot.domain.strategy import Strategy
from cupilot.reports.problem import remarks
from cupilot.reports.tables import workloads

if TYPE_CHECKING:
    from cupilot.schemas import CandidateView, GenerationPoint, JobView, KernelView, Report, Spending

BASELINE_NAMES = {
    Baseline.EAGER: "PyTorch eager",
    Baseline.COMPILE: "torch.compile",
    Baseline.MAX_AUTOTUNE: "torch.compile max-autotune",
}

SOURCE_FILES = {Target.CUDA: "kernel.cu", Target.CPU: "kernel.cpp"}
"""File name of a kernel's source."""
AFTER_QUARANTINE = (
    "It was derived from a quarantined kernel, which was faster than the roofline bound: read it before you use it."
)

WORTH_SEARCHING = 1.3
"""PyTorch's time over the bound from which a search for a faster kernel is worth its cost."""

_AFTER_REASON = {
    "no_template": "Let a model write the kernels, where the service has one: cupilot submit FILE --agents hybrid.",
    FailureKind.INVALID_PROBLEM.value: "Mend the problem file as the message says, and submit it again.",
    FailureKind.OUT_OF_MEMORY.value: "Make the problem's tensors smaller, or retry it on a device with more memory.",
}
"""The first thing to do where a job ended for this reason."""


def factor(speedup: Interval, *, decided: bool = True) -> str:
    """Return a speedup with its interval, e.g. ``1.84x (95 % interval 1.82 to 1.86)``."""
    spread = "95 % interval" if decided else "undecided, from too few pairs:"
    return f"{_times(speedup.median)} ({spread} {speedup.low:.2f} to {speedup.high:.2f})"


def difference_words(speedup: Interval) -> str:
    """Return what the interval shows: faster, slower, or neither."""
    if speedup.low > 1.0:
        return "faster"
    return "slower" if speedup.high < 1.0 else "no clear difference"


def measured_on(environment: Environment) -> str:
    """Return the device, and the host's load when it measured, e.g. ``NVIDIA H200 (load of the host 1.3)``."""
    load = "" if environment.load_average is None else f" (load of the host {environment.load_average:.1f})"
    return f"{environment.device.name}{load}"


def comparison_words(speedup: Interval, baseline: str, *, decided: bool = True) -> str:
    """Return one clause that claims no more than the interval shows."""
    if not decided:
        return f"not yet decided against {baseline}: {factor(speedup, decided=False)}"
    if speedup.low > 1.0:
        return f"{_times(speedup.median)} as fast as {baseline} (95 % interval {speedup.low:.2f} to {speedup.high:.2f})"
    if speedup.high < 1.0:
        return f"slower than {baseline}: {factor(speedup)} of its speed"
    return f"no faster and no slower than {baseline} as far as can be told: {factor(speedup)}"


def headline(evaluation: Evaluation, verdict: Verdict, *, final: bool) -> str:
    """Return one honest sentence about a kernel that counts; ``final`` says whether a better one may still come."""
    clauses = [
        comparison_words(item.speedup, name, decided=item.decided)
        for baseline, name in BASELINE_NAMES.items()
        if (item := evaluation.comparison(baseline)) is not None
    ]
    if evaluation.comparison(Baseline.COMPILE) is None:
        clauses.append("not compared with torch.compile")
    imported = evaluation.kernel_kind is KernelKind.IMPORTED
    subject = "The imported file" if imported else f"The best kernel{'' if final else ' so far'}"
    return f"{subject} is {'; '.join(clauses)}. Verdict: {verdict.value}."


def next_steps(job: JobView, evaluation: Evaluation) -> list[str]:
    """Return what a user can sensibly try now, the most promising first."""
    if evaluation.kernel_kind is KernelKind.IMPORTED:
        return _steps_of_import(job, evaluation)
    eager = evaluation.comparison(Baseline.EAGER)
    steps = _search_steps(job, floor_share(evaluation)) + _policy_steps(job, evaluation)
    if eager is not None and eager.speedup.low <= 1.0:
        steps = _why_not_faster(job, evaluation, eager.baseline_us.median) + steps
    if eager is not None and eager.speedup.low <= 1.0 <= eager.speedup.high:
        steps.insert(0, "Measure on a quieter machine: the interval is too wide to say which of the two is faster.")
    more = (floor_share(evaluation) or 0.0) < NEAR_FLOOR and not any("--agents hybrid" in step for step in steps)
    if job.agents is AgentKind.PLAYBOOK and job.final and more:
        steps.append("Let a model go on from the playbook's kernels (agents hybrid), where the service has one.")
    if evaluation.verdict is Verdict.AUDITED and job.final:
        known = "could not be measured again" if job.reason == "not_confirmed" else "was not reproduced"
        steps.insert(0, f"Run the job again before relying on the number: it {known} in fresh processes.")
    steps.append("Start the next job on a similar operator: it begins from what this one taught the strategy pool.")
    return steps


def steps_after_failure(job: JobView) -> list[str]:
    """Return what a user can do about a job that ended without a proven kernel."""
    steps = [_AFTER_REASON[job.reason]] if job.reason in _AFTER_REASON else []
    if job.verdicts.get(Verdict.REJECTED.value):
        steps.append(f"Read what the judge found: cupilot candidates {job.id}, then cupilot candidate {job.id} N.")
    if job.state == JobState.CANCELLED:
        steps.append(f"Start it again: cupilot retry {job.id}.")
    if job.state == JobState.BUDGET_EXHAUSTED:
        steps.append(f"Go on with a larger budget: cupilot retry {job.id} --candidates N --minutes M.")
    steps.append(f"Read the log: cupilot logs {job.id}.")
    return steps


def _why_not_faster(job: JobView, evaluation: Evaluation, baseline_us: float) -> list[str]:
    """Say how much PyTorch leaves to gain, where the kernel is not faster."""
    if (known := _placed_time(evaluation)) is None or known[0].floor_us <= 0:
        return []
    room = baseline_us / known[0].floor_us
    elsewhere = " on this CPU; a GPU has a bound of its own" if job.target is Target.CPU else ""
    gain = f"PyTorch takes {room:.2f} times the bound here, which is all there is to gain{elsewhere}"
    if room >= WORTH_SEARCHING:
        return [f"{gain}."]
    return [f"Expect little of this operator: {gain}. Several operators in one problem leave more."]


def _steps_of_import(job: JobView, evaluation: Evaluation) -> list[str]:
    steps = [f"Evolve kernels for the same problem, and compare: cupilot compare JOB {job.id}."]
    if evaluation.handover_us is not None:
        steps.append("Read the speedup as a lower bound: copying the result to the judge is part of the time.")
    elif job.target is Target.CUDA:
        steps.append("Read the speedup as a lower bound: the file's host code is part of the time.")
    if evaluation.unchecked:
        steps.append(f"Look at the file yourself for what was not checked: {'; '.join(evaluation.unchecked)}.")
    return steps


def _search_steps(job: JobView, share: float | None) -> list[str]:
    if share is not None and share >= NEAR_FLOOR:
        return [f"Nothing under this policy: the kernel runs at {share:.0%} of what the measured peaks allow."]
    if job.state == JobState.BUDGET_EXHAUSTED:
        return [f"Raise the budget that ran out ({job.reason or 'see the job'}): the search was cut off."]
    population = getattr(job.method, "population", None)
    if job.agents is AgentKind.PLAYBOOK and isinstance(population, int) and job.candidates < population:
        found = "one strategy" if job.candidates == 1 else f"{job.candidates} strategies"
        return [
            f"Let a model write more kernels (cupilot submit FILE --agents hybrid): the playbook has {found} for this"
            f" operator on {job.target.value}, and a longer search adds none."
        ]
    if share is not None:
        reached = f"the kernel runs at {share:.0%} of what the measured peaks allow"
        return [f"Search longer (more generations, a larger population): {reached}."]
    return []


def floor_share(evaluation: Evaluation) -> float | None:
    """Return floor over kernel time at the device's measured peaks, 0 to 1; None where either is unknown."""
    known = _placed_time(evaluation)
    return None if known is None else known[0].floor_us / known[1]


def bound_words(evaluation: Evaluation) -> list[str]:
    """Return the kernel's shares of what is possible, at the stated peaks of the device where they are known."""
    known = _placed_time(evaluation)
    if known is None:
        return []
    placement, kernel_us = known
    peaks = "measured" if placement.stated is None else "stated"
    words = [f"{placement.floor_share(kernel_us):.0%} of the speed that the device's {peaks} peaks allow"]
    direct = placement.direct_share(kernel_us)
    if direct is not None:
        words.append(
            f"{direct:.0%} of the speed at which the same peaks do the reference's operations as they are written: "
            "counted directly, no bound and no measurement, since faster algorithms are known"
        )
    return words


def _placed_time(evaluation: Evaluation) -> tuple[Placement, float] | None:
    """Return the placement and the kernel's time in microseconds; None where either is unknown."""
    eager = evaluation.comparison(Baseline.EAGER)
    if eager is None or evaluation.placement is None or eager.kernel_us.median <= 0:
        return None
    return evaluation.placement, eager.kernel_us.median


def _policy_steps(job: JobView, evaluation: Evaluation) -> list[str]:
    placement = evaluation.placement
    if job.target is not Target.CUDA or placement is None or job.problem.policy is NumericsPolicy.HALF:
        return []
    if job.preparation is None or job.preparation.op_class not in ("matmul", "conv", "attention"):
        return []
    more = "half" if job.problem.policy is NumericsPolicy.TF32 else "tf32 or half"
    return [f"Allow tensor cores (policy {more}) if your model tolerates their precision."]


def markdown(report: Report) -> str:
    """Return the report as it lies in the download."""
    candidate, job = report.candidate, report.job
    sections = [
        f"# {job.problem.name} on {job.target.value}, policy {job.problem.policy.value}",
        report.headline,
        remarks(report.preparation),
        _comparisons(candidate.evaluation),
        _workloads(candidate.evaluation),
        _evidence(candidate.evaluation),
        _strategy(candidate),
        _credits(candidate.credits),
        _lineage(candidate),
        _trajectory(report.trajectory),
        _models(job),
        "## What to try next\n\n" + "\n".join(f"- {step}" for step in report.next_steps),
        _reproduce(job, report.candidate.kernel),
        f"Job `{job.id}`, candidate {candidate.ordinal} of generation {candidate.generation + 1},"
        f" {counted(job.candidates, 'candidate')}, {job.gpu_seconds:.0f} s on the device, {job.cost_usd:.2f} USD.",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def technique_lines(strategy: Strategy) -> list[str]:
    """Return each technique with its parameters, e.g. ``vector_loads (width=4)``."""
    lines = []
    for use in strategy.techniques:
        parameters = ", ".join(f"{name}={value}" for name, value in use.parameters.items())
        lines.append(f"{use.id} ({parameters})" if parameters else use.id)
    return lines or ["none: the plain kernel"]


def spending_lines(job: JobView) -> list[str]:
    """Return what each role spent on each model, e.g. ``translator on openai/x. 12 calls (3 cached), ...``."""
    lines = []
    for spending in job.spending:
        notes = [f"{count} {word}" for count, word in _counted(spending) if count]
        extra = f" ({', '.join(notes)})" if notes else ""
        tokens = f"{spending.prompt_tokens + spending.completion_tokens:,} tokens"
        reserved = f", {spending.reserved_usd:.4f} reserved" if spending.reserved_usd else ""
        lines.append(
            f"{spending.role} on {spending.model}: {spending.calls} calls{extra}, {tokens},"
            f" {spending.cost_usd:.4f} USD{reserved}"
        )
    return lines


def _counted(spending: Spending) -> list[tuple[int, str]]:
    return [(spending.cached, "cached"), (spending.unusable, "unusable"), (spending.unanswered, "unanswered")]


def _models(job: JobView) -> str:
    lines = spending_lines(job)
    return "## Model calls\n\n" + "\n".join(f"- {line}" for line in lines) if lines else ""


def _workloads(evaluation: Evaluation | None) -> str:
    if evaluation is None or not evaluation.workloads:
        return ""
    return "## Workloads\n\n" + "\n".join(workloads(evaluation))


def _comparisons(evaluation: Evaluation | None) -> str:
    if evaluation is None or not evaluation.comparisons:
        return ""
    rows = "\n".join(_comparison_row(item) for item in evaluation.comparisons)
    return (
        "## Measured\n\n| baseline | kernel | baseline | speedup | 95 % interval | pairs |\n"
        f"|---|---|---|---|---|---|\n{rows}"
    ) + _measured_as(evaluation)


def _measured_as(evaluation: Evaluation) -> str:
    """Return how the times came about, where that is not plain."""
    lines = []
    if evaluation.tunables:
        values = ", ".join(f"{name} = {value}" for name, value in sorted(evaluation.tunables.items()))
        lines.append(f"With the tunables {values}.")
    graphs = [item.baseline.value for item in evaluation.comparisons if item.graphs]
    if graphs:
        lines.append(f"Both sides launched through CUDA graphs, against {' and '.join(graphs)}.")
    return "\n\n" + " ".join(lines) if lines else ""


def _comparison_row(item: Comparison) -> str:
    undecided = "" if item.decided else " (undecided)"
    return (
        f"| {item.baseline.value} | {item.kernel_us.median:.1f} us | {item.baseline_us.median:.1f} us"
        f" | {_times(item.speedup.median)} | {item.speedup.low:.3f} to {item.speedup.high:.3f}{undecided}"
        f" | {item.pairs} |"
    )


def _evidence(evaluation: Evaluation | None) -> str:
    if evaluation is None:
        return ""
    lines = [
        f"- input law `{law.law}`: {'passed' if law.passed else 'failed'}, error {law.error:.3g} of the output's"
        f" spread; accepted {law.tolerance:.3g}, PyTorch's own {law.reference_error:.3g}"
        for law in evaluation.laws
    ]
    if evaluation.environment is not None:
        environment = evaluation.environment
        parts = [measured_on(environment), *(item for item in (environment.driver, environment.cuda) if item)]
        lines.append(f"- measured on {', '.join(parts)}; torch {environment.torch}; sandbox {environment.sandbox}")
    lines += [f"- {words}" for words in bound_words(evaluation)]
    return "## Evidence\n\n" + "\n".join(lines) if lines else ""


def _strategy(candidate: CandidateView) -> str:
    strategy = candidate.aligned_strategy or candidate.strategy
    if strategy is None:
        return ""
    numbered = "\n".join(f"{number}. {line}" for number, line in enumerate(technique_lines(strategy), 1))
    return f"## Strategy\n\n{numbered}\n\n{strategy.rationale}".rstrip()


def credit_words(credit: Credit) -> str:
    """Return what a technique was measured to be worth, in one clause that claims no more than the interval shows."""
    together = f" (with {', '.join(credit.removed)}, which need it)" if credit.removed else ""
    if credit.factor is not None:
        return f"{credit.technique}{together}: {factor(credit.factor)}, {_worth(credit.factor)}"
    words = {
        CreditOutcome.SAME_CODE: "the code is the same without it",
        CreditOutcome.BROKEN: f"the kernel does not pass without it ({credit.failure or 'no timing'})",
        CreditOutcome.NOT_SEPARABLE: f"cannot be taken away by itself: {credit.note or 'unknown reason'}",
        CreditOutcome.NOT_MEASURED: f"not measured: {credit.note or 'unknown reason'}",
    }
    return f"{credit.technique}{together}: {words.get(credit.outcome, 'not timed')}"


def _worth(share: Interval) -> str:
    if share.low > 1.0:
        return "it helps"
    return "it hurts" if share.high < 1.0 else "no clear effect"


def _credits(credits: list[Credit]) -> str:
    if not credits:
        return ""
    lines = "\n".join(f"- {credit_words(credit)}" for credit in credits)
    head = "Speed of this kernel over the same one without the technique, by the same judge:"
    return f"## What each technique is worth\n\n{head}\n\n{lines}"


def _lineage(candidate: CandidateView) -> str:
    ordinals = {entry.candidate: entry.ordinal for entry in candidate.lineage}
    lines = []
    for entry in candidate.lineage:
        parents = " and ".join(str(ordinals.get(parent, "?")) for parent in entry.parents)
        speedup = _times(entry.speedup) if entry.speedup is not None else (entry.verdict or "unmeasured")
        origin = f"{entry.operator} of {parents}" if parents else entry.operator
        lines.append(
            f"- candidate {entry.ordinal}, generation {entry.generation + 1}, {origin}: {speedup};"
            f" {', '.join(entry.techniques) or 'plain'}"
        )
    if candidate.after_quarantine:
        lines.append(f"\n{AFTER_QUARANTINE}")
    return "## Lineage\n\n" + "\n".join(lines) if lines else ""


def generation_line(point: GenerationPoint) -> str:
    """Return what a generation came to, e.g. ``3 of 8 count, highest median 1.42x, so far 1.57x``."""
    best = "none counts" if point.speedup is None else f"highest median {_times(point.speedup)}"
    so_far = "" if point.best_so_far is None else f", so far {_times(point.best_so_far)}"
    return f"{point.counting} of {point.candidates} count, {best}{so_far}"


def _trajectory(points: list[GenerationPoint]) -> str:
    if not points:
        return ""
    lines = "\n".join(f"{point.generation}. {generation_line(point)}" for point in points)
    return f"## By generation\n\n{lines}"


def _reproduce(job: JobView, kernel: KernelView | None) -> str:
    source = SOURCE_FILES[job.target]
    if kernel is not None and kernel.plan is None:
        return (
            "## Judge it again\n\n```\n"
            f"python -m gpu_worker judge problem.py {file_name(kernel.source, job.target)}"
            f" --policy {job.problem.policy.value} --target {job.target.value} --json\n```"
        )
    return (
        "## Judge it again\n\n```\n"
        f"python -m gpu_worker evaluate --problem problem.py --kernel {source} --plan plan.json"
        f" --policy {job.problem.policy.value} --target {job.target.value} --sweep 0 --json\n```"
    )


def _times(value: float) -> str:
    return f"{value:.2f}x"
