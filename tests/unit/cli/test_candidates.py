"""Requests and output of ``cupilot candidates`` and ``cupilot candidate``."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from cupilot.cli.app import app
from cupilot.cli.render import show_source
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
    page = {"items": [GOOD, TWIN], "next_cursor": "abc"}
    with serve(Answer(body=json.dumps(page).encode())) as script:
        options = ["--verdict", "audited", "--generation", "2", "--cursor", "xyz", "--limit", "2"]
        result = CliRunner().invoke(app, ["candidates", JOB, *options, "--server", script.url])
        asked = script.asked[-1].path
    assert result.exit_code == 0, result.output
    assert asked.split("?")[0].endswith(f"/jobs/{JOB}/candidates")
    assert set(asked.split("?")[1].split("&")) == {"verdict=audited", "generation=1", "cursor=xyz", "limit=2"}
    _, good, twin, more = result.output.splitlines()
    assert good.split()[:5] == ["3*", "2", "crossover", "audited", "1.83x"]
    assert "duplicate: duplicate_strategy" in twin
    assert more == "more: --cursor abc"
    assert "\x1b" not in result.output


def test_all_candidates_are_fetched_a_page_at_a_time() -> None:
    pages = ({"items": [GOOD], "next_cursor": "abc"}, {"items": [TWIN], "next_cursor": None})
    with serve(*(Answer(body=json.dumps(page).encode()) for page in pages)) as script:
        options = ["--all", "--order", "speedup", "--server", script.url]
        result = CliRunner().invoke(app, ["candidates", JOB, *options])
        asked = [set(item.path.split("?")[1].split("&")) for item in script.asked]
    assert result.exit_code == 0, result.output
    assert asked == [{"order=speedup", "limit=200"}, {"order=speedup", "limit=200", "cursor=abc"}]
    assert len(result.output.splitlines()) == 3, "a head and both, and no more to fetch"


def interval(median: float) -> dict[str, float]:
    return {"low": median * 0.9, "median": median, "high": median * 1.1}


def comparison(baseline: str, speedup: float) -> dict[str, Any]:
    times = {"kernel_us": interval(10), "baseline_us": interval(10 * speedup)}
    return {"baseline": baseline, "speedup": interval(speedup), "pairs": 9, "launches": 90, **times}


WHOLE: dict[str, Any] = GOOD | {
    "job": JOB,
    "name": "two rows at once",
    "insight": "memory waits",
    "fidelity": 0.5,
    "repairs": ["widened the load"],
    "strategy": {"techniques": [{"id": "simd"}, {"id": "async_copy"}], "rationale": "fewer trips"},
    "aligned_strategy": {"techniques": [{"id": "simd", "parameters": {"width": 8}}]},
    "kernel": {"hash": "0" * 64, "target": "cuda", "source": "// \x1b[2Jkernel\n\tint x;\n"},
    "evaluation": {
        "kernel_hash": "0" * 64,
        "problem_hash": "0" * 64,
        "verdict": "quarantined",
        "failure": {"kind": "below_floor", "message": "faster than\nmemory allows"},
        "build": {"ok": True, "compiler": "nvcc", "seconds": 1, "registers": 64, "instructions": {"async_copy": 4}},
        "laws": [
            {"law": "own", "passed": True, "error": 0, "tolerance": 1, "reference_error": 0},
            {"law": "wide_range", "passed": False, "error": 2, "tolerance": 1, "reference_error": 0},
        ],
        "comparisons": [comparison("eager", 2.0), comparison("torch.compile max-autotune", 0.5)],
        "profile": {"source": "measured", "metrics": {"memory_throughput_pct": 71.25}},
        "tunables": {"BLOCK": 128},
        "unchecked": ["poison"],
    },
    "lineage": [],
}


def shown(*options: str, **changes: Any) -> Any:
    """Run the command on the candidate so changed."""
    with serve(Answer(body=json.dumps(WHOLE | changes).encode())) as script:
        result = CliRunner().invoke(app, ["candidate", JOB, "3", *options, "--server", script.url])
        assert [asked.path for asked in script.asked] in ([f"/v1/jobs/{JOB}/candidates/3"], [])
    return result


def test_the_law_that_ended_an_evaluation_is_named_beside_those_that_passed() -> None:
    laws = [{"law": "own", "passed": True, "error": 0.0, "tolerance": 1.0, "reference_error": 0.0}]
    failure = {"kind": "wrong_value", "message": "wrong", "details": {"law": "constant_rows"}}
    evaluation = WHOLE["evaluation"] | {"laws": laws, "failure": failure}
    assert "1 of 1 passed, then constant_rows failed" in shown(evaluation=evaluation).output


def test_a_candidate_shows_how_far_it_came_how_fast_it_is_and_why() -> None:
    result = shown(verdict="quarantined", failure="below_floor")
    assert result.exit_code == 0, result.output
    width = len("over torch.compile max-autotune") + 2
    lines = {line[:width].strip(): line[width:] for line in result.output.splitlines()}
    assert lines["made by"] == "crossover, generation 2, called two rows at once, repaired 1 time, kept by selection"
    assert lines["came to"] == "quarantined: below_floor"
    assert lines["failure"] == "faster than"
    assert "memory allows" in result.output
    assert lines["input laws"] == "1 of 2 passed"
    assert lines["failed"] == "wide_range: error 2, accepted 1"
    assert lines["over PyTorch eager"].startswith("2.00x (95 % interval 1.80 to 2.20), faster; medians 10.0 us against")
    assert lines["over torch.compile"] == "not measured"
    assert lines["over torch.compile max-autotune"].startswith("0.50x (95 % interval 0.45 to 0.55), slower")
    assert lines["note"] == "these times do not count: the kernel is not proven"
    assert lines["tunables"] == "BLOCK=128"
    assert lines["measured metrics"] == "memory_throughput_pct 71.25"
    assert lines["build"] == "registers 64, async_copy 4"
    assert lines["unchecked"] == "poison"
    assert lines["strategy"] == "simd (width=8)"
    assert lines["asked for"] == "simd"
    assert lines["fidelity"].startswith("50%")
    assert lines["insight"] == "memory waits"
    assert lines["revised"] == "widened the load"
    assert lines["source"] == f"cupilot candidate {JOB} 3 --source"


def test_a_source_goes_into_a_pipe_as_it_is_and_harmless_to_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = shown("--source")
    assert (result.exit_code, result.stdout) == (0, WHOLE["kernel"]["source"])
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    show_source(WHOLE["kernel"]["source"])
    assert capsys.readouterr().out == "// [2Jkernel\n    int x;\n"


def test_a_source_that_is_not_there_is_told_apart_and_two_outputs_are_refused() -> None:
    pruned = shown("--source", kernel=WHOLE["kernel"] | {"source": "", "pruned_at": "2026-01-31T00:00:00Z"})
    assert (pruned.exit_code, pruned.stdout) == (4, "")
    assert "pruned" in pruned.stderr
    without = shown("--source", kernel=None)
    assert (without.exit_code, without.stdout) == (4, "")
    assert "has no kernel" in without.stderr
    assert shown("--source", "--json").exit_code == 2
    assert json.loads(shown("--json").stdout)["kernel"]["source"] == WHOLE["kernel"]["source"]
