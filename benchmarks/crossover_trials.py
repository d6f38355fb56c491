"""One trial of the crossover study: two parents, one child, its outcome. Prints nothing, writes no file.

Success is the paper's (arXiv 2512.16465, Figure 1): the child is correct *and* has all techniques of both parents.
Correct is what the judge says; the techniques are looked for in source and binary (:mod:`agents.playbook.evidence`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agents.interface import AgentError, Agents, Attempt, Briefing
from agents.playbook.evidence import SOURCE as SOURCE_TRACES
from agents.playbook.evidence import leaves_trace, missing
from benchmarks.crossover_pairs import Pair, Size
from cupilot.domain.evaluation import BuildReport, Evaluation, FailureKind, Preparation, Verdict
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import Problem
from workers.local.judge import Judge, retried

BUILD = (FailureKind.COMPILE_ERROR, FailureKind.INVALID_PLAN)


class Arm(StrEnum):
    """The arm of a trial: strategies or code are crossed."""

    STRATEGY = "strategy"
    """The parents' strategies, as text; the Translator then writes one kernel for all their techniques."""
    CODE = "code"
    """The parents' kernels, as code."""


class Outcome(StrEnum):
    """The outcome of a child; the paper's classes, and two more."""

    SUCCESS = "success"
    SYNTAX = "does not build"
    FUNCTION = "wrong result"
    LOST = "correct, techniques lost"
    REFUSED = "no kernel written"


@dataclass(frozen=True)
class Trial:
    """One child."""

    problem: str
    size: Size
    arm: Arm
    pair: Pair
    outcome: Outcome
    kernel: Kernel | None = None
    evaluation: Evaluation | None = None
    absent: dict[str, str] = field(default_factory=dict)
    """Techniques of the parents that the child lacks, with what was looked for."""
    refusal: str | None = None

    def record(self) -> dict[str, Any]:
        """Return what came of the trial, as JSON-compatible data."""
        failure = self.evaluation.failure if self.evaluation else None
        whole = {
            "outcome": self.outcome.value,
            "failure": failure.kind.value if failure else None,
            "absent": list(self.absent),
            "refusal": self.refusal,
        }
        return {name: value for name, value in whole.items() if value}

    @property
    def of(self) -> dict[str, Any]:
        """The parents and where they are crossed, as JSON-compatible data."""
        parents = [list(self.pair.first.ids()), list(self.pair.second.ids())]
        return {"problem": self.problem, "size": str(self.size), "parents": parents}


def rows(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Return a row a pair of parents, with what came of each arm."""
    pairs: list[dict[str, Any]] = []
    for trial in trials:
        before = pairs[-1] if pairs else {}
        if trial.arm.value in before or any(before.get(key) != value for key, value in trial.of.items()):
            pairs.append(trial.of)
        pairs[-1][trial.arm.value] = trial.record()
    return pairs


@dataclass
class Study:
    """The trials of one problem: judge, agents, and the kernels that were judged already."""

    problem: Problem
    preparation: Preparation
    briefing: Briefing
    judge: Judge
    agents: Agents
    templates: Agents
    """The playbook's, which write the parents in either arm."""
    judged: dict[str, Evaluation] = field(default_factory=dict)

    def parents(self, pair: Pair) -> tuple[Attempt, Attempt] | None:
        """Judge both parents; None if one does not count, or cannot be told from the other by its traces."""
        try:
            kernels = [
                self.templates.translator.translate(self.briefing, strategy, (), 0)
                for strategy in (pair.first, pair.second)
            ]
        except AgentError:
            return None
        if not self._distinguishable(pair, kernels, [None, None]):  # by their sources, before anything is measured
            return None
        evaluations = [self.measure(kernel) for kernel in kernels]
        if any(first is None or not first.verdict.counts for first in evaluations):
            return None
        builds = [first.build if first else None for first in evaluations]
        if not self._distinguishable(pair, kernels, builds):
            return None
        first, second = (
            Attempt(strategy=strategy, kernel=kernel, evaluation=evaluation)
            for strategy, kernel, evaluation in zip((pair.first, pair.second), kernels, evaluations, strict=True)
        )
        return first, second

    def trial(self, size: Size, arm: Arm, pair: Pair, parents: tuple[Attempt, Attempt], seed: int) -> Trial | None:
        """Cross two parents; None where the machine failed rather than the child."""
        try:
            kernel = self._child(arm, pair, parents, seed)
        except AgentError as error:
            return Trial(self.problem.name, size, arm, pair, Outcome.REFUSED, refusal=f"{error.code}: {error}")
        evaluation = self.measure(kernel)
        if evaluation is None:
            return None
        absent = missing(pair.union, kernel, evaluation.build)
        return Trial(self.problem.name, size, arm, pair, outcome_of(evaluation, absent), kernel, evaluation, absent)

    def measure(self, kernel: Kernel) -> Evaluation | None:
        """Judge a kernel, once; None if the machine fails again and again."""
        known = self.judged.get(kernel.content_hash())
        if known is None:
            known = retried(lambda: self.judge.evaluate(self.problem, self.preparation, kernel))
            if known is not None:
                self.judged[kernel.content_hash()] = known
        return known

    def _distinguishable(self, pair: Pair, kernels: list[Kernel], builds: list[BuildReport | None]) -> bool:
        """Return True if each parent shows its own techniques and none of the other's, as far as traces exist.

        A copy of a parent could pass for a child otherwise. Without a build, only what the sources show is compared.
        """
        for kernel, build, own, others in zip(
            kernels, builds, (pair.first, pair.second), (pair.second, pair.first), strict=True
        ):
            absent = missing(pair.union, kernel, build)
            if absent.keys() & set(own.ids()):
                return False
            looked_for = {name for name in others.ids() if self._leaves_trace(name, build)}
            if looked_for - absent.keys():
                return False
        return True

    def _leaves_trace(self, technique: str, build: BuildReport | None) -> bool:
        return leaves_trace(technique, self.briefing.target) if build is not None else technique in SOURCE_TRACES

    def _child(self, arm: Arm, pair: Pair, parents: tuple[Attempt, Attempt], seed: int) -> Kernel:
        translator = self.agents.translator
        if arm is Arm.CODE:
            return translator.merge(self.briefing, *parents, seed)
        return translator.translate(self.briefing, pair.union, parents, seed)


def outcome_of(evaluation: Evaluation, absent: dict[str, str]) -> Outcome:
    """Return the class of a judged child."""
    if evaluation.failure is not None and evaluation.failure.kind in BUILD:
        return Outcome.SYNTAX
    if evaluation.verdict.rank < Verdict.AUDITED.rank:
        return Outcome.FUNCTION
    return Outcome.LOST if absent else Outcome.SUCCESS
