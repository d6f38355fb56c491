"""Commands about teams, users and keys: ``team``, ``user``, ``key``, ``whoami``."""

from __future__ import annotations

from typing import Annotated, TypeVar

import typer
from pydantic import BaseModel, ValidationError

from cupilot.cli.options import Data, Json, Server
from cupilot.cli.session import connect
from cupilot.cli.text import clean
from cupilot.domain.errors import InvalidInput
from cupilot.domain.people import Role, Scope
from cupilot.domain.quota import QuotaPeriod
from cupilot.schemas.people import (
    InvitationRequest,
    KeyList,
    KeyRequest,
    KeyView,
    MemberList,
    MemberView,
    TeamChange,
    TeamList,
    TeamRequest,
    TeamView,
    UserChange,
    UserPage,
    UserRequest,
    UserView,
)

Model = TypeVar("Model", bound=BaseModel)
NO_LIMIT = -1.0
TeamName = Annotated[str, typer.Argument(metavar="TEAM", help="The team's name.")]
UserName = Annotated[str, typer.Argument(metavar="USER", help="The user's name.")]

team = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Teams, who is in them, and what they may use.")
user = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Users; for cluster admins.")
key = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="API keys: list, make, revoke.")


def whoami(server: Server = None, data: Data = None, as_json: Json = False) -> None:
    """Show your key's user, team and role, and when it expires.

    \b
    Example:
        cupilot whoami
    """
    with connect(server, data) as client:
        me = client.me()
        admin = ", cluster admin" if me.cluster_admin else ""
        end = f"expires on {me.expires_at:%Y-%m-%d}" if me.expires_at else "does not expire"
        who = f"{clean(me.user)}, {me.role.value} of team {clean(me.team)}{admin}"
        _show(me, f"{who}; the key's scope is {me.scope.value}, and it {end}", as_json=as_json)


@team.command("list")
def list_teams(server: Server = None, data: Data = None, as_json: Json = False) -> None:
    """List your team; a cluster admin sees all.

    \b
    Example:
        cupilot team list
    """
    with connect(server, data) as client:
        teams = TeamList(items=list(client.all_teams()))
        _show(teams, "\n".join(_team_line(item) for item in teams.items), as_json=as_json)


@team.command("create")
def create_team(
    name: TeamName,
    weight: Annotated[float, typer.Option(help="Share of the cluster relative to other teams.")] = 1.0,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Make a team; for cluster admins.

    \b
    Example:
        cupilot team create compilers --weight 2
    """
    request = _made(TeamRequest, name=name, weight=weight)
    with connect(server, data) as client:
        made = client.make_team(request)
        _show(made, _team_line(made), as_json=as_json)


@team.command("set")
def set_team(
    name: TeamName,
    *,
    weight: Annotated[float | None, typer.Option(help="Share of the cluster relative to other teams.")] = None,
    running: Annotated[float | None, typer.Option(help="Jobs at work at once; -1 for no limit.")] = None,
    queued: Annotated[float | None, typer.Option(help="Jobs that wait to begin; -1 for no limit.")] = None,
    gpu_hours: Annotated[float | None, typer.Option(help="GPU hours a period; -1 for no limit.")] = None,
    model_usd: Annotated[float | None, typer.Option(help="US dollars for models a period; -1 for no limit.")] = None,
    period: Annotated[QuotaPeriod | None, typer.Option(help="What GPU hours and dollars are counted over.")] = None,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Change a team's weight or quota; what is not named stays. For cluster admins.

    \b
    Example:
        cupilot team set compilers --running 4 --gpu-hours 100 --period week
    """
    with connect(server, data) as client:
        quota = client.team(name).quota.model_dump()
        limits = {
            "max_running_jobs": running,
            "max_queued_jobs": queued,
            "gpu_seconds": gpu_hours if gpu_hours in (None, NO_LIMIT) else gpu_hours * 3600,
            "model_usd": model_usd,
        }
        changes = {field: value for field, value in limits.items() if value is not None}
        quota |= {field: None if value == NO_LIMIT else value for field, value in changes.items()}
        quota |= {"period": period} if period else {}
        changed = client.change_team(name, _made(TeamChange, weight=weight, quota=quota))
        _show(changed, _team_line(changed), as_json=as_json)


@team.command("members")
def members(name: TeamName, server: Server = None, data: Data = None, as_json: Json = False) -> None:
    """List who is in a team, and as what.

    \b
    Example:
        cupilot team members compilers
    """
    with connect(server, data) as client:
        listed = MemberList(items=list(client.all_members(name)))
        _show(listed, "\n".join(_member_line(item) for item in listed.items), as_json=as_json)


@team.command("add")
def add_member(
    name: TeamName,
    who: UserName,
    *,
    role: Annotated[Role, typer.Option(help="What they may do.")] = Role.MEMBER,
    service_account: Annotated[bool, typer.Option("--service-account", help="Make one of this name.")] = False,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Change a member's role, or make a service account. For the team's admins.

    A cluster admin may also add a user; admins of a team invite: cupilot team invite.

    \b
    Examples:
        cupilot team add compilers ann --role admin
        cupilot team add compilers nightly --service-account
    """
    with connect(server, data) as client:
        give = client.make_service_account if service_account else client.put_member
        added = give(name, who, role)
        _show(added, _member_line(added), as_json=as_json)


@team.command("invite")
def invite(
    name: TeamName,
    *,
    role: Annotated[Role, typer.Option(help="What whoever accepts it may do.")] = Role.MEMBER,
    days: Annotated[float, typer.Option(help="How long it can be accepted.")] = 7.0,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Make an invitation to a team, for one person. For the team's admins.

    \b
    Example:
        cupilot team invite compilers --role viewer
    """
    request = _made(InvitationRequest, role=role, expires_days=days)
    with connect(server, data) as client:
        made = client.invite(name, request)
        text = f"{made.secret}\nvalid until {made.expires_at:%Y-%m-%d}; to join: cupilot team join INVITATION"
        _show(made, text, as_json=as_json)


@team.command("join")
def join(
    invitation: Annotated[str, typer.Argument(metavar="INVITATION", help="What you were given: cpi_...")],
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Join the team that an invitation is for.

    \b
    Example:
        cupilot team join cpi_0123456789
    """
    with connect(server, data) as client:
        joined = client.accept_invitation(invitation)
        who = f"{clean(joined.user)} is {joined.role.value} of team {clean(joined.team)}"
        text = f"{who}; its admins can make a key for it"
        _show(joined, text, as_json=as_json)


@team.command("remove")
def remove_member(
    name: TeamName, who: UserName, server: Server = None, data: Data = None, as_json: Json = False
) -> None:
    """Take somebody out of a team. Their keys for it are accepted no more.

    \b
    Example:
        cupilot team remove compilers bob
    """
    with connect(server, data) as client:
        client.remove_member(name, who)
        typer.echo("{}" if as_json else f"{clean(who)} is not in team {clean(name)} any more")


@user.command("list")
def list_users(server: Server = None, data: Data = None, as_json: Json = False) -> None:
    """List users with their teams.

    \b
    Example:
        cupilot user list
    """
    with connect(server, data) as client:
        users = list(client.all_users())
        _show(UserPage(items=users), "\n".join(_user_line(person) for person in users), as_json=as_json)


@user.command("create")
def create_user(
    name: UserName,
    cluster_admin: Annotated[bool, typer.Option("--cluster-admin", help="May make teams and users.")] = False,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Make a user known.

    \b
    Example, with what has to follow:
        cupilot user create bob
        cupilot team add compilers bob
        cupilot key create laptop --user bob --team compilers
    """
    request = _made(UserRequest, name=name, cluster_admin=cluster_admin)
    with connect(server, data) as client:
        made = client.make_user(request)
        _show(made, _user_line(made), as_json=as_json)


@user.command("set")
def set_user(
    name: UserName,
    *,
    disabled: Annotated[
        bool | None, typer.Option("--disable/--enable", help="Disable or enable all keys of the user.")
    ] = None,
    cluster_admin: Annotated[
        bool | None,
        typer.Option("--cluster-admin/--no-cluster-admin", help="Give or take the right to make teams and users."),
    ] = None,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Disable or enable a user, or make them a cluster admin.

    \b
    Examples:
        cupilot user set bob --disable
        cupilot user set ann --cluster-admin
    """
    with connect(server, data) as client:
        changed = client.change_user(name, UserChange(disabled=disabled, cluster_admin=cluster_admin))
        _show(changed, _user_line(changed), as_json=as_json)


@key.command("list")
def list_keys(
    *,
    of_team: Annotated[str | None, typer.Option("--team", help="Of which team; for cluster admins.")] = None,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """List your keys; an admin sees all of the team's.

    \b
    Example:
        cupilot key list
    """
    with connect(server, data) as client:
        keys = KeyList(items=list(client.all_keys(team=of_team)))
        _show(keys, "\n".join(_key_line(item) for item in keys.items), as_json=as_json)


@key.command("create")
def create_key(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the key is for.")],
    *,
    scope: Annotated[Scope, typer.Option(help="What it may be used for.")] = Scope.SUBMIT,
    days: Annotated[
        float | None, typer.Option(help="Until it expires, 0 for never; 90, or as long as your key, if left out.")
    ] = None,
    who: Annotated[str | None, typer.Option("--user", help="Whose; for a team's admins.")] = None,
    for_team: Annotated[str | None, typer.Option("--team", help="For which team; for cluster admins.")] = None,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Make a key and print its secret, which is shown this once. It lives no longer than the key that makes it.

    \b
    Examples:
        cupilot key create laptop
        cupilot key create nightly --user nightly --days 365
    """
    lives = {} if days is None else {"expires_days": days or None}
    request = _made(KeyRequest, name=name, scope=scope, user=who, team=for_team, **lives)
    with connect(server, data) as client:
        made = client.make_key(request)
        _show(made, made.secret, as_json=as_json)


@key.command("revoke")
def revoke_key(
    reference: Annotated[str, typer.Argument(metavar="KEY", help="Its id, or its start: cpk_12345678.")],
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Refuse a key from now on.

    \b
    Example:
        cupilot key revoke cpk_12345678
    """
    with connect(server, data) as client:
        revoked = client.revoke_key(reference)
        _show(revoked, _key_line(revoked), as_json=as_json)


def _made(kind: type[Model], **fields: object) -> Model:
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidInput(f"{'.'.join(map(str, first['loc']))}: {first['msg']}", where="options") from error


def _show(view: BaseModel, text: str, *, as_json: bool) -> None:
    typer.echo(view.model_dump_json(indent=2) if as_json else text)


def _team_line(view: TeamView) -> str:
    quota, period = view.quota, view.quota.period.value
    limits = (
        (quota.max_running_jobs, "{:g} running at once"),
        (quota.max_queued_jobs, "{:g} queued"),
        (quota.gpu_seconds and quota.gpu_seconds / 3600, f"{{:g}} GPU hours a {period}"),
        (quota.model_usd, f"{{:g}} USD for models a {period}"),
    )
    limit_text = ", ".join(words.format(value) for value, words in limits if value is not None) or "no limits"
    people = f"{view.members} member{'' if view.members == 1 else 's'}"
    return f"{clean(view.name)}  weight {view.weight:g}, {people}, {limit_text}"


def _member_line(view: MemberView) -> str:
    marks = [word for word, true in (("service account", view.service_account), ("disabled", view.disabled)) if true]
    return f"{clean(view.name)}  {view.role.value}{''.join(f', {word}' for word in marks)}"


def _user_line(view: UserView) -> str:
    marks = [word for word, true in (("cluster admin", view.cluster_admin), ("disabled", view.disabled)) if true]
    teams = [f"{clean(name)} ({role.value})" for name, role in view.teams.items()]
    return f"{clean(view.name)}  {', '.join([*marks, *teams]) or 'in no team'}"


def _key_line(view: KeyView) -> str:
    ends = (
        f"revoked {view.revoked_at:%Y-%m-%d}"
        if view.revoked_at
        else (f"until {view.expires_at:%Y-%m-%d}" if view.expires_at else "does not expire")
    )
    used = f"used {view.last_used_at:%Y-%m-%d %H:%M}" if view.last_used_at else "never used"
    return f"{view.prefix}  {clean(view.name)}  {clean(view.user)}, {view.scope.value}, {ends}, {used}"
