"""Notes on a candidate: which change the Revisor reported of which kernel."""

from __future__ import annotations

from cupilot.domain.evolution.notes import Notes
from cupilot.domain.evolution.population import Operator


def test_each_revised_kernel_has_the_change_that_made_it() -> None:
    notes = Notes(repairs=("guarded the tail", "wider loads"))
    changes = [notes.change(number, Operator.CROSSOVER) for number in range(4)]
    assert changes == ["", "guarded the tail", "wider loads", ""]


def test_the_answer_about_a_kernel_below_the_floor_is_a_revision_from_the_first() -> None:
    notes = Notes(repairs=("put the last tile back",))
    assert [notes.change(number, Operator.MUTATION) for number in range(2)] == ["put the last tile back", ""]
