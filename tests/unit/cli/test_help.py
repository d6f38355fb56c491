"""Every command teaches itself: help with examples, output for programs, exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from cupilot import __version__
from cupilot.cli.app import SECTIONS, SHORT_HELP, app
from cupilot.cli.requests import JobOptions

pytestmark = pytest.mark.usefixtures("alone")


def leaves(command: Any, *path: str) -> Iterator[tuple[str, Any]]:
    """Every command that does something, by what is typed behind ``cupilot``."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield " ".join(path), command
    for name, one in (inner or {}).items():
        yield from leaves(one, *path, name)


ROOT: Any = typer.main.get_command(app)
COMMANDS = dict(leaves(ROOT))


def run(*arguments: str) -> Result:
    """The command line in this process."""
    return CliRunner().invoke(app, list(arguments))


def test_the_version_is_told_as_programs_do() -> None:
    result = run("--version")
    assert (result.exit_code, result.output) == (0, f"cupilot {__version__}\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_teaches_by_example_and_can_speak_json(command: str) -> None:
    result = run(*command.split(), "--help")
    assert result.exit_code == 0
    assert "Example" in result.output
    assert f"cupilot {command}" in result.output
    assert "--json" in result.output


@pytest.mark.parametrize("name", ROOT.commands)
def test_exit_codes_stand_in_every_commands_help(name: str) -> None:
    assert "Exit codes" in run(name, "--help").output


def test_lists_of_commands_show_whole_sentences() -> None:
    listed = {**ROOT.commands, **COMMANDS}
    assert not [name for name, one in listed.items() if one.get_short_help_str(SHORT_HELP).endswith("...")]


def test_every_command_is_listed_under_one_heading() -> None:
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted(listed) == sorted(ROOT.commands)
    text = run("--help").output
    assert [title for title in SECTIONS if f"\n{title}:\n" not in text] == []
    assert [name for name in listed if f"\n  {name} " not in text] == []


def test_every_option_of_a_submission_is_on_both_commands() -> None:
    for command in ("submit", "evolve"):
        text = run(command, "--help").output
        for name in JobOptions.__dataclass_fields__:
            assert (f"--{name}" in text) or name == "problem"
