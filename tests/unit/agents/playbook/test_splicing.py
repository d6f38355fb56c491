"""Crossover of two texts: every line is a parent's, in a parent's order; equal seeds give equal children."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agents.playbook.splicing import spliced
from cupilot.domain.kernel import Kernel, Launch, LaunchPlan
from cupilot.domain.problem import Target

lines = st.lists(st.sampled_from(["a", "b", "c", "d", "e"]), min_size=1, max_size=20)


def kernel(text: list[str], name: str) -> Kernel:
    plan = LaunchPlan(launches=(Launch(kernel=name, args=("x", "out")),))
    return Kernel(target=Target.CPU, source="\n".join(text) + "\n", plan=plan)


@given(lines, lines, st.integers())
def test_every_line_is_of_a_parent(one: list[str], other: list[str], seed: int) -> None:
    first, second = kernel(one, "f"), kernel(other, "g")
    child = spliced(first, second, seed)
    assert set(child.source.split()) <= {*one, *other}
    assert child.plan in (first.plan, second.plan)
    assert child == spliced(first, second, seed)


@given(lines, st.integers())
def test_equal_parents_have_an_equal_child(one: list[str], seed: int) -> None:
    parent = kernel(one, "f")
    assert spliced(parent, parent, seed) == parent


def test_differences_come_from_both() -> None:
    first, second = kernel(["a1", "same", "b1"], "f"), kernel(["a2", "same", "b2"], "g")
    children = {spliced(first, second, seed).source for seed in range(20)}
    assert children == {"a1\nsame\nb2\n", "a2\nsame\nb1\n"}
