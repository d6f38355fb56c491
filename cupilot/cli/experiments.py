"""Commands about experiments: run, status, watch, report, cancel, list."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from cupilot.cli import matrix
from cupilot.cli.files import write_result
from cupilot.cli.options import Data, Json, Server
from cupilot.cli.outcome import Exit
from cupilot.cli.session import connect, connect_or_start
from cupilot.client import Client
from cupilot.domain.counted import counted
from cupilot.domain.errors import InvalidInput, NotFound
from cupilot.domain.job import MAX_MINUTES, MAX_USD, AgentKind
from cupilot.domain.problem import NumericsPolicy, best_target
from cupilot.schemas import ExperimentRequest, ExperimentView

ExperimentId = Annotated[
    str, typer.Argument(metavar="EXPERIMENT", help="The experiment's id; 'last' is your team's newest.")
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Where to put the report [./cupilot-results/EXPERIMENT].")
]
Many = list[str] | None

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Compare methods and switches on matched jobs.")


@app.command("run")
def run(
    file: Annotated[
        Path | None, typer.Argument(metavar="[MATRIX]", help="A .toml, .yaml or .json file with the request's fields.")
    ] = None,
    *,
    name: Annotated[str | None, typer.Option(help="Its name.")] = None,
    target: Annotated[str | None, typer.Option(metavar="auto|cuda|cpu", help="What to run on [auto].")] = None,
    device_class: Annotated[str | None, typer.Option("--device-class", help="The one kind of GPU, e.g. sm_90.")] = None,
    problem: Annotated[Many, typer.Option(metavar="PROBLEM", help="A file or a built-in; repeat.")] = None,
    policy: Annotated[NumericsPolicy | None, typer.Option(help="Of all problems [the file's, else fp32].")] = None,
    size: Annotated[str | None, typer.Option(metavar="small|full", help="Of all built-in problems.")] = None,
    seeds: Annotated[str | None, typer.Option(metavar="COUNT|LIST", help="6 means 0 to 5; 1,4 means these.")] = None,
    method: Annotated[
        Many, typer.Option("--set", metavar="FIELD=VALUE", help="Of the method of all arms, e.g. name=sce; repeat.")
    ] = None,
    arm: Annotated[Many, typer.Option(metavar="NAME[:FIELD=VALUE,...]", help="What is different; repeat.")] = None,
    switch: Annotated[
        Many, typer.Option(metavar="FIELD=VALUE,VALUE", help="Crossed with every arm, e.g. pool=on,off; repeat.")
    ] = None,
    reference: Annotated[str | None, typer.Option(help="The arm that others are compared with [the first].")] = None,
    agents: Annotated[AgentKind | None, typer.Option(help="Who writes the kernels.")] = None,
    candidates: Annotated[int | None, typer.Option(min=1, help="Budget of each job: kernels.")] = None,
    minutes: Annotated[float | None, typer.Option(max=MAX_MINUTES, help="Budget of each job: time.")] = None,
    cost: Annotated[
        float | None, typer.Option(min=0, max=MAX_USD, help="Budget of each job: US dollars for models.")
    ] = None,
    total_candidates: Annotated[int | None, typer.Option("--total-candidates", min=1, help="Of all jobs.")] = None,
    total_cost: Annotated[float | None, typer.Option("--total-cost", min=0, help="Of all jobs: US dollars.")] = None,
    label: Annotated[Many, typer.Option(metavar="KEY=VALUE", help="For its jobs; repeat.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what it may cost; start nothing.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Print the id and leave it running.")] = False,
    idempotency_key: Annotated[
        str | None, typer.Option("--idempotency-key", help="A repeated key starts no second experiment.")
    ] = None,
    out: Out = None,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Run matched jobs, arms x problems x seeds, and report. Flags go over the file.

    \b
    Examples:
        cupilot experiment run --problem softmax --problem gelu --seeds 3 --switch pool=on,off --dry-run
        cupilot experiment run --problem softmax --seeds 6 --set population=4 --arm plain:alignment=off --arm full
        cupilot experiment run ablation.toml --detach
    """
    fields = matrix.read(file) if file else {}
    fields.setdefault("name", file.stem if file else "experiment")
    _over(fields, name=name, device_class=device_class, reference=reference, agents=agents)
    _over(fields, target=None if target == "auto" else target)
    _over(fields, problems=[matrix.problem(text) for text in problem or []] or None)
    fields["problems"] = [matrix.changed(entry, policy, size) for entry in fields.get("problems", [])]
    _over(fields, seeds=matrix.seeds(seeds) if seeds else None, labels=matrix.labels(label) or None)
    _over(fields, arms=[matrix.arm(text) for text in arm or []] or None)
    _over(fields, switches=dict(matrix.switch(text) for text in switch or []) or None)
    _override(fields, "method", **matrix.assignments(method or [], "--set"))
    seconds = None if minutes is None else minutes * 60
    _override(fields, "budgets", candidates=candidates, wall_seconds=seconds, cost_usd=cost)
    _override(fields, "total", candidates=total_candidates, cost_usd=total_cost)
    chosen = "target" in fields
    request = matrix.request({"target": "cpu", "seeds": [0, 1, 2], **fields})
    if dry_run:
        with connect(server, data) as client:
            _show_plan(client, request if chosen else _on_best_target(client, request), as_json=as_json)
        return
    with connect_or_start(server, data, ()) as client:
        request = request if chosen else _on_best_target(client, request)
        view = client.submit_experiment(request, idempotency_key=idempotency_key)
        if detach:
            typer.echo(view.model_dump_json(indent=2) if as_json else str(view.id))
            return
        typer.echo(f"experiment {view.id}: {counted(view.jobs, 'job')} on {view.target.value}", err=True)
        try:
            final = _follow(client, view.id, as_json=False, to_stderr=True)
        except KeyboardInterrupt:
            typer.echo(f"interrupted; it is kept: cupilot experiment watch {view.id}", err=True)
            raise
        _report(client, final.id, out=out, as_json=as_json)
        raise typer.Exit(_exit_of(final))


@app.command("status")
def status(experiment: ExperimentId, server: Server = None, data: Data = None, as_json: Json = False) -> None:
    """Show where an experiment stands. Exits with 1 when it was cancelled, or ended without any job that succeeded.

    \b
    Example:
        cupilot experiment status last
    """
    with connect(server, data) as client:
        from cupilot.cli.experiment_view import show_experiment

        view = client.experiment(experiment_id(client, experiment))
        if as_json:
            typer.echo(view.model_dump_json(indent=2))
        else:
            show_experiment(view)
        raise typer.Exit(_exit_of(view))


@app.command("watch")
def watch(experiment: ExperimentId, server: Server = None, data: Data = None, as_json: Json = False) -> None:
    """Follow an experiment until all its jobs have ended. With --json a JSON line an update.

    \b
    Example:
        cupilot experiment watch last
    """
    with connect(server, data) as client:
        view = _follow(client, experiment_id(client, experiment), as_json=as_json, to_stderr=False)
        raise typer.Exit(_exit_of(view))


@app.command("report")
def report(
    experiment: ExperimentId,
    *,
    csv: Annotated[
        str | None,
        typer.Option("--csv", metavar="arms|cells|comparisons|convergence|jobs", help="Print only this table, as CSV."),
    ] = None,
    out: Out = None,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Print what an experiment shows so far, and write it down. Tables (CSV), figures (SVG, PNG) and data (JSON).

    \b
    Examples:
        cupilot experiment report last --out report
        cupilot experiment report last --csv comparisons
        cupilot experiment report last --json | jq '.comparisons[].claim'
    """
    with connect(server, data) as client:
        chosen = experiment_id(client, experiment)
        if csv is not None:
            typer.echo(client.experiment_table(chosen, csv).decode(), nl=False)
            return
        _report(client, chosen, out=out, as_json=as_json)


@app.command("cancel")
def cancel(experiment: ExperimentId, server: Server = None, data: Data = None, as_json: Json = False) -> None:
    """Stop every job of an experiment that has not ended. What has been measured stays, and can be reported.

    \b
    Example:
        cupilot experiment cancel last
    """
    with connect(server, data) as client:
        view = client.cancel_experiment(experiment_id(client, experiment))
        typer.echo(view.model_dump_json(indent=2) if as_json else f"experiment {view.id} is {view.state}")


@app.command("list")
def list_experiments(
    *,
    limit: Annotated[int, typer.Option("--limit", min=1, max=200)] = 20,
    cursor: Annotated[str | None, typer.Option("--cursor", help="next_cursor of the previous page.")] = None,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """List your team's experiments, newest first.

    \b
    Example:
        cupilot experiment list
    """
    with connect(server, data) as client:
        from cupilot.cli.experiment_view import show_experiments

        page = client.experiments(cursor=cursor, limit=limit)
        if as_json:
            typer.echo(page.model_dump_json(indent=2))
        else:
            show_experiments(page)


def experiment_id(client: Client, reference: str) -> UUID:
    """Return the id that the user means: a UUID, or ``last``."""
    if reference == "last":
        newest = client.experiments(limit=1).items
        if not newest:
            hint = "start one with cupilot experiment run"
            raise NotFound("your team has no experiments yet", hint=hint, where="EXPERIMENT")
        return newest[0].id
    try:
        return UUID(reference)
    except ValueError:
        hint = "list them with cupilot experiment list"
        raise NotFound(f"{reference} is not the id of an experiment", hint=hint, where="EXPERIMENT") from None


def _follow(client: Client, experiment: UUID, *, as_json: bool, to_stderr: bool) -> ExperimentView:
    from cupilot.cli.experiment_view import progress_line

    last = ""

    def show(view: ExperimentView) -> None:
        nonlocal last
        line = view.model_dump_json() if as_json else progress_line(view)
        if line != last:
            typer.echo(line, err=to_stderr)
        last = line

    return client.wait_for_experiment(experiment, show)


def _report(client: Client, experiment: UUID, *, out: Path | None, as_json: bool) -> None:
    folder = write_result(client.experiment_download(experiment), experiment, out)
    if as_json:
        typer.echo((folder / "report.json").read_text(encoding="utf-8"), nl=False)
        return
    from cupilot.cli.experiment_view import show_report

    show_report(client.experiment_report(experiment), folder)


def _show_plan(client: Client, request: ExperimentRequest, *, as_json: bool) -> None:
    from cupilot.cli.experiment_view import show_plan

    plan = client.plan_experiment(request)
    if as_json:
        typer.echo(plan.model_dump_json(indent=2))
    else:
        show_plan(plan)


def _on_best_target(client: Client, request: ExperimentRequest) -> ExperimentRequest:
    return request.model_copy(update={"target": best_target(client.cluster().targets)})


def _exit_of(view: ExperimentView) -> Exit:
    succeeded = any(arm.states.get("succeeded") or arm.states.get("budget_exhausted") for arm in view.progress)
    return Exit.FAILED if view.state == "cancelled" or (view.final and not succeeded) else Exit.OK


def _over(fields: dict[str, Any], **options: Any) -> None:
    fields.update({name: value for name, value in options.items() if value is not None})


def _override(fields: dict[str, Any], name: str, **options: Any) -> None:
    """Override fields of a file's table by flags."""
    chosen = {key: value for key, value in options.items() if value is not None}
    if not chosen:
        return
    base = fields.get(name, {"name": "sce"} if name == "method" else {})
    if not isinstance(base, dict):
        raise InvalidInput(f"{name} is not a table", where=name)
    fields[name] = {**base, **chosen}
