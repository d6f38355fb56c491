# ruff: noqa: ARG002 - doubles have the arguments of what they stand for
"""A judge and agents that need no compiler, for tests of what surrounds them.

A kernel's source is its strategy's technique names; the judge's answer is a function of those, so that equal runs have
equal results. Some technique names tell the judge what to do:

``t<n>``: audited with a speedup of 1 + n/10; ``wrong<k>``: rejected until it was revised k times; ``broken``: rejected
however often it is revised; ``cheat``: quarantined; ``lost``: an infrastructure failure; ``large``: the judge lacks
memory; ``unsteady<n>``: audited at first, rejected when confirmed; ``floor``: as fast as physics allows.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from agents.interface import (
    AgentError,
    Agents,
    Alignment,
    Attempt,
    Briefing,
    Diagnosis,
    InitialStrategy,
    NoTemplate,
    Revision,
    StrategySource,
)
from cupilot.domain.evaluation import (
    LACKS_MEMORY,
    Baseline,
    BuildReport,
    Comparison,
    Evaluation,
    Failure,
    FailureKind,
    Interval,
    LawResult,
    Preparation,
    PreparationResult,
    Profile,
    ProfileSource,
    Tracing,
    Verdict,
)
from cupilot.domain.hardware import Device, Environment, Peaks
from cupilot.domain.imported import ImportedKernel, KernelKind
from cupilot.domain.kernel import Kernel, Launch, LaunchPlan
from cupilot.domain.pool import Lesson, PoolMatch
from cupilot.domain.problem import (
    DType,
    Graph,
    GraphNode,
    NumericsPolicy,
    Problem,
    ProblemFacts,
    Role,
    Target,
    TensorSpec,
)
from cupilot.domain.roofline import place
from cupilot.domain.strategy import Strategy, TechniqueUse
from cupilot.storage.pool.references import Reference
from workers.devices import StepCancelled

SOURCE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)

def get_inputs():
    return [torch.rand(16, 64)]

def get_init_inputs():
    return []
"""


def problem(name: str = "softmax", policy: NumericsPolicy = NumericsPolicy.FP32) -> Problem:
    return Problem(name=name, source=SOURCE + f"# {name}\n", policy=policy)


def device(target: Target = Target.CPU, arch: str = "x86-64-v3", uid: str = "device-0") -> Device:
    return Device(target=target, uid=uid, name="test device", arch=arch, units=2, memory_bytes=2**30, cache_bytes=2**20)


def strategy(*names: str) -> Strategy:
    return Strategy(techniques=tuple(TechniqueUse(id=name) for name in names))


def kernel(names: str, target: Target = Target.CPU) -> Kernel:
    plan = LaunchPlan(launches=(Launch(kernel="k", args=("x", "out")),))
    return Kernel(target=target, source=names, plan=plan)


def facts(one: Problem) -> ProblemFacts:
    shape = (16, 64)
    tensors = tuple(
        TensorSpec(name=name, role=role, dtype=DType.FLOAT32, shape=shape, strides=(64, 1))
        for name, role in (("x", Role.INPUT), ("out", Role.OUTPUT))
    )
    node = GraphNode(op="aten._softmax.default", args=(), results=("v0",), shapes=(shape,), dtypes=("float32",))
    return ProblemFacts(
        problem_hash=one.content_hash(),
        policy=one.policy,
        tensors=tensors,
        graph=Graph(nodes=(node,), outputs=("v0",)),
        op_class="softmax",
        flops=5_000.0,
        compulsory_bytes=8_192,
    )


def preparation(one: Problem, where: Device | None = None) -> Preparation:
    where = where or device()
    peaks = Peaks(device_uid=where.uid, bandwidth=1e10, scalar_flops=1e11, measured_at="2026-01-01T00:00:00Z")
    known = facts(one)
    return Preparation(
        facts=known,
        placement=place(known, peaks),
        peaks=peaks,
        environment=Environment(device=where),
        baseline_us=Interval(low=9.9, median=10.0, high=10.1),
        laws=("own", "signed", "wide_range"),
        tolerances={"own": 1e-6},
        admission={"zeros": True},
    )


def evaluation(one: Problem, of: Kernel | ImportedKernel, *, revisions: int = 0, confirmed: bool = False) -> Evaluation:
    names = re.findall(r"[a-z]+\d*", of.source)
    base: dict[str, object] = {"kernel_hash": of.content_hash(), "problem_hash": one.content_hash(), "seconds": 0.5}
    base["kernel_kind"] = KernelKind.IMPORTED if isinstance(of, ImportedKernel) else KernelKind.PLANNED
    unsteady = any(name.startswith("unsteady") for name in names)
    wrong = [int(name[5:]) for name in names if name.startswith("wrong")]
    if "lost" in names:
        return _failed(base, FailureKind.INFRASTRUCTURE)
    if "large" in names:
        return _failed(base, FailureKind.INFRASTRUCTURE, code=LACKS_MEMORY)
    if "cheat" in names:
        return _failed(base, FailureKind.BELOW_FLOOR, Verdict.QUARANTINED)
    if "broken" in names or any(revisions < count for count in wrong) or (unsteady and confirmed):
        return _failed(base, FailureKind.WRONG_VALUE)
    gain = sum(int(digits) for digits in re.findall(r"\b(?:t|unsteady)(\d+)", of.source))
    speedup = 1.0 + gain / 10
    time = 0.85 if "floor" in names else 10.0 / speedup
    return Evaluation(
        **base,
        verdict=Verdict.REPRODUCED if confirmed else Verdict.AUDITED,
        build=BuildReport(ok=True, compiler="test", seconds=0.01),
        laws=(LawResult(law="own", passed=True, error=0.0, tolerance=1e-6, reference_error=0.0),),
        comparisons=(
            Comparison(
                baseline=Baseline.EAGER,
                kernel_us=_around(time),
                baseline_us=_around(10.0),
                speedup=_around(10.0 / time),
                pairs=10,
                launches=100,
            ),
        ),
        profile=Profile(source=ProfileSource.INFERRED, metrics={"memory_throughput_pct": 40.0 + gain}),
    )


def _failed(
    base: dict[str, object], kind: FailureKind, verdict: Verdict = Verdict.REJECTED, code: str | None = None
) -> Evaluation:
    failure = Failure(kind=kind, message=code or kind.value, details={"code": code} if code else {})
    return Evaluation.model_validate({**base, "verdict": verdict, "failure": failure})


def _around(value: float) -> Interval:
    return Interval(low=value * 0.99, median=value, high=value * 1.01)


@dataclass
class ScriptedJudge:
    """Answers at once, or holds a call until it is let go or cancelled."""

    invalid: bool = False
    """True if references are refused."""
    hold: threading.Event | None = None
    """Calls wait for it."""
    held: threading.Event = field(default_factory=threading.Event)
    """Set while a call waits."""
    calls: list[str] = field(default_factory=list)
    incumbents: list[float | None] = field(default_factory=list)
    """The best kernel so far, as each evaluation was told."""
    candidates: list[bool] = field(default_factory=list)
    fresh: list[bool] = field(default_factory=list)
    """Of each evaluation, whether it was of a candidate to be the best."""
    builds_ahead: int = 0
    ahead: list[str] = field(default_factory=list)
    """Kernels whose builds were begun ahead."""

    def build_ahead(self, preparation: Preparation, kernels: Sequence[Kernel]) -> int:
        self.ahead += [kernel.source for kernel in kernels]
        return len(kernels)

    def end_builds(self) -> None:
        self.ahead.append("ended")

    def prepare(self, problem: Problem, *, timeout: float, cancelled: Callable[[], bool]) -> PreparationResult:
        self._wait("prepare", cancelled)
        if self.invalid:
            failure = Failure(kind=FailureKind.INVALID_PROBLEM, message="forward() raised ValueError")
            return PreparationResult(failure=failure)
        return PreparationResult(preparation=preparation(problem))

    def trace(self, problem: Problem, *, timeout: float, cancelled: Callable[[], bool]) -> Tracing:
        self._wait("trace", cancelled)
        known = facts(problem)
        if "wrong conversion" in problem.source:
            known = known.model_copy(update={"graph": known.graph.model_copy(update={"nodes": ()})})
        return Tracing(facts=known)

    def evaluate(
        self,
        problem: Problem,
        preparation: Preparation,
        kernel: Kernel | ImportedKernel,
        *,
        incumbent: float | None,
        candidate: bool = True,
        fresh: bool = False,
        timeout: float,
        cancelled: Callable[[], bool],
    ) -> Evaluation:
        self.incumbents.append(incumbent)
        self.candidates.append(candidate)
        self.fresh.append(fresh)
        self._wait(f"evaluate {kernel.source}", cancelled)
        found = evaluation(problem, kernel, revisions=kernel.source.count("#"))
        if found.build is None or kernel.source not in self.ahead:
            return found
        return found.model_copy(update={"build": found.build.model_copy(update={"ahead": True, "cached": True})})

    def confirm(
        self,
        problem: Problem,
        preparation: Preparation,
        kernel: Kernel | ImportedKernel,
        *,
        tunables: Mapping[str, int],
        timeout: float,
        cancelled: Callable[[], bool],
    ) -> Evaluation:
        self._wait(f"confirm {kernel.source}", cancelled)
        return evaluation(problem, kernel, revisions=kernel.source.count("#"), confirmed=True)

    def _wait(self, call: str, cancelled: Callable[[], bool]) -> None:
        self.calls.append(call)
        while self.hold is not None and not self.hold.wait(0.01):
            self.held.set()
            if cancelled():
                raise StepCancelled


class PlacedJudge(ScriptedJudge):
    """Says where it measured."""

    on: Device = device()

    def evaluate(self, *given: Any, **more: Any) -> Evaluation:
        return super().evaluate(*given, **more).model_copy(update={"environment": Environment(device=self.on)})

    def confirm(self, *given: Any, **more: Any) -> Evaluation:
        return super().confirm(*given, **more).model_copy(update={"environment": Environment(device=self.on)})


class ScriptedAgents:
    """Agents that combine technique names. ``initial`` are the strategies of generation 0, and of any later one."""

    def __init__(self, initial: Sequence[Strategy], *, refuses: bool = False) -> None:
        self.initial = list(initial)
        self.refuses = refuses
        self.shown: list[PoolMatch] = []
        """Pool entries that the last initial call was given."""
        self.seeds: list[Attempt] = []
        """Kernels that it was to begin from."""
        self.outcomes: dict[str, str] = {}
        """Told of earlier strategies, by signature, when initial ones were asked for last."""
        self.lineages: list[list[Attempt]] = []
        """The candidate's ancestors, as each revision was told."""

    def agents(self) -> Agents:
        return Agents(prophet=self, manager=self, translator=self, revisor=self)

    def diagnose(self, briefing: Briefing, attempt: Attempt) -> Diagnosis:
        return Diagnosis(severity="none", cause="", evidence="", advice=())

    def initial_strategies(
        self,
        briefing: Briefing,
        pool: Sequence[PoolMatch],
        count: int,
        seed: int,
        *,
        taken: Sequence[Strategy] = (),
        seeds: Sequence[Attempt] = (),
        outcomes: Mapping[str, str] = MappingProxyType({}),
    ) -> list[InitialStrategy]:
        if self.refuses:
            raise NoTemplate("no template fits this operator")
        self.shown = list(pool)
        self.seeds = list(seeds)
        self.outcomes = dict(outcomes)
        known = {item.signature() for item in taken}
        fresh = [item for item in self.initial if item.signature() not in known]
        return [InitialStrategy(strategy=item, source=StrategySource.IDEA) for item in fresh[:count]]

    def crossover(
        self,
        briefing: Briefing,
        first: Attempt,
        second: Attempt,
        taken: Sequence[Strategy],
        seed: int,
        *,
        outcomes: Mapping[str, str] = MappingProxyType({}),
    ) -> Strategy:
        names = sorted({*first.strategy.ids(), *second.strategy.ids()})
        known = {item.signature() for item in taken}
        for extra in ([], *([f"x{number}"] for number in range(100))):
            combined = strategy(*names[:6], *extra)
            if combined.signature() not in known:
                return combined
        raise AgentError("nothing new to combine")

    def translate(
        self,
        briefing: Briefing,
        strategy: Strategy,
        parents: Sequence[Attempt],
        seed: int,
        *,
        lessons: Sequence[Lesson] = (),
    ) -> Kernel:
        return kernel(" ".join(strategy.ids()), briefing.target)

    def merge(self, briefing: Briefing, first: Attempt, second: Attempt, seed: int) -> Kernel:
        assert first.kernel is not None
        assert second.kernel is not None
        names = dict.fromkeys(f"{first.kernel.source} {second.kernel.source}".replace("#", "").split())
        return kernel(" ".join(names), briefing.target)

    def align(self, briefing: Briefing, attempt: Attempt) -> Alignment:
        return Alignment(strategy=attempt.strategy, fidelity=1.0)

    def revise(
        self, briefing: Briefing, history: Sequence[Attempt], seed: int, *, lineage: Sequence[Attempt] = ()
    ) -> Revision | None:
        last = history[-1]
        self.lineages.append(list(lineage))
        assert last.kernel is not None
        mended = kernel(last.kernel.source + " #", briefing.target)
        return Revision(strategy=last.strategy, kernel=mended, note="tried again")

    def improve(self, briefing: Briefing, attempt: Attempt, history: Sequence[Attempt], seed: int) -> Revision | None:
        return None


class MemoryPool:
    """A vector index to which everything that may be seen is equal."""

    def __init__(self) -> None:
        self.entries: dict[str, Reference] = {}

    def add(self, references: Sequence[Reference]) -> None:
        self.entries |= {str(reference.id): reference for reference in references}

    def count(self) -> int:
        return len(self.entries)

    def clear(self) -> None:
        self.entries.clear()

    def nearest(self, text: str, scopes: Sequence[str], **_: object) -> dict[str, float]:
        return {key: 1.0 for key, one in self.entries.items() if one.scope in scopes}
