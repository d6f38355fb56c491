"""``sce`` through the whole embedded stack, with a scripted model that writes real kernels:
``python -m benchmarks.stack_scripted``.

The stack is the one that users start: REST, scheduler, broker, agent workers that ask the model over HTTP, and a GPU
worker whose judge measures. Only the model is a script (:mod:`benchmarks.scripted_engineer`): its first strategies have
one technique each, and it gets better by combining alone. The problem is a softmax over rows, because no single
technique makes its best kernel: at full size on ``cuda``, wide loads, one pass fewer and rows kept on chip each save
time of their own; on ``cpu`` threads, vectors, a cheaper exponential and independent sums do.

Prints what a user sees (to standard error meanwhile), the gain of each generation over the one before, and whether the
stack's books agree with what the model's server charged; exits 1 where no later generation finds a better kernel than
the first, the job does not succeed, or the books do not agree.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate
from pathlib import Path
from typing import Any

from agents.interface import Briefing
from benchmarks import records
from benchmarks.embedded import cupilot, environment, running
from benchmarks.scripted_engineer import ScriptedEngineer
from cupilot.client import Client
from cupilot.domain import problems
from cupilot.domain.problem import Target
from cupilot.schemas.results import CandidateSummary
from gpu_worker.evaluator import Evaluator
from tests.scripted_model import Reply, ScriptedModel

INPUT_USD, OUTPUT_USD = 1, 10
"""A million tokens."""


class Charging:
    """The engineer, and what its server charges."""

    def __init__(self, engineer: ScriptedEngineer) -> None:
        self._engineer = engineer
        self.usd = Decimal(0)

    def __call__(self, request: dict[str, Any]) -> Reply:
        """Answer, and charge for it."""
        reply = self._engineer(request)
        self.usd += Decimal(reply.prompt_tokens * INPUT_USD + reply.completion_tokens * OUTPUT_USD) / 10**6
        return reply


def main() -> int:
    """Serve the model, run the job, print; the exit status."""
    options = _options()
    briefing = _briefing(options)
    engineer = ScriptedEngineer(briefing.model_copy)
    charging = Charging(engineer)
    with tempfile.TemporaryDirectory(prefix="cupilot-scripted-") as folder, ScriptedModel(charging) as server:
        within = environment(Path(folder), _model(server.api_base))
        with running(within):
            wanted = _job_arguments(options)
            seen = cupilot(within, *wanted, "--out", str(Path(folder, "result")), shown=True)
            job = json.loads(cupilot(within, "status", "last", "--json"))
            rungs = _rungs(job["id"], within["CUPILOT_DATA"])
    best = [rung.speedup for rung in rungs]
    agree = round(charging.usd, 6) == round(Decimal(str(job["cost_usd"])), 6)
    print(seen, f"asked of the model: {engineer.asked}", table(rungs), sep="\n\n")
    print(f"\nthe model's server charged {charging.usd:.6f} USD; the job's books say {job['cost_usd']:.6f} USD")
    if options.out:
        head = records.stamp()
        head["machine"] += f"; kernels on {briefing.device.name}"
        record = {
            **head,
            "what": f"cupilot {' '.join(wanted)}",
            **{name: job[name] for name in ("state", "candidates", "verdicts")},
            "generations": [_generation(number, rung) for number, rung in enumerate(rungs, 1)],
            "result": next((line for line in seen.splitlines() if line.startswith("The best kernel")), ""),
            "model_calls": engineer.asked,
            "charged_usd": float(charging.usd),
            "booked_usd": job["cost_usd"],
        }
        records.write(options.out, record)
    return 0 if agree and job["state"] == "succeeded" and improves(best) else 1


def _generation(number: int, rung: Rung) -> dict[str, Any]:
    known = rung.candidate
    return {
        "generation": number,
        "best_so_far": rung.speedup,
        "candidate": known.ordinal,
        "techniques": known.techniques,
    }


def improves(best: Sequence[float]) -> bool:
    """Return True if a later generation found a better kernel than the first, given the best after each."""
    return len(best) > 1 and best[-1] > best[0]


def _briefing(options: argparse.Namespace) -> Briefing:
    """Return what the engineer knows of the problem, which is what any agent would be told."""
    problem, target = problems.load(options.problem, size=options.size), Target(options.target)
    with tempfile.TemporaryDirectory(prefix="cupilot-scripted-") as folder, Evaluator(target, Path(folder)) as judge:
        result = judge.prepare(problem)
    if result.preparation is None:
        raise SystemExit(f"{problem.name} cannot be prepared: {result.failure and result.failure.message}")
    preparation = result.preparation
    return Briefing(
        problem=problem,
        facts=preparation.facts,
        target=target,
        device=preparation.environment.device,
        placement=preparation.placement,
    )


def _job_arguments(options: argparse.Namespace) -> list[str]:
    sizes = ["--population", str(options.population), "--generations", str(options.generations)]
    place = ["--target", options.target, "--size", options.size, "--seed", str(options.seed)]
    return ["evolve", options.problem, *place, "--agents", "llm", "--method", "sce", *sizes]


def _model(url: str) -> dict[str, Any]:
    return {
        "name": "openai/scripted",
        "api_base": url,
        "input_usd_per_million": INPUT_USD,
        "output_usd_per_million": OUTPUT_USD,
    }


@dataclass(frozen=True)
class Rung:
    """The fastest kernel after a generation, as it was measured there and not as it was measured again later."""

    speedup: float
    candidate: CandidateSummary


def _rungs(job: str, data: str) -> list[Rung]:
    """Return the best so far after each generation that measured a kernel."""
    with Client(None, data=Path(data)) as client:
        candidates = {candidate.id: candidate for candidate in client.all_candidates(job)}
        events = list(client.all_events(job))
    rungs: dict[int, Rung] = {}
    for event in events:
        speedup = event.data.get("speedup")
        if event.kind == "candidate.evaluated" and event.candidate is not None and isinstance(speedup, float):
            rung = Rung(speedup, candidates[event.candidate])
            number = rung.candidate.generation
            rungs[number] = _faster(rungs.get(number, rung), rung)
    return list(accumulate((rungs[number] for number in sorted(rungs)), _faster))


def _faster(first: Rung, second: Rung) -> Rung:
    return second if second.speedup > first.speedup else first


def table(rungs: Sequence[Rung]) -> str:
    """Return a row a generation: the best so far, its gain over the one before, and its techniques."""
    lines = ["| generation | best so far | gain | candidate | its strategy |", "|---|---|---|---|---|"]
    for number, rung in enumerate(rungs):
        gain = f"{rung.speedup / rungs[number - 1].speedup - 1:+.1%}" if number else "-"
        techniques = ", ".join(rung.candidate.techniques) or "plain"
        lines.append(f"| {number + 1} | {rung.speedup:.3f}x | {gain} | {rung.candidate.ordinal} | {techniques} |")
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stack_scripted", description=__doc__.splitlines()[0])
    parser.add_argument("--problem", default="softmax", help="a built-in problem with a template")
    parser.add_argument("--size", choices=["small", "full"], help="full on cuda and small on cpu where it is not said")
    parser.add_argument("--target", choices=[target.value for target in Target], default=Target.CPU.value)
    parser.add_argument("--population", type=int, default=6)
    parser.add_argument("--generations", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="the record as JSON")
    options = parser.parse_args()
    options.size = options.size or ("full" if options.target == Target.CUDA.value else "small")
    return options


if __name__ == "__main__":
    sys.exit(main())
