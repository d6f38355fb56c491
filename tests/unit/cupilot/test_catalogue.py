"""The technique catalogue: every cross-reference holds."""

from __future__ import annotations

import pytest

from cupilot.domain.problem import NumericsPolicy, Target
from cupilot.domain.roofline import Zone
from cupilot.domain.technique import Catalogue, Technique, catalogue

TECHNIQUES = list(catalogue())
OP_CLASSES = {
    "elementwise", "softmax", "norm", "reduction", "matmul", "conv", "pool", "scan", "loss", "attention", "other"
}  # fmt: skip


def test_there_are_enough_for_both_targets() -> None:
    assert len(TECHNIQUES) >= 25
    for target in Target:
        assert sum(target in technique.targets for technique in TECHNIQUES) >= 8


@pytest.mark.parametrize("technique", TECHNIQUES, ids=lambda technique: technique.id)
def test_references_exist_and_hold(technique: Technique) -> None:
    known = catalogue()
    for other in (*technique.requires, *technique.conflicts):
        assert other in known, f"{technique.id} names {other}, which the catalogue does not have"
    for other in technique.conflicts:
        back = known.get(other)
        assert back is not None
        assert technique.id in back.conflicts, f"{technique.id} conflicts with {other}, but not the other way round"
    assert technique.id not in (*technique.requires, *technique.conflicts)
    assert not set(technique.requires) & set(technique.conflicts)
    for other in technique.requires:
        needed = known.get(other)
        assert needed is not None
        assert set(technique.targets) <= set(needed.targets), f"{technique.id} needs {other} on a target it is not for"


@pytest.mark.parametrize("technique", TECHNIQUES, ids=lambda technique: technique.id)
def test_words_are_the_systems_own(technique: Technique) -> None:
    assert set(technique.zones) <= {zone.value for zone in Zone}
    assert set(technique.policies) <= {policy.value for policy in NumericsPolicy}
    assert set(technique.op_classes) <= OP_CLASSES
    assert technique.title
    assert technique.summary.endswith(".")
    assert technique.expected, f"{technique.id} does not say which metric it should move"


@pytest.mark.parametrize("technique", TECHNIQUES, ids=lambda technique: technique.id)
def test_parameters_have_their_default_among_their_choices(technique: Technique) -> None:
    for name, parameter in technique.parameters.items():
        assert parameter.default in parameter.choices, f"{technique.id}.{name}"
        assert len(set(parameter.choices)) == len(parameter.choices)
        assert parameter.meaning


def test_a_catalogue_refuses_the_same_id_twice() -> None:
    with pytest.raises(ValueError, match="same id"):
        Catalogue((TECHNIQUES[0], TECHNIQUES[0]))


def test_an_unknown_id_is_none() -> None:
    assert catalogue().get("no_such_technique") is None
    assert "no_such_technique" not in catalogue()
