"""Strategy-coordinated evolution (``sce``), cuPilot's method (arXiv 2512.16465, Algorithm 1).

The paper publishes no code; its Algorithm 1 by lines, and where each is done here:

1. ``P <- StrategyInit(K_init, N_S0)``: :meth:`Sce.propose` of generation 0 asks for ``population`` initial
   strategies, which the SCE Manager writes from the roofline zone, the strategy pool and its own ideas;
2. for each generation, for each individual in parallel: whoever drives the method;
3. ``K <- StrategyApplication(S, K)``: stage ``translate`` (:mod:`cupilot.domain.evolution.pipeline`);
4. ``K <- KernelRevision(K)``: stages ``evaluate`` and ``revise``, at most ``repair_rounds`` times, until the kernel is
   right; then ``improve`` and ``evaluate``, at most ``performance_rounds`` times, from the digested profile;
5. profile and fitness: stage ``evaluate``, :mod:`cupilot.domain.evolution.fitness`;
6. ``S <- StrategyAlignment(S, K)`` (the paper's "handshake"): stage ``align``;
7. elitism keeps, tournament picks parents: :meth:`Sce.select` and :meth:`Sce.propose`;
8. the SCE Manager crosses two parents' *strategies*: stage ``cross``; back to 2, or :meth:`Sce.should_stop`.

Around this stands the paper's slower time scale, the **epoch**: its released kernels lie in folders ``Epoch0`` to
``Epoch3``, and the best kernels of one epoch are the initial ones (``K_init`` of line 1) of the next. So the first
generation of a later epoch is again ``StrategyInit``, for kernels that already exist: initial proposals whose parents
are the elites, in turn. The paper's ablation of line 8, crossing *code* instead, is ``crossover="code"``: the
Translator is shown both parents' kernels, and what strategy came of it is read from the code, in line 6.

The paper does not state tournament size, elites, fitness weights or any mutation; there is no mutation here either,
and the rest are :class:`SceConfig`'s fields. What the paper leaves open and this does: survivors are the elites plus
the last generation's members that count (the rest of the best, where there are more than fit); the two parents of a
crossover differ in strategy where the survivors allow it; a generation proposes no pair of parents twice while
untried pairs remain.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from random import Random
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from cupilot.domain.evolution.agentic import AgentLimits, agentic_pipeline
from cupilot.domain.evolution.pipeline import Pipeline, Stage
from cupilot.domain.evolution.population import Member, Operator, Proposal, StopReason
from cupilot.domain.evolution.selection import elite, near_floor, ranked, tournament
from cupilot.domain.value import Value, Vocabulary


class CrossoverLevel(Vocabulary):
    """Level at which two parents are combined."""

    STRATEGY = "strategy"
    """The Manager combines their strategies; the Translator writes a kernel for the result."""
    CODE = "code"
    """The Translator combines their kernels; alignment says what strategy came of it."""


class SceConfig(Value):
    """Parameters and ablation switches of ``sce``."""

    name: Literal["sce"] = "sce"
    population: Annotated[int, Field(ge=2, le=200)] = 8
    """Candidates a generation. The paper's ablations use 50."""
    generations: Annotated[int, Field(ge=1, le=100)] = 4
    """Rounds of selection an epoch."""
    epochs: Annotated[int, Field(ge=1, le=20)] = 1
    """Each but the first begins with fresh strategies for the best kernels of the one before."""
    elites: Annotated[int, Field(ge=0, le=50)] = 2
    """Best candidates that always survive; where not given, fewer in a population that has no room for two."""
    tournament: Annotated[int, Field(ge=1, le=50)] = 3
    """Members drawn for each parent."""
    repair_rounds: Annotated[int, Field(ge=0, le=10)] = 2
    """Times that the Kernel Revisor may mend one candidate."""
    performance_rounds: Annotated[int, Field(ge=0, le=10)] = 1
    """Times that the Kernel Revisor may make one candidate's right kernel faster. The playbook's never does."""
    agentic: Annotated[int, Field(ge=0, le=50)] = 0
    """Candidates of each generation but the first that a model works on with tools, from the best kernels in turn,
    in place of crossovers."""
    agentic_measurements: Annotated[int, Field(ge=1, le=50)] = 6
    """Kernels that each of those may have measured."""
    utilisation_weight: Annotated[float, Field(ge=0, le=10)] = 0.25
    """Weight of hardware utilisation beside log speedup in the fitness."""
    crossover: CrossoverLevel = CrossoverLevel.STRATEGY
    """Ablation: ``code`` combines the parents' kernels instead of their strategies."""
    roofline_guidance: bool = True
    """Ablation: False hides zone and diagnosis from the agents."""
    pool: bool = True
    """Ablation: False starts without the strategy pool."""
    alignment: bool = True
    """Ablation: False keeps strategies as they were asked for."""

    @model_validator(mode="before")
    @classmethod
    def _default_elites_fit(cls, data: Any) -> Any:
        population = data.get("population") if isinstance(data, dict) else None
        if not isinstance(population, int) or "elites" in data:
            return data
        return {**data, "elites": min(cls.model_fields["elites"].default, max(population - 1, 0))}

    @model_validator(mode="after")
    def _elites_fit(self) -> SceConfig:
        if self.elites >= self.population:
            raise ValueError(f"elites ({self.elites}) must be fewer than population ({self.population})")
        return self

    @property
    def rounds(self) -> int:
        """Generations at most, over all epochs."""
        return self.epochs * self.generations

    @property
    def max_candidates(self) -> int:
        """Proposed at most, over all generations; elites leave room for fewer."""
        return self.population * self.rounds

    @property
    def agent_limits(self) -> AgentLimits:
        """Budget of each candidate that is worked on with tools."""
        return AgentLimits(measurements=self.agentic_measurements)

    @property
    def max_kernels(self) -> int:
        """The same with every repair that they may have."""
        agents = min(self.agentic, self.population) * (self.rounds - 1)
        others = self.max_candidates - agents
        return others * (1 + self.repair_rounds + self.performance_rounds) + agents * self.agentic_measurements


class CupilotPaperConfig(SceConfig):
    """``sce`` at the size of the paper's ablations: a population of 50, two epochs, crossover of strategies.

    What the paper does not state is as in ``sce``.
    """

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    name: Literal["cupilot-paper"] = "cupilot-paper"  # type: ignore[assignment]
    population: Annotated[int, Field(ge=2, le=200)] = 50
    """Candidates a generation."""
    epochs: Annotated[int, Field(ge=1, le=20)] = 2
    """The second begins with fresh strategies for the best kernels of the first."""


class Sce:
    """The method ``sce``. Every call is pure in its arguments and the generator it is given."""

    def __init__(self, config: SceConfig) -> None:
        self.config = config

    def propose(self, population: Sequence[Member], generation: int, rng: Random) -> list[Proposal]:
        """Return the proposals of a generation; ``population`` are the survivors that :meth:`select` named.

        Generation 0: ``population`` initial proposals. Later: what the elites leave of the population, each a
        crossover of two of the survivors; initial proposals where fewer than two survivors count. An epoch's first
        generation: the same number of initial proposals, which begin from the elites (or the best) in turn.
        """
        if generation == 0:
            return [Proposal(operator=Operator.INITIAL)] * self.config.population
        wanted = self.config.population - len(elite(population, self.config.elites))
        if self.config.epochs > 1 and generation % self.config.generations == 0:
            return _anew(elite(population, max(self.config.elites, 1)), wanted)
        agents = _worked_on(ranked(population), min(self.config.agentic, wanted))
        wanted -= len(agents)
        pairs = _pairs(population)
        if not pairs:
            return [*agents, *[Proposal(operator=Operator.INITIAL)] * wanted]
        return [*agents, *self._crossovers(population, pairs, wanted, rng)]

    def select(self, population: Sequence[Member]) -> tuple[str, ...]:
        """Return candidate ids that survive, best first: the elites and the last generation's members that count.

        ``population`` are the former survivors and the finished generation. At most ``population`` survive.
        """
        newest = max((member.generation for member in population), default=0)
        keep = {member.candidate for member in elite(population, self.config.elites)}
        keep |= {member.candidate for member in population if member.generation == newest}
        survivors = [member.candidate for member in ranked(population) if member.candidate in keep]
        return tuple(survivors[: self.config.population])

    def should_stop(self, population: Sequence[Member], generation: int) -> StopReason | None:
        """Return why no generation should follow the finished ``generation`` (from 0), or None."""
        if near_floor(population):
            return StopReason.NEAR_FLOOR
        return StopReason.GENERATIONS if generation + 1 >= self.config.rounds else None

    def pipeline(self, operator: Operator) -> Pipeline:
        """Return how a candidate of this operator goes; all may be mended, and are aligned unless that is switched off.

        No proposal is a ``mutation``: that is the Revisor's answer about a kernel that beat the floor, one round and no
        more.
        """
        if operator is Operator.MUTATION:
            return Pipeline(Stage.REVISE, repair_rounds=0, alignment=self.config.alignment)
        if operator is Operator.AGENTIC:
            return agentic_pipeline(self.config.agent_limits, alignment=self.config.alignment)
        opening = {Operator.CROSSOVER: Stage.CROSS, Operator.CODE_CROSSOVER: Stage.MERGE}
        stage = opening.get(operator, Stage.TRANSLATE)
        return Pipeline(
            stage,
            self.config.repair_rounds,
            self.config.alignment,
            questions=True,
            # An injected kernel is measured as its author wrote it; its children may be faster.
            performance_rounds=0 if operator is Operator.INJECTED else self.config.performance_rounds,
        )

    def _crossovers(
        self, population: Sequence[Member], pairs: set[frozenset[str]], wanted: int, rng: Random
    ) -> list[Proposal]:
        untried = set(pairs)
        proposals: list[Proposal] = []
        while len(proposals) < wanted:
            first, second = self._parents(population, untried, rng)
            untried.discard(frozenset((first.candidate, second.candidate)))
            untried = untried or set(pairs)
            parents = tuple(member.candidate for member in ranked((first, second)))
            proposals.append(Proposal(operator=_CROSSOVERS[self.config.crossover], parents=parents))
        return proposals

    def _parents(self, population: Sequence[Member], pairs: set[frozenset[str]], rng: Random) -> tuple[Member, Member]:
        """Draw parents in two tournaments.

        The first among all that have a partner left, the second among its partners.
        """
        first = tournament([member for member in population if _partners(member, pairs)], self.config.tournament, rng)
        assert first is not None
        partners = _partners(first, pairs)
        second = tournament(
            [member for member in population if member.candidate in partners], self.config.tournament, rng
        )
        assert second is not None
        return first, second


_CROSSOVERS = {CrossoverLevel.STRATEGY: Operator.CROSSOVER, CrossoverLevel.CODE: Operator.CODE_CROSSOVER}


def _anew(seeds: Sequence[Member], count: int) -> list[Proposal]:
    """Return initial proposals that begin from these kernels in turn, or from nothing where there are none."""
    parents: list[tuple[str, ...]] = [(seed.candidate,) for seed in seeds]
    parents = parents or [()]
    return [Proposal(operator=Operator.INITIAL, parents=parents[place % len(parents)]) for place in range(count)]


def _worked_on(best: Sequence[Member], count: int) -> list[Proposal]:
    """Return proposals to work with tools on the best kernels in turn; none where none counts."""
    return [
        Proposal(operator=Operator.AGENTIC, parents=(best[place % len(best)].candidate,), place=place, places=count)
        for place in range(count if best else 0)
    ]


def _pairs(population: Sequence[Member]) -> set[frozenset[str]]:
    """Return the pairs that may be crossed: of different strategies, or any two that count where all are alike."""
    everyone = list(combinations(ranked(population), 2))
    different = [
        (first, second) for first, second in everyone if first.strategy.signature() != second.strategy.signature()
    ]
    return {frozenset((first.candidate, second.candidate)) for first, second in different or everyone}


def _partners(member: Member, pairs: set[frozenset[str]]) -> set[str]:
    return {candidate for pair in pairs if member.candidate in pair for candidate in pair - {member.candidate}}
