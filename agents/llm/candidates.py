"""Candidates as prompts show them: what was measured, digested, never as raw counters or times of different loads.

A kernel's speed is told as its speedup over PyTorch eager, measured side by side, with its interval; an interval of
fewer than six pairs decides nothing and is not called one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from agents.interface import Advice, Attempt, Briefing, Diagnosis, RooflineProphet
from agents.llm.offered import fits
from agents.llm.prompt import data, size, strategy_json
from cupilot.domain.evaluation import Baseline, Comparison, Evaluation, Profile, ProfileSource
from cupilot.domain.kernel import Kernel
from cupilot.domain.strategy import Strategy
from cupilot.domain.technique import catalogue

MAX_BEST, MAX_NEWEST = 12, 12
"""Strategies that a crossover is shown of those its job has tried: the fastest, and of the others the newest."""
TOP_STALLS = 3

_SHARES = {
    "dram_throughput_pct": "DRAM",
    "l2_throughput_pct": "L2",
    "sm_throughput_pct": "SM",
    "issue_active_pct": "issue slots",
    "fma_pipe_pct": "FMA pipe",
    "tensor_active_pct": "tensor pipe",
    "achieved_occupancy_pct": "occupancy",
    "l2_hit_pct": "L2 hits",
    "load_efficiency_pct": "loaded bytes used",
}
"""Percentages of a measured profile that a crossover is shown, and what they are shares of."""


def kernel_text(kernel: Kernel) -> str:
    """Return a kernel as it stands in a prompt: source and plan, both as data."""
    unused = None if kernel.plan.tensor_maps else {"tensor_maps"}
    return data("kernel", kernel.source) + "\n" + data("plan.json", kernel.plan.model_dump_json(exclude=unused))


def speed(comparison: Comparison) -> str:
    """Return a measured speedup in words."""
    speedup = comparison.speedup
    if comparison.decided:
        spread = f"95 % interval {speedup.low:.3f} to {speedup.high:.3f}"
    else:
        spread = f"undecided: {speedup.low:.3f} to {speedup.high:.3f} in {comparison.pairs} pairs"
    return f"{speedup.median:.3f} times as fast as PyTorch eager ({spread})"


def outcome(evaluation: Evaluation | None) -> str:
    """Return what was measured, digested to a line; raw counters stay in the database."""
    if evaluation is None:
        return "Not measured."
    text = f"Verdict {evaluation.verdict.value}"
    comparison = evaluation.comparison(Baseline.EAGER)
    if comparison is not None:
        text += f", {speed(comparison)}"
    if evaluation.failure is not None:
        text += f"; {evaluation.failure.kind.value}: {evaluation.failure.message[:300]}"
    return f"{text}."


def measured(evaluation: Evaluation | None) -> str:
    """Return the same in a line of its own.

    As data where it tells of a failure, in words that may quote the kernel's.
    """
    text = outcome(evaluation)
    return data("measured", text) if evaluation and evaluation.failure else f"Measured: {text}"


_TRIED_BOTH_WAYS = 2
"""Choices of a tunable that is one thing or the other: a list of so few has no edge to go beyond."""


def figures(briefing: Briefing, attempt: Attempt) -> str:
    """Return what is known of a measured kernel beside its speed, in a few lines: tunables, resources, counters."""
    if attempt.evaluation is None:
        return ""
    return "\n".join([*_tunables(attempt), *_resources(attempt.evaluation), *_counters(briefing, attempt.evaluation)])


def _tunables(attempt: Attempt) -> Iterator[str]:
    if attempt.kernel is None or attempt.evaluation is None or not attempt.kernel.plan.tunables:
        return
    parts = []
    for name, tunable in sorted(attempt.kernel.plan.tunables.items()):
        value, choices = attempt.evaluation.tunables.get(name, tunable.value), tunable.choices
        edge = len(choices) > _TRIED_BOTH_WAYS and value in (min(choices), max(choices))
        words = f" of {sorted(choices)}" + (", the edge of the list" if edge and attempt.evaluation.sweep else "")
        parts.append(f"{name} = {value}{words if len(choices) > 1 else ''}")
    yield f"Tunables: {'; '.join(parts)}."


def _resources(evaluation: Evaluation) -> Iterator[str]:
    build = evaluation.build
    if build is None:
        return
    known = {
        "registers a thread": build.registers,
        "bytes spilled": build.spill_bytes or None,
        "bytes of static shared memory": build.shared_bytes or None,
    }
    parts = [f"{value} {name}" for name, value in known.items() if value is not None]
    if parts:
        yield f"Resources: {', '.join(parts)}."


def _counters(briefing: Briefing, evaluation: Evaluation) -> Iterator[str]:
    profile = evaluation.profile
    if profile is None:
        return
    metrics = profile.metrics
    bound = metrics.get("floor_pct") if briefing.placement is not None else None  # part of roofline guidance
    occupancy = metrics.get("occupancy_pct")
    calculated = [f"{bound:.0f} % of the roofline bound's speed"] if bound else []
    calculated += [f"occupancy at most {occupancy:.0f} %"] if occupancy else []
    if calculated:
        yield f"Calculated: {', '.join(calculated)}."
    if not counted(profile):
        return
    read, written = metrics.get("dram_read_bytes"), metrics.get("dram_write_bytes")
    parts = []
    if read is not None and written is not None:
        needed = size(briefing.facts.compulsory_bytes)
        parts.append(f"DRAM {size(read)} read, {size(written)} written (compulsory in all {needed})")
    parts += [f"{words} {metrics[name]:.0f} %" for name, words in _SHARES.items() if name in metrics]
    stalls = sorted((-value, name) for name, value in metrics.items() if name.startswith("stall_") and value > 0)
    parts += [f"{name} {-value:.1f} warps an instruction" for value, name in stalls[:TOP_STALLS]]
    yield f"Counted: {'; '.join(parts)}."


def counted(profile: Profile | None) -> bool:
    """Return whether a profile comes from hardware counters."""
    return profile is not None and profile.source is ProfileSource.MEASURED


def diagnosed(prophet: RooflineProphet | None, briefing: Briefing, attempt: Attempt) -> Diagnosis | None:
    """Return why a kernel is not faster, where counters back it and roofline guidance is on.

    Without advice that names what the kernel has, or what its agents are not offered.
    """
    if prophet is None or briefing.placement is None or attempt.evaluation is None:
        return None
    if not counted(attempt.evaluation.profile):
        return None
    found = prophet.diagnose(briefing, attempt)
    return found.model_copy(update={"advice": tuple(item for item in found.advice if _useful(item, briefing, attempt))})


def _useful(advice: Advice, briefing: Briefing, attempt: Attempt) -> bool:
    technique = catalogue().get(advice.technique)
    return (
        technique is not None
        and advice.technique not in attempt.strategy.ids()
        and fits(technique, briefing, catalogue())
    )


def diagnosis(found: Diagnosis) -> str:
    """Return the Prophet's diagnosis: what holds a kernel back, and what to try."""
    if not found.advice and found.severity == "none":
        return f"Diagnosis: {found.cause} ({found.evidence})."
    lines = [f"Diagnosis ({found.severity}): {found.cause}; {found.evidence}."]
    for rank, advice in enumerate(found.advice, 1):
        reason = "" if advice.reason == found.cause else f": {advice.reason}"
        lines.append(f"{rank}. try {advice.technique}{reason}; expect {advice.expected}")
    return "\n".join(lines)


def attempt(briefing: Briefing, candidate: Attempt, found: Diagnosis | None = None) -> str:
    """Return a candidate's strategy, what it came to, and why it is not faster."""
    lines = [strategy_json(candidate.strategy), outcome(candidate.evaluation), figures(briefing, candidate)]
    return data("candidate", "\n".join(filter(None, [*lines, diagnosis(found) if found else ""])))


def parent(briefing: Briefing, candidate: Attempt, found: Diagnosis | None = None) -> str:
    """Return a measured kernel whose code is to be read: what it came to, source, plan."""
    parts = [
        measured(candidate.evaluation),
        data("figures", "\n".join(filter(None, [figures(briefing, candidate), diagnosis(found) if found else ""]))),
        kernel_text(candidate.kernel) if candidate.kernel else "It has no code.",
    ]
    return "\n".join(parts)


def tried(strategies: Sequence[Strategy], outcomes: Mapping[str, str]) -> str:
    """Return what a job has tried, one strategy a line with its outcome, by signature: the best and the newest."""
    if not strategies:
        return "None yet."
    distinct = list({strategy.signature(): strategy for strategy in strategies}.items())
    told = [(outcomes.get(signature, ""), strategy) for signature, strategy in distinct]
    best = sorted((item for item in told if _factor(item[0])), key=lambda item: -_factor(item[0]))[:MAX_BEST]
    newest = [item for item in told if item not in best][-MAX_NEWEST:]
    lines = [f"{words or 'not measured'}: {_compact(strategy)}" for words, strategy in [*best, *newest]]
    left = len(distinct) - len(lines)
    return data("tried", "\n".join([*lines, *([f"({left} others)"] if left else [])]))


def _factor(words: str) -> float:
    return float(words[:-1]) if words.endswith("x") else 0.0


def _compact(strategy: Strategy) -> str:
    uses = []
    for use in strategy.techniques:
        values = ", ".join(f"{name}={value}" for name, value in use.parameters.items())
        uses.append(f"{use.id}({values})" if values else use.id)
    return ", ".join(uses) or "no techniques"
