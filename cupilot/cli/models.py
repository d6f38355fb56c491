"""Commands about language models: models test."""

from __future__ import annotations

import json

import typer

from cupilot.cli.options import Json
from cupilot.cli.outcome import Exit
from cupilot.cli.session import embedded_stack
from cupilot.cli.text import clean

app = typer.Typer(help="Language models that agents use.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def models() -> None:
    """Language models that agents use.

    \b
    Example:
        cupilot models test
    """


@app.command("test")
def try_each(as_json: Json = False) -> None:
    """Try each configured model with one cheap call. Says what fails and how to mend it.

    Reads CUPILOT_LLM_MODEL and its fellows (or CUPILOT_LLM_MODELS_FILE) as an agent worker would. Exits with 1 when a
    model does not work or none is configured.

    \b
    Example:
        CUPILOT_LLM_MODEL=ollama/NAME cupilot models test
    """
    embedded_stack()
    from cupilot.embedded.models import try_models

    report = try_models()
    if as_json:
        typer.echo(json.dumps({"error": report.error, "checks": list(report.checks)}, indent=2))
    elif report.error:
        typer.echo(f"error: {clean(report.error)}", err=True)
        typer.echo("  next: set CUPILOT_LLM_MODEL, see docs/models.md", err=True)
    else:
        for check in report.checks:
            state = "ok" if check["works"] else "fails"
            if check["trouble"]:
                state += f" ({check['trouble']})"
            typer.echo(f"{state:<6} {clean(check['model'])} ({', '.join(check['roles'])}): {clean(check['found'])}")
            if check["mend"]:
                typer.echo(f"       -> {clean(check['mend'])}")
    raise typer.Exit(Exit.OK if report.fine else Exit.FAILED)
