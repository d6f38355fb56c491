"""JSONB columns of domain values: what is stored, and what is read back."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from sqlalchemy.dialects import postgresql

from cupilot.domain.evolution.methods import MethodConfig
from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.job import Budgets
from cupilot.domain.model_call import Answer, NoAnswer
from cupilot.storage.db.json_columns import ValidatedJson, part
from cupilot.storage.db.tables.jobs import Job

DIALECT = postgresql.dialect()


def stored(column: ValidatedJson, value: Any) -> Any:
    return column.process_bind_param(value, DIALECT)


def read(column: ValidatedJson, value: Any) -> Any:
    return column.process_result_value(value, DIALECT)


def test_a_value_is_stored_as_its_json_and_read_back() -> None:
    budgets = Budgets(candidates=7)
    assert stored(ValidatedJson(Budgets), budgets) == budgets.model_dump(mode="json")
    assert read(ValidatedJson(Budgets), budgets.model_dump(mode="json")) == budgets


def test_a_union_is_told_apart() -> None:
    assert read(ValidatedJson(MethodConfig), {"population": 4}) == SceConfig(population=4)
    responses = ValidatedJson(Answer | NoAnswer)
    assert read(responses, {"error": "no"}) == NoAnswer(error="no")
    answer = Answer(text="a", prompt_tokens=1, completion_tokens=2, cost_usd=0.5)
    assert read(responses, stored(responses, answer)) == answer


def test_what_is_not_of_the_type_is_refused() -> None:
    with pytest.raises(ValidationError):
        stored(ValidatedJson(Budgets), {"candidates": -1})
    with pytest.raises(ValidationError):
        read(ValidatedJson(Budgets), {"unknown": 1})


def test_none_is_null_or_an_empty_object() -> None:
    nullable, filled = ValidatedJson(Budgets), ValidatedJson(Budgets, empty_is_none=True)
    assert (stored(nullable, None), read(nullable, None)) == (None, None)
    assert (stored(filled, None), read(filled, {})) == ({}, None)
    assert read(nullable, {}) == Budgets()


def test_paths_lead_to_plain_json_or_to_a_part_as_a_value() -> None:
    text = Job.budgets["cost_usd"].astext.compile(dialect=DIALECT)
    assert "->>" in str(text)
    assert part(Job.method["name"], str).type.kind is str
