"""The views of a running job, on a terminal and in a pipe."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from rich.console import Console
from rich.live import Live

from cupilot.cli.live import JsonLines, LiveView, PlainLines, summary_line
from cupilot.schemas import EventView, JobView, PreparationSummary
from tests.unit.cli.test_commands import _job, prepared

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def _view(**changes: Any) -> JobView:
    return JobView.model_validate(_job(**changes))


def _event(kind: str, **data: Any) -> EventView:
    return EventView(id=1, kind=kind, data=data, created_at=NOW)


def test_plain_lines_tell_each_event_and_each_change_once(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainLines(to_stderr=False)
    running = _view(state="evolving", candidates=3, verdicts={"audited": 1})
    display.update(_view(queue_position=2), [_event("job.queued"), _event("step.queued")])
    display.update(running, [_event("job.evolving")])
    display.update(running.model_copy(update={"wall_seconds": 9.0}), [])
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 4
    assert "queued" in out[0]
    assert "2 jobs before it" in out[1]
    assert "evolving" in out[2]
    assert "generation 1/4, 3 candidates (audited 1), no proven kernel yet" in out[3]


def test_notes_of_the_preparation_are_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainLines(to_stderr=False)
    display.update(_view(state="preparing"), [])
    for _ in range(2):
        display.update(_view(state="evolving", preparation=prepared("law signed left out: why")), [])
    assert capsys.readouterr().out.count("note: input distribution signed left out: why") == 1


def test_json_lines_are_one_object_an_update(capsys: pytest.CaptureFixture[str]) -> None:
    display = JsonLines()
    display.update(_view(), [_event("job.queued", text='quote " and \n newline')])
    display.update(_view(state="evolving"), [])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["job"]["state"] for line in lines] == ["queued", "evolving"]
    assert [len(line["events"]) for line in lines] == [1, 0]


def test_the_live_view_shows_progress_best_and_the_last_events() -> None:
    screen = io.StringIO()
    display = LiveView(stderr=False)
    console = Console(file=screen, force_terminal=True, width=100, height=40, highlight=False, markup=False)
    display._console = console
    display._live = Live(console=console, auto_refresh=False)
    one = {"low": 1.0, "median": 1.0, "high": 1.0}
    best = {
        "candidate": str(UUID(int=1)),
        "ordinal": 1,
        "generation": 0,
        "verdict": "audited",
        "speedup": {"low": 1.82, "median": 1.84, "high": 1.86},
        "kernel_us": one,
        "baseline_us": one,
        "strategy": {"techniques": [{"id": "online_softmax"}]},
    }
    hostile = {"id": str(UUID(int=2)), "name": "[red]n\x1b[2J[/red]", "policy": "fp32", "hash": "h"}
    job = _view(
        state="evolving", generation=1, candidates=9, verdicts={"audited": 4}, best=best, problem=hostile, cost_usd=0.25
    ).model_copy(update={"preparation": PreparationSummary.model_validate(prepared("line 9 makes a number"))})
    with display:
        events = [_event("candidate.evaluated", ordinal=n, verdict="audited") for n in range(20)]
        display.update(job, events)
    text = screen.getvalue()
    assert "[red]n[2J[/red] on cpu, policy fp32" in text
    assert "2 of 4" in text
    assert "line 9 makes a number" in text
    assert "9 (audited 4)" in text
    assert "1.84x [1.82, 1.86] over PyTorch eager, audited: online_softmax" in text
    assert "0.25 USD" in text
    assert "candidate 19 evaluated: audited" in text
    assert "candidate 5 evaluated" not in text
    assert "\x1b[2J" not in text


def test_a_summary_of_a_job_that_waits_says_how_many_are_before_it() -> None:
    assert summary_line(_view(queue_position=0)) == "queued: next in the queue"
    assert summary_line(_view(queue_position=1)) == "queued: 1 job before it"
    assert summary_line(_view(queue_position=12)) == "queued: 12 jobs before it"
