"""Evolves kernels for several problems in one process and prints how it goes: ``python -m benchmarks.evolve_local``.

Needs no database, queue, Chroma or network, only torch, numpy, pydantic and a compiler (``cuda``: cuda-bindings), so
that it runs on a bare GPU box. Progress and comparisons go to standard output, records to ``--out``, and each problem's
best kernel with its launch plan and evaluation into the folder of the same name. :mod:`benchmarks.evolved` makes the
record that is kept of them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agents.playbook import agents
from benchmarks import records
from benchmarks.local_report import comparison_line, machine, record, speedup_over, write_winner
from cupilot.domain import problems
from cupilot.domain.errors import CupilotError
from cupilot.domain.evaluation import Baseline, Preparation
from cupilot.domain.evolution.population import Member
from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.evolution.selection import ranked
from cupilot.domain.job import Budgets, JobSpec
from cupilot.domain.problem import NumericsPolicy, Problem, Target, check_source
from gpu_worker.evaluator import Evaluator
from workers.local.candidates import Candidate
from workers.local.job import LocalJob
from workers.local.pool import LocalPool


class Progress:
    """Prints a job as it goes, and has its record saved after each generation: a run may be cut off."""

    def __init__(self, save: Callable[[], None]) -> None:
        self._save = save

    def prepared(self, preparation: Preparation) -> None:
        """Print the head of the table."""
        facts, placement = preparation.facts, preparation.placement
        say(f"machine  {machine(preparation.environment)}")
        say(
            f"problem  {facts.op_class}, {len(preparation.laws)} input laws, {facts.flops:.3g} operations, "
            f"{facts.compulsory_bytes:.3g} bytes, {placement.zone.value} zone, floor {placement.floor_us:.2f} us, "
            f"eager {preparation.baseline_us.median:.2f} us"
        )
        say(f"{'':6}{'operator':<10}{'verdict':<12}{'speedup over eager':<24}{'us':>11}  {'s':>6}  strategy")

    def finished(self, candidate: Candidate) -> None:
        """Print a line for the candidate."""
        evaluation = candidate.latest
        comparison = evaluation.comparison() if evaluation else None
        verdict = evaluation.verdict.value if evaluation else (candidate.end.ending.value if candidate.end else "?")
        micros = f"{comparison.kernel_us.median:.2f}" if comparison else "-"
        strategy = (", ".join(candidate.strategy.ids()) or "plain") if candidate.strategy else "-"
        say(
            f"{candidate.id:<6}{candidate.proposal.operator.value:<10}{verdict:<12}"
            f"{speedup_over(evaluation, Baseline.EAGER):<24}{micros:>11}  {candidate.seconds:6.1f}  {strategy}"
            f"{_reason(candidate)}"
        )

    def generation(self, number: int, population: list[Member], survivors: tuple[str, ...]) -> None:
        """Print a line for the generation."""
        counting = ranked(population)
        fastest = max((candidate.speedup or 0.0 for candidate in counting), default=0.0)
        say(
            f"== generation {number}: {len(counting)} of {len(population)} count, best {fastest:.3f}x, "
            f"survivors {' '.join(survivors) or 'none'}"
        )
        self._save()

    def confirmed(self, candidate: Candidate) -> None:
        """Print the second measurement of one of the best."""
        evaluation = candidate.confirmation
        verdict = evaluation.verdict.value if evaluation else "infrastructure failed"
        say(
            f"confirm {candidate.id}: {verdict}, {speedup_over(evaluation, Baseline.EAGER)} over eager"
            f"{_reason(candidate)}"
        )


def main() -> int:
    """Evolve every problem; 0 when each has a kernel that counts."""
    options = _options()
    out: Path = options.out
    target = Target(options.target)
    loaded = [_problem(name, NumericsPolicy(options.policy), options.size) for name in options.problem]
    pool = LocalPool()
    jobs: list[LocalJob] = []
    run = records.stamp()

    def save() -> None:
        records.write(out, {**run, "jobs": [record(job) for job in jobs]})

    with Evaluator(target, options.work_dir, device=options.device, threads=options.threads) as judge:
        for problem in loaded:
            say(f"\n#### {problem.name} ({target.value}, {problem.policy.value}, seed {options.seed})")
            job = LocalJob(_spec(problem, target, options), judge, agents(), pool, Progress(save))
            jobs.append(job)
            job.run()
            _conclude(job)
            write_winner(job, out.with_suffix("") / problem.name)
            save()
    _summary(jobs)
    return 0 if all(job.best is not None for job in jobs) else 1


def say(line: str) -> None:
    """Print a line at once: runs are long and watched through pipes."""
    print(line, flush=True)


def _conclude(job: LocalJob) -> None:
    assert job.result is not None
    if job.result.failure is not None:
        say(f"the problem cannot be used: {job.result.failure.kind.value}: {job.result.failure.message}")
        return
    say(f"stopped: {job.stop}, {len(job.candidates)} candidates, {job.seconds:.0f} s")
    best = job.best
    if best is None or best.latest is None or job.result.preparation is None:
        say("no kernel passed the judge")
        return
    floor = job.result.preparation.placement.floor_us
    environment = best.latest.environment or job.result.preparation.environment
    say(f"best {best.id} ({best.latest.verdict.value}) on {machine(environment)}")
    for comparison in best.latest.comparisons:
        say(comparison_line(comparison) + f", {floor / comparison.kernel_us.median:.0%} of the floor's speed")


def _summary(jobs: list[LocalJob]) -> None:
    say(f"\n{'problem':<24}{'verdict':<12}{'over eager':<24}{'over torch.compile':<24}{'candidates':>10}{'s':>8}")
    for job in jobs:
        latest = job.best.latest if job.best else None
        say(
            f"{job.spec.problem.name:<24}{latest.verdict.value if latest else job.stop or '-':<12}"
            f"{speedup_over(latest, Baseline.EAGER):<24}{speedup_over(latest, Baseline.COMPILE):<24}"
            f"{len(job.candidates):>10}{job.seconds:>8.0f}"
        )


def _reason(candidate: Candidate) -> str:
    failure = candidate.latest.failure if candidate.latest else None
    reason = candidate.end.reason if candidate.end else None
    message = " ".join(failure.message.split())[:100] if failure else ""
    mended = f"mended {len(candidate.history) - 1}x" if len(candidate.history) > 1 else ""
    parts = [failure.kind.value if failure else "", message, reason or "", mended]
    text = ": ".join(part for part in parts if part)
    return f"  ({text})" if text else ""


def _spec(problem: Problem, target: Target, options: argparse.Namespace) -> JobSpec:
    method = SceConfig(
        population=options.population,
        generations=options.generations,
        elites=min(options.elites, options.population - 1),
        roofline_guidance=not options.no_roofline,
        pool=not options.no_pool,
        alignment=not options.no_alignment,
    )
    budgets = Budgets(wall_seconds=options.seconds)
    return JobSpec(problem=problem, target=target, method=method, budgets=budgets, seed=options.seed)


def _problem(name: str, policy: NumericsPolicy, size: Any) -> Problem:
    path = Path(name)
    if path.suffix != ".py":
        return problems.load(name, size=size, policy=policy)
    source = path.read_text(encoding="utf-8")
    check_source(source)
    return Problem(name=path.stem, source=source, policy=policy)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evolve_local", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--problem", nargs="+", required=True, help="problem files (*.py) or names of built-in problems"
    )
    parser.add_argument("--size", choices=["small", "full"], default="small", help="size of built-in problems")
    parser.add_argument("--target", choices=[target.value for target in Target], default=Target.CPU.value)
    parser.add_argument(
        "--policy", choices=[policy.value for policy in NumericsPolicy], default=NumericsPolicy.FP32.value
    )
    parser.add_argument("--population", type=int, default=8)
    parser.add_argument("--generations", type=int, default=4)
    parser.add_argument("--elites", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--seconds", type=float, default=3_600, help="begin no candidate after this time, for each problem"
    )
    parser.add_argument("--device", help="GPU UUID or index")
    parser.add_argument("--threads", type=int, help="CPU threads for kernel and baseline alike")
    parser.add_argument("--no-roofline", action="store_true", help="ablation: hide zone and diagnosis from the agents")
    parser.add_argument("--no-pool", action="store_true", help="ablation: no strategy pool between the problems")
    parser.add_argument("--no-alignment", action="store_true", help="ablation: keep strategies as they were asked for")
    parser.add_argument("--work-dir", type=Path, default=Path(".cupilot/local"), help="builds, scratch, measured peaks")
    parser.add_argument(
        "--out", type=Path, required=True, help="results as JSON; the winners' files lie in a folder beside"
    )
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CupilotError as error:
        sys.exit(f"{error.code}: {error}" + (f"\n{error.hint}" if error.hint else ""))
