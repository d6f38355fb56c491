"""Write the champions that ship with a release: ``python -m benchmarks.make_champions``.

Sources are whole outputs of ``benchmarks.evolve_local`` or ``benchmarks.model_kernels`` on a GPU (``--run FILE...``,
the winners' folder beside each), or an installation's confirmed winners on built-in problems (``--server URL``, its key
in ``CUPILOT_API_KEY``). Of several for a problem, policy, target and architecture the one with the highest lower bound
over eager is kept; a shipped one is replaced by a faster one only, and none is slower than eager. Each file goes to
``cupilot/domain/shipped``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import evolved
from benchmarks.prompt_pages import facts_of
from cupilot.client import ApiError, Client
from cupilot.domain import champions, problems
from cupilot.domain.champions import Champion, InvalidChampion
from cupilot.domain.evaluation import Evaluation, Preparation, Verdict
from cupilot.domain.hardware import Environment
from cupilot.domain.problem import NumericsPolicy, Target
from cupilot.domain.problems import Size
from cupilot.schemas import Report

FOLDER = Path(champions.__file__).with_name("shipped")
LAST_PREPARATION_LAWS = "perturbed"
"""A check of every evaluation that is no input law."""


def of_run(path: Path) -> Iterator[Champion]:
    """Yield the reproduced winners of a run, whose whole output is in a file."""
    run = evolved.of_run(path)
    for job in run["jobs"]:
        winner = job.get("winner")
        if winner and winner["evaluation"]["verdict"] == Verdict.REPRODUCED.value:
            try:
                yield _of_job(job, path.with_suffix("") / job["problem"], run["begun"])
            except (ValueError, InvalidChampion) as error:
                _say(f"{path.name}: {job['problem']}: left out: {_first_line(error)}")


def _of_job(job: dict[str, Any], folder: Path, measured_at: str) -> Champion:
    attempt = evolved.attempt(job["winner"], folder, Target(job["target"]))
    assert attempt.kernel is not None
    assert attempt.evaluation is not None
    policy = NumericsPolicy(job["policy"])
    size = _size(job["problem"], policy, job["problem_hash"])
    environment = Environment.model_validate(job["environment"])
    best = next((row for row in job["candidates"] if row["id"] == job["best"]), {"generation": 0})
    laws = tuple(law for law in attempt.evaluation.laws if law.law != LAST_PREPARATION_LAWS)
    preparation = Preparation(
        facts=facts_of(problems.load(job["problem"], size=size, policy=policy)),
        placement=job["placement"],
        peaks=job["peaks"],
        environment=environment,
        baseline_us=job["baseline_us"],
        laws=tuple(law.law for law in laws),
        tolerances={law.law: law.tolerance for law in laws},
        admission={},
    )
    return Champion(
        problem=job["problem"],
        size=size,
        policy=policy,
        target=Target(job["target"]),
        strategy=attempt.strategy,
        kernel=attempt.kernel,
        evaluation=attempt.evaluation.model_copy(update={"environment": environment}),
        preparation=preparation,
        author=job.get("author", "playbook"),
        generation=best["generation"] + 1,
        measured_at=measured_at,
    )


def of_server(url: str) -> Iterator[Champion]:
    """Yield the reproduced winners of an installation's jobs on built-in problems."""
    with Client(url) as client:
        for job in client.all_jobs():
            if job.best_verdict is not Verdict.REPRODUCED:
                continue
            try:
                report = client.best(job.id)
            except ApiError as error:
                _say(f"{job.id}: left out: {error.code}")
                continue
            try:
                champion = of_report(report)
            except ValueError as error:
                _say(f"{job.id}: left out: {_first_line(error)}")
                continue
            if champion is not None:
                yield champion


def of_report(report: Report) -> Champion | None:
    """Return the champion that a report is about; None where its problem is not built-in, or it was not reproduced."""
    name, candidate = problems.name_of(report.job.problem.hash), report.candidate
    evaluation, kernel = candidate.evaluation, candidate.kernel
    if name is None or evaluation is None or kernel is None or kernel.plan is None:
        return None
    if evaluation.verdict is not Verdict.REPRODUCED:
        return None
    policy = report.job.problem.policy
    strategy = candidate.aligned_strategy or candidate.strategy
    finished = candidate.finished_at or candidate.created_at
    return Champion.model_validate({
        "problem": name,
        "size": _size(name, policy, report.job.problem.hash),
        "policy": policy,
        "target": report.job.target,
        "strategy": strategy,
        "kernel": {"target": kernel.target, "source": kernel.source, "plan": kernel.plan},
        "evaluation": _compact(evaluation),
        "preparation": report.preparation,
        "author": "playbook" if report.job.agents.value == "playbook" else "model",
        "generation": candidate.generation + 1,
        "measured_at": finished.isoformat(timespec="seconds"),
    })  # fmt: skip


def _compact(evaluation: Evaluation) -> Evaluation:
    """Return what a champion keeps of an evaluation: no log, no sweep, no phases."""
    build = evaluation.build.model_copy(update={"log": ""}) if evaluation.build else None
    return evaluation.model_copy(update={"build": build, "sweep": (), "phases": ()})


def _size(name: str, policy: NumericsPolicy, problem_hash: str) -> Size:
    sizes: tuple[Size, ...] = ("full", "small")
    for size in sizes:
        if problems.load(name, size=size, policy=policy).content_hash() == problem_hash:
            return size
    raise ValueError("it was measured on another version of the problem")


def write(found: Iterator[Champion]) -> int:
    """Write each champion that beats what ships; return how many files were written."""
    written = 0
    for champion in found:
        comparison = champion.evaluation.comparison()
        if comparison is None or comparison.speedup.high < 1.0:
            _say(f"{champion.problem}: left out: slower than eager")
            continue
        path = FOLDER / f"{champion.problem}.{champion.policy.value}.{champion.target.value}.{champion.arch}.json"
        before = champions.parse(path.read_text(encoding="utf-8"), path.name) if path.exists() else None
        if before is not None and before.lower_bound >= champion.lower_bound:
            continue
        path.write_text(champions.dump(champion), encoding="utf-8")
        _say(f"{path.name}: {champion.lower_bound:.2f}x at least, {champion.author}")
        written += 1
    return written


def _first_line(error: Exception) -> str:
    return str(error).replace("\n", " ")[:200]


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def main() -> int:
    """Write champions from runs, or from a server where one is named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.make_champions", description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, nargs="*", default=[], metavar="FILE", help="whole outputs of runs")
    parser.add_argument("--server", metavar="URL", help="take the winners of this installation's jobs instead")
    options = parser.parse_args()
    if options.server:
        write(of_server(options.server))
        return 0
    for path in options.run:
        write(of_run(path))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
