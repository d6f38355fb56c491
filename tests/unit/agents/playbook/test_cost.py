"""The cost model orders strategies by what is known before a measurement, on both targets and for every family."""

from __future__ import annotations

from math import inf, isfinite

import pytest
import torch

from agents.interface import Briefing
from agents.playbook import agents
from agents.playbook.cost import HOPELESS, LAST, predicted, ranks
from agents.playbook.cost.geometry import Geometry
from agents.playbook.cost.rates import rates, rates_of
from agents.playbook.forecast import Forecast
from agents.playbook.ladders import ladder, parse
from agents.playbook.search import Space
from agents.playbook.translator import operator_of, with_defaults
from cupilot.domain.hardware import Peaks
from cupilot.domain.problem import NumericsPolicy, Target
from cupilot.domain.roofline import Zone
from cupilot.domain.strategy import Strategy
from tests.unit.agents.playbook.briefings import CPU, H200, briefing
from tests.unit.agents.playbook.evaluations import match
from tests.unit.agents.playbook.operators_under_test import everything
from tests.unit.agents.playbook.references import trace

FAMILIES = ["gelu", "softmax", "softmax_middle", "layer_norm", "sum_last", "argmax", "mm_aligned", "linear"]


def about(name: str, target: Target, policy: str = "fp32") -> Briefing:
    case = everything()[name]
    facts, _ = trace(case.function, case.inputs, case.parameters, policy=NumericsPolicy(policy))
    return briefing(facts, target, Zone.MEMORY)


def seconds(brief: Briefing, text: str) -> float:
    rate = rates_of(brief)
    assert rate is not None
    return predicted(operator_of(brief), parse(f"{text}: "), brief.facts, rate).seconds


def large(target: Target, policy: str = "fp32") -> Briefing:
    """A function of so many elements, or under tf32 a product so large, that launches do not matter."""
    function, tensors = torch.nn.functional.gelu, {"x": torch.zeros(2048, 2048)}
    if policy == "tf32":
        function, tensors = torch.mm, {"a": torch.zeros(2048, 2048), "b": torch.zeros(2048, 2048)}
    facts, _ = trace(function, tensors, policy=NumericsPolicy(policy))
    return briefing(facts, target, Zone.MEMORY)


@pytest.mark.parametrize("target", list(Target))
@pytest.mark.parametrize("name", FAMILIES)
def test_every_rung_of_every_family_has_a_time(name: str, target: Target) -> None:
    brief = about(name, target)
    space = Space(brief, operator_of(brief))
    forecast = Forecast(space)
    rungs = [space.fitted(rung)[0] for rung in ladder(space.operator, target)]
    times = [forecast.seconds(rung) for rung in rungs]
    assert all(time is not None and isfinite(time) and time > 0 for time in times)
    assert forecast.order(rungs)[times.index(min(times, key=lambda time: time or inf))] == 0


@pytest.mark.parametrize("target", list(Target))
def test_the_compilers_launches_have_a_time(target: Target) -> None:
    facts, _ = trace(
        lambda x, w: torch.nn.functional.conv2d(x, w, padding=1),
        {"x": torch.zeros(2, 32, 24, 24), "w": torch.zeros(64, 32, 3, 3)},
    )
    brief = briefing(facts, target)
    space = Space(brief, operator_of(brief))
    forecast = Forecast(space)
    times = [forecast.seconds(space.fitted(rung)[0]) for rung in ladder(space.operator, target)]
    assert all(time is not None and time > 0 for time in times)
    assert min(times[:-1], key=lambda time: time or inf) < times[-1], "tiles beat plain loops"  # type: ignore[operator]


def test_tensor_cores_beat_the_scalar_units_and_these_beat_a_thread_a_result() -> None:
    brief = large(Target.CUDA, "tf32")
    best = {"warpgroup_mma": 0.0, "shared_tiling": 0.0, "": 0.0}
    rate = rates_of(brief)
    assert rate is not None
    space = Space(brief, operator_of(brief))
    for rung in ladder(space.operator, Target.CUDA):
        kind = next((name for name in best if rung.use(name)), "")
        if space.valid(rung):
            time = predicted(space.operator, rung, brief.facts, rate).seconds
            best[kind] = min(best[kind] or inf, time)
    assert best["warpgroup_mma"] < best["shared_tiling"] < best[""]
    assert best[""] > HOPELESS * best["warpgroup_mma"]


def test_a_row_that_is_kept_costs_less_than_one_that_is_read_again() -> None:
    brief = about("softmax", Target.CUDA)
    assert seconds(brief, "warp_shuffle_reduction, register_rows") <= seconds(brief, "warp_shuffle_reduction")


def test_columns_in_many_slices_read_too_little_side_by_side() -> None:
    facts, _ = trace(lambda x: x.sum(1), {"x": torch.zeros(64, 2048, 255)})
    brief = briefing(facts, Target.CUDA)
    few, many = (seconds(brief, f"column_slices(slices={slices}), loop_unrolling(factor=4)") for slices in (4, 16))
    assert few < many


def test_rows_in_parts_are_read_again_from_memory() -> None:
    facts, _ = trace(lambda x: torch.nn.functional.layer_norm(x, (2**20,)), {"x": torch.zeros(64, 2**20)})
    brief = briefing(facts, Target.CUDA)
    parts = "vector_loads(width=4), warp_shuffle_reduction, split_rows(parts=64)"
    assert seconds(brief, f"{parts}, one_pass_moments(method=welford)") < seconds(brief, parts)


def test_on_a_cpu_threads_vectors_and_polynomials_each_take_time_off() -> None:
    brief = about("gelu", Target.CPU)
    texts = ["", "threads", "threads, simd(width=16)", "threads, simd(width=16), polynomial_exp"]
    times = [seconds(brief, text) if text else _plain(brief) for text in texts]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


def _plain(brief: Briefing) -> float:
    rate = rates_of(brief)
    assert rate is not None
    return predicted(operator_of(brief), Strategy(techniques=()), brief.facts, rate).seconds


def test_measured_peaks_go_before_stated_ones_and_these_before_usual_ones() -> None:
    measured = Peaks(device_uid="GPU-0", bandwidth=4e12, scalar_flops=6e13, launch_seconds=7e-7, measured_at="")
    assert rates(H200, measured, NumericsPolicy.FP32).bandwidth == 4e12
    assert rates(H200, measured, NumericsPolicy.FP32).launch == 7e-7
    assert rates(H200, None, NumericsPolicy.FP32).bandwidth == 4.8e12
    assert rates(H200, None, NumericsPolicy.TF32).matrix > rates(H200, None, NumericsPolicy.FP32).matrix
    assert rates(CPU, None, NumericsPolicy.FP32).bandwidth > 0


def test_a_few_blocks_leave_a_card_idle_and_a_last_wave_half_empty() -> None:
    few = Geometry(blocks=33, threads=256, resident=4, units=132, launches=1)
    assert few.busy == 0.25
    assert few.filled == 1.0
    more = Geometry(blocks=132 * 4 + 132, threads=256, resident=4, units=132, launches=1)
    assert more.filled == pytest.approx(1.25 / 2)
    assert more.streaming(4e12, 16) > few.streaming(4e12, 16) > few.streaming(4e12, 4)
    one = Geometry(blocks=1, threads=1024, resident=2, units=132, launches=1)
    assert one.streaming(4e12, 1024) < 2 / 132  # one multiprocessor reads little more than its share


def test_strategies_that_are_near_each_other_are_of_one_class() -> None:
    assert ranks([1.0, 1.2, 2.0, 40.0, inf])[:2] == [0, 0]
    assert ranks([1.0, 1.2, 2.0, 40.0, inf])[2:4] == sorted(ranks([1.0, 1.2, 2.0, 40.0])[2:4])
    assert ranks([1.0, inf])[1] == LAST
    assert ranks([]) == []


def test_what_is_predicted_to_be_hopeless_is_not_tried_before_everything_else_was() -> None:
    """Calls of the C library are hopeless beside polynomials over vectors."""
    banned = ("prefetch", "nontemporal_stores", "loop_unrolling")
    brief = large(Target.CPU).model_copy(update={"banned": banned})
    forecast = Forecast(Space(brief, operator_of(brief)))
    found = [item.strategy for item in agents().manager.initial_strategies(brief, [], 40, 0)]
    hopeless = [forecast.hopeless(strategy) for strategy in found]
    assert not hopeless[0]
    assert any(hopeless), "nothing else was left"
    assert hopeless == sorted(hopeless), "they come last"


def test_what_won_elsewhere_is_not_tried_where_it_is_hopeless_unless_it_won_here() -> None:
    brief = large(Target.CPU)
    slow = parse("threads: ")
    assert Forecast(Space(brief, operator_of(brief))).hopeless(with_defaults(slow))
    elsewhere = match(slow, number=1, target=Target.CPU)
    entry = elsewhere.entry.model_copy(
        update={"id": "entry-2", "problem_hash": brief.facts.problem_hash, "device_class": "cpu"}
    )
    here = elsewhere.model_copy(update={"entry": entry})
    assert not [item for item in agents().manager.initial_strategies(brief, [elsewhere], 4, 0) if item.pool_entry]
    found = agents().manager.initial_strategies(brief, [elsewhere, here], 4, 0)
    assert [item.pool_entry for item in found if item.pool_entry] == ["entry-2"]


def test_without_guidance_nothing_is_predicted_and_the_ladder_keeps_its_order() -> None:
    case = everything()["gelu"]
    facts, _ = trace(case.function, case.inputs, case.parameters)
    brief = briefing(facts, Target.CPU, None)
    space = Space(brief, operator_of(brief))
    forecast = Forecast(space)
    rungs = [space.fitted(rung)[0] for rung in ladder(space.operator, Target.CPU)]
    assert forecast.order(rungs) == [0] * len(rungs)
    assert not any(forecast.hopeless(rung) for rung in rungs)


def test_long_rows_are_first_shared_by_teams_that_read_ahead() -> None:
    function, x = (lambda x: x / x.abs().sum(1, keepdim=True)), torch.zeros(300, 65_535)
    facts, _ = trace(function, {"x": x})
    brief = briefing(facts, Target.CUDA)
    first = agents().manager.initial_strategies(brief, [], 1, 0)[0].strategy
    assert first.use("team_rows")
    assert seconds(brief, "team_rows(share=96)") < seconds(brief, "team_rows(share=128)"), "none waits for the others"
    older = brief.model_copy(update={"device": H200.model_copy(update={"arch": "sm_80"})})
    assert not agents().manager.initial_strategies(older, [], 1, 0)[0].strategy.use("team_rows")
