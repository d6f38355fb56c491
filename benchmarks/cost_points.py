"""Measured times of the playbook's strategies, gathered from records, for the cost model's report.

Winners, runners-up and champions have their whole strategy in the record. First strategies have only their techniques
there; they are known again by the ladder's rungs, which they were. Measures nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from agents.interface import Briefing
from agents.playbook.ladders import ladder, parse
from agents.playbook.operators import Launches, Operator
from agents.playbook.search import Space
from agents.playbook.translator import operator_of, with_defaults
from benchmarks import evolved, records
from cupilot.domain import champions, problems
from cupilot.domain.evaluation import Baseline
from cupilot.domain.hardware import Device, Peaks
from cupilot.domain.problem import NumericsPolicy, Problem, ProblemFacts, Target
from cupilot.domain.strategy import Strategy
from gpu_worker.reference.reference import Reference
from gpu_worker.targets.cpu_judge import CpuJudgeDevice

JOBS = ("h200_fp32", "h200_fp32_more", "h200_tf32", "cpu_level1")
"""Records of whole jobs of the playbook."""
CPU_RUNS = records.RESULTS / "cost_model_cpu.json"
"""Times that ``benchmarks.cost_model --measure`` took."""
SIZES: tuple[problems.Size, ...] = ("small", "full")


@dataclass(frozen=True)
class Point:
    """One strategy's measured time on one problem and device."""

    source: str
    problem: str
    briefing: Briefing
    operator: Operator
    strategy: Strategy
    measured_us: float
    rung: int | None
    """Place on the ladder, best first; None for a strategy that is no rung."""

    @property
    def family(self) -> str:
        """Name of the operator's family."""
        return "compiler" if isinstance(self.operator, Launches) else type(self.operator).__name__.lower()

    @property
    def target(self) -> str:
        """Name of the target."""
        return self.briefing.target.value


def points() -> list[Point]:
    """Return every usable measurement that records hold, each strategy of a problem once."""
    found: dict[tuple[str, str, str], Point] = {}
    for point in [*_of_jobs(), *_of_champions(), *_of_cpu_runs()]:
        key = (point.briefing.facts.problem_hash, point.target, with_defaults(point.strategy).signature())
        found.setdefault(key, point)
    return list(found.values())


def briefing_of(problem: Problem, target: Target, device: Device, peaks: Peaks) -> Briefing:
    """Return what agents know of a problem on a device."""
    return Briefing(problem=problem, facts=facts_of(problem), target=target, device=device, placement=None, peaks=peaks)


@cache
def facts_of(problem: Problem) -> ProblemFacts:
    """Return a built-in problem's facts: a champion's, which were traced at full size, else traced here."""
    for champion in champions.champions():
        if champion.problem_hash == problem.content_hash():
            return champion.preparation.facts
    device: Any = CpuJudgeDevice(threads=1, cache_bytes=2**20, memory_bytes=2**33)
    return Reference(problem.source, problem.policy, device, seed=0).facts(problem.content_hash())


def text_of(strategy: Strategy) -> str:
    """Return a strategy in the ladders' text form, without its rationale."""
    uses = []
    for use in strategy.techniques:
        values = ", ".join(f"{name}={value}" for name, value in use.parameters.items())
        uses.append(f"{use.id}({values})" if values else use.id)
    return ", ".join(uses)


def _of_jobs() -> Iterator[Point]:
    for name in JOBS:
        for job in evolved.jobs(name):
            problem = _problem(job["problem"], job["problem_hash"], NumericsPolicy(job["policy"]))
            if problem is None:
                continue
            device = Device.model_validate(job["environment"]["device"])
            peaks = Peaks.model_validate(job["peaks"])
            brief = briefing_of(problem, Target(job["target"]), device, peaks)
            for key in ("winner", "runner_up"):
                if job.get(key):
                    strategy = Strategy.model_validate(job[key]["strategy"])
                    eager = next(item for item in job[key]["evaluation"]["comparisons"] if item["baseline"] == "eager")
                    yield _point(name, brief, strategy, eager["kernel_us"]["median"])
            yield from _first_strategies(name, job, brief)


def _first_strategies(name: str, job: dict[str, Any], brief: Briefing) -> Iterator[Point]:
    """Yield candidates of the first generation, by the rung with their techniques; only where one rung has them."""
    rungs = [rung for rung in ladder(operator_of(brief), brief.target) if _space(brief).valid(rung)]
    for candidate in job["candidates"]:
        same = [rung for rung in rungs if sorted(rung.ids()) == sorted(candidate["techniques"])]
        alone = sum(sorted(other["techniques"]) == sorted(candidate["techniques"]) for other in job["candidates"]) == 1
        if candidate["operator"] == "initial" and candidate["speedup"] and len(same) == 1 and alone:
            yield _point(name, brief, same[0], job["baseline_us"]["median"] / candidate["speedup"])


def _of_champions() -> Iterator[Point]:
    for champion in champions.champions():
        eager = champion.evaluation.comparison(Baseline.EAGER)
        if champion.author != "playbook" or champion.evaluation.environment is None or eager is None:
            continue
        device = champion.evaluation.environment.device
        brief = briefing_of(champion.load_problem(), champion.target, device, champion.preparation.peaks)
        yield _point("champions", brief, champion.strategy, eager.kernel_us.median)


def _of_cpu_runs() -> Iterator[Point]:
    record = json.loads(CPU_RUNS.read_text(encoding="utf-8")) if CPU_RUNS.exists() else {"problems": {}}
    for name, row in record["problems"].items():
        brief = briefing_of(
            problems.load(name),
            Target.CPU,
            Device.model_validate(record["device"]),
            Peaks.model_validate(record["peaks"]),
        )
        for text, measured in row.items():
            yield _point("cost_model_cpu", brief, parse(f"{text}: "), measured)


def _point(source: str, brief: Briefing, strategy: Strategy, measured_us: float) -> Point:
    operator = operator_of(brief)
    signature = with_defaults(strategy).signature()
    rungs = [with_defaults(rung).signature() for rung in ladder(operator, brief.target) if _space(brief).valid(rung)]
    rung = rungs.index(signature) if signature in rungs else None
    return Point(source, brief.problem.name, brief, operator, strategy, measured_us, rung)


def _space(brief: Briefing) -> Space:
    return Space(brief, operator_of(brief))


def _problem(name: str, known_hash: str, policy: NumericsPolicy) -> Problem | None:
    """Return the built-in problem at the size whose hash begins so; None where its text has changed since."""
    sized = [problems.load(name, size=size, policy=policy) for size in SIZES]
    return next((item for item in sized if item.content_hash().startswith(known_hash)), None)
