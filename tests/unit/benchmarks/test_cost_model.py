"""The cost model's report: figures by problem and family, and a page that is the record's."""

from __future__ import annotations

from typing import Any

from agents.playbook.ladders import parse
from benchmarks import cost_model, cost_model_page, cost_points


def row(predicted: float, measured: float, rung: int | None) -> dict[str, Any]:
    off = max(predicted / measured, measured / predicted)
    fixed = {"target": "cuda", "family": "rows", "problem": "softmax fp32", "source": "a", "strategy": ""}
    return {**fixed, "rung": rung, "measured_us": measured, "predicted_us": predicted, "off": off}


def test_the_page_is_what_the_record_says() -> None:
    assert cost_model_page.PAGE.read_text(encoding="utf-8") == cost_model_page.page(), (
        "run python -m benchmarks.cost_model_page --write"
    )


def test_an_order_is_judged_within_a_problem_and_by_what_the_first_one_loses() -> None:
    rows = [row(1.0, 20.0, 1), row(2.0, 10.0, None), row(3.0, 40.0, 0)]
    (found,) = cost_model.problems_of(rows)
    assert (found["first"], found["ladder_first"], found["rank"]) == (2.0, 4.0, 0.5)
    (family,) = cost_model.summary(rows)
    assert (family["points"], family["problems"], family["off"]) == (3, 1, 40.0 / 3.0)
    assert cost_model.problems_of(rows[:2]) == [], "two strategies have no order to speak of"


def test_a_strategy_is_read_back_from_its_text() -> None:
    strategy = parse("vector_loads(width=4), register_rows: kept")
    assert parse(f"{cost_points.text_of(strategy)}: kept") == strategy
