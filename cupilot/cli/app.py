"""The command tree, in the order in which ``cupilot --help`` shows it. Each command's help teaches it by example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cupilot import __version__
from cupilot.cli import (
    audit,
    batches,
    best,
    calls,
    candidates,
    connection,
    events,
    experiments,
    exports,
    flashinfer,
    imports,
    jobs,
    models,
    people,
    pool,
    rankings,
    results,
    stack,
    steering,
    steps,
    techniques,
    top,
    webhooks,
)
from cupilot.cli.outcome import outcome

EPILOG = """\b
Exit codes: 0 fine; 1 the job failed or has no proven kernel, or its state, your
role or a quota does not allow it; 2 wrong usage or input; 3 no server, or one
that refuses the key or fails; 4 no such thing; 130 interrupted.
"""

SHORT_HELP = 64
"""Characters of a command's first sentence that fit into a line of 80 beside the longest name."""

SECTIONS: dict[str, dict[str, Callable[..., None] | typer.Typer]] = {
    "Jobs": {
        "evolve": jobs.evolve,
        "submit": jobs.submit,
        "status": jobs.status,
        "watch": jobs.watch,
        "list": jobs.list_jobs,
        "cancel": jobs.cancel,
        "result": results.result,
        "export": exports.export,
        "problems": results.problems,
        "open": connection.open_page,
    },
    "Steer a job": {
        "pause": steering.pause,
        "resume": steering.resume,
        "retry": steering.retry,
        "fork": steering.fork,
        "pin": steering.pin,
        "ban": steering.ban,
        "inject": steering.inject,
        "directives": steering.directives,
        "lift": steering.lift,
        "change": steering.change,
    },
    "Look into a job": {
        "candidates": candidates.candidates,
        "candidate": candidates.candidate,
        "compare": rankings.compare,
        "events": events.events,
        "steps": steps.steps,
        "logs": steps.logs,
        "calls": calls.calls,
        "prompt": calls.prompt,
    },
    "Measure and learn": {
        "best": best.best,
        "judge": imports.judge,
        "flashinfer": flashinfer.app,
        "remeasure": rankings.remeasure,
        "leaderboard": rankings.leaderboard,
        "experiment": experiments.app,
        "pool": pool.pool,
        "techniques": techniques.techniques,
    },
    "People and teams": {
        "whoami": people.whoami,
        "quota": steering.quota,
        "team": people.team,
        "user": people.user,
        "key": people.key,
        "webhooks": webhooks.app,
        "audit": audit.audit,
    },
    "The service": {
        "up": stack.up,
        "down": stack.down,
        "top": top.top,
        "env": stack.env,
        "backup": stack.backup,
        "restore": stack.restore,
        "models": models.app,
        "batch": batches.app,
        "doctor": stack.doctor,
        "login": connection.login,
        "logout": connection.logout,
        "mcp": connection.mcp,
        "version": stack.version,
    },
}


class Commands(TyperGroup):
    """Group of all commands: lists them under headings and prints their errors.

    Typer draws headings by itself only with rich.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with outcome(ctx):
            return super().invoke(ctx)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each section's commands with the first sentence of their help."""
        longest = max(map(len, self.commands))
        for title, names in SECTIONS.items():
            listed = {name: self.get_command(ctx, name) for name in names}
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (name.ljust(longest), command.get_short_help_str(SHORT_HELP))
                        for name, command in listed.items()
                        if command
                    ]
                )


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


for section in SECTIONS.values():
    for name, command in section.items():
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, epilog=EPILOG)
        else:
            app.command(name, epilog=EPILOG)(command)
