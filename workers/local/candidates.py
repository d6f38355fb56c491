"""The candidates of one job in memory, and the driver that takes each through its stages.

The stages are the workers' own (:mod:`agents.stages`, :mod:`workers.stages`), as are the decisions between them
(:mod:`cupilot.domain.evolution.pipeline`) and the seeds; only where candidates are kept differs.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from agents.interface import Agents, Alignment, Attempt, Briefing
from agents.stage import Proposed, Settled
from agents.stages import STAGES, run_stage
from cupilot.domain.evaluation import Evaluation, FailureKind, Preparation
from cupilot.domain.evolution.fitness import speed_bounds
from cupilot.domain.evolution.methods import agent_limits, method_for
from cupilot.domain.evolution.notes import Notes
from cupilot.domain.evolution.novelty import kernel_key, strategy_key
from cupilot.domain.evolution.outcomes import outcomes
from cupilot.domain.evolution.pipeline import (
    Duplicate,
    End,
    Ending,
    Next,
    Outcome,
    Stage,
    first,
    following,
)
from cupilot.domain.evolution.population import Proposal
from cupilot.domain.evolution.seeds import stage_seed
from cupilot.domain.job import AgentKind, JobSpec
from cupilot.domain.kernel import Kernel
from cupilot.domain.pool import entry_of
from cupilot.domain.strategy import Strategy
from cupilot.domain.technique import catalogue
from workers.local.judge import Judge, RetryingJudge
from workers.local.pool import LocalPool
from workers.stages import Check, Evaluate, InfrastructureFailure, Judgement

TEAM = "local"


@dataclass
class Candidate:
    """An individual, and how far it has come."""

    ordinal: int
    generation: int
    proposal: Proposal
    strategies: list[Strategy] = field(default_factory=list)
    """Its own: as asked for, then as aligned."""
    notes: Notes = field(default_factory=Notes)
    written: Kernel | None = None
    """The kernel that is, or was last, to be measured."""
    history: list[Attempt] = field(default_factory=list)
    """Its measured kernels, oldest first."""
    standing: int = -1
    """Which of them it is: the last one, but for performance revisions that were no faster."""
    confirmation: Evaluation | None = None
    challenger: Settled | None = None
    """Parts that the candidate takes over if the kernel to be measured proves faster than its own."""
    alignment: Alignment | None = None
    end: End | None = None
    seconds: float = 0.0

    @property
    def id(self) -> str:
        """Name within the job."""
        return f"c{self.ordinal}"

    @property
    def strategy(self) -> Strategy | None:
        """The newest of its strategies."""
        return self.strategies[-1] if self.strategies else None

    @property
    def kernel(self) -> Kernel | None:
        """The measured kernel that it is."""
        return self.history[self.standing].kernel if self.history else None

    @property
    def evaluation(self) -> Evaluation | None:
        """Return the evaluation that selection uses."""
        return self.history[self.standing].evaluation if self.history else None

    @property
    def latest(self) -> Evaluation | None:
        """Return the evaluation that the job reports: the confirmation, if there was one."""
        return self.confirmation or self.evaluation

    @property
    def result(self) -> tuple[float | None, str | None]:
        """Return the speedup, or why there is none."""
        evaluation, reason = self.evaluation, self.end.reason if self.end else None
        if evaluation is None:
            return None, reason
        return evaluation.speedup, reason or (evaluation.failure.kind.value if evaluation.failure else None)

    @property
    def tuned(self) -> Kernel | None:
        """The kernel with the tunable values that its times belong to."""
        if self.kernel is None or self.evaluation is None:
            return None
        return self.kernel.tuned(self.evaluation.tunables)

    def seen(self) -> Attempt:
        """Return the candidate as agents see it."""
        assert self.strategy is not None
        return Attempt(
            strategy=self.strategy,
            kernel=self.tuned,
            evaluation=self.evaluation,
            name=self.notes.name,
            insight=self.notes.insight,
        )

    def adopt(self, settled: Settled) -> None:
        """Take the strategy and the notes that come with a kernel."""
        if settled.strategy is not None:
            self.strategies.append(settled.strategy)
        self.note(**settled.kernel_notes)

    def note(self, **fields: Any) -> None:
        """Change fields of the notes."""
        self.notes = Notes.model_validate({**self.notes.model_dump(), **fields})


@dataclass
class Candidates:
    """All candidates of one job, and what their stages share."""

    spec: JobSpec
    preparation: Preparation
    judge: Judge
    agents: Agents
    pool: LocalPool
    all: list[Candidate] = field(default_factory=list)
    kernels: set[str] = field(default_factory=set)
    """Keys of every kernel of the job (:func:`cupilot.domain.evolution.novelty.kernel_key`)."""

    @property
    def briefing(self) -> Briefing:
        """Return the facts that agents may use."""
        return Briefing.of(self.spec, self.preparation)

    def add(self, generation: int, proposal: Proposal, strategy: Strategy | None = None) -> Candidate:
        """Add a candidate, with its strategy where the operator needs no stage to find one."""
        strategies = [] if strategy is None else [strategy]
        candidate = Candidate(len(self.all), generation, proposal, strategies, Notes.of(proposal))
        self.all.append(candidate)
        return candidate

    @property
    def tried(self) -> list[Strategy]:
        """Every strategy of the job, as asked for and as aligned."""
        return [strategy for candidate in self.all for strategy in candidate.strategies]

    def outcomes(self) -> dict[str, str]:
        """Return what the strategies of ended candidates came to, by signature."""
        ended = [candidate for candidate in self.all if candidate.end is not None]
        return outcomes((strategy, *candidate.result) for candidate in ended for strategy in candidate.strategies)

    def has(self, settled: Settled) -> bool:
        """Return whether the job has the settled kernel, or else the settled strategy."""
        if settled.kernel is not None:
            return kernel_key(settled.kernel) in self.kernels
        if settled.strategy is None:
            return False
        tried = {strategy_key(strategy, catalogue()) for strategy in self.tried}
        return strategy_key(settled.strategy, catalogue()) in tried

    def named(self, ids: Iterable[str]) -> list[Candidate]:
        """Return the candidates of these ids, in this order."""
        by_id = {candidate.id: candidate for candidate in self.all}
        return [by_id[name] for name in ids]

    def seeds(self, proposals: Iterable[Proposal]) -> list[Attempt]:
        """Return the kernels that the proposals begin from, each once."""
        ids = dict.fromkeys(parent for proposal in proposals for parent in proposal.parents)
        return [candidate.seen() for candidate in self.named(ids)]

    def run(self, candidate: Candidate) -> None:
        """Take a candidate to its end."""
        started = time.monotonic()
        pipeline = method_for(self.spec.method).pipeline(candidate.proposal.operator)
        if self.spec.agents is AgentKind.PLAYBOOK:
            pipeline = replace(pipeline, performance_rounds=0)
        stage: Next | End = first(pipeline)
        while isinstance(stage, Next):
            try:
                stage = following(pipeline, stage, self._run_stage(candidate, stage))
            except InfrastructureFailure:
                ending = Ending.EVALUATED if candidate.evaluation else Ending.FAILED
                stage = End(ending, FailureKind.INFRASTRUCTURE.value)
        candidate.end = stage
        candidate.seconds = time.monotonic() - started

    def _run_stage(self, candidate: Candidate, stage: Next) -> Outcome:
        if stage.stage in (Stage.CHECK, Stage.EVALUATE):
            view = Check(candidate.notes) if stage.stage is Stage.CHECK else _evaluate(candidate)
            judgement = view.run(self.spec.problem, self.preparation, RetryingJudge(self.judge))
            return self._store_judgement(candidate, stage, judgement)
        seed = stage_seed(self.spec.seed, candidate.ordinal, stage)
        agent_view = STAGES[stage.stage].read(_Reader(self, candidate, stage))
        return self._store_settled(candidate, stage, run_stage(agent_view, lambda: self.agents, self.briefing, seed))

    def _store_settled(self, candidate: Candidate, stage: Next, settled: Settled) -> Outcome:
        candidate.note(**settled.notes)
        if self.has(settled):
            return Duplicate()
        if settled.repair is not None:
            candidate.note(repairs=(*candidate.notes.repairs, settled.repair))
        if settled.kernel is not None:
            self.kernels.add(kernel_key(settled.kernel))
            candidate.written = settled.kernel
            candidate.challenger = settled if stage.improvements else None
        if candidate.challenger is None:
            candidate.adopt(settled)
        if settled.alignment is not None:
            candidate.alignment = settled.alignment
            candidate.strategies.append(settled.alignment.strategy)
            self._learn(candidate, candidate.standing)
        return settled.outcome

    def _store_judgement(self, candidate: Candidate, stage: Next, judgement: Judgement) -> Outcome:
        candidate.note(**judgement.notes)
        if judgement.evaluation is not None:
            assert candidate.strategy is not None
            place, challenger = len(candidate.history), candidate.challenger
            attempt = Attempt(
                strategy=(challenger and challenger.strategy) or candidate.strategy,
                kernel=candidate.written,
                evaluation=judgement.evaluation,
                insight=candidate.notes.change(place, candidate.proposal.operator),
            )
            if not stage.improvements or self._is_faster(judgement.evaluation, candidate.evaluation):
                candidate.standing = place
                if challenger is not None:
                    candidate.adopt(challenger)
            candidate.challenger = None
            candidate.history.append(attempt)
            self._learn(candidate, place)
        return judgement.outcome

    def _is_faster(self, evaluation: Evaluation, standing: Evaluation | None) -> bool:
        """Return whether a performance revision is faster than what it would replace, by their lower bounds."""
        assert standing is not None
        new, old = (speed_bounds(each, self.preparation) for each in (evaluation, standing))
        return new is not None and (old is None or new[0] > old[0])

    def _learn(self, candidate: Candidate, place: int) -> None:
        """Tell the pool what one of the candidate's measurements taught."""
        evaluation = candidate.history[place].evaluation
        strategy = candidate.alignment.strategy if candidate.alignment else candidate.history[place].strategy
        assert evaluation is not None
        entry = entry_of(
            evaluation,
            id=f"{self.spec.problem.name}/{candidate.id}/{place + 1}",
            team=TEAM,
            problem_name=self.spec.problem.name,
            facts=self.preparation.facts,
            target=self.spec.target,
            device_class=self.preparation.environment.device.device_class,
            zone=self.preparation.placement.zone,
            strategy=strategy,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        self.pool.add(entry)


@dataclass(frozen=True)
class _Reader:
    """See :class:`agents.stages.CandidateReader`."""

    candidates: Candidates
    candidate: Candidate
    stage: Next

    @property
    def proposed(self) -> Proposed:
        candidate, method = self.candidate, self.candidates.spec.method
        limits, repeats = agent_limits(method), self.stage.repeats
        operator, notes = candidate.proposal.operator, candidate.notes
        return Proposed(method.name, operator, candidate.generation, notes, limits, repeats)

    def strategy(self) -> Strategy:
        assert self.candidate.strategy is not None
        return self.candidate.strategy

    def measured(self) -> Attempt:
        return self.candidate.history[self.candidate.standing].model_copy(
            update={"strategy": self.strategy(), "insight": ""}
        )

    def trials(self) -> list[Attempt]:
        return list(self.candidate.history)

    def parent_trials(self) -> list[Attempt]:
        return list(self._parents()[0].history)

    def lineage(self, limit: int) -> list[Attempt]:
        return [trial for ancestor in self._ancestors()[-limit:] for trial in ancestor.history]

    def parents(self) -> list[Attempt]:
        return [parent.seen() for parent in self._parents()]

    def attempts(self, ids: Sequence[str]) -> list[Attempt]:
        return [candidate.seen() for candidate in self.candidates.named(ids)]

    def tried(self) -> list[Strategy]:
        return self.candidates.tried

    def outcomes(self) -> dict[str, str]:
        return self.candidates.outcomes()

    def _parents(self) -> list[Candidate]:
        return self.candidates.named(self.candidate.proposal.parents)

    def _ancestors(self) -> list[Candidate]:
        """Return all that the candidate comes from, the oldest first."""
        ancestors: dict[str, Candidate] = {}
        waiting = list(self.candidate.proposal.parents)
        while waiting:
            [parent] = self.candidates.named([waiting.pop()])
            if parent.id not in ancestors:
                ancestors[parent.id] = parent
                waiting += parent.proposal.parents
        return sorted(ancestors.values(), key=lambda ancestor: ancestor.ordinal)


def _evaluate(candidate: Candidate) -> Evaluate:
    """Return the measurement to the end: every candidate's time is reported."""
    assert candidate.written is not None
    return Evaluate(candidate.written)
