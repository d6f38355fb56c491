"""Strategies against the catalogue's rules."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from cupilot.domain.problem import NumericsPolicy, Target
from cupilot.domain.strategy import MAX_MEANING as LONGEST
from cupilot.domain.strategy import MAX_TECHNIQUES, Strategy, TechniqueUse, problems_with, shortened_meaning
from cupilot.domain.technique import Catalogue, Parameter, Resource, Technique


def technique(name: str, **changes: object) -> Technique:
    fields = {"id": name, "title": name, "summary": name, "resource": Resource.DRAM, "targets": tuple(Target)}
    return Technique.model_validate({**fields, **changes})


CATALOGUE = Catalogue(
    (
        technique("vector_loads", parameters={"width": Parameter(choices=(2, 4), default=4, meaning="elements")}),
        technique("online", conflicts=("two_pass",)),
        technique("two_pass", conflicts=("online",)),
        technique("double_buffer", requires=("staging",)),
        technique("staging", targets=(Target.CUDA,)),
        technique("tensor_cores", policies=("tf32", "half")),
    )
)


def strategy(*uses: str | TechniqueUse) -> Strategy:
    return Strategy(techniques=tuple(use if isinstance(use, TechniqueUse) else TechniqueUse(id=use) for use in uses))


def problems(*uses: str | TechniqueUse, target: Target = Target.CUDA) -> list[str]:
    return problems_with(strategy(*uses), CATALOGUE, target, NumericsPolicy.FP32)


def test_good_strategies_have_no_problems() -> None:
    assert problems() == []
    assert problems("double_buffer", "staging", TechniqueUse(id="vector_loads", parameters={"width": 2})) == []


def test_unknown_techniques_are_novel_not_wrong() -> None:
    assert problems("swizzle_by_moonlight") == []


@pytest.mark.parametrize(
    ("uses", "target", "problem"),
    [
        (("staging",), Target.CPU, "staging is not for target cpu"),
        (("tensor_cores",), Target.CUDA, "tensor_cores is not allowed under policy fp32"),
        (("double_buffer",), Target.CUDA, "double_buffer requires staging"),
        (
            ("vector_loads_x", TechniqueUse(id="vector_loads", parameters={"depth": 1})),
            Target.CUDA,
            "no parameter depth",
        ),
        ((TechniqueUse(id="vector_loads", parameters={"width": 3}),), Target.CUDA, "width = 3 is not one of"),
        ((TechniqueUse(id="vector_loads", parameters={"width": "4"}),), Target.CUDA, "width = '4' is not one of"),
    ],
)
def test_each_rule(uses: tuple[str | TechniqueUse, ...], target: Target, problem: str) -> None:
    found = problems(*uses, target=target)
    assert len(found) == 1
    assert problem in found[0]


def test_a_conflict_is_named_from_both_sides() -> None:
    assert problems("online", "two_pass") == ["online conflicts with two_pass", "two_pass conflicts with online"]


def test_all_problems_are_listed_not_the_first() -> None:
    assert len(problems("double_buffer", "tensor_cores", target=Target.CPU)) == 2


def test_a_technique_appears_once() -> None:
    with pytest.raises(ValidationError, match="appears twice"):
        strategy("online", "online")
    with pytest.raises(ValidationError, match=f"at most {MAX_TECHNIQUES}"):
        strategy(*(f"technique_{n}" for n in range(MAX_TECHNIQUES + 1)))


def test_signature_ignores_order_and_prose_identity_ignores_prose_only() -> None:
    one = strategy("online", "staging")
    other = strategy("staging", "online")
    told = Strategy(techniques=one.techniques, rationale="because")
    assert one.signature() == other.signature() == told.signature()
    assert one.content_hash() == told.content_hash()
    assert one.content_hash() != other.content_hash()


def test_signature_counts_parameters() -> None:
    two, four = (strategy(TechniqueUse(id="vector_loads", parameters={"width": n})) for n in (2, 4))
    assert two.signature() != four.signature()


def test_signature_of_mixed_parameter_types_is_defined() -> None:
    mixed = strategy(TechniqueUse(id="aa", parameters={"p": 1}), TechniqueUse(id="bb", parameters={"p": "x", "a": 2}))
    assert len(mixed.signature()) == 64


def test_a_long_meaning_ends_with_a_whole_sentence() -> None:
    sentence = "BLOCK is how many threads share a row. "
    long = sentence * 100
    assert shortened_meaning(sentence) == sentence
    assert shortened_meaning(long).endswith("share a row.")
    assert LONGEST - len(sentence) < len(shortened_meaning(long)) <= LONGEST
    assert len(shortened_meaning("x" * 3 * LONGEST)) == LONGEST
