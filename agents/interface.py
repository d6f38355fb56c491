"""The interface of the agents, the same for the playbook and for language models.

Every call is pure in its arguments and its seed, so that a repeated step gives the same answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol

from cupilot.domain.errors import CupilotError
from cupilot.domain.evaluation import Evaluation, Preparation
from cupilot.domain.evolution.agentic import AgentLimits
from cupilot.domain.evolution.notes import AgentBook
from cupilot.domain.evolution.population import Operator
from cupilot.domain.hardware import Device, Peaks
from cupilot.domain.job import JobSpec
from cupilot.domain.kernel import Kernel
from cupilot.domain.pool import Lesson, PoolMatch
from cupilot.domain.problem import Problem, ProblemFacts, Target
from cupilot.domain.roofline import Placement
from cupilot.domain.standing import LearnedTechnique
from cupilot.domain.strategy import Strategy
from cupilot.domain.value import Value
from cupilot.domain.workload import Workload


class AgentError(CupilotError):
    """An agent cannot do what it was asked; the candidate or the job ends with this code."""

    code = "agent_error"
    status = 422


class NoTemplate(AgentError):
    """The playbook knows no template for this operator."""

    code = "no_template"


class Briefing(Value):
    """Facts about a job that every agent may use."""

    problem: Problem
    facts: ProblemFacts
    target: Target
    device: Device
    placement: Placement | None
    """None where roofline guidance is switched off."""
    banned: tuple[str, ...] = ()
    """Techniques that a person does not want proposed."""
    learned: tuple[LearnedTechnique, ...] = ()
    """Invented techniques that the team's earlier jobs have proven; empty where the pool is switched off."""
    peaks: Peaks | None = None
    """The device's measured rates; None where roofline guidance is switched off."""
    baseline_us: float | None = None
    """Time of PyTorch eager under the policy, if known."""
    compiler: str | None = None
    """Compiler there, with its version, e.g. ``nvrtc 13.0.88``."""
    workloads: tuple[tuple[Workload, ProblemFacts], ...] = ()
    """Of a problem with several shapes: each with its facts; ``facts`` are the heaviest one's then."""

    @classmethod
    def of(
        cls,
        spec: JobSpec,
        preparation: Preparation,
        *,
        banned: tuple[str, ...] = (),
        learned: tuple[LearnedTechnique, ...] = (),
    ) -> Briefing:
        """Return what agents may know of a job, as its method's switches allow."""
        guided = spec.method.roofline_guidance
        return cls(
            problem=spec.problem,
            facts=preparation.facts,
            target=spec.target,
            device=preparation.environment.device,
            placement=preparation.placement if guided else None,
            banned=banned,
            learned=learned,
            peaks=preparation.peaks if guided else None,
            baseline_us=preparation.baseline_us.median,
            compiler=preparation.environment.compiler,
            workloads=tuple((part.workload, part.facts) for part in preparation.workloads),
        )

    def allowing(self, strategy: Strategy) -> Briefing:
        """Return this briefing without bans of what the strategy asks for, so that started or injected work ends."""
        banned = tuple(name for name in self.banned if name not in strategy.ids())
        return self.model_copy(update={"banned": banned})


class Attempt(Value):
    """A candidate as agents see it."""

    strategy: Strategy
    kernel: Kernel | None = None
    evaluation: Evaluation | None = None
    name: str = ""
    """Name that its writer gave it."""
    insight: str = ""
    """Why its writer thought it fast, or, of a revision, what was changed."""

    @property
    def speedup(self) -> float:
        """Median speedup over PyTorch eager; 0 for a kernel that does not count."""
        return (self.evaluation.speedup if self.evaluation else None) or 0.0


class Example(Value):
    """A kernel that solved another problem."""

    problem: str
    reference: str
    """The other problem's source."""
    kernel: Kernel
    speedup: float
    """Over PyTorch eager, on the other problem."""
    insight: str = ""


class WriteInput(Value):
    """The knowledge of a Kernel Engineer when it writes: exactly what the method's operator shows."""

    method: str
    operator: Operator
    generation: int = 0
    place: int = 0
    """Which of the generation's proposals it is, from 0..."""
    places: int = 1
    """...of how many."""
    best: Attempt | None = None
    """The best kernel so far."""
    parents: tuple[Attempt, ...] = ()
    """The kernels to change or to combine, the fitter first."""
    shown: tuple[Attempt, ...] = ()
    """Earlier kernels for comparison, from slow to fast."""
    insights: tuple[str, ...] = ()
    """Insights of earlier writers."""
    examples: tuple[Example, ...] = ()
    functional: str = ""
    """The reference as a pure function, where it was converted."""


class Draft(Value):
    """A kernel that was written freely."""

    kernel: Kernel
    strategy: Strategy
    """Techniques of the catalogue that the code shows."""
    name: str = ""
    insight: str = ""
    """Why it should be fast, in the writer's words."""


class StrategySource(StrEnum):
    """Source of an initial strategy."""

    IDEA = "idea"
    """The Manager's own."""
    POOL = "pool"
    """An entry of the strategy pool, perhaps adapted."""


class Work(Value):
    """A kernel as its agent finds it at the begin of a turn."""

    limits: AgentLimits
    book: AgentBook
    parent: Attempt | None = None
    """The kernel to begin from; None where there is none."""
    trials: tuple[Attempt, ...] = ()
    """Kernels measured so far, oldest first."""
    examples: tuple[Example, ...] = ()
    """Kernels of similar problems."""
    repeats: int = 0
    """Kernels of the last turns that were not measured, because the job already had them."""

    @property
    def fastest(self) -> Attempt | None:
        """The fastest right kernel that was measured, the first of equals; None where none was right."""
        return max((trial for trial in self.trials if trial.speedup), key=lambda trial: trial.speedup, default=None)


class Turn(Value):
    """Result of an agent's turn."""

    book: AgentBook
    draft: Draft | None = None
    """The kernel to be measured; None where the agent has ended, and ``reason`` says why."""
    reason: str = ""
    """Machine-readable, e.g. ``finished``."""


class InitialStrategy(Value):
    """A strategy of the first generation."""

    strategy: Strategy
    source: StrategySource
    pool_entry: str | None = None
    """Id of the entry it came from."""


class Advice(Value):
    """One ranked piece of a diagnosis."""

    technique: str
    """Catalogue id."""
    reason: str
    expected: str
    """Change to expect if it works, with the metric named."""


class Diagnosis(Value):
    """A digested profile: the causes of a kernel's time. Raw counters stay in the database."""

    severity: str
    """``none``, ``minor``, ``major`` or ``critical``."""
    cause: str
    evidence: str
    """The metrics that say so, with their values."""
    advice: tuple[Advice, ...]


class Revision(Value):
    """A repaired kernel, with the strategy it now follows (a technique that cannot work may be dropped)."""

    strategy: Strategy
    kernel: Kernel
    note: str
    """Changes and their reasons."""


class Conversion(Value):
    """A conversion that was not right."""

    source: str
    complaint: str
    """Its defects."""


class Alignment(Value):
    """The strategy as the code really follows it."""

    strategy: Strategy
    struck: tuple[str, ...] = ()
    """Techniques claimed but not found in the code or the binary."""
    fidelity: float
    """Share of the claimed techniques that were found, 0 to 1."""


class RooflineProphet(Protocol):
    """Turns measurements into a diagnosis."""

    def diagnose(self, briefing: Briefing, attempt: Attempt) -> Diagnosis:
        """Say why the kernel is not faster, and what to try."""
        ...


class SceManager(Protocol):
    """Writes and combines strategies."""

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
        """Return up to ``count`` strategies with different signatures; fewer if there are no more ideas.

        ``taken`` are those the job already has; ``seeds`` the kernels that an epoch begins from, if not from nothing;
        ``outcomes`` says of taken strategies, by signature, what they came to (``1.57x``, ``wrong_value``).
        Raises :class:`NoTemplate` or another :class:`AgentError` where the problem cannot be worked on at all.
        """
        ...

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
        """Combine two parents' strategies (the fitter first); ``taken`` and ``outcomes`` as for initial strategies."""
        ...


class StrategyTranslator(Protocol):
    """Writes kernels for strategies, and strategies for kernels."""

    def translate(
        self,
        briefing: Briefing,
        strategy: Strategy,
        parents: Sequence[Attempt],
        seed: int,
        *,
        lessons: Sequence[Lesson] = (),
    ) -> Kernel:
        """Write a kernel that follows the strategy; ``parents`` hold the code to start from, the fitter's first.

        ``lessons`` say what changes of kernels were worth on similar problems.
        """
        ...

    def merge(self, briefing: Briefing, first: Attempt, second: Attempt, seed: int) -> Kernel:
        """Merge two parents' kernels into one, the fitter first: crossover of code."""
        ...

    def align(self, briefing: Briefing, attempt: Attempt) -> Alignment:
        """Rewrite the strategy to what the code does, checked against the build report."""
        ...


class KernelRevisor(Protocol):
    """Repairs kernels, and makes right ones faster."""

    def revise(
        self, briefing: Briefing, history: Sequence[Attempt], seed: int, *, lineage: Sequence[Attempt] = ()
    ) -> Revision | None:
        """Repair the last attempt of this candidate's history; None if there is nothing left to try.

        ``lineage`` is what was tried for its ancestors, oldest first.
        """
        ...

    def improve(self, briefing: Briefing, attempt: Attempt, history: Sequence[Attempt], seed: int) -> Revision | None:
        """Make a right kernel faster within its strategy; None if there is nothing left to try.

        ``history`` is what was measured for the candidate so far, oldest first, this kernel among it.
        """
        ...


class KernelEngineer(Protocol):
    """Writes kernels freely, as methods without strategies have it. The playbook has none."""

    def convert(self, briefing: Briefing, attempts: Sequence[Conversion], seed: int) -> str:
        """Rewrite the problem's file with its computation in one pure function; ``attempts`` are the wrong ones."""
        ...

    def write(self, briefing: Briefing, write_input: WriteInput, seed: int) -> Draft:
        """Write a kernel from what ``write_input`` holds."""
        ...

    def repair(self, briefing: Briefing, history: Sequence[Attempt], seed: int) -> Revision | None:
        """Repair the last attempt of this candidate's history; None if there is nothing left to try."""
        ...


class KernelAgent(Protocol):
    """Works on a kernel with tools. The playbook has none."""

    def act(self, briefing: Briefing, work: Work, seed: int) -> Turn:
        """Work until a kernel is to be measured, or nothing more is to be done."""
        ...


@dataclass(frozen=True)
class Agents:
    """One player for each role."""

    prophet: RooflineProphet
    manager: SceManager
    translator: StrategyTranslator
    revisor: KernelRevisor
    engineer: KernelEngineer | None = None
    """None where nobody can write kernels freely."""
    agent: KernelAgent | None = None
    """None where nobody can work with tools."""
