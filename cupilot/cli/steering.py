"""Commands that steer jobs: pause, resume, retry, fork, pin, ban, inject, directives, lift, change; and quota."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from pydantic import BaseModel, ValidationError

from cupilot.cli.flags import invalid, plain
from cupilot.cli.labels import parse_labels
from cupilot.cli.options import CandidateId, Data, IdempotencyKey, JobId, Json, Server
from cupilot.cli.session import connect, job_id
from cupilot.cli.text import clean, seconds
from cupilot.cli.waiting import warn_of_waiting
from cupilot.domain.errors import InvalidInput
from cupilot.domain.job import MAX_MINUTES, MAX_USD, Budgets, Priority
from cupilot.domain.kernel import Kernel
from cupilot.domain.steering import DirectiveKind
from cupilot.domain.strategy import Strategy
from cupilot.schemas.steering import DirectiveRequest, DirectiveView, ForkRequest, JobChange, QuotaUse, RetryRequest

if TYPE_CHECKING:
    from cupilot.client import Client
    from cupilot.schemas import JobView

Model = TypeVar("Model", bound=BaseModel)
Candidates = Annotated[int | None, typer.Option(min=1, max=10_000, help="Budget: kernels to evaluate.")]
Minutes = Annotated[float | None, typer.Option(max=MAX_MINUTES, help="Budget: time from the start of preparation.")]
Cost = Annotated[float | None, typer.Option(min=0, max=MAX_USD, help="Budget: US dollars for model calls.")]


def pause(job: JobId, server: Server = None, data: Data = None, as_json: Json = False) -> None:
    """Let nothing of a job begin until it is resumed. What runs is finished, and the pause is no wall time.

    \b
    Example:
        cupilot pause last
    """
    with connect(server, data) as client:
        _show_job(client.pause(job_id(client, job)), as_json=as_json)


def resume(job: JobId, server: Server = None, data: Data = None, as_json: Json = False) -> None:
    """Let a paused job go on where it stands.

    \b
    Example:
        cupilot resume last
    """
    with connect(server, data) as client:
        _show_job(client.resume(job_id(client, job)), as_json=as_json)


def retry(
    job: JobId,
    *,
    candidates: Candidates = None,
    minutes: Minutes = None,
    cost: Cost = None,
    idempotency_key: IdempotencyKey = None,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Retry an ended job's best kernels, in a new job. For one that failed, was cancelled or ran out of budget.

    \b
    Examples:
        cupilot retry last --candidates 400 --minutes 120
        cupilot retry 3f2b... --idempotency-key nightly-2026-01-31
    """
    with connect(server, data) as client:
        old = job_id(client, job)
        request = RetryRequest(budgets=_budgets(client, old, candidates, minutes, cost))
        new = client.retry(old, request, idempotency_key=idempotency_key)
        warn_of_waiting(client, new)
        typer.echo(new.model_dump_json(indent=2) if as_json else str(new.id))


def fork(
    job: JobId,
    candidate: CandidateId,
    *,
    candidates: Candidates = None,
    minutes: Minutes = None,
    cost: Cost = None,
    seed: Annotated[int | None, typer.Option(min=0, max=2**31 - 1, help="Seed of all random choices.")] = None,
    idempotency_key: IdempotencyKey = None,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Start a new job from a candidate's strategy and kernel.

    \b
    Examples:
        cupilot fork last 12 --seed 1
    """
    with connect(server, data) as client:
        old = job_id(client, job)
        request = ForkRequest(budgets=_budgets(client, old, candidates, minutes, cost), seed=seed)
        new = client.fork(old, candidate, request, idempotency_key=idempotency_key)
        warn_of_waiting(client, new)
        typer.echo(new.model_dump_json(indent=2) if as_json else str(new.id))


def pin(job: JobId, candidate: CandidateId, server: Server = None, data: Data = None, as_json: Json = False) -> None:
    """Let a candidate survive every selection of a running job.

    \b
    Example:
        cupilot pin last 3
    """
    with connect(server, data) as client:
        request = DirectiveRequest(kind=DirectiveKind.PIN, candidate=candidate)
        _show_directive(client.direct(job_id(client, job), request), as_json=as_json)


def ban(
    job: JobId,
    *,
    technique: Annotated[str | None, typer.Option(help="A technique's name, as cupilot techniques shows it.")] = None,
    any_name: Annotated[bool, typer.Option("--any-name", help="Also a technique that nobody knows yet.")] = False,
    candidate: Annotated[str | None, typer.Option(help="A candidate whose strategy is banned.")] = None,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Have a technique or a strategy not proposed again. The running job's agents are told.

    A technique that neither the catalogue nor your team's agents know is refused, with the names that come near.

    \b
    Examples:
        cupilot ban last --technique tensor_cores
        cupilot ban last --candidate 5
    """
    if (technique is None) == (candidate is None):
        raise InvalidInput("name either a technique or a candidate", where="--technique, --candidate")
    request = _checked(kind=DirectiveKind.BAN, technique=technique, candidate=candidate, any_name=any_name)
    with connect(server, data) as client:
        _show_directive(client.direct(job_id(client, job), request), as_json=as_json)


def inject(
    job: JobId,
    strategy: Annotated[Path, typer.Argument(metavar="STRATEGY", help="A JSON file: techniques and rationale.")],
    *,
    kernel: Annotated[
        Path | None, typer.Option(help="A JSON file with target, source and plan; without it the agents write one.")
    ] = None,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Make a strategy a candidate of the next generation. Its kernel may be given too.

    \b
    Example:
        cupilot inject last strategy.json
    """
    request = _checked(
        kind=DirectiveKind.INJECT,
        strategy=_read(strategy, Strategy, "STRATEGY"),
        kernel=_read(kernel, Kernel, "--kernel") if kernel else None,
    )
    with connect(server, data) as client:
        _show_directive(client.direct(job_id(client, job), request), as_json=as_json)


def directives(job: JobId, server: Server = None, data: Data = None, as_json: Json = False) -> None:
    """List a job's pins, bans and injections. Also what came of each.

    \b
    Example:
        cupilot directives last
    """
    with connect(server, data) as client:
        listed = client.directives(job_id(client, job))
        if as_json:
            typer.echo(listed.model_dump_json(indent=2))
            return
        for item in listed.items:
            typer.echo(_line(item))


def lift(
    job: JobId,
    directive: Annotated[str, typer.Argument(metavar="DIRECTIVE", help="Its id, as cupilot directives shows it.")],
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Lift a directive.

    \b
    Example:
        cupilot lift last 3f2b8c1e-0000-4000-8000-000000000001
    """
    with connect(server, data) as client:
        _show_directive(client.lift(job_id(client, job), directive), as_json=as_json)


def change(
    job: JobId,
    *,
    label: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Set it; repeat.")] = None,
    remove: Annotated[list[str] | None, typer.Option(metavar="KEY", help="A label to remove; repeat.")] = None,
    priority: Annotated[Priority | None, typer.Option(help="Order within your team's share.")] = None,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Change a job's labels or priority. A cluster admin may change any team's job.

    \b
    Examples:
        cupilot change last --label model=llama --remove draft
        cupilot change last --priority high
    """
    labels: dict[str, str | None] = {**parse_labels(label), **dict.fromkeys(remove or [])}
    with connect(server, data) as client:
        view = client.change(job_id(client, job), JobChange(labels=labels, priority=priority))
        if as_json:
            typer.echo(view.model_dump_json(indent=2))
        else:
            shown = ", ".join(f"{clean(key)}={clean(value)}" for key, value in sorted(view.labels.items()))
            typer.echo(f"job {view.id}: priority {view.priority.value}, labels {shown or 'none'}")


def quota(server: Server = None, data: Data = None, as_json: Json = False) -> None:
    """Show what your team may use, and has used in this period.

    \b
    Example:
        cupilot quota
    """
    with connect(server, data) as client:
        view = client.quota()
        if as_json:
            typer.echo(view.model_dump_json(indent=2))
            return
        since = f"since {view.period_began_at:%Y-%m-%d}"
        typer.echo(f"team {clean(view.team)}, weight {view.weight:g}")
        typer.echo(f"running jobs  {_use(view.running_jobs)}")
        typer.echo(f"queued jobs   {_use(view.queued_jobs)}")
        typer.echo(f"device time   {_seconds(view.gpu_seconds)}  {since}")
        typer.echo(f"model USD     {_use(view.model_usd)}  {since}")
        for share in view.shares:
            part = share.seconds / share.of_all if share.of_all else 0.0
            typer.echo(f"{clean(share.queue):<13} {seconds(share.seconds)} lately, {part:.0%} of all teams'")


def _seconds(use: QuotaUse) -> str:
    return f"{seconds(use.used)} of {seconds(use.limit)}" if use.limit is not None else seconds(use.used)


def _use(use: QuotaUse) -> str:
    return f"{use.used:g} of {use.limit:g}" if use.limit is not None else f"{use.used:g}"


def _budgets(
    client: Client, job: object, candidates: int | None, minutes: float | None, cost: float | None
) -> Budgets | None:
    budgets = {"candidates": candidates, "wall_seconds": None if minutes is None else minutes * 60, "cost_usd": cost}
    changes = {name: value for name, value in budgets.items() if value is not None}
    if not changes:
        return None
    try:
        return Budgets.model_validate({**client.get(str(job)).budgets.model_dump(), **changes})
    except ValidationError as error:
        raise invalid(error, "budgets") from error


def _checked(**fields: object) -> DirectiveRequest:
    try:
        return DirectiveRequest.model_validate(fields)
    except ValidationError as error:
        raise InvalidInput(plain(error.errors()[0]["msg"]), where="options") from error


def _read(file: Path, kind: type[Model], where: str) -> Model:
    try:
        return kind.model_validate_json(file.read_bytes())
    except OSError as error:
        raise InvalidInput(f"cannot read {file}: {error.strerror}", where=where) from error
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidInput(f"{'.'.join(map(str, first['loc']))}: {first['msg']}", where=where) from error


def _show_job(view: JobView, *, as_json: bool) -> None:
    typer.echo(view.model_dump_json(indent=2) if as_json else f"job {view.id} is {view.state}")


def _show_directive(view: DirectiveView, *, as_json: bool) -> None:
    typer.echo(view.model_dump_json(indent=2) if as_json else _line(view))


def _line(view: DirectiveView) -> str:
    what = view.technique or (", ".join(view.strategy.ids()) if view.strategy else None) or str(view.candidate)
    state = "lifted" if view.lifted_at else "done" if view.done_at else "in force"
    became = f", became candidate {view.became}" if view.became else ""
    return f"{view.id}  {view.kind:<6} {clean(what)}  by {clean(view.author)}: {state}{became}"
