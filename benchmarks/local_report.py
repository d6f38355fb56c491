"""The output of a local job: one JSON record a problem, and the winner's files beside it. Prints nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cupilot.domain.evaluation import Baseline, Comparison, Evaluation
from cupilot.domain.hardware import Environment
from cupilot.domain.problem import Target
from cupilot.domain.value import Value
from workers.local.candidates import Candidate
from workers.local.job import LocalJob

_SUFFIX = {Target.CPU: ".cpp", Target.CUDA: ".cu"}


def record(job: LocalJob) -> dict[str, Any]:
    """Return everything about a job that a reader of its numbers may ask for, as JSON-compatible data."""
    result = job.result
    assert result is not None
    preparation = result.preparation
    return {
        "problem": job.spec.problem.name,
        "problem_hash": job.spec.problem.content_hash(),
        "target": job.spec.target.value,
        "policy": job.spec.problem.policy.value,
        "method": _json(job.spec.method),
        "seed": job.spec.seed,
        "stop": job.stop,
        "seconds": round(job.seconds, 2),
        "failure": _json(result.failure) if result.failure else None,
        "environment": _json(preparation.environment) if preparation else None,
        "peaks": _json(preparation.peaks) if preparation else None,
        "placement": _json(preparation.placement) if preparation else None,
        "op_class": preparation.facts.op_class if preparation else None,
        "baseline_us": _json(preparation.baseline_us) if preparation else None,
        "laws": list(preparation.laws) if preparation else [],
        "admission": preparation.admission if preparation else {},
        "best": job.best.id if job.best else None,
        "candidates": [_candidate(candidate) for candidate in job.candidates],
    }


def write_winner(job: LocalJob, folder: Path) -> None:
    """Write the best kernel's source, plan, strategy and evaluation, and the problem it solves, into ``folder``."""
    best = job.best
    if best is None or best.kernel is None or best.latest is None or best.strategy is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    plan = best.kernel.plan.with_values(best.latest.tunables) if best.latest.tunables else best.kernel.plan
    (folder / "problem.py").write_text(job.spec.problem.source, encoding="utf-8")
    (folder / f"kernel{_SUFFIX[job.spec.target]}").write_text(best.kernel.source, encoding="utf-8")
    for name, value in (("plan", plan), ("strategy", best.strategy), ("evaluation", best.latest)):
        (folder / f"{name}.json").write_text(value.model_dump_json(indent=2) + "\n", encoding="utf-8")


def machine(environment: Environment) -> str:
    """Return one line on the machine that every printed number was measured on."""
    device = environment.device
    parts = [f"{device.name} ({device.arch}, {device.units} units)"]
    parts += [f"driver {environment.driver}"] if environment.driver else []
    parts += [f"CUDA {environment.cuda}"] if environment.cuda else []
    parts += [f"torch {environment.torch}"] if environment.torch else []
    parts += [environment.compiler] if environment.compiler else []
    parts += [f"{environment.threads} threads"] if environment.threads else []
    parts += [f"load {environment.load_average:.2f}"] if environment.load_average is not None else []
    return ", ".join(parts)


def comparison_line(comparison: Comparison) -> str:
    """Return a comparison as a sentence with its intervals."""
    speedup = comparison.speedup
    return (
        f"{comparison.baseline.value:>13}: {comparison.baseline_us.median:10.2f} us, kernel "
        f"{comparison.kernel_us.median:10.2f} us: {speedup.median:.3f}x [{speedup.low:.3f}, {speedup.high:.3f}]"
    )


def speedup_over(evaluation: Evaluation | None, baseline: Baseline) -> str:
    """Return ``2.31x [2.29, 2.33]``, or a dash if it was not measured."""
    comparison = evaluation.comparison(baseline) if evaluation and evaluation.verdict.counts else None
    if comparison is None:
        return "-"
    return f"{comparison.speedup.median:.2f}x [{comparison.speedup.low:.2f}, {comparison.speedup.high:.2f}]"


def _candidate(candidate: Candidate) -> dict[str, Any]:
    return {
        "id": candidate.id,
        "generation": candidate.generation,
        "operator": candidate.proposal.operator.value,
        "parents": list(candidate.proposal.parents),
        "strategy": _json(candidate.strategy) if candidate.strategy else None,
        "fidelity": candidate.alignment.fidelity if candidate.alignment else None,
        "struck": list(candidate.alignment.struck) if candidate.alignment else [],
        "end": candidate.end.ending.value if candidate.end else None,
        "reason": candidate.end.reason if candidate.end else None,
        "repairs": max(len(candidate.history) - 1, 0),
        "seconds": round(candidate.seconds, 2),
        "attempts": [_evaluation(attempt.evaluation) for attempt in candidate.history if attempt.evaluation],
        "confirmation": _evaluation(candidate.confirmation) if candidate.confirmation else None,
    }


def _evaluation(evaluation: Evaluation) -> dict[str, Any]:
    """Return an evaluation without its build log and environment, which are long and the same for all."""
    data = _json(evaluation)
    data.pop("environment")
    data.pop("placement")
    if data["build"]:
        data["build"].pop("log")
    return data


def _json(value: Value) -> dict[str, Any]:
    return value.model_dump(mode="json")
