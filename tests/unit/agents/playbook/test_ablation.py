"""A winner without one technique: by the templates where they made it, else by tunables of the technique's name."""

from __future__ import annotations

import pytest

from agents.playbook import agents
from agents.playbook.ablation import ablations
from agents.playbook.ladders import parse
from cupilot.domain.attribution import AblationWay
from cupilot.domain.kernel import Tunable
from cupilot.domain.problem import Target
from tests.unit.agents.playbook.test_manager import about

PLAYBOOK = agents()


@pytest.mark.parametrize("target", list(Target))
def test_the_templates_take_away_what_they_put_in(target: Target) -> None:
    brief = about("softmax", target)
    for item in PLAYBOOK.manager.initial_strategies(brief, [], 6, 0):
        winner = PLAYBOOK.translator.translate(brief, item.strategy, (), 0)
        found = ablations(brief, item.strategy, winner)
        assert [each.technique for each in found] == list(item.strategy.ids())
        for each in found:
            assert each.technique not in each.strategy.ids()
            assert {each.technique, *each.removed, *each.strategy.ids()} == set(item.strategy.ids())
            if each.kernel is None:
                assert each.note
            else:
                assert each.way is AblationWay.PLAYBOOK
                assert each.kernel == PLAYBOOK.translator.translate(brief, each.strategy, (), 0)
    assert any(each.kernel is not None and not each.same_code for each in found)


def test_what_cannot_be_rendered_without_a_technique_goes_with_it() -> None:
    brief = about("softmax", Target.CPU)
    strategy = parse(
        "threads, simd(width=16), polynomial_exp, multiple_accumulators(count=4): several chains of vectors"
    )
    winner = PLAYBOOK.translator.translate(brief, strategy, (), 0)
    _, simd, _, _ = ablations(brief, strategy, winner)
    assert set(simd.removed) == {"polynomial_exp", "multiple_accumulators"}
    assert simd.strategy.ids() == ("threads",)
    assert simd.kernel is not None
    assert not simd.same_code


def test_a_sweep_makes_no_other_kernel_of_a_rendered_one() -> None:
    brief = about("softmax", Target.CUDA)
    strategy = PLAYBOOK.manager.initial_strategies(brief, [], 6, 0)[0].strategy
    rendered = PLAYBOOK.translator.translate(brief, strategy, (), 0)
    other = {
        name: next(choice for choice in tunable.choices if choice != tunable.value)
        for name, tunable in rendered.plan.tunables.items()
    }
    assert other
    assert ablations(brief, strategy, rendered.tuned(other)) == ablations(brief, strategy, rendered)


def test_a_kernel_that_no_template_wrote_is_changed_by_tunables_only() -> None:
    brief = about("softmax", Target.CPU)
    strategy = parse("threads, simd(width=16), loop_unrolling(factor=4): by hand")
    rendered = PLAYBOOK.translator.translate(brief, parse("threads: threads only"), (), 0)
    tunables = {
        "LOOP_UNROLLING_FACTOR": Tunable(value=4, choices=(1, 2, 4)),
        "SIMD": Tunable(value=16, choices=(8, 16)),
    }
    plan = rendered.plan.model_copy(update={"tunables": tunables})
    winner = rendered.model_copy(update={"source": rendered.source + "\nint by_hand;", "plan": plan})
    threads, simd, unrolling = ablations(brief, strategy, winner)
    assert threads.kernel is None
    assert simd.kernel is None, "no choice of its tunable means without"
    assert unrolling.way is AblationWay.TUNABLES
    assert unrolling.kernel is not None
    assert unrolling.kernel.source == winner.source
    assert unrolling.kernel.plan.values() == {"LOOP_UNROLLING_FACTOR": 1, "SIMD": 16}
    assert unrolling.kernel.plan.tunables["LOOP_UNROLLING_FACTOR"].choices == (1,), "no sweep sets it back"
