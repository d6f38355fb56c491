"""Records of evolved kernels: what stays of a run of :mod:`benchmarks.evolve_local`.

``python -m benchmarks.evolved RUN.json`` reads a run's whole output and writes its record into ``benchmarks/results``:
a row a candidate, the winner and the runner-up with what the judge measured, and the winner's source beside.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from agents.interface import Attempt
from benchmarks import records
from cupilot.domain.evaluation import Evaluation
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import Target
from cupilot.domain.strategy import Strategy
from cupilot.reports.job import SOURCE_FILES

_KEPT_OF_A_JOB = (
    *("problem", "problem_hash", "target", "policy", "method", "seed", "stop", "seconds", "failure"),
    *("environment", "peaks", "placement", "op_class", "baseline_us", "best"),
)
_KEPT_OF_A_BUILD = (
    "ok", "compiler", "flags", "seconds", "registers", "spill_bytes", "shared_bytes", "instructions",
)  # fmt: skip
_KEPT_OF_A_COMPARISON = ("baseline", "kernel_us", "baseline_us", "speedup", "pairs", "launches", "graphs")


def job(name: str, problem: str) -> dict[str, Any]:
    """Return the record of one problem of a run."""
    matches: list[dict[str, Any]] = [record for record in records.read(name)["jobs"] if record["problem"] == problem]
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


def compact(run: dict[str, Any], plans: dict[str, Any]) -> dict[str, Any]:
    """Return the record of a run; ``plans`` are the winners' launch plans by problem."""
    jobs = [_job(whole, plans.get(whole["problem"])) for whole in run["jobs"]]
    return {**{key: value for key, value in run.items() if key != "jobs"}, "jobs": jobs}


def _job(whole: dict[str, Any], plan: Any) -> dict[str, Any]:
    candidates = whole["candidates"]
    record = {key: whole[key] for key in _KEPT_OF_A_JOB}
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
        "reason": candidate["reason"],
        "seconds": candidate["seconds"],
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


def main(arguments: list[str] | None = None) -> int:
    """Write the record of one run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evolved", description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="what evolve_local wrote to --out, its winners in the folder beside")
    path = parser.parse_args(arguments).run
    folder = path.with_suffix("")
    plans = {}
    for winner in folder.iterdir():
        plans[winner.name] = json.loads((winner / "plan.json").read_text(encoding="utf-8"))
        for source in winner.glob("kernel.*"):
            target = records.RESULTS / path.stem / winner.name / source.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    records.write(records.RESULTS / path.name, compact(json.loads(path.read_text(encoding="utf-8")), plans))
    return 0


if __name__ == "__main__":
    sys.exit(main())
