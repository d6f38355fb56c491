"""The Revisor blames the right technique, shrinks before it drops, and stops."""

from __future__ import annotations

import pytest
import torch

from agents.interface import Attempt, Briefing
from agents.playbook import agents
from agents.playbook.ladders import parse
from agents.playbook.revisor import SUSPECTS
from cupilot.domain.evaluation import FailureKind
from cupilot.domain.problem import Target
from cupilot.domain.roofline import Zone
from cupilot.domain.strategy import Strategy
from tests.unit.agents.playbook.briefings import briefing
from tests.unit.agents.playbook.evaluations import attempt, audited, failed
from tests.unit.agents.playbook.references import trace

REVISOR = agents().revisor


def softmax(target: Target = Target.CUDA) -> Briefing:
    facts, _ = trace(lambda x: torch.softmax(x, 1), {"x": torch.zeros(64, 1024)})
    return briefing(facts, target)


def product() -> Briefing:
    facts, _ = trace(torch.matmul, {"a": torch.zeros(512, 512), "b": torch.zeros(512, 512)})
    return briefing(facts, Target.CUDA, Zone.COMPUTE)


def revised(brief: Briefing, text: str, kind: FailureKind) -> Strategy:
    revision = REVISOR.revise(brief, [attempt(parse(text), failed(kind))], 0)
    assert revision is not None
    assert kind.value in revision.note
    assert revision.kernel.target is brief.target
    return revision.strategy


def test_wrong_values_cost_the_approximation_first() -> None:
    strategy = revised(softmax(), "vector_loads, register_rows, fast_exp: ", FailureKind.WRONG_VALUE)
    assert strategy.ids() == ("vector_loads", "register_rows")


def test_without_approximations_wrong_values_point_at_addressing() -> None:
    strategy = revised(softmax(), "register_rows, vector_loads: ", FailureKind.WRONG_VALUE)
    assert strategy.ids() == ("register_rows",)


def test_a_crash_on_the_cpu_points_at_aligned_stores() -> None:
    text = "threads, simd, polynomial_exp, nontemporal_stores: "
    strategy = revised(softmax(Target.CPU), text, FailureKind.CRASH)
    assert strategy.ids() == ("threads", "simd", "polynomial_exp")


def test_a_failed_launch_shrinks_before_it_drops() -> None:
    text = "shared_tiling(tile_m=128, tile_n=128, tile_k=32), register_blocking, async_copy(stages=4): "
    strategy = revised(product(), text, FailureKind.LAUNCH_ERROR)
    use = strategy.use("async_copy")
    assert use is not None
    assert use.parameters["stages"] == 3
    assert strategy.use("shared_tiling") is not None


def test_dropping_a_technique_takes_along_what_requires_it() -> None:
    history: list[Attempt] = [attempt(parse("warp_per_row, rows_per_warp: "), failed(FailureKind.TIMEOUT))]
    revision = REVISOR.revise(softmax(), history, 0)
    assert revision is not None
    assert revision.strategy.ids() == ()


def test_each_round_tries_something_new_and_the_last_is_the_plain_kernel() -> None:
    brief = softmax()
    history = [attempt(parse("vector_loads, register_rows, fast_exp, streaming_access: "), failed(FailureKind.CRASH))]
    signatures = {history[0].strategy.signature()}
    for _ in range(20):
        revision = REVISOR.revise(brief, history, 0)
        if revision is None:
            break
        assert revision.strategy.signature() not in signatures
        signatures.add(revision.strategy.signature())
        history.append(attempt(revision.strategy, failed(FailureKind.CRASH), revision.kernel))
    else:
        pytest.fail("the revisor never gave up")
    assert history[-1].strategy.techniques == ()
    assert len(history) >= 4


@pytest.mark.parametrize(
    "kind",
    [FailureKind.INFRASTRUCTURE, FailureKind.BELOW_FLOOR, FailureKind.INVALID_PROBLEM, FailureKind.CLOCK_MISMATCH],
)
def test_failures_that_no_strategy_can_mend_are_given_up(kind: FailureKind) -> None:
    assert kind not in SUSPECTS
    assert REVISOR.revise(softmax(), [attempt(parse("vector_loads: "), failed(kind))], 0) is None


def test_nothing_to_revise_gives_nothing() -> None:
    brief = softmax()
    assert REVISOR.revise(brief, [], 0) is None
    assert REVISOR.revise(brief, [attempt(parse("vector_loads: "))], 0) is None
    assert REVISOR.revise(brief, [attempt(parse("vector_loads: "), audited({}))], 0) is None
    assert REVISOR.revise(brief, [attempt(Strategy(techniques=()), failed(FailureKind.CRASH))], 0) is None


@pytest.mark.parametrize("kind", list(SUSPECTS))
def test_every_known_failure_leads_to_a_smaller_strategy(kind: FailureKind) -> None:
    text = "vector_loads, warp_shuffle_reduction, shared_rows, online_softmax, streaming_access: "
    strategy = revised(softmax(), text, kind)
    assert len(strategy.techniques) < 5
    assert set(strategy.ids()) < set(parse(text).ids())
