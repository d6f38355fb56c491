"""Every command teaches itself: help with examples, output for programs, exit codes."""

from __future__ import annotations

import pytest
from click.testing import Result
from typer.testing import CliRunner

from cupilot.cli.app import app
from cupilot.cli.requests import JobOptions

pytestmark = pytest.mark.usefixtures("alone")

COMMANDS = [
    "evolve",
    "submit",
    "status",
    "watch",
    "list",
    "cancel",
    "result",
    "export",
    "candidates",
    "steps",
    "logs",
    "calls",
    "prompt",
    "leaderboard",
    "compare",
    "judge",
    "remeasure",
    "techniques",
    "top",
    "problems",
    "up",
    "down",
    "doctor",
    "version",
    "whoami",
    "quota",
    "audit",
    "backup",
    "restore",
    "env",
    "pause",
    "resume",
    "retry",
    "fork",
    "pin",
    "ban",
    "inject",
    "directives",
    "lift",
    "change",
]


def run(*arguments: str) -> Result:
    """The command line in this process."""
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_teaches_by_example_and_can_speak_json(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert "Example" in result.output
    assert f"cupilot {command}" in result.output
    assert "--json" in result.output
    assert "Exit codes" in result.output


def test_every_command_of_the_application_is_tested_here() -> None:
    assert sorted(command.name or "" for command in app.registered_commands) == sorted(COMMANDS)


def test_every_option_of_a_submission_is_on_both_commands() -> None:
    for command in ("submit", "evolve"):
        text = run(command, "--help").output
        for name in JobOptions.__dataclass_fields__:
            assert (f"--{name}" in text) or name == "problem"
