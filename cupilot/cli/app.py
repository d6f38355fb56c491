"""The command tree, in the order in which ``cupilot --help`` shows it. Each command's help teaches it by example.

A command's module is imported when the command is used, so that one does not wait for the imports of all.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cupilot import __version__
from cupilot.cli.outcome import note_typed, outcome

EPILOG = """\b
Exit codes: 0 fine; 1 the job failed or has no proven kernel, or its state, your
role or a quota does not allow it; 2 wrong usage or input; 3 no server, or one
that refuses the key or fails; 4 no such thing; 130 interrupted.
"""

SHORT_HELP = 64
"""Characters of a command's first sentence that fit into a line of 80 beside the longest name."""


@dataclass(frozen=True)
class Entry:
    """A command, or a group of commands, and where it is defined."""

    module: str
    """Of :mod:`cupilot.cli`."""
    attribute: str
    """A function, or a Typer application of several."""
    summary: str
    """First sentence of its help, which the list of all commands shows."""

    def load(self, name: str) -> Any:
        """Import it and return it as the command of this name."""
        target = getattr(import_module(f"cupilot.cli.{self.module}"), self.attribute)
        if isinstance(target, typer.Typer):
            group = typer.main.get_group(target)
            group.name, group.epilog = name, EPILOG
            return group
        alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        alone.command(name, epilog=EPILOG)(target)
        return typer.main.get_command(alone)


SECTIONS: dict[str, dict[str, Entry]] = {
    "Jobs": {
        "evolve": Entry("submission", "evolve", "Submit a problem, show its progress, and fetch the result."),
        "submit": Entry("submission", "submit", "Start a job and print its id."),
        "status": Entry("jobs", "status", "Show where a job stands."),
        "watch": Entry("jobs", "watch", "Follow a job until it ends."),
        "list": Entry("jobs", "list_jobs", "List your team's jobs, newest first unless you say otherwise."),
        "cancel": Entry("jobs", "cancel", "Stop a job."),
        "result": Entry("results", "result", "Print a job's report and write the winner's files."),
        "export": Entry("exports", "export", "Write a job's best kernel in a format to take along."),
        "problems": Entry("results", "problems", "List the problems that jobs can be started on."),
        "open": Entry("connection", "open_page", "Open a job's page in the browser, or print its address."),
    },
    "Steer a job": {
        "pause": Entry("steering", "pause", "Let nothing of a job begin until it is resumed."),
        "resume": Entry("steering", "resume", "Let a paused job go on where it stands."),
        "retry": Entry("steering", "retry", "Retry an ended job's best kernels, in a new job."),
        "fork": Entry("steering", "fork", "Start a new job from a candidate's strategy and kernel."),
        "pin": Entry("steering", "pin", "Let a candidate survive every selection of a running job."),
        "ban": Entry("steering", "ban", "Have a technique or a strategy not proposed again."),
        "inject": Entry("steering", "inject", "Make a strategy a candidate of the next generation."),
        "directives": Entry("steering", "directives", "List a job's pins, bans and injections."),
        "lift": Entry("steering", "lift", "Lift a directive."),
        "change": Entry("steering", "change", "Change a job's labels or priority."),
    },
    "Look into a job": {
        "candidates": Entry("candidates", "candidates", "List a job's candidates in the order they were made."),
        "candidate": Entry("candidates", "candidate", "Show a candidate."),
        "compare": Entry("rankings", "compare", "Compare two candidates for the same problem."),
        "events": Entry("events", "events", "Print what happened to a job, or to all of your team's jobs."),
        "steps": Entry("steps", "steps", "List what was done for a job, oldest first."),
        "logs": Entry("steps", "logs", "Print a job's log, or with --step all about a step."),
        "calls": Entry("calls", "calls", "List a job's model calls, oldest first, with what each cost."),
        "prompt": Entry("calls", "prompt", "Print a model call whole, every message and the answer."),
    },
    "Measure and learn": {
        "best": Entry("best", "best", "Print and write the best kernel that ships for a problem."),
        "judge": Entry("imports", "judge", "Judge a file that you have, as kernels are judged."),
        "flashinfer": Entry("flashinfer", "app", "Read and write files of flashinfer-bench."),
        "remeasure": Entry("rankings", "remeasure", "Measure a proven kernel again on today's device."),
        "leaderboard": Entry("rankings", "leaderboard", "Show the fastest proven kernels for a problem and device."),
        "experiment": Entry("experiments", "app", "Compare methods and switches on matched jobs."),
        "pool": Entry("pool", "pool", "What earlier jobs learned: search, share, export, import it."),
        "techniques": Entry("techniques", "techniques", "List techniques, how they stand and what came of them."),
    },
    "People and teams": {
        "whoami": Entry("people", "whoami", "Show your key's user, team and role, and when it expires."),
        "quota": Entry("steering", "quota", "Show what your team may use, and has used in this period."),
        "team": Entry("people", "team", "Teams, who is in them, and what they may use."),
        "user": Entry("people", "user", "Users; for cluster admins."),
        "key": Entry("people", "key", "API keys: list, make, revoke."),
        "webhooks": Entry("webhooks", "app", "Have events sent to a URL, signed."),
        "audit": Entry("audit", "audit", "List who changed what, or was not allowed to, newest first."),
    },
    "The service": {
        "up": Entry("stack", "up", "Start the embedded stack: the whole service, on this machine."),
        "down": Entry("stack", "down", "Stop the embedded stack."),
        "top": Entry("top", "top", "Watch workers, queues and your team's open jobs."),
        "env": Entry("stack", "env", "Print the embedded stack's addresses and secrets."),
        "backup": Entry("stack", "backup", "Write a backup of the embedded stack, running or not."),
        "restore": Entry("stack", "restore", "Bring a backup into a new data folder."),
        "models": Entry("models", "app", "Language models that agents use."),
        "batch": Entry("batches", "app", "Judge steps on GPUs without a network."),
        "doctor": Entry("stack", "doctor", "Say what this machine has and lacks, and how to get it."),
        "login": Entry("connection", "login", "Keep a service's address and your key for it."),
        "logout": Entry("connection", "logout", "Forget a service and its key, which stays valid."),
        "mcp": Entry("connection", "mcp", "Serve the tools for coding agents over stdio."),
        "version": Entry("stack", "version", "Print this program's version, and the service's."),
    },
}


class Loaded(MutableMapping[str, Any]):
    """All commands by name, each loaded when it is asked for."""

    def __init__(self) -> None:
        self._entries = {name: entry for section in SECTIONS.values() for name, entry in section.items()}
        self._commands: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._commands:
            self._commands[name] = self._entries[name].load(name)
        return self._commands[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._commands[name] = command

    def __delitem__(self, name: str) -> None:
        del self._commands[name], self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class Commands(TyperGroup):
    """Group of all commands: lists them under headings and prints their errors.

    Typer draws headings by itself only with rich.
    """

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = Loaded()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Note what was typed: errors name it."""
        note_typed(ctx, args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with outcome(ctx):
            return super().invoke(ctx)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - as Typer calls it
        """Write each section's commands with the first sentence of their help."""
        longest = max(map(len, self.commands))
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(longest), entry.summary) for name, entry in section.items()])


app = typer.Typer(
    name="cupilot",
    cls=Commands,
    help="""Evolve faster kernels for PyTorch operators, and prove the ones that are returned.

    \b
    Try it, nothing to configure:
        cupilot evolve softmax            a built-in problem
        cupilot evolve my_op.py           your own, in KernelBench's format
    With a service that keeps running:
        cupilot up --detach
        cupilot submit my_op.py
        cupilot watch last
        cupilot result last
    """,
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _tell_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cupilot {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print this program's version.")
    ] = False,
) -> None:
    """Take the options of ``cupilot`` itself; the text of ``--help`` stands above."""
