"""Output of ``cupilot calls`` and ``cupilot prompt``."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from cupilot.cli.app import app
from tests.unit.client.scripted import Answer, serve

JOB = "3f2b8c1e-0000-4000-8000-000000000001"
CALL = "aaaaaaaa-0000-4000-8000-000000000002"
SUMMARY: dict[str, Any] = {
    "id": CALL,
    "candidate": 3,
    "step": "c3/translate/0",
    "role": "translator",
    "purpose": "translate",
    "attempt": 0,
    "model": "openai/x",
    "state": "answered",
    "cached": False,
    "complaint": "there is no fenced block",
    "prompt_tokens": 1200,
    "completion_tokens": 80,
    "cost_usd": 0.0021,
    "created_at": "2026-01-01T00:00:00Z",
}
WHOLE = SUMMARY | {
    "job": JOB,
    "messages": [{"role": "user", "content": "write a kernel\n\x1b[2Jhidden"}],
    "prompt_hash": "0" * 64,
    "parameters": {"seed": 1},
    "answer": "no",
}


def run(url: str, *arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments, "--server", url])
    assert result.exit_code == 0, result.output
    return result.output


def test_calls_are_a_table_with_cost_and_complaint() -> None:
    with serve(Answer(body=json.dumps({"items": [SUMMARY], "next_cursor": "c"}).encode())) as script:
        text = run(script.url, "calls", JOB, "--candidate", "3")
        assert script.asked[-1].path.split("?")[0].endswith("/candidates/3/calls")
    for part in ("aaaaaaaa", "c3/translate/0", "1200+80", "0.0021", "no fenced block", "more: --cursor c"):
        assert part in text


def test_a_prompt_is_printed_whole_and_cannot_move_the_cursor() -> None:
    answers = [
        Answer(body=json.dumps({"items": [SUMMARY]}).encode()),
        Answer(body=json.dumps(WHOLE).encode()),
    ]
    with serve(*answers) as script:
        text = run(script.url, "prompt", JOB, "aaaa")
    assert "=== user\nwrite a kernel\n" in text
    assert "=== answer\nno" in text
    assert "=== why it could not be used" in text
    assert "\x1b" not in text
