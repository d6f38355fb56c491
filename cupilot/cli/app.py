"""The command tree. Each command's help teaches it by example."""

from __future__ import annotations

import typer

from cupilot.cli import (
    audit,
    calls,
    candidates,
    experiments,
    exports,
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

EPILOG = """\b
Exit codes: 0 fine; 1 the job failed or has no proven kernel; 2 wrong usage or
input; 3 no server to be reached; 4 no such thing; 130 interrupted.
"""

app = typer.Typer(
    name="cupilot",
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

app.command("evolve", epilog=EPILOG)(jobs.evolve)
app.command("submit", epilog=EPILOG)(jobs.submit)
app.command("status", epilog=EPILOG)(jobs.status)
app.command("watch", epilog=EPILOG)(jobs.watch)
app.command("list", epilog=EPILOG)(jobs.list_jobs)
app.command("cancel", epilog=EPILOG)(jobs.cancel)
app.command("pause", epilog=EPILOG)(steering.pause)
app.command("resume", epilog=EPILOG)(steering.resume)
app.command("retry", epilog=EPILOG)(steering.retry)
app.command("fork", epilog=EPILOG)(steering.fork)
app.command("pin", epilog=EPILOG)(steering.pin)
app.command("ban", epilog=EPILOG)(steering.ban)
app.command("inject", epilog=EPILOG)(steering.inject)
app.command("directives", epilog=EPILOG)(steering.directives)
app.command("lift", epilog=EPILOG)(steering.lift)
app.command("change", epilog=EPILOG)(steering.change)
app.command("quota", epilog=EPILOG)(steering.quota)
app.command("result", epilog=EPILOG)(results.result)
app.add_typer(experiments.app, name="experiment")
app.add_typer(models.app, name="models")
app.command("export", epilog=EPILOG)(exports.export)
app.command("whoami", epilog=EPILOG)(people.whoami)
app.add_typer(people.team, name="team")
app.add_typer(people.user, name="user")
app.add_typer(people.key, name="key")
app.command("audit", epilog=EPILOG)(audit.audit)
app.add_typer(pool.pool, name="pool")
app.command("techniques", epilog=EPILOG)(techniques.techniques)
app.command("candidates", epilog=EPILOG)(candidates.candidates)
app.command("steps", epilog=EPILOG)(steps.steps)
app.command("logs", epilog=EPILOG)(steps.logs)
app.command("calls", epilog=EPILOG)(calls.calls)
app.command("prompt", epilog=EPILOG)(calls.prompt)
app.command("leaderboard", epilog=EPILOG)(rankings.leaderboard)
app.command("remeasure", epilog=EPILOG)(rankings.remeasure)
app.command("judge", epilog=EPILOG)(imports.judge)
app.command("compare", epilog=EPILOG)(rankings.compare)
app.command("top", epilog=EPILOG)(top.top)
app.command("problems", epilog=EPILOG)(results.problems)
app.command("up", epilog=EPILOG)(stack.up)
app.command("down", epilog=EPILOG)(stack.down)
app.command("env", epilog=EPILOG)(stack.env)
app.command("backup", epilog=EPILOG)(stack.backup)
app.command("restore", epilog=EPILOG)(stack.restore)
app.command("doctor", epilog=EPILOG)(stack.doctor)
app.command("version", epilog=EPILOG)(stack.version)
app.add_typer(webhooks.app, name="webhooks", epilog=EPILOG)
