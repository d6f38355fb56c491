"""Strategies and kernels that differ in words only are alike; any other difference makes them different."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cupilot.domain.evolution.novelty import kernel_key, strategy_key
from cupilot.domain.kernel import Kernel, Launch, LaunchPlan, Tunable
from cupilot.domain.problem import Target
from cupilot.domain.strategy import Strategy, TechniqueUse
from cupilot.domain.technique import catalogue

SOURCE = '#include "problem.h"\nextern "C" void f(const float* x, float* out) {\n  out[0] = x[0] - -1.0f;\n}\n'


def kernel(source: str = SOURCE, **tunables: Tunable) -> Kernel:
    launches = (Launch(kernel="f", args=("x", "out")),)
    return Kernel(target=Target.CPU, source=source, plan=LaunchPlan(launches=launches, tunables=tunables))


@pytest.mark.parametrize(
    "same",
    [
        SOURCE.replace("  out", "\tout"),
        SOURCE.replace("out[0] =", "out[0]="),
        "// a comment\n" + SOURCE,
        SOURCE.replace("{\n", "{ /* two\nlines */\n\n\n"),
        SOURCE.rstrip("\n"),
    ],
)
def test_words_and_blanks_make_no_other_kernel(same: str) -> None:
    assert kernel_key(kernel(same)) == kernel_key(kernel())


@pytest.mark.parametrize(
    "other",
    [
        SOURCE.replace("- -", "--"),
        SOURCE.replace("x[0]", "x[1]"),
        SOURCE.replace('"problem.h"', '"problem.h "'),
        SOURCE.replace('.h"\n', '.h" '),
    ],
)
def test_anything_else_does(other: str) -> None:
    assert kernel_key(kernel(other)) != kernel_key(kernel())


def test_another_plan_makes_another_kernel() -> None:
    assert kernel_key(kernel(N=Tunable(value=1, choices=(1, 2)))) != kernel_key(
        kernel(N=Tunable(value=2, choices=(1, 2)))
    )


def strategy(*uses: TechniqueUse) -> Strategy:
    return Strategy(techniques=uses)


def test_a_parameter_that_is_left_out_has_its_default() -> None:
    one = next(
        each for each in catalogue() if len((next(iter(each.parameters.values()), None) and each.parameters) or {}) >= 1
    )
    name, parameter = next(iter(one.parameters.items()))
    bare, written = (
        strategy(TechniqueUse(id=one.id)),
        strategy(TechniqueUse(id=one.id, parameters={name: parameter.default})),
    )
    other = next(value for value in parameter.choices if value != parameter.default)
    assert strategy_key(bare, catalogue()) == strategy_key(written, catalogue())
    assert strategy_key(bare, catalogue()) != strategy_key(
        strategy(TechniqueUse(id=one.id, parameters={name: other})), catalogue()
    )


def test_values_of_several_types_can_be_told_apart() -> None:
    uses = [TechniqueUse(id="my_idea", parameters={"n": 4}), TechniqueUse(id="my_ideas", parameters={"n": "four"})]
    assert strategy_key(strategy(*uses), catalogue()) == strategy_key(strategy(*uses[::-1]), catalogue())


def test_an_unknown_technique_is_known_again_by_another_spelling() -> None:
    keys = {
        strategy_key(strategy(TechniqueUse(id=name)), catalogue()) for name in ("warp_tile", "warptile", "warp_tiles")
    }
    assert len(keys) == 1


@given(st.permutations(sorted(technique.id for technique in catalogue())[:6]))
def test_order_and_prose_do_not_count(order: list[str]) -> None:
    mixed = Strategy(techniques=tuple(TechniqueUse(id=member) for member in order), rationale="why")
    ordered = Strategy(techniques=tuple(TechniqueUse(id=item) for item in sorted(order)))
    assert strategy_key(mixed, catalogue()) == strategy_key(ordered, catalogue())


@given(st.text(max_size=80))
def test_any_text_has_a_key(text: str) -> None:
    source = text.replace("\0", "") or " "
    assert kernel_key(kernel(source)) == kernel_key(kernel(source))
