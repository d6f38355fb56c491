"""Commands that compare proven kernels: leaderboard, compare."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from cupilot.cli.options import All, Cursor, Data, IdempotencyKey, JobId, Json, Limit, Server
from cupilot.cli.session import connect, job_id
from cupilot.cli.text import clean, interval
from cupilot.cli.waiting import warn_of_waiting
from cupilot.client import Client
from cupilot.domain import problems
from cupilot.domain.counted import counted
from cupilot.domain.errors import InvalidInput, NotFound
from cupilot.schemas import (
    CandidateComparison,
    ChampionList,
    ComparedCandidate,
    Leaderboard,
    LeaderboardList,
    LeaderboardSummary,
)

HASH_CHARACTERS = 64


def leaderboard(
    problem: Annotated[
        str | None,
        typer.Argument(metavar="[PROBLEM]", help="Its name, or the start of its hash; without, all boards."),
    ] = None,
    *,
    device: Annotated[str | None, typer.Option("--device", help="Model name, where there are several.")] = None,
    all_teams: Annotated[bool, typer.Option("--all-teams", help="Every team's; for cluster admins.")] = False,
    limit: Limit = 20,
    cursor: Cursor = None,
    everything: All = False,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Show the fastest proven kernels for a problem and device. Your team's, and of built-in problems what other teams
    have opened to all with cupilot pool share --as open.

    \b
    Examples:
        cupilot leaderboard
        cupilot leaderboard softmax --device "NVIDIA H200"
    """
    with connect(server, data) as client:
        if problem is None:
            if everything:
                boards = LeaderboardList(items=list(client.all_leaderboards(all_teams=all_teams)))
            else:
                boards = client.leaderboards(all_teams=all_teams, cursor=cursor, limit=limit)
            if as_json:
                typer.echo(boards.model_dump_json(indent=2))
                return
            if not boards.items:
                typer.echo("no kernel is proven yet: a board appears with the first one (cupilot evolve PROBLEM)")
            for board in boards.items:
                shown = f"{clean(board.name)}, {board.policy.value}, {clean(board.device)}{_origin(board)}"
                typer.echo(
                    f"{board.problem[:12]}  {board.best_speedup:6.2f}x  {counted(board.kernels, 'kernel'):>12}  {shown}"
                )
            _tell_more(boards.next_cursor)
            if cursor is None:
                _show_champions(client.champions())
            return
        chosen = _full(client, problem, all_teams=all_teams)
        ranking = client.leaderboard(chosen, device=device, all_teams=all_teams, cursor=cursor, limit=limit)
        if everything:
            whole = list(client.ranked(chosen, device=ranking.device, all_teams=all_teams))
            ranking = ranking.model_copy(update={"items": whole, "next_cursor": None, "next_after": None})
        if as_json:
            typer.echo(ranking.model_dump_json(indent=2))
            return
        typer.echo(f"{clean(ranking.name)}, {ranking.policy.value}, on {clean(ranking.device)}{_origin(ranking)}")
        for entry in ranking.items:
            where = f"{entry.job}:{entry.ordinal}" if entry.job else "another team's"
            where += f" ({clean(entry.team)})" if all_teams and entry.team else ""
            techniques = ", ".join(entry.techniques) or "plain"
            typer.echo(f"{entry.rank:3}  {interval(entry.speedup)}  {entry.verdict.value:10}  {where}  {techniques}")
        _tell_more(ranking.next_cursor)


def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="JOB:N, a candidate's id, or a JOB for its best.")],
    second: Annotated[str, typer.Argument(metavar="B", help="The same.")],
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Compare two candidates for the same problem. Strategy, launch plan, metrics and source.

    \b
    Examples:
        cupilot compare last:3 last:12
        cupilot compare 3f2b... 77ac... --json | jq .relative_speedup
    """
    with connect(server, data) as client:
        comparison = client.compare(_reference(client, first), _reference(client, second))
        if as_json:
            typer.echo(comparison.model_dump_json(indent=2))
        else:
            _show(comparison)


def remeasure(
    job: JobId,
    *,
    candidate: Annotated[
        str | None, typer.Option("--candidate", metavar="N", help="Ordinal or id; the job's best where not given.")
    ] = None,
    history: Annotated[bool, typer.Option("--history", help="Measure nothing; list what was measured.")] = False,
    idempotency_key: IdempotencyKey = None,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Measure a proven kernel again on today's device. That is a job of its own, whose id is printed.

    A kernel in quarantine is judged again in the same way.

    \b
    Examples:
        cupilot remeasure last
        cupilot remeasure 3f2b... --candidate 12
        cupilot remeasure 3f2b... --history          then and now, side by side
    """
    with connect(server, data) as client:
        chosen = job_id(client, job)
        which = candidate if candidate is not None else str(client.best(chosen).candidate.id)
        if history:
            page = client.measurements(chosen, which)
            if as_json:
                whole = list(client.all_measurements(chosen, which))
                typer.echo(page.model_copy(update={"items": whole, "next_cursor": None}).model_dump_json(indent=2))
                return
            for measured in client.all_measurements(chosen, which):
                speed = f"{interval(measured.speedup)} over eager" if measured.speedup else "no time that counts"
                versions = f"driver {clean(measured.driver or '-')}, torch {clean(measured.torch or '-')}"
                place = f"{clean(measured.device or '-')}, {versions}"
                at, verdict = f"{measured.measured_at:%Y-%m-%d %H:%M}", measured.verdict.value
                typer.echo(f"{at}  {verdict:10}  {speed}  {place}  {measured.job}")
            return
        made = client.remeasure(chosen, which, idempotency_key=idempotency_key)
        warn_of_waiting(client, made)
        typer.echo(made.model_dump_json(indent=2) if as_json else str(made.id))


def _origin(board: Leaderboard | LeaderboardSummary) -> str:
    """Return a remark on a problem that a team wrote: only that team knows what its times mean."""
    return "" if board.builtin else " (a team's own reference)"


def _full(client: Client, start: str, *, all_teams: bool) -> str:
    """Return the hash of the problem with a board that has this name, or whose hash begins so."""
    if len(start) == HASH_CHARACTERS:
        return start
    boards = list(client.all_leaderboards(all_teams=all_teams))
    named = {board.problem: board for board in boards if board.name == start}
    found = named or {board.problem: board for board in boards if board.problem.startswith(start)}
    if not found:
        raise NotFound(f"no kernel for {start} is proven here yet", hint=_without_board(start), where="PROBLEM")
    if len(found) > 1:
        choices = ", ".join(f"{problem[:12]} ({board.policy.value})" for problem, board in found.items())
        raise InvalidInput(
            f"{len(found)} problems have the name {start}, or a hash that begins so",
            hint=f"name one: {choices}",
            where="PROBLEM",
        )
    return next(iter(found))


def _without_board(name: str) -> str:
    if problems.is_name(name):
        return f"cupilot best {name} shows the kernel that ships, if any; cupilot evolve {name} makes a board"
    return f"cupilot leaderboard lists all boards; {problems.suggestion(name)}"


def _show_champions(champions: ChampionList) -> None:
    """Print what ships with the release: nobody here has measured it yet."""
    if champions.items:
        typer.echo("ships with this release (cupilot best PROBLEM; --judge measures it here):")
    for champion in champions.items:
        where = f"{clean(champion.name)}, {champion.policy.value}, {clean(champion.device)}"
        typer.echo(f"{champion.problem[:12]}  {champion.speedup.median:6.2f}x  by {clean(champion.author):8}  {where}")


def _tell_more(cursor: str | None) -> None:
    if cursor is not None:
        typer.echo(f"more: --cursor {cursor}")


def _reference(client: Client, text: str) -> str:
    job, colon, ordinal = text.partition(":")
    try:
        UUID(job)  # of a job or a candidate
    except ValueError:
        return f"{job_id(client, job)}{colon}{ordinal}"
    return text


def _show(comparison: CandidateComparison) -> None:
    for name, side in (("A", comparison.first), ("B", comparison.second)):
        typer.echo(f"{name}  {_side(side)}")
    if comparison.relative_speedup is None:
        typer.echo(f"B cannot be compared with A: {clean(comparison.relative_note)}")
    else:
        typer.echo(f"B is {interval(comparison.relative_speedup)} as fast as A ({clean(comparison.relative_note)})")
    if comparison.strategy is not None:
        lines = [f"+ {name}" for name in comparison.strategy.added] + [
            f"- {name}" for name in comparison.strategy.removed
        ]
        for change in comparison.strategy.changed:
            lines += [f"~ {change.id}: {name} {old} -> {new}" for name, (old, new) in change.parameters.items()]
        lines += ["~ in another order"] if comparison.strategy.reordered else []
        _section("strategy", lines or ["the same techniques"])
    _section(
        "launch plan",
        [f"{difference.where}: {difference.first} -> {difference.second}" for difference in comparison.plan]
        or ["the same"],
    )
    differing = [pair for pair in comparison.metrics if pair.first != pair.second]
    _section("metrics", [f"{pair.name}: {_number(pair.first)} -> {_number(pair.second)}" for pair in differing])
    _section("source", comparison.source_diff.splitlines() or ["the same"])


def _side(side: ComparedCandidate) -> str:
    verdict = side.verdict.value if side.verdict else "not evaluated"
    speed = f"{interval(side.speedup)} over eager" if side.speedup else "no time that counts"
    return f"{side.job}:{side.ordinal}  {verdict}, {speed}, {clean(side.device or 'no device')}"


def _section(title: str, lines: list[str]) -> None:
    if lines:
        typer.echo(f"\n{title}")
        for line in lines:
            typer.echo(f"  {clean(line)}")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
