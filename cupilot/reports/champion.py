"""The report of a champion that ships with the release: the same as a job's, so that the same exports carry it."""

from __future__ import annotations

import uuid
from datetime import datetime

from cupilot.domain.champions import Champion
from cupilot.domain.evaluation import Baseline
from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.imported import KernelKind
from cupilot.domain.job import AgentKind, Budgets, Priority
from cupilot.domain.states import CandidateState, JobState
from cupilot.reports.job import comparison_words, headline
from cupilot.reports.problem import preparation_notes
from cupilot.schemas import (
    BestSummary,
    CandidateView,
    ChampionSummary,
    JobView,
    KernelView,
    PreparationSummary,
    ProblemRef,
    ProblemView,
    Report,
)

_SPACE = uuid.UUID("6b0e7c2e-6a5f-4c9b-9d0e-3f3c1a52c4d1")
"""Namespace of the ids in a champion's report, which stand for a job that is not in this installation."""


def summary(champion: Champion) -> ChampionSummary:
    """Return a champion as a list shows it."""
    eager, compiled = champion.evaluation.comparison(), champion.evaluation.comparison(Baseline.COMPILE)
    fastest = champion.evaluation.comparison(Baseline.MAX_AUTOTUNE)
    assert eager is not None
    return ChampionSummary(
        kernel=champion.kernel.content_hash(),
        problem=champion.problem_hash,
        name=champion.problem,
        size=champion.size,
        policy=champion.policy,
        target=champion.target,
        arch=champion.arch,
        device=champion.device,
        speedup=eager.speedup,
        speedup_over_compile=compiled.speedup if compiled else None,
        speedup_over_max_autotune=fastest.speedup if fastest else None,
        kernel_us=eager.kernel_us,
        author=champion.author,
        generation=champion.generation,
        techniques=list(champion.strategy.ids()),
        measured_at=datetime.fromisoformat(champion.measured_at),
    )


def report_of(champion: Champion) -> Report:
    """Return the whole report, with kernel, evidence and reference."""
    evaluation = champion.evaluation
    return Report(
        job=_job(champion),
        problem=ProblemView(
            id=champion.problem,
            name=champion.problem,
            policy=champion.policy,
            hash=champion.problem_hash,
            builtin=True,
            source=champion.load_problem().source,
        ),
        candidate=_candidate(champion),
        preparation=champion.preparation,
        headline=headline(evaluation, evaluation.verdict, final=True),
        next_steps=_next_steps(champion),
    )


def _next_steps(champion: Champion) -> list[str]:
    name, target = champion.problem, champion.target.value
    policy = f" --policy {champion.policy.value}"
    return [
        f"Judge it on your own device: cupilot best {name} --target {target}{policy} --judge",
        f"Take it along: cupilot best {name} --target {target}{policy} --format torch|kernelbench|cupy|bundle",
        f"Begin from it: cupilot submit {name} --target {target}{policy}",
    ]


def _job(champion: Champion) -> JobView:
    measured = datetime.fromisoformat(champion.measured_at)
    eager, compiled = champion.evaluation.comparison(), champion.evaluation.comparison(Baseline.COMPILE)
    assert eager is not None
    return JobView(
        id=_id(champion, "job"),
        state=JobState.SUCCEEDED,
        final=True,
        problem=ProblemRef(
            id=_id(champion, "problem"), name=champion.problem, policy=champion.policy, hash=champion.problem_hash
        ),
        target=champion.target,
        agents=AgentKind.PLAYBOOK if champion.author == "playbook" else AgentKind.LLM,
        method=SceConfig(),
        budgets=Budgets(),
        seed=0,
        priority=Priority.NORMAL,
        labels={"shipped": champion.author},
        generation=champion.generation - 1,
        generations=champion.generation,
        candidates=1,
        verdicts={champion.evaluation.verdict.value: 1},
        candidate_states={CandidateState.EVALUATED.value: 1},
        best=BestSummary(
            candidate=_id(champion, "candidate"),
            ordinal=0,
            generation=champion.generation - 1,
            verdict=champion.evaluation.verdict,
            speedup=eager.speedup,
            speedup_over_compile=compiled.speedup if compiled else None,
            kernel_us=eager.kernel_us,
            baseline_us=eager.baseline_us,
            strategy=champion.strategy,
        ),
        wall_seconds=0.0,
        gpu_seconds=champion.evaluation.seconds,
        cost_usd=0.0,
        preparation=PreparationSummary(
            op_class=champion.preparation.facts.op_class,
            zone=champion.preparation.placement.zone,
            intensity=champion.preparation.placement.intensity,
            floor_us=champion.preparation.placement.floor_us,
            direct_us=champion.preparation.placement.direct_us,
            baseline_us=champion.preparation.baseline_us,
            device=champion.device,
            notes=list(champion.preparation.notes),
        ),
        created_at=measured,
        finished_at=measured,
    )


def _candidate(champion: Champion) -> CandidateView:
    measured = datetime.fromisoformat(champion.measured_at)
    kernel = champion.kernel
    return CandidateView(
        id=_id(champion, "candidate"),
        ordinal=0,
        generation=champion.generation - 1,
        operator="initial" if champion.generation == 1 else "crossover",
        state=CandidateState.EVALUATED,
        verdict=champion.evaluation.verdict,
        speedup=champion.evaluation.speedup,
        techniques=list(champion.strategy.ids()),
        parents=[],
        repair_rounds=0,
        survives=True,
        created_at=measured,
        finished_at=measured,
        job=_id(champion, "job"),
        strategy=champion.strategy,
        kernel=KernelView(
            hash=kernel.content_hash(),
            target=kernel.target,
            source=kernel.source,
            kind=KernelKind.PLANNED,
            plan=kernel.plan,
        ),
        evaluation=champion.evaluation,
        lineage=[],
    )


def lines(champion: Champion) -> list[tuple[str, str]]:
    """Return what there is to say about a champion, as pairs of a word and a line."""
    evaluation = champion.evaluation
    pairs = [
        ("kernel", champion.kernel.content_hash()[:16]),
        ("measured on", f"{champion.device} ({champion.arch}), {champion.measured_at[:10]}"),
        ("verdict", f"{evaluation.verdict.value}: {len(evaluation.laws)} input distributions passed"),
        *(
            (item.baseline.value, comparison_words(item.speedup, item.baseline.value))
            for item in evaluation.comparisons
        ),
        ("techniques", ", ".join(champion.strategy.ids()) or "plain"),
        ("written by", f"a {champion.author}, generation {champion.generation}".replace("a playbook", "the playbook")),
    ]
    if evaluation.tunables:
        pairs.append(("tunables", ", ".join(f"{name}={value}" for name, value in sorted(evaluation.tunables.items()))))
    pairs += [("note", note) for note in preparation_notes(champion.preparation)]
    return pairs


def _id(champion: Champion, what: str) -> uuid.UUID:
    return uuid.uuid5(_SPACE, f"{what}/{champion.kernel.content_hash()}/{champion.problem_hash}")
