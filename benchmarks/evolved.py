"""Records of evolved kernels: what stays of a run of :mod:`benchmarks.evolve_local` or :mod:`benchmarks.model_kernels`.

``python -m benchmarks.evolved RUN.json`` reads a run's whole output and writes its record into ``benchmarks/results``,
the winners' sources beside it: tables of jobs, candidates, comparisons, and of the winner and the runner-up of each
job. What the cost model and the results page read of devices and strategies stays of the playbook's runs only, build
and profile only of problems that ``--detailed`` names: prompts read them, or no kernel ships for them. A kernel that
ships has its whole evidence in its own file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from agents.interface import Attempt
from benchmarks import records
from benchmarks.local_report import machine
from cupilot.domain.evaluation import Evaluation
from cupilot.domain.hardware import Environment
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import Target
from cupilot.domain.strategy import Strategy
from cupilot.reports.job import SOURCE_FILES

DIGITS = 6
"""Of the numbers in a record of evolved kernels; pages show four at most."""
HASH_CHARACTERS = 12
_TABLES = ("jobs", "candidates", "kernels", "comparisons")
_KERNELS = ("winner", "runner_up")
_KEPT_OF_A_JOB = (
    *("problem", "problem_hash", "target", "policy", "author", "method", "seed", "stop", "seconds", "failure"),
    *("environment", "peaks", "placement", "op_class", "baseline_us", "best"),
)
_OF_A_MEASURED_JOB = ("environment", "peaks", "placement", "baseline_us")
_OF_AN_ENVIRONMENT = ("device", "compiler", "threads")
_KEPT_OF_A_BUILD = (
    "ok", "compiler", "flags", "seconds", "registers", "spill_bytes", "shared_bytes", "instructions",
)  # fmt: skip
_OF_ANY_BUILD = ("ok", "compiler", "seconds", "registers", "spill_bytes", "shared_bytes")
_KEPT_OF_A_COMPARISON = ("baseline", "kernel_us", "baseline_us", "speedup", "pairs", "launches", "graphs")


def jobs(name: str) -> list[dict[str, Any]]:
    """Return the jobs of a record, each with its candidates, its winner and its runner-up."""
    record = records.read(name)
    return [_joined(job, record) for job in record["jobs"]]


def job(name: str, problem: str) -> dict[str, Any]:
    """Return the record of one problem of a run."""
    matches = [job for job in jobs(name) if job["problem"] == problem]
    return matches[0]


def winner(name: str, problem: str) -> Attempt:
    """Return the best kernel of a problem, with its strategy and what the judge measured."""
    record = job(name, problem)
    return attempt(record["winner"], records.RESULTS / name / problem, Target(record["target"]))


def runner_up(name: str, problem: str) -> Attempt:
    """Return the fastest of a problem's other strategies; its source is not on record."""
    return attempt(job(name, problem)["runner_up"])


def attempt(record: dict[str, Any], folder: Path | None = None, target: Target = Target.CUDA) -> Attempt:
    """Return a recorded attempt, with the kernel whose source lies in ``folder``."""
    kernel = None
    if folder is not None:
        source = (folder / SOURCE_FILES[target]).read_text(encoding="utf-8")
        kernel = Kernel(target=target, source=source, plan=record["plan"])
    return Attempt(
        strategy=Strategy.model_validate(record["strategy"]),
        kernel=kernel,
        evaluation=Evaluation.model_validate(record["evaluation"]),
    )


def compact(run: dict[str, Any], detailed: Collection[str] = ()) -> dict[str, Any]:
    """Return the record of a run of :func:`settled` jobs; ``detailed`` problems keep build and profile."""
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in _TABLES}
    for job in run["jobs"]:
        problem = {"problem": job["problem"]}
        rows["jobs"].append(_numbers(job))
        rows["candidates"] += [problem | _candidate(candidate) for candidate in job["candidates"]]
        for place in _KERNELS:
            if place in job:
                key = problem | {"kernel": place}
                measured = job[place]["evaluation"]
                rows["kernels"].append(key | _kernel(job[place], "method" in job, job["problem"] in detailed))
                rows["comparisons"] += [key | comparison for comparison in measured["comparisons"]]
    return {**run, **rows}


def _numbers(job: dict[str, Any]) -> dict[str, Any]:
    """Return a job without its parts; of a model's run also without the device, which its champions name."""
    left_out = ("candidates", *_KERNELS, *(() if "method" in job else _OF_A_MEASURED_JOB))
    numbers = {key: value for key, value in job.items() if key not in left_out and value is not None}
    if "problem_hash" in numbers:
        numbers["problem_hash"] = numbers["problem_hash"][:HASH_CHARACTERS]
    if "environment" in numbers:
        numbers["environment"] = {key: numbers["environment"][key] for key in _OF_AN_ENVIRONMENT}
    return numbers


def _candidate(candidate: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in candidate.items() if key not in ("reason", "seconds")}


def _kernel(kernel: dict[str, Any], of_playbook: bool, detailed: bool) -> dict[str, Any]:
    """Return what stays of a winner or a runner-up beside its comparisons."""
    measured = kernel["evaluation"]
    build = measured.get("build") or {}
    of_build = (*_OF_ANY_BUILD, "instructions") if detailed else _OF_ANY_BUILD
    row = {
        "kernel_hash": measured["kernel_hash"][:HASH_CHARACTERS],
        "verdict": measured["verdict"],
        "failure": measured.get("failure"),
        "tunables": measured["tunables"],
        "build": {key: build[key] for key in of_build if key in build},
    }
    if detailed:
        row["profile"] = measured.get("profile")
    if detailed or of_playbook:
        row |= {"strategy": kernel["strategy"], "plan": kernel.get("plan")}
    return {key: value for key, value in row.items() if value}


def _joined(job: dict[str, Any], record: dict[str, Any]) -> dict[str, Any]:
    """Return a job with its rows of the other tables, in the form that :func:`settled` has."""

    def rows(table: str, of: dict[str, Any]) -> list[dict[str, Any]]:
        matches = [row for row in record.get(table, []) if all(row[key] == value for key, value in of.items())]
        return [{key: value for key, value in row.items() if key not in of} for row in matches]

    problem = {"problem": job["problem"]}
    joined = {**job, "candidates": rows("candidates", problem)}
    for place in _KERNELS:
        for row in rows("kernels", problem | {"kernel": place}):
            measured = {key: value for key, value in row.items() if key not in ("strategy", "plan")}
            measured |= {"problem_hash": job["problem_hash"]}
            measured["comparisons"] = rows("comparisons", problem | {"kernel": place})
            joined[place] = {"strategy": row.get("strategy"), "plan": row.get("plan"), "evaluation": measured}
    return joined


def settled(whole: dict[str, Any], plan: Any = None) -> dict[str, Any]:
    """Return a job of a run with rows of its candidates, its winner and its runner-up; ``plan`` is the winner's.

    A job of :mod:`benchmarks.model_kernels` is one already.
    """
    if "method" not in whole:
        return whole
    candidates = whole["candidates"]
    record = {key: whole[key] for key in _KEPT_OF_A_JOB if key in whole}
    record["candidates"] = [_row(candidate) for candidate in candidates]
    best = next((candidate for candidate in candidates if candidate["id"] == whole["best"]), None)
    if best is None:
        return record
    record["winner"] = {"strategy": best["strategy"], "plan": plan, "evaluation": evaluation(_last(best))}
    techniques = best["strategy"]["techniques"]
    others = [
        candidate
        for candidate in candidates
        if candidate["attempts"] and candidate["strategy"]["techniques"] != techniques
    ]
    if others:
        second = max(others, key=lambda candidate: _speedup(candidate["attempts"][-1]) or 0.0)
        measured = {**evaluation(second["attempts"][-1]), "laws": []}
        record["runner_up"] = {"strategy": second["strategy"], "evaluation": measured}
    return record


def _row(candidate: dict[str, Any]) -> dict[str, Any]:
    last = _last(candidate) if candidate["attempts"] else None
    return {
        "id": candidate["id"],
        "generation": candidate["generation"],
        "operator": candidate["operator"],
        "techniques": [use["id"] for use in (candidate["strategy"] or {"techniques": []})["techniques"]],
        "verdict": last["verdict"] if last else None,
        "speedup": _speedup(last) if last else None,
    }


def _last(candidate: dict[str, Any]) -> dict[str, Any]:
    last: dict[str, Any] = candidate["confirmation"] or candidate["attempts"][-1]
    return last


def _speedup(measured: dict[str, Any]) -> float | None:
    over_eager = [comparison for comparison in measured["comparisons"] if comparison["baseline"] == "eager"]
    return over_eager[0]["speedup"]["median"] if over_eager else None


def evaluation(whole: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept of an evaluation: no log, no sweep, no phases, no conditions of single blocks."""
    kept = {key: whole[key] for key in ("kernel_hash", "problem_hash", "verdict", "laws", "tunables", "seconds")}
    if whole["failure"]:
        kept["failure"] = whole["failure"]
    if whole["build"]:
        kept["build"] = {key: whole["build"][key] for key in _KEPT_OF_A_BUILD}
    if whole["profile"]:
        kept["profile"] = {key: whole["profile"][key] for key in ("source", "metrics")}
    kept["comparisons"] = [
        {key: comparison[key] for key in _KEPT_OF_A_COMPARISON} for comparison in whole["comparisons"]
    ]
    return kept


def of_run(path: Path) -> dict[str, Any]:
    """Return a run from its whole output, its jobs settled; the winners' folders lie beside it."""
    run: dict[str, Any] = records.load(path)
    return {**run, "jobs": [settled(whole, _plan(path, whole["problem"])) for whole in run["jobs"]]}


def _plan(path: Path, problem: str) -> Any:
    plan = path.with_suffix("") / problem / "plan.json"
    return json.loads(plan.read_text(encoding="utf-8")) if plan.exists() else None


def main(arguments: list[str] | None = None) -> int:
    """Write the record of one run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evolved", description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="what the run wrote to --out, its winners in the folder beside")
    parser.add_argument("--detailed", nargs="*", default=(), metavar="PROBLEM", help="keep build and profile of these")
    options = parser.parse_args(arguments)
    path: Path = options.run
    for source in path.with_suffix("").glob("*/kernel.*"):
        target = records.RESULTS / path.stem / source.parent.name / source.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
    run = of_run(path)
    environments = [Environment.model_validate(job["environment"]) for job in run["jobs"] if job.get("environment")]
    if environments:
        run["machine"] = f"{machine(environments[0])}; {run['machine']}"
    records.write(records.RESULTS / path.name, compact(run, options.detailed), DIGITS, tables=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
