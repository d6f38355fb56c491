"""Judge kernels from files: ``python -m benchmarks.model_kernels FOLDER --out RUN.json``.

FOLDER holds one folder a kernel, ``PROBLEM.NAME`` (a child of a crossover is called ``child``), each with a
``kernel.cu``, ``plan.json`` and ``strategy.json``. Every kernel of a built-in problem at full size is evaluated; the
one with the highest lower bound of its speedup is confirmed in fresh processes against all baselines. Writes what was
measured after each problem, the winners' sources beside it: :mod:`benchmarks.make_champions` makes champions of that,
and :mod:`benchmarks.evolved` the record. Needs an NVIDIA GPU.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import evolved, records
from cupilot.code_version import code_version
from cupilot.domain import problems
from cupilot.domain.evaluation import Baseline, Evaluation, Preparation
from cupilot.domain.kernel import Kernel, LaunchPlan
from cupilot.domain.problem import NumericsPolicy, Problem, Target
from gpu_worker.evaluator import Evaluator

CHILD = "child"
CONFIRM_SECONDS = 400.0


def main(arguments: list[str] | None = None) -> int:
    """Judge all kernels of the folder; 0 when every problem has a reproduced one."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.model_kernels", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="one folder a kernel: PROBLEM.NAME")
    parser.add_argument("--out", type=Path, required=True, help="the run; winners go to a folder of its name")
    parser.add_argument("--work-dir", type=Path, default=Path(".cupilot/model-kernels"), help="builds and peaks")
    parser.add_argument("--problem", nargs="*", help="only these")
    parser.add_argument("--policy", choices=[policy.value for policy in NumericsPolicy], default="fp32")
    parser.add_argument("--author", choices=["model", "playbook"], default="model", help="who wrote them")
    parser.add_argument("--device", help="GPU UUID or index")
    options = parser.parse_args(arguments)
    record: dict[str, Any] = {**records.stamp(), "commit": code_version(), "jobs": []}
    with Evaluator(Target.CUDA, options.work_dir, device=options.device) as evaluator:
        for name, folders in _by_problem(options.folder).items():
            if options.problem and name not in options.problem:
                continue
            job = _judge(evaluator, _problem(name, options.policy), folders, options.out.with_suffix(""))
            record["jobs"].append(job | {"author": options.author})
            records.write(options.out, record)
    reproduced = [job.get("winner", {}).get("evaluation", {}).get("verdict") == "reproduced" for job in record["jobs"]]
    return 0 if reproduced and all(reproduced) else 1


def _by_problem(folder: Path) -> dict[str, list[Path]]:
    folders: dict[str, list[Path]] = {}
    for kernel in sorted(folder.glob("*.*/kernel.cu")):
        folders.setdefault(kernel.parent.name.partition(".")[0], []).append(kernel.parent)
    return folders


def _problem(name: str, policy: str) -> Problem:
    return problems.load(name, size="full", policy=NumericsPolicy(policy))


def _judge(evaluator: Evaluator, problem: Problem, folders: list[Path], winners: Path) -> dict[str, Any]:
    """Return the record of one problem."""
    began, name = time.monotonic(), problem.name
    answer = evaluator.prepare(problem)
    preparation = answer.preparation
    job: dict[str, Any] = {
        "problem": name,
        "problem_hash": problem.content_hash(),
        "target": "cuda",
        "policy": problem.policy.value,
        "stop": "generations",
        "failure": answer.failure.model_dump(mode="json") if answer.failure else None,
        "candidates": [],
        "best": None,
    }
    if preparation is None:
        _say(f"{name}: {answer.failure}")
        return job
    whole = preparation.model_dump(mode="json")
    job |= {key: whole[key] for key in ("environment", "peaks", "placement", "baseline_us")}
    job["op_class"] = preparation.facts.op_class
    judged = [_evaluated(evaluator, problem, preparation, folder) for folder in folders]
    job["candidates"] = [row for row, _, _ in judged]
    counted = [item for item in judged if item[2].verdict.counts]
    if counted:
        row, kernel, evaluation = max(counted, key=lambda item: _over_eager(item[2])[0])
        confirmed = evaluator.confirm(
            problem, preparation, kernel, tunables=evaluation.tunables, timeout=CONFIRM_SECONDS
        )
        _say(f"{name} {row['id']}: {confirmed.verdict.value} {_told(confirmed)}")
        job["best"] = row["id"]
        folder = next(folder for folder in folders if folder.name == f"{name}.{row['id']}")
        strategy = json.loads((folder / "strategy.json").read_text(encoding="utf-8"))
        plan = kernel.plan.model_dump(mode="json")
        measured = evolved.evaluation(confirmed.model_dump(mode="json"))
        job["winner"] = {"strategy": strategy, "plan": plan, "evaluation": measured}
        target = winners / name / "kernel.cu"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / "kernel.cu", target)
    job["seconds"] = time.monotonic() - began
    return job


def _evaluated(
    evaluator: Evaluator, problem: Problem, preparation: Preparation, folder: Path
) -> tuple[dict[str, Any], Kernel, Evaluation]:
    """Evaluate one kernel; return its row, itself and what was measured."""
    began = time.monotonic()
    plan = LaunchPlan.model_validate_json((folder / "plan.json").read_text(encoding="utf-8"))
    kernel = Kernel(target=Target.CUDA, source=(folder / "kernel.cu").read_text(encoding="utf-8"), plan=plan)
    strategy = json.loads((folder / "strategy.json").read_text(encoding="utf-8"))
    evaluation = evaluator.evaluate(problem, preparation, kernel)
    name = folder.name.partition(".")[2]
    _say(f"{folder.name}: {evaluation.verdict.value} {_told(evaluation)}")
    row = {
        "id": name,
        "generation": int(name == CHILD),
        "operator": "crossover" if name == CHILD else "initial",
        "techniques": [technique["id"] for technique in strategy["techniques"]],
        "verdict": evaluation.verdict.value,
        "speedup": _over_eager(evaluation)[1],
        "reason": evaluation.failure.message[:300] if evaluation.failure else None,
        "seconds": time.monotonic() - began,
    }
    return row, kernel, evaluation


def _over_eager(evaluation: Evaluation) -> tuple[float, float | None]:
    """Return lower bound and median of the speedup over eager; 0 and None where there is none."""
    comparison = evaluation.comparison(Baseline.EAGER)
    return (comparison.speedup.low, comparison.speedup.median) if comparison else (0.0, None)


def _told(evaluation: Evaluation) -> str:
    times = ", ".join(f"{item.baseline.value} {item.speedup.median:.2f}" for item in evaluation.comparisons)
    return times if evaluation.failure is None else f"{times} {evaluation.failure.message[:300]}"


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
