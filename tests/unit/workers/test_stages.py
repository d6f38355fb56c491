"""Every step has a handler, every stage is run by agents or by the judge, and a refusal settles a stage."""

from __future__ import annotations

from typing import NoReturn

import pytest

from agents.interface import (
    AgentError,
    Agents,
    Attempt,
    Briefing,
    Conversion,
    InitialStrategy,
    NoTemplate,
    StrategySource,
)
from agents.stage import Settled
from agents.stages import STAGES, Align, Convert, InitialStrategies, run_stage
from cupilot.domain.evolution.pipeline import AgentFailed, Stage
from cupilot.domain.job import JobSpec
from cupilot.domain.model_call import CostBudgetReached
from cupilot.domain.problem import Target
from cupilot.domain.states import StepKind
from tests.unit.storage.references import strategy
from tests.unit.workers.test_local_job import PROBLEM, Players, preparation
from workers.handlers.candidate import ASKED, JUDGED
from workers.handlers.registry import HANDLERS


def agents() -> Agents:
    players = Players()
    return Agents(prophet=players, manager=players, translator=players, revisor=players)


def briefing() -> Briefing:
    return Briefing.of(JobSpec(problem=PROBLEM, target=Target.CPU), preparation())


def test_every_kind_of_step_has_a_handler() -> None:
    assert set(HANDLERS) == set(StepKind)


def test_every_stage_is_asked_of_the_agents_or_of_the_judge() -> None:
    asked = {stage for stage in Stage if HANDLERS[StepKind(stage.value)] is ASKED}
    judged = {stage for stage in Stage if HANDLERS[StepKind(stage.value)] is JUDGED}
    assert asked == set(STAGES)
    assert asked | judged == set(Stage)
    assert judged == {stage for stage in Stage if StepKind(stage.value).on_device}


@pytest.mark.parametrize("error", [NoTemplate("nothing for this"), AgentError("cannot"), CostBudgetReached(2.0, 1.0)])
def test_what_agents_cannot_do_or_the_job_cannot_pay_is_refused(error: Exception) -> None:
    def refuse() -> NoReturn:
        raise error

    view = Align(Attempt(strategy=strategy("technique_a")))
    assert run_stage(view, refuse, briefing(), 1) == Settled(AgentFailed(error.code))  # type: ignore[attr-defined]


def test_agents_that_write_no_kernels_freely_refuse_to() -> None:
    view = Convert([Conversion(source="x", complaint="wrong")])
    assert run_stage(view, agents, briefing(), 1).outcome == AgentFailed("agent_error")


def test_of_the_initial_strategies_only_new_ones_are_kept_each_once() -> None:
    written = [strategy("technique_a"), strategy("technique_b"), strategy("technique_b"), strategy("technique_c")]
    answer = InitialStrategies([InitialStrategy(strategy=each, source=StrategySource.IDEA) for each in written])
    assert [initial.strategy for initial in answer.new([strategy("technique_a")])] == [written[1], written[3]]
