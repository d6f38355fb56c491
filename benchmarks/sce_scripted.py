"""``sce`` with a scripted language model, generation by generation: ``python -m benchmarks.sce_scripted``.

The whole way of a job with models: prompts, the gateway over LiteLLM and HTTP, answers read and checked, kernels built,
judged and timed, alignment, selection, crossover. Only the model is a script (:mod:`benchmarks.scripted_engineer`): its
first strategies have one technique each, and its crossovers combine. Prints every candidate, the best of each
generation, what was asked of the model and what that would have cost at one and ten dollars a million tokens.

Runs without database and queue, with torch, numpy, pydantic, litellm and a compiler (``cuda``:
cuda-bindings). ``--crossover code`` and the other switches make the ablations.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from agents.interface import Briefing
from agents.llm.assembly import llm
from agents.llm.ledger import MemoryLedger
from agents.llm.models import Model, RoleModels
from benchmarks import evolved, records
from benchmarks.evolve_local import Progress, say
from benchmarks.local_report import record
from benchmarks.scripted_engineer import ScriptedEngineer
from cupilot.domain import problems
from cupilot.domain.errors import CupilotError
from cupilot.domain.evolution.population import Member
from cupilot.domain.evolution.sce import CrossoverLevel, SceConfig
from cupilot.domain.evolution.selection import ranked
from cupilot.domain.job import AgentKind, Budgets, JobSpec
from cupilot.domain.problem import NumericsPolicy, Target
from gpu_worker.evaluator import Evaluator
from tests.scripted_model import ScriptedModel
from workers.local.job import LocalJob
from workers.local.pool import LocalPool


class Ladder(Progress):
    """Keeps the best speedup of each generation."""

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self.best: list[float] = []

    def generation(self, number: int, population: list[Member], survivors: tuple[str, ...]) -> None:
        """Add the best speedup of the generation."""
        super().generation(number, population, survivors)
        self.best.append(max((candidate.speedup or 0.0 for candidate in ranked(population)), default=0.0))


def main() -> int:
    """Evolve; 0 when a later generation's best beats the first one's."""
    options = _options()
    target = Target(options.target)
    problem = problems.load(options.problem, size=options.size, policy=NumericsPolicy(options.policy))
    spec = JobSpec(
        problem=problem,
        target=target,
        method=_method(options),
        agents=AgentKind.LLM,
        budgets=Budgets(wall_seconds=options.seconds),
        seed=options.seed,
    )
    say(f"#### {problem.name} ({target.value}, {problem.policy.value}, seed {spec.seed}), {spec.method}")
    ladder, ledger = Ladder(), MemoryLedger()
    with Evaluator(target, options.work_dir, device=options.device, threads=options.threads) as judge:
        jobs: list[LocalJob] = []

        def briefing() -> Briefing:
            assert jobs[0].evolved is not None
            return jobs[0].evolved.briefing

        engineer = ScriptedEngineer(briefing)
        with ScriptedModel(engineer) as server:
            model = Model(
                name="openai/scripted",
                api_base=server.api_base,
                input_usd_per_million=1.0,
                output_usd_per_million=10.0,
            )
            jobs.append(LocalJob(spec, judge, llm(RoleModels(default=(model,)), ledger), LocalPool(), ladder))
            jobs[0].run()
            paid = len(server.paid)
    job = jobs[0]
    say(f"stopped: {job.stop}, {len(job.candidates)} candidates")
    say("best of each generation: " + ", ".join(f"{speedup:.3f}x" for speedup in ladder.best))
    say(f"model calls answered: {paid}, by kind {engineer.asked}; cost {ledger.spent_usd:.4f} USD")
    verdict = job.best.latest.verdict.value if job.best and job.best.latest else "none"
    say(f"best {job.best.id if job.best else '-'}: {verdict}")
    if options.out:
        run = {**records.stamp(), "calls": engineer.asked, "best_after_each_generation": ladder.best}
        records.write(
            options.out, evolved.compact({**run, "jobs": [evolved.settled(record(job))]}), evolved.DIGITS, tables=True
        )
    return 0 if len(ladder.best) > 1 and ladder.best[-1] > ladder.best[0] > 0 else 1


def _method(options: argparse.Namespace) -> SceConfig:
    return SceConfig(
        population=options.population,
        generations=options.generations,
        epochs=options.epochs,
        elites=options.elites,
        crossover=CrossoverLevel(options.crossover),
        roofline_guidance=not options.no_roofline,
        alignment=not options.no_alignment,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sce_scripted", description=__doc__.splitlines()[0])
    parser.add_argument("--problem", default="softmax", help="a built-in problem with a template")
    parser.add_argument("--size", choices=["small", "full"], default="small")
    parser.add_argument("--target", choices=[target.value for target in Target], default=Target.CPU.value)
    parser.add_argument(
        "--policy", choices=[policy.value for policy in NumericsPolicy], default=NumericsPolicy.FP32.value
    )
    parser.add_argument("--population", type=int, default=6)
    parser.add_argument("--generations", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--elites", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--crossover", choices=[level.value for level in CrossoverLevel], default="strategy")
    parser.add_argument("--no-roofline", action="store_true")
    parser.add_argument("--no-alignment", action="store_true")
    parser.add_argument("--seconds", type=float, default=3_600, help="begin no candidate after this time")
    parser.add_argument("--device", help="GPU UUID or index")
    parser.add_argument("--threads", type=int, help="CPU threads for kernel and baseline alike")
    parser.add_argument("--work-dir", type=Path, default=Path(".cupilot/local"), help="builds, scratch, measured peaks")
    parser.add_argument("--out", type=Path, help="the record as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CupilotError as error:
        sys.exit(f"{error.code}: {error}" + (f"\n{error.hint}" if error.hint else ""))
