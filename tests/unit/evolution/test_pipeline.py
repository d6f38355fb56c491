"""A candidate's pipeline: every path ends, repairs are bounded, nothing measured is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cupilot.domain.evaluation import FailureKind, Verdict
from cupilot.domain.evolution.agentic import AgentLimits, agentic_pipeline
from cupilot.domain.evolution.methods import CONFIGS, MethodConfig, method_for
from cupilot.domain.evolution.pipeline import (
    REPAIRABLE,
    AgentFailed,
    Done,
    Duplicate,
    End,
    Ending,
    Judged,
    Next,
    Outcome,
    Pipeline,
    Stage,
    WrongConversion,
    first,
    following,
    step_key,
)
from cupilot.domain.evolution.population import Operator
from cupilot.domain.evolution.sce import Sce, SceConfig
from cupilot.domain.evolution.seeds import stage_seed
from cupilot.domain.states import CandidateState, StepKind

CONFIG = SceConfig(repair_rounds=2, performance_rounds=0)
IMPROVING = CONFIG.model_copy(update={"performance_rounds": 2})
COURSE = Sce(CONFIG).pipeline(Operator.INITIAL)
WRONG = Judged(Verdict.REJECTED, FailureKind.WRONG_VALUE)
GOOD = Judged(Verdict.AUDITED)
TOO_FAST = Judged(Verdict.QUARANTINED, FailureKind.BELOW_FLOOR)

judgements = st.builds(
    Judged, st.sampled_from(Verdict), st.none() | st.sampled_from(sorted(set(FailureKind) - {"infrastructure"}))
)
answers = st.sampled_from([Done(), Duplicate(), AgentFailed("gave_up")])


def run(config: SceConfig, operator: Operator, outcomes: list[Outcome]) -> tuple[list[str], Next | End]:
    """Stages gone through with these outcomes, and what stands at the end."""
    pipeline = Sce(config).pipeline(operator)
    at: Next | End = first(pipeline)
    path: list[str] = []
    for outcome in outcomes:
        assert isinstance(at, Next)
        path.append(at.stage.value)
        at = following(pipeline, at, outcome)
    return path, at


def test_a_crossover_that_goes_well() -> None:
    path, end = run(CONFIG, Operator.CROSSOVER, [Done(), Done(), GOOD, Done()])
    assert path == ["cross", "translate", "evaluate", "align"]
    assert end == End(Ending.EVALUATED)


def test_an_idea_that_needs_two_repairs() -> None:
    path, end = run(CONFIG, Operator.INITIAL, [Done(), WRONG, Done(), WRONG, Done(), GOOD, Done()])
    assert path == ["translate", "evaluate", "revise", "evaluate", "revise", "evaluate", "align"]
    assert end == End(Ending.EVALUATED)


def test_repair_rounds_run_out() -> None:
    _, end = run(CONFIG, Operator.INITIAL, [Done(), WRONG, Done(), WRONG, Done(), WRONG])
    assert end == End(Ending.EVALUATED)


def test_without_alignment_a_good_kernel_ends_at_once() -> None:
    config = CONFIG.model_copy(update={"alignment": False})
    assert following(Sce(config).pipeline(Operator.INITIAL), Next(Stage.EVALUATE), GOOD) == End(Ending.EVALUATED)


@pytest.mark.parametrize("kind", sorted(set(FailureKind) - REPAIRABLE - {FailureKind.INFRASTRUCTURE}))
def test_some_failures_are_never_repaired(kind: FailureKind) -> None:
    assert following(COURSE, Next(Stage.EVALUATE), Judged(Verdict.REJECTED, kind)) == End(Ending.EVALUATED)


@pytest.mark.parametrize("kind", sorted(REPAIRABLE))
def test_the_rest_are(kind: FailureKind) -> None:
    assert following(COURSE, Next(Stage.EVALUATE), Judged(Verdict.CORRECT, kind)) == Next(Stage.REVISE, 1)


@pytest.mark.parametrize("kind", sorted({*REPAIRABLE, FailureKind.BELOW_FLOOR, FailureKind.CLOCK_MISMATCH}))
def test_a_quarantined_kernel_is_never_revised_in_its_candidate(kind: FailureKind) -> None:
    end = following(COURSE, Next(Stage.EVALUATE), Judged(Verdict.QUARANTINED, kind))
    assert end == End(Ending.EVALUATED, question=kind is FailureKind.BELOW_FLOOR)


def test_a_kernel_that_beat_the_floor_is_asked_about_while_rounds_are_left() -> None:
    asked = [following(COURSE, Next(Stage.EVALUATE, number), TOO_FAST) for number in range(CONFIG.repair_rounds + 1)]
    assert [isinstance(end, End) and end.question for end in asked] == [True, True, False]


def test_the_answer_about_it_has_one_round_and_is_asked_about_no_more() -> None:
    path, end = run(CONFIG, Operator.MUTATION, [Done(), TOO_FAST])
    assert (path, end) == (["revise", "evaluate"], End(Ending.EVALUATED))
    assert run(CONFIG, Operator.MUTATION, [Done(), WRONG])[1] == End(Ending.EVALUATED)
    assert run(CONFIG, Operator.MUTATION, [Done(), GOOD, Done()])[0] == ["revise", "evaluate", "align"]


def test_an_answer_without_a_kernel_of_its_own_measured_nothing() -> None:
    assert run(CONFIG, Operator.MUTATION, [AgentFailed("gave_up")])[1] == End(Ending.FAILED, "gave_up")
    assert run(CONFIG, Operator.MUTATION, [Duplicate()])[1] == End(Ending.DUPLICATE, "duplicate_kernel")


def test_a_right_kernel_is_improved_while_rounds_are_left_whatever_comes_of_it() -> None:
    path, end = run(IMPROVING, Operator.INITIAL, [Done(), WRONG, Done(), GOOD, Done(), WRONG, Done(), GOOD, Done()])
    assert path == ["translate", *["evaluate", "revise"], *["evaluate", "improve"] * 2, "evaluate", "align"]
    assert end == End(Ending.EVALUATED)


@pytest.mark.parametrize("answer", [Duplicate(), AgentFailed("bad_model_answer")])
def test_without_a_new_kernel_the_right_one_is_aligned(answer: Outcome) -> None:
    path, end = run(IMPROVING, Operator.CROSSOVER, [Done(), Done(), GOOD, answer, Done()])
    assert path == ["cross", "translate", "evaluate", "improve", "align"]
    assert end == End(Ending.EVALUATED)


def test_a_kernel_near_the_bound_is_left_alone() -> None:
    near = Judged(Verdict.AUDITED, near_floor=True)
    assert run(IMPROVING, Operator.INITIAL, [Done(), near])[1] == Next(Stage.ALIGN)


def test_an_improvement_that_beats_the_bound_asks_no_question() -> None:
    last = IMPROVING.model_copy(update={"alignment": False, "performance_rounds": 1})
    assert run(last, Operator.INITIAL, [Done(), GOOD, Done(), TOO_FAST])[1] == End(Ending.EVALUATED)


@pytest.mark.parametrize("config", [kind() for kind in CONFIGS.values() if not issubclass(kind, SceConfig)])
def test_methods_that_mend_nothing_ask_nothing(config: MethodConfig) -> None:
    for operator in (Operator.REWRITE, Operator.MUTATION, Operator.TRANSLATION):
        end = following(method_for(config).pipeline(operator), Next(Stage.EVALUATE), TOO_FAST)
        assert end == End(Ending.EVALUATED)


@pytest.mark.parametrize(
    ("stage", "end"),
    [
        (Stage.CROSS, End(Ending.DUPLICATE, "duplicate_strategy")),
        (Stage.TRANSLATE, End(Ending.DUPLICATE, "duplicate_kernel")),
        (Stage.REVISE, End(Ending.EVALUATED, "duplicate_kernel")),
        (Stage.ALIGN, End(Ending.EVALUATED, "duplicate_strategy")),
    ],
)
def test_a_duplicate_ends_the_candidate(stage: Stage, end: End) -> None:
    assert following(COURSE, Next(stage, 1), Duplicate()) == end


@pytest.mark.parametrize(
    ("stage", "ending"),
    [
        (Stage.CROSS, Ending.FAILED),
        (Stage.TRANSLATE, Ending.FAILED),
        (Stage.REVISE, Ending.EVALUATED),
        (Stage.ALIGN, Ending.EVALUATED),
    ],
)
def test_a_refusal_ends_the_candidate_with_its_reason(stage: Stage, ending: Ending) -> None:
    assert following(COURSE, Next(stage, 1), AgentFailed("no_template")) == End(ending, "no_template")


def test_an_infrastructure_failure_is_no_outcome() -> None:
    with pytest.raises(ValueError, match="try the evaluation again"):
        following(COURSE, Next(Stage.EVALUATE), Judged(Verdict.REJECTED, FailureKind.INFRASTRUCTURE))


@pytest.mark.parametrize(("stage", "outcome"), [(Stage.EVALUATE, Done()), (Stage.TRANSLATE, GOOD), (Stage.ALIGN, GOOD)])
def test_an_outcome_of_another_stage_is_refused(stage: Stage, outcome: Outcome) -> None:
    with pytest.raises(ValueError, match="no outcome of"):
        following(COURSE, Next(stage), outcome)


openings = st.sampled_from([Stage.CROSS, Stage.TRANSLATE, Stage.MERGE, Stage.WRITE, Stage.CONVERT])


@given(openings, st.integers(0, 10), st.booleans(), st.integers(0, 3), st.data())
def test_every_candidate_ends_within_its_rounds_and_keeps_what_was_measured(
    opening: Stage, rounds: int, alignment: bool, performance: int, data: st.DataObject
) -> None:
    pipeline = Pipeline(opening, rounds, alignment, performance_rounds=performance)
    at: Next | End = first(pipeline)
    seen: list[Next] = []
    while isinstance(at, Next):
        assert at not in seen
        seen.append(at)
        assert len(seen) <= 2 * (rounds + 1) + 1 + 2 + 2 * rounds + 2 + 2 * performance
        possible = {Stage.EVALUATE: judgements, Stage.CHECK: answers | st.just(WrongConversion())}.get(
            at.stage, answers
        )
        at = following(pipeline, at, data.draw(possible))
    stages = [step.stage for step in seen]
    assert stages.count(Stage.REVISE) <= rounds
    assert stages.count(Stage.IMPROVE) <= performance
    assert stages.count(Stage.CONVERT) <= rounds + 1
    assert stages.count(Stage.ALIGN) <= alignment
    assert (at.ending is Ending.EVALUATED) == (Stage.EVALUATE in stages)
    assert len({step_key(3, step) for step in seen}) == len(seen)


def test_a_conversion_is_written_again_until_it_is_right() -> None:
    pipeline = Pipeline(Stage.CONVERT, repair_rounds=1, alignment=False)
    assert first(pipeline) == Next(Stage.CONVERT)
    assert following(pipeline, Next(Stage.CONVERT), Done()) == Next(Stage.CHECK)
    assert following(pipeline, Next(Stage.CHECK), WrongConversion()) == Next(Stage.CONVERT, 1)
    assert following(pipeline, Next(Stage.CHECK, 1), WrongConversion()) == End(Ending.FAILED, "not_converted")
    assert following(pipeline, Next(Stage.CHECK, 1), Done()) == Next(Stage.WRITE)
    assert following(pipeline, Next(Stage.WRITE), Done()) == Next(Stage.EVALUATE)


def test_only_a_check_finds_a_conversion_mistaken() -> None:
    with pytest.raises(ValueError, match="no outcome of"):
        following(COURSE, Next(Stage.TRANSLATE), WrongConversion())


def test_keys_name_candidate_stage_and_round() -> None:
    assert step_key(12, Next(Stage.REVISE, 1)) == "c12/revise/1"


def test_stages_and_endings_are_those_of_the_schema() -> None:
    assert {stage.value for stage in Stage} <= {kind.value for kind in StepKind}
    assert {ending.value for ending in Ending} <= {state.value for state in CandidateState}


def test_work_with_tools_mends_and_improves_by_the_same_stage() -> None:
    pipeline = agentic_pipeline(AgentLimits(measurements=3), alignment=True)
    acted = Next(Stage.ACT)
    evaluated = following(pipeline, acted, Done())
    mending = following(pipeline, Next(Stage.EVALUATE), WRONG)
    assert (evaluated, mending) == (Next(Stage.EVALUATE), Next(Stage.ACT, 1))
    improving = following(pipeline, Next(Stage.EVALUATE, 1), GOOD)
    assert improving == Next(Stage.ACT, 2, 1)
    assert following(pipeline, improving, AgentFailed("finished")) == Next(Stage.ALIGN, 2, 1)
    assert following(pipeline, Next(Stage.EVALUATE, 2, 1), WRONG) == Next(Stage.ACT, 3, 2)
    assert following(pipeline, Next(Stage.EVALUATE, 3, 2), GOOD) == Next(Stage.ALIGN, 3, 2)
    assert following(pipeline, Next(Stage.EVALUATE), TOO_FAST) == End(Ending.EVALUATED)
    assert following(pipeline, mending, AgentFailed("finished")) == End(Ending.EVALUATED, "finished")
    assert following(pipeline, acted, AgentFailed("agent_budget")) == End(Ending.FAILED, "agent_budget")


def test_an_agent_whose_kernel_the_job_has_acts_again_in_the_same_round() -> None:
    pipeline = agentic_pipeline(AgentLimits(measurements=3), alignment=False)
    again = following(pipeline, Next(Stage.ACT, 2, 1), Duplicate())
    assert again == Next(Stage.ACT, 2, 1, repeats=1)
    assert isinstance(again, Next)
    assert step_key(3, again) == "c3/act/2/1"
    assert stage_seed(1, 3, again) != stage_seed(1, 3, Next(Stage.ACT, 2, 1))
    assert following(pipeline, again, Done()) == Next(Stage.EVALUATE, 2, 1)
    ended = following(pipeline, Next(Stage.ACT, repeats=1), AgentFailed("agent_budget"))
    assert ended == End(Ending.FAILED, "agent_budget")
