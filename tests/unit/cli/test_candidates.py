"""What ``cupilot candidates`` asks for and prints."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from cupilot.cli.app import app
from tests.unit.client.scripted import Answer, serve

JOB = "3f2b8c1e-0000-4000-8000-000000000001"
GOOD: dict[str, Any] = {
    "id": "aaaaaaaa-0000-4000-8000-000000000002",
    "ordinal": 3,
    "generation": 1,
    "operator": "crossover",
    "state": "evaluated",
    "verdict": "audited",
    "speedup": 1.834,
    "techniques": ["simd", "two_rows\x1b[2J"],
    "parents": [],
    "repair_rounds": 1,
    "survives": True,
    "created_at": "2026-01-01T00:00:00Z",
}
TWIN = GOOD | {
    "ordinal": 4,
    "state": "duplicate",
    "reason": "duplicate_strategy",
    "verdict": None,
    "speedup": None,
    "survives": False,
}


def test_candidates_are_a_table_of_a_page() -> None:
    page = {"items": [GOOD, TWIN], "next_after": 4}
    with serve(Answer(body=json.dumps(page).encode())) as script:
        options = ["--verdict", "audited", "--generation", "2", "--after", "2", "--limit", "2"]
        result = CliRunner().invoke(app, ["candidates", JOB, *options, "--server", script.url])
        asked = script.asked[-1].path
    assert result.exit_code == 0, result.output
    assert asked.split("?")[0].endswith(f"/jobs/{JOB}/candidates")
    assert set(asked.split("?")[1].split("&")) == {"verdict=audited", "generation=1", "after=2", "limit=2"}
    _, good, twin, more = result.output.splitlines()
    assert good.split()[:5] == ["3*", "2", "crossover", "audited", "1.83x"]
    assert "duplicate: duplicate_strategy" in twin
    assert more == "more: --after 4"
    assert "\x1b" not in result.output
