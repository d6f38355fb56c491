"""The technique catalogue is consistent in itself and with the templates."""

from __future__ import annotations

import pytest

from agents.playbook import conditions_launches, conditions_matmul, conditions_pointwise, conditions_rows
from agents.playbook.evidence import SOURCE
from agents.playbook.ladders import ladder
from agents.playbook.operators import Pointwise
from agents.playbook.recognition import recognise
from agents.playbook.revisor import SHRINKABLE, SUSPECTS
from cupilot.domain.problem import NumericsPolicy, Target
from cupilot.domain.strategy import problems_with
from cupilot.domain.technique import Technique, catalogue
from tests.unit.agents.playbook.operators_under_test import pointwise, products, rows
from tests.unit.agents.playbook.references import trace

OP_CLASSES = {"elementwise", "softmax", "norm", "reduction", "matmul", "loss", "attention", "conv", "pool", "scan"}
FOR_MODELS = {
    *("sliding_window", "halo_strips", "shuffle_halo", "shifted_stores", "taps_in_registers", "implicit_gemm"),
    *("winograd", "carried_scan", "look_back", "on_chip_residency", "reversed_pass", "bulk_ring"),
}
"""Techniques that models are offered and no template has."""
METRICS = {
    *("memory_throughput_pct", "compute_throughput_pct", "floor_pct", "occupancy_pct"),
    *("registers", "spill_bytes", "shared_bytes"),
    *("tensor_core", "vector_load_128", "async_copy", "tma_load", "simd_512"),
}


def test_the_catalogue_is_large_and_serves_both_targets() -> None:
    targets = [technique.targets for technique in catalogue()]
    assert len(targets) >= 40
    assert sum(Target.CUDA in item for item in targets) >= 20
    assert sum(Target.CPU in item for item in targets) >= 14


@pytest.mark.parametrize("technique", list(catalogue()), ids=lambda technique: technique.id)
def test_a_technique_is_consistent(technique: Technique) -> None:
    assert technique.title
    assert len(technique.summary) > 40
    assert technique.expected, "every technique says what it should move"
    assert {change.metric for change in technique.expected} <= METRICS
    assert set(technique.op_classes) <= OP_CLASSES
    assert set(technique.zones) <= {"memory", "middle", "compute"}
    assert set(technique.policies) <= {policy.value for policy in NumericsPolicy}
    for parameter in technique.parameters.values():
        assert parameter.default in parameter.choices
        assert parameter.meaning
    for other in technique.requires:
        needed = catalogue().get(other)
        assert needed is not None
        assert set(technique.targets) <= set(needed.targets)
        assert other not in technique.conflicts
    for other in technique.conflicts:
        rival = catalogue().get(other)
        assert rival is not None
        assert technique.id in rival.conflicts, "conflicts are mutual"


def test_every_technique_has_a_template_and_templates_know_no_others() -> None:
    families = conditions_pointwise, conditions_rows, conditions_matmul, conditions_launches
    tables = {Target.CUDA: [family.CUDA for family in families], Target.CPU: [family.CPU for family in families]}
    for target, checks in tables.items():
        applied = {technique for family in checks for technique in family}
        assert applied == {each.id for each in catalogue() if target in each.targets} - FOR_MODELS


def test_rules_name_techniques_of_the_catalogue() -> None:
    known = {technique.id for technique in catalogue()}
    assert {name for names in SUSPECTS.values() for name in names} <= known
    assert set(SHRINKABLE) <= known
    assert set(SOURCE) <= known


@pytest.mark.parametrize("target", list(Target))
def test_ladders_are_valid_under_some_policy(target: Target) -> None:
    for case in (pointwise()["gelu"], rows()["softmax"], products()["mm"]):
        operator = recognise(trace(case.function, case.inputs, case.parameters)[0])
        rungs = ladder(operator, target)
        assert len({rung.signature() for rung in rungs}) == len(rungs)
        assert not rungs[-1].techniques, "the plain kernel is the last rung"
        assert len(rungs) >= (6 if isinstance(operator, Pointwise) else 8)
        for rung in rungs:
            assert rung.rationale
            problems = [problems_with(rung, catalogue(), target, policy) for policy in NumericsPolicy]
            assert [] in problems, (rung.ids(), problems)
