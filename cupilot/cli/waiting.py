"""Tell what a job waits for: a worker of its target, or the end of a drain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from cupilot.cli.text import clean

if TYPE_CHECKING:
    from cupilot.client import Client
    from cupilot.domain.problem import Target
    from cupilot.schemas import JobView


def waits_for(client: Client, target: Target) -> list[str]:
    """Return what a job on this target will wait for; nothing where the service does not say."""
    from cupilot.client import ApiError

    try:
        cluster = client.cluster()
    except ApiError:
        return []  # the job is made: a missing warning is no error
    lines = [f"the service is drained ({clean(cluster.drained)}): the job waits"] if cluster.drained else []
    if target not in cluster.targets:
        others = f"; live ones have {', '.join(sorted(cluster.targets))}" if cluster.targets else ""
        lines.append(f"no live worker has the target {target.value}: the job waits for one{others}")
    return lines


def tried_again(client: Client, job: JobView) -> list[str]:
    """Return the job's open steps whose last attempt came to nothing, and why."""
    from cupilot.client import ApiError

    if job.final:
        return []
    try:
        steps = [step for state in ("queued", "running") for step in client.steps(job.id, state=state, limit=200).items]
    except ApiError:
        return []
    lines = []
    for step in steps:
        why = (step.error or {}).get("message") or (step.error or {}).get("reason")
        if why:
            lines.append(f"{step.key}, attempt {step.attempt} of {step.max_attempts}: {clean(str(why))}")
    return lines


def warn_of_waiting(client: Client, job: JobView) -> None:
    """Print on stderr what a job that has just been made will wait for, and how to take it back."""
    lines = waits_for(client, job.target)
    for line in lines:
        typer.echo(f"warning: {line}", err=True)
    if lines:
        typer.echo(
            "  next: cupilot top shows workers; start one for this target, or measure elsewhere (cupilot batch export"
            f" --help); cupilot cancel {job.id} takes the job back, and --target names another",
            err=True,
        )
